// A training step of the loss over several boxes, CPU engine: each box posts its devices' embeddings first, scores its
// own blocks while they fly, then its rows against what has arrived, box after box in ring order, so that results do not
// depend on who is fast. The softmax losses send their log-sums the same way. Loss, dt and db follow as one small message a box,
// and are awaited only when somebody asks for them, or two steps later.
#pragma once
#include <exception>

#include "scaling_contrasts/rails/transport.hpp"
#include "scaling_contrasts/step.hpp"

namespace scaling_contrasts::rails {

class boxes_step_t {
  public:
    /// Collective. `problem` is of all boxes; `sets[i * sets_of(loss) + set]` of this box's device i, and must outlive
    /// the step. Throws what step_t throws, and failure_t for a lost box.
    boxes_step_t(mesh_t& mesh, options_t const& options, problem_t const& problem, std::vector<set_t> const& sets,
                 int threads, std::string const& engine)
        : mesh_(mesh),
          problem_(problem),
          own_(devices_of(mesh.box(), mesh.boxes(), problem.world_size)),
          overlap_(options.overlap),
          labelled_(sets_of(problem.loss) == 1 && sets[0].labels != nullptr),
          statistics_(is_softmax(problem.loss)) {
        static std::uint32_t epoch = 0;
        rails_ = make_rails(mesh, make_plan(sets), options, ++epoch);
        step_ = std::make_unique<step_t>(problem, all_sets(sets), threads, engine, own_);
    }
    ~boxes_step_t() {
        if (std::uncaught_exceptions() > 0) return;  // this box ends early: the others must not be waited for
        try {                                        // what was posted last is still on its way
            scalars();
            mesh_.exchange("", "waited to close its rails");
        } catch (std::exception const&) {
            // recorded in the monitor; whoever waits next hears of it
        }
    }
    boxes_step_t(boxes_step_t const&) = delete;
    boxes_step_t& operator=(boxes_step_t const&) = delete;

    std::string engine() const { return step_->engine(); }
    std::uint64_t steps() const { return round_; }
    rails_t const& rails() const { return *rails_; }
    std::size_t embedding_bytes() const { return set_bytes() * static_cast<std::size_t>(sets_of(problem_.loss)); }

    /// Forward and backward. The embeddings must not change before `scalars()` has returned.
    void run();
    /// Loss, dt and db of the last step over all boxes, the same bits on each. Waits for the other boxes.
    scalars_t scalars() { return round_ == 0 ? scalars_t{} : sum_of_boxes(*rails_, mesh_, round_); }

  private:
    std::size_t set_bytes() const { return static_cast<std::size_t>(problem_.rows * problem_.dims) * sizeof(bf16_t); }
    /// As step_t::statistics_size(): two arrays of two sets, or four of one.
    std::size_t statistics_bytes() const {
        return 4 * problem_.prefixes.size() * static_cast<std::size_t>(problem_.rows) * sizeof(float);
    }
    std::byte* allocate(std::size_t bytes) {
        buffers_.emplace_back(bytes);
        return buffers_.back().data();
    }
    template <class value_t>
    value_t* source(int rail, kind_t kind) {
        return reinterpret_cast<value_t*>(rails_->plan().lane(rail, kind).sources[round_ % 2][0].data);
    }
    plan_t make_plan(std::vector<set_t> const& sets);
    std::vector<set_t> all_sets(std::vector<set_t> const& own);

    template <class visit_t>
    void for_own(visit_t&& visit) {
        for (int device = own_.first; device < own_.first + own_.count; ++device) visit(device);
    }
    /// The other boxes, nearest number first.
    template <class visit_t>
    void for_others(visit_t&& visit) {
        for (int shift = 1; shift < mesh_.boxes(); ++shift) visit((mesh_.box() + shift) % mesh_.boxes());
    }
    template <class visit_t>
    void for_own_blocks(visit_t&& visit) {
        for (int shift = 0; shift < own_.count; ++shift)
            for_own([&](int device) { visit(device, own_.first + (device - own_.first + shift) % own_.count); });
    }
    void post(kind_t kind) {
        for (int rail = 0; rail < own_.count; ++rail) rails_->post(rail, kind, round_);
    }
    template <class visit_t>
    void for_arrivals(kind_t awaited, visit_t&& visit);

    mesh_t& mesh_;
    problem_t problem_;
    devices_t own_;
    bool overlap_, labelled_, statistics_;
    std::vector<buffer_t<std::byte>> buffers_;
    std::unique_ptr<rails_t> rails_;
    std::unique_ptr<step_t> step_;
    std::uint64_t round_ = 0;
};

inline plan_t boxes_step_t::make_plan(std::vector<set_t> const& sets) {
    auto const set_count = static_cast<std::size_t>(sets_of(problem_.loss));
    auto const rows = static_cast<std::size_t>(problem_.rows);
    plan_t plan;
    plan.lanes.resize(static_cast<std::size_t>(own_.count));
    for (std::size_t rail = 0; rail < plan.lanes.size(); ++rail) {
        set_t const* const from = &sets[rail * set_count];
        auto add = [&](kind_t kind, std::vector<piece_t> const& pieces) {  // pieces of null are set aside here
            lane_t& lane = plan.lanes[rail][static_cast<std::size_t>(kind)];
            for (auto const& piece : pieces) {
                lane.bytes += piece.size;
                for (auto& source : lane.sources)
                    source.push_back({piece.data ? piece.data : allocate(piece.size), piece.size});
            }
            lane.landings.resize(static_cast<std::size_t>(mesh_.boxes()));
            for_others([&](int box) {
                lane.landings[static_cast<std::size_t>(box)] = {allocate(lane.bytes), allocate(lane.bytes)};
            });
        };
        std::vector<piece_t> embeddings;
        for (std::size_t set = 0; set < set_count; ++set)
            embeddings.push_back(
                {reinterpret_cast<std::byte*>(const_cast<bf16_t*>(from[set].embeddings)), set_bytes()});
        add(kind_t::embeddings_k, embeddings);
        if (labelled_)
            add(kind_t::labels_k, {{reinterpret_cast<std::byte*>(const_cast<std::int32_t*>(from->labels)), rows * 4}});
        if (statistics_) add(kind_t::statistics_k, {{nullptr, statistics_bytes()}});
        if (rail == 0) add(kind_t::scalars_k, {{nullptr, sizeof(scalars_t)}});
    }
    return plan;
}

/// The sets of all devices: this box's, and of the others what a step must know before anything arrives: their labels.
inline std::vector<set_t> boxes_step_t::all_sets(std::vector<set_t> const& own) {
    auto const set_count = static_cast<std::size_t>(sets_of(problem_.loss));
    std::vector<set_t> out(static_cast<std::size_t>(problem_.world_size) * set_count);
    std::copy(own.begin(), own.end(), out.begin() + static_cast<std::ptrdiff_t>(own_.first) * sets_of(problem_.loss));
    if (!labelled_) return out;
    for (int rail = 0; rail < own_.count; ++rail) rails_->post(rail, kind_t::labels_k, 1);
    for_others([&](int box) {
        for (int rail = 0; rail < own_.count; ++rail)
            out[static_cast<std::size_t>(box * own_.count + rail)].labels =
                reinterpret_cast<std::int32_t const*>(rails_->wait(box, rail, kind_t::labels_k, 1));
    });
    return out;
}

/// Visits this box's devices against each device of the other boxes; the first pass takes the embeddings in.
template <class visit_t>
void boxes_step_t::for_arrivals(kind_t awaited, visit_t&& visit) {
    for_others([&](int box) {
        for (int rail = 0; rail < own_.count; ++rail) {
            std::byte const* const landing = rails_->wait(box, rail, awaited, round_);
            int const peer = box * own_.count + rail;
            if (awaited == kind_t::embeddings_k) {
                auto const* const first = reinterpret_cast<bf16_t const*>(landing);
                std::array<bf16_t const*, 2> const sets = {first, first + problem_.rows * problem_.dims};
                step_->arrive(peer, sets);
            } else {
                step_->read_statistics(peer, reinterpret_cast<float const*>(landing));
            }
            for_own([&](int device) { visit(device, peer); });
        }
    });
}

inline void boxes_step_t::run() {
    if (round_ >= 2) sum_of_boxes(*rails_, mesh_, round_ - 1);  // their landing and source are used again by this step
    ++round_;
    post(kind_t::embeddings_k);
    if (!overlap_)
        for_others([&](int box) {
            for (int rail = 0; rail < own_.count; ++rail) rails_->wait(box, rail, kind_t::embeddings_k, round_);
        });
    for_own([&](int device) { step_->begin(device); });
    auto const score = [&](int device, int peer) { step_->score(device, peer); };
    if (statistics_) {
        auto const gather = [&](int device, int peer) { step_->gather(device, peer); };
        for_own_blocks(gather);
        for_arrivals(kind_t::embeddings_k, gather);
        for_own([&](int device) { step_->close_gather(device); });
        if (problem_.loss == loss_t::one_set_info_nce_k)
            for_own([&](int device) {
                for (int shift = 0; shift < problem_.world_size; ++shift)
                    step_->gather_positives(device, (device + shift) % problem_.world_size);
                step_->close_positives(device);
            });
        for_own([&](int device) {
            step_->write_statistics(device, source<float>(device - own_.first, kind_t::statistics_k));
        });
        post(kind_t::statistics_k);
        if (!problem_.forward_only ||
            problem_.loss != loss_t::info_nce_k) {  // info_nce's loss follows from its log-sums
            for_own_blocks(score);
            for_arrivals(kind_t::statistics_k, score);
        }
    } else {
        for_own_blocks(score);
        for_arrivals(kind_t::embeddings_k, score);
    }
    for_own([&](int device) { step_->finish(device); });
    *source<scalars_t>(0, kind_t::scalars_k) = step_->all_reduce();
    rails_->post(0, kind_t::scalars_k, round_);
}

}  // namespace scaling_contrasts::rails
