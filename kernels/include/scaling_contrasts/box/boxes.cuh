// The GPUs of one box in a step over several (rails/step.hpp). Each GPU's embeddings go to its counterpart on every
// other box, and what comes from there lands on it; its neighbours read it over NVLink. How they travel:
//   staged   over TCP, or where an RDMA device cannot reach the GPU: copied to pinned memory of the host and back, on two streams of
//            the GPU's own, with events that the driving thread looks at and never waits for
//   directly over verbs, where the GPU's memory can be registered: from and to the GPU's memory itself
// Labels, log-sums and scalars are small and always staged. Staged, two boxes of one H200 each have run (docs/rails.md);
// directly, and with several GPUs a box, it compiles, never run on hardware.
//
// Nothing of a step is overwritten too early: both streams follow the start of a step, where all devices of the box are
// done with the last one, and a box sends step k + 1 only once it has step k of all others (rails.hpp says why that is
// enough).
#pragma once
#include "scaling_contrasts/box/box.cuh"
#include "scaling_contrasts/box/gpu_memory.cuh"
#include "scaling_contrasts/gpu/host_memory.cuh"
#include "scaling_contrasts/rails/local_box.hpp"

namespace scaling_contrasts::gpu {

class boxes_t final : public rails::local_box_t, public elsewhere_t {
  public:
    /// `box` drives the devices `own` of the problem, `ledgers[i]` counts the memory of the i-th; both outlive this.
    /// `travel`: option gpu_memory, `auto`, `direct` or `host`.
    boxes_t(problem_t const& problem, box_t& box, devices_t own, std::vector<ledger_t>& ledgers, std::string travel)
        : problem_(problem), box_(box), own_(own), ledgers_(ledgers), travel_(std::move(travel)) {
        for (int device = 0; device < problem.world_size; ++device)
            most_log_sums_ = std::max(most_log_sums_, step(0).log_sum_count(device));
        box.look_elsewhere(*this);
    }

    std::vector<std::string> gpus() const override {
        std::vector<std::string> out;
        for (int rail = 0; rail < own_.count; ++rail) {
            char id[32] = "";
            check(cudaDeviceGetPCIBusId(id, sizeof id, ordinal(rail)), "asking for a GPU's PCI address");
            out.emplace_back(id);
        }
        return out;
    }

    rails::plan_t plan(int boxes, int box, bool verbs) override {
        std::vector<int> ordinals;
        for (int rail = 0; rail < own_.count; ++rail) ordinals.push_back(ordinal(rail));
        how_ = choose_gpu_memory(ordinals, travel_, verbs);
        rails::plan_t plan;
        if (verbs) plan.gpus = gpus();
        if (how_.direct) plan.export_dmabuf = dmabuf_exporter(ordinals);
        for (int rail = 0; rail < own_.count; ++rail) {
            use_device(ordinal(rail));
            auto& mine = *rails_.emplace_back(std::make_unique<rail_t>());
            mine.elsewhere.resize(static_cast<std::size_t>(boxes));
            for (int other = 0; other < boxes; ++other)
                if (other != box) mine.elsewhere[static_cast<std::size_t>(other)] = set_aside(rail);
            auto& lanes = plan.lanes.emplace_back();
            auto add = [&](rails::kind_t kind, std::vector<rails::piece_t> const& pieces, bool on_gpu) {
                auto const& lane = lanes[static_cast<std::size_t>(kind)] = rails::make_lane(
                    pieces, boxes, box, [&](std::size_t bytes) { return allocate(rail, bytes, on_gpu); });
                if (!on_gpu) return;
                for (auto const& piece : lane.sources[0]) plan.gpu_memory.push_back(piece);
                for (auto const& landings : lane.landings)
                    for (auto* const landing : landings)
                        if (landing) plan.gpu_memory.push_back({landing, lane.bytes});
            };
            std::vector<rails::piece_t> embeddings;
            for (auto const& set : sets(rail))
                embeddings.push_back({how_.direct ? bytes_of(set.embeddings) : nullptr, set_bytes()});
            add(rails::kind_t::embeddings_k, embeddings, how_.direct);
            if (labelled()) add(rails::kind_t::labels_k, {{nullptr, rows() * 4}}, false);
            if (most_log_sums_)
                add(rails::kind_t::statistics_k, {{nullptr, sets(rail).size() * log_sum_bytes(most_log_sums_)}}, false);
            if (rail == 0) add(rails::kind_t::scalars_k, {{nullptr, sizeof(scalars_t)}}, false);
        }
        use_device(ordinal(0));
        return plan;
    }

    void start() override {
        box_.start();
        for_rails([&](int rail, rail_t& at) {
            at.started.record(box_.stream(rail));
            at.started.wait(at.out);
            at.started.wait(at.in);
        });
    }
    void begin() override { box_.begin(); }
    void own_blocks(pass_t pass) override { box_.own_blocks(pass); }
    void blocks_of(int box, pass_t pass) override { box_.blocks_of(box, pass); }
    void close(pass_t pass) override { box_.close(pass); }
    /// What is queued behind the step on a device's stream may overwrite embeddings that were staged.
    void finish() override {
        if (!how_.direct) for_rails([&](int rail, rail_t& at) { at.embeddings_read.wait(box_.stream(rail)); });
        box_.finish();
    }

    void stage(int rail, rails::kind_t kind, std::uint64_t round, std::vector<rails::piece_t> const& source) override {
        use_device(ordinal(rail));
        auto& at = *rails_[static_cast<std::size_t>(rail)];
        if (kind == rails::kind_t::statistics_k || kind == rails::kind_t::scalars_k) {
            at.made.record(box_.stream(rail));
            at.made.wait(at.out);
        }
        auto const& device = box_.device(rail);
        for (std::size_t set = 0; set < device.sets.size(); ++set) {
            if (kind == rails::kind_t::embeddings_k && !how_.direct)
                copy(source[set].data, device.sets[set].embeddings, set_bytes(), at.out);
            if (kind == rails::kind_t::statistics_k)
                copy(source[0].data + set * log_sum_bytes(most_log_sums_), step(rail).log_sums(static_cast<int>(set)),
                     log_sum_bytes(step(rail).log_sum_count(own_.first + rail)), at.out);
        }
        if (kind == rails::kind_t::labels_k) copy(source[0].data, device.sets[0].labels, rows() * 4, at.out);
        if (kind == rails::kind_t::scalars_k) copy(source[0].data, device.total, sizeof(scalars_t), at.out);
        at.staged[static_cast<std::size_t>(kind)][round % 2].record(at.out);
        if (kind == rails::kind_t::embeddings_k) at.embeddings_read.record(at.out);
        use_device(ordinal(0));
    }
    bool staged(int rail, rails::kind_t kind, std::uint64_t round) override {
        return rails_[static_cast<std::size_t>(rail)]->staged[static_cast<std::size_t>(kind)][round % 2].done();
    }

    void take(int peer, rails::kind_t kind, std::byte const* landing) override {
        int const rail = peer % own_.count;
        use_device(ordinal(rail));
        auto& at = *rails_[static_cast<std::size_t>(rail)];
        auto& to = *at.elsewhere[static_cast<std::size_t>(peer / own_.count)];
        if (kind == rails::kind_t::labels_k) {
            copy(to.labels.data(), landing, rows() * 4, at.in);
            check(cudaStreamSynchronize(at.in), "taking in labels");
        }
        for (std::size_t set = 0; set < sets(rail).size(); ++set) {
            if (kind == rails::kind_t::embeddings_k && how_.direct)
                to.rows[set] = reinterpret_cast<bf16_t const*>(landing + set * set_bytes());
            if (kind == rails::kind_t::embeddings_k && !how_.direct)
                copy(to.embeddings[set].data(), landing + set * set_bytes(), set_bytes(), at.in);
            if (kind == rails::kind_t::statistics_k)
                copy(to.log_sums[set].data(), landing + set * log_sum_bytes(most_log_sums_),
                     log_sum_bytes(step(rail).log_sum_count(peer)), at.in);
        }
        if (kind == rails::kind_t::embeddings_k && how_.direct) flush_rdma_writes(how_.flush);
        if (kind == rails::kind_t::embeddings_k) to.rows_landed.record(at.in);
        if (kind == rails::kind_t::statistics_k) to.log_sums_landed.record(at.in);
        use_device(ordinal(0));
    }

    candidates_t rows_of(int device) override {
        auto const& from = at(device);
        candidates_t block;
        block.device = device;
        block.labels = from.labels.data();
        for (std::size_t set = 0; set < sets(0).size(); ++set) {
            block.embeddings[set] = from.rows[set];
            block.log_sums[set] = from.log_sums[set].data();
        }
        return block;
    }
    void wait_for_rows(int device, cudaStream_t stream) override { at(device).rows_landed.wait(stream); }
    void wait_for_log_sums(int device, cudaStream_t stream) override { at(device).log_sums_landed.wait(stream); }

    /// Whether embeddings pass through the host, for a record.
    std::string note() const { return how_.direct ? "GPU memory registered" : "staged through the host"; }

  private:
    /// What a rail's GPU holds of its counterpart on another box.
    struct elsewhere_rows_t {
        buffer_t<bf16_t> embeddings[2];
        buffer_t<std::int32_t> labels;
        buffer_t<float> log_sums[2];
        bf16_t const* rows[2] = {};
        event_t rows_landed, log_sums_landed;
    };
    struct rail_t {
        stream_t out, in;
        event_t started, made, embeddings_read;
        std::array<std::array<event_t, 2>, rails::kinds_k> staged;
        std::vector<std::unique_ptr<pinned_t<std::byte>>> host;
        std::vector<buffer_t<std::byte>> landings;                 // where rows travel directly
        std::vector<std::unique_ptr<elsewhere_rows_t>> elsewhere;  // by box
    };

    device_step_t& step(int rail) const { return *box_.device(rail).step; }
    int ordinal(int rail) const { return box_.device(rail).ordinal; }
    std::vector<set_t> const& sets(int rail) const { return box_.device(rail).sets; }
    bool labelled() const { return sets_of(problem_.loss) == 1 && sets(0)[0].labels; }
    std::size_t rows() const { return static_cast<std::size_t>(problem_.rows); }
    std::size_t set_bytes() const { return rows() * static_cast<std::size_t>(problem_.dims) * sizeof(bf16_t); }
    static std::size_t log_sum_bytes(std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); }
    static std::byte* bytes_of(bf16_t const* data) { return reinterpret_cast<std::byte*>(const_cast<bf16_t*>(data)); }
    static void copy(void* to, void const* from, std::size_t bytes, cudaStream_t stream) {
        if (bytes) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "copying for the rails");
    }
    elsewhere_rows_t& at(int device) {
        auto& rail = *rails_[static_cast<std::size_t>(device % own_.count)];
        return *rail.elsewhere[static_cast<std::size_t>(device / own_.count)];
    }
    template <class visit_t>
    void for_rails(visit_t&& visit) {
        for (int rail = 0; rail < own_.count; ++rail) {
            use_device(ordinal(rail));
            visit(rail, *rails_[static_cast<std::size_t>(rail)]);
        }
        use_device(ordinal(0));
    }

    std::unique_ptr<elsewhere_rows_t> set_aside(int rail) {
        auto to = std::make_unique<elsewhere_rows_t>();
        auto& ledger = ledgers_[static_cast<std::size_t>(rail)];
        for (std::size_t set = 0; set < sets(rail).size(); ++set) {
            if (!how_.direct) to->embeddings[set] = buffer_t<bf16_t>(ledger, problem_.rows * problem_.dims);
            to->rows[set] = to->embeddings[set].data();
            to->log_sums[set] = buffer_t<float>(ledger, most_log_sums_);
        }
        if (labelled()) to->labels = buffer_t<std::int32_t>(ledger, problem_.rows);
        return to;
    }
    std::byte* allocate(int rail, std::size_t bytes, bool on_gpu) {
        auto& at = *rails_[static_cast<std::size_t>(rail)];
        auto const count = static_cast<std::int64_t>(bytes);
        if (on_gpu) return at.landings.emplace_back(ledgers_[static_cast<std::size_t>(rail)], count).data();
        return at.host.emplace_back(std::make_unique<pinned_t<std::byte>>(count, 1))->data();
    }

    problem_t problem_;
    box_t& box_;
    devices_t own_;
    std::vector<ledger_t>& ledgers_;
    std::string travel_;
    gpu_memory_t how_;
    std::int64_t most_log_sums_ = 0;
    std::vector<std::unique_ptr<rail_t>> rails_;
};

}  // namespace scaling_contrasts::gpu
