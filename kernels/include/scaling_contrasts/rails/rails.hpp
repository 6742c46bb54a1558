// The rails between boxes: one interface, two transports (tcp.hpp, verbs.hpp). Rail i joins device i of every box. Each
// step a device's message of a kind travels to its counterpart on every other box, into memory that the counterpart set
// aside: two landings a message, by the parity of the step, so that step k + 1 may arrive while k is still read.
//
// Why two are enough: a box posts step k + 1 after it has finished step k, for which it needed step k of every other
// box, which that box posted after it had finished step k - 1, and the landing of k + 1 is that of k - 1.
#pragma once
#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "scaling_contrasts/rails/mesh.hpp"

namespace scaling_contrasts::rails {

enum class kind_t : std::uint32_t { labels_k, embeddings_k, statistics_k, scalars_k };
inline constexpr int kinds_k = 4;

constexpr char const* name_of(kind_t kind) {
    switch (kind) {
    case kind_t::labels_k: return "labels";
    case kind_t::embeddings_k: return "embeddings";
    case kind_t::statistics_k: return "log-sums";
    case kind_t::scalars_k: return "loss";
    }
    return "?";
}

/// Memory of this process, or, where it says so, of a GPU.
struct piece_t {
    std::byte* data = nullptr;
    std::size_t size = 0;
};

/// Where one device's messages of one kind come from and where its counterparts' land. Sizes are the same on all boxes.
struct lane_t {
    std::size_t bytes = 0;                            ///< of a message; 0: this kind does not travel
    std::array<std::vector<piece_t>, 2> sources;      ///< by parity; together `bytes`
    std::vector<std::array<std::byte*, 2>> landings;  ///< by box and parity; of this box unused
};

/// What a transport is asked to carry: `lanes[rail][kind]`.
struct plan_t {
    std::vector<std::array<lane_t, kinds_k>> lanes;
    std::vector<std::string> gpus;  ///< PCI bus id of each rail's GPU; none: all memory is the host's
    std::vector<piece_t> gpu_memory;
    /// A dma-buf descriptor of whole pages of a GPU's memory, or -1; empty: its driver has none.
    std::function<int(std::uint64_t address, std::uint64_t size)> export_dmabuf;

    int rails() const { return static_cast<int>(lanes.size()); }
    std::string gpu(int rail) const { return gpus.empty() ? "" : gpus[static_cast<std::size_t>(rail)]; }
    bool is_on_gpu(std::byte const* data) const {
        for (auto const& piece : gpu_memory)
            if (data >= piece.data && data < piece.data + piece.size) return true;
        return false;
    }
    lane_t const& lane(int rail, kind_t kind) const {
        return lanes[static_cast<std::size_t>(rail)][static_cast<std::size_t>(kind)];
    }
};

struct traffic_t {
    std::uint64_t bytes_sent = 0, bytes_received = 0;  ///< payload and headers of ours; not those of IP
    std::uint64_t messages_sent = 0, messages_received = 0;
};

class rails_t {
  public:
    rails_t(mesh_t& mesh, plan_t plan)
        : mesh_(mesh),
          plan_(std::move(plan)),
          arrivals_(static_cast<std::size_t>(mesh.boxes() * plan_.rails() * kinds_k)) {}
    virtual ~rails_t() = default;
    rails_t(rails_t const&) = delete;
    rails_t& operator=(rails_t const&) = delete;

    plan_t const& plan() const { return plan_; }
    virtual char const* transport() const = 0;
    /// Queues the rail's message of this step (1, 2, ... one after the other) to all counterparts, and returns at once.
    /// The source must stay as it is until every counterpart is known to have it.
    virtual void post(int rail, kind_t kind, std::uint64_t step) = 0;
    virtual traffic_t traffic() const = 0;

    bool arrived(int box, int rail, kind_t kind, std::uint64_t step) const {
        return arrivals_[at(box, rail, kind)].load(std::memory_order_acquire) >= step;
    }
    /// Where the counterpart's message of that step lies once it has arrived.
    std::byte const* landing(int box, int rail, kind_t kind, std::uint64_t step) const {
        return plan_.lane(rail, kind).landings[static_cast<std::size_t>(box)][step % 2];
    }
    /// Returns when that message has arrived, or when `or_else()` holds. Throws failure_t that names the box.
    template <class or_else_t>
    void wait(int box, int rail, kind_t kind, std::uint64_t step, or_else_t&& or_else) {
        double const seconds = mesh_.wait_seconds();
        mesh_.monitor().wait(
            in_seconds(seconds), [&] { return arrived(box, rail, kind, step) || or_else(); },
            [&] { return phase_of(kind, step); },
            [&] {
                std::ostringstream text;
                text << mesh_.name(box) << ": silent for " << seconds << " s, while this box " << phase_of(kind, step);
                return text.str();
            });
    }
    static std::string phase_of(kind_t kind, std::uint64_t step) {
        return std::string("waited for its ") + name_of(kind) + " of step " + std::to_string(step);
    }

  protected:
    /// For transports: the message of that step lies whole in its landing.
    void arrive(int box, int rail, kind_t kind, std::uint64_t step) {
        arrivals_[at(box, rail, kind)].store(step, std::memory_order_release);
        mesh_.monitor().notify();
    }

    mesh_t& mesh_;
    plan_t const plan_;

  private:
    std::size_t at(int box, int rail, kind_t kind) const {
        return static_cast<std::size_t>((box * plan_.rails() + rail) * kinds_k + static_cast<int>(kind));
    }

    std::vector<std::atomic<std::uint64_t>> arrivals_;
};

/// Loss, dt and db of a step over all boxes: each box's part from its first rail, added in the boxes' order, so that
/// every box gets the same bits. The parts have arrived.
inline scalars_t sum_of_boxes(rails_t const& rails, mesh_t const& mesh, std::uint64_t step) {
    scalars_t sum;
    for (int box = 0; box < mesh.boxes(); ++box) {
        auto const* const part = reinterpret_cast<scalars_t const*>(
            box == mesh.box() ? rails.plan().lane(0, kind_t::scalars_k).sources[step % 2][0].data
                              : rails.landing(box, 0, kind_t::scalars_k, step));
        sum.loss += part->loss;
        sum.scale_gradient += part->scale_gradient;
        sum.bias_gradient += part->bias_gradient;
    }
    return sum;
}

}  // namespace scaling_contrasts::rails
