// The box: one host thread drives all GPUs and waits for none. Each GPU scores its rows against its own block, then walks its
// peers: GPU g takes g + 1, g + 2, ..., so that no two fetch from one peer at a time. The next block is fetched while the current
// one is scored, into two buffers that all peers share. Embedding gradients stay where their rows are; three scalars are summed.
//
// With problem.pairs_once a block of two devices is scored by one of them (pairs.hpp), into symmetric memory, from where the other
// adds its part of the gradients to its own, round by round: always in the same order.
//
// Devices meet at the start of a step (embeddings are ready), in softmax losses between the passes, in a round of pairs before and
// after the gradients change hands, and in the sum of the scalars.
// How they meet is one of two:
//   flags   kernels wait on flags in each other's memory (domain.cuh): the GPUs' work is independent for the host, one graph each
//   events  streams wait for each other's events: nothing spins, one graph for all; also what virtual devices of one GPU use
#pragma once
#include <memory>
#include <vector>

#include "scaling_contrasts/box/staging.cuh"
#include "scaling_contrasts/domain/domain.cuh"
#include "scaling_contrasts/gpu/graph.cuh"

namespace scaling_contrasts::gpu {

enum class meeting_t { flags_k, events_k };

/// Peer access of every GPU to every other one. Throws failure_t unsupported_k where the machine has none.
inline void open_peers(std::vector<int> const& ordinals) {
    for (int const from : ordinals)
        for (int const to : ordinals) {
            if (from == to) continue;
            int can = 0;
            check(cudaDeviceCanAccessPeer(&can, from, to), "asking for peer access");
            if (!can)
                throw failure_t(status_t::unsupported_k,
                                "GPU " + std::to_string(from) + " cannot read the memory of GPU " + std::to_string(to));
            use_device(from);
            auto const error = cudaDeviceEnablePeerAccess(to, 0);
            if (error == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
            else check(error, "opening peer access");
        }
}

class box_t {
  public:
    /// What one device brings. Everything lies on its GPU.
    struct device_t {
        int ordinal = 0;          ///< its GPU; virtual devices share one
        std::vector<set_t> sets;  ///< one or two
        double* part = nullptr;   ///< [3], where its engine's finish writes
        double* total = nullptr;  ///< [3], gets the sum over devices; may be `part`
        ledger_t* ledger = nullptr;
        std::unique_ptr<device_step_t> step;
    };

    /// `domain` outlives the box; may be null for one device.
    box_t(problem_t const& problem, std::vector<device_t> devices, domain::domain_t const* domain, meeting_t meeting)
        : problem_(problem), domain_(domain), meeting_(meeting) {
        std::int64_t log_sums = 0;
        for (std::size_t i = 0; i < devices.size(); ++i)
            log_sums = std::max(log_sums, devices[i].step->log_sum_count(static_cast<int>(i)));
        for (auto& given : devices) {
            use_device(given.ordinal);
            auto& lane = *lanes_.emplace_back(std::make_unique<lane_t>());
            lane.device = std::move(given);
            group_ = lane.device.step->takes_groups() ? candidate_rows(problem_) / problem_.rows : 1;
            if (devices.size() > 1)
                lane.staging =
                    std::make_unique<staging_t>(problem_, group_ * problem_.rows, log_sums, *lane.device.ledger);
        }
        use_device(lanes_[0]->device.ordinal);
    }
    ~box_t() { synchronize_quietly(); }

    int devices() const { return static_cast<int>(lanes_.size()); }
    meeting_t meeting() const { return devices() == 1 ? meeting_t::events_k : meeting_; }
    std::int64_t launches() const {
        return lanes_[0]->device.step->launches() * devices() * (meeting() == meeting_t::events_k ? devices() : 1);
    }
    cudaStream_t stream(int device) const { return lanes_[static_cast<std::size_t>(device)]->main; }

    /// Queues a step as events order it, after what is in device 0's stream, which ends with it.
    void queue_by_events() {
        fork_.on(*this);
        for (int phase = 0; phase < phases(); ++phase) {
            for (int d = 0; d < devices(); ++d) queue_phase(d, phase, domain::half_t::write_k);
            if (devices() > 1) meet_by_events();
        }
        if (devices() > 1) {
            for (int d = 0; d < devices(); ++d) add_scalars(d, domain::half_t::add_k);
            for (int d = 1; d < devices(); ++d) {
                use_device(ordinal(d));
                lane(d).done.record(stream(d));
            }
            use_device(ordinal(0));
            for (int d = 1; d < devices(); ++d) lane(d).done.wait(stream(0));
        }
        use_device(ordinal(0));
    }

    /// Queues one device's share of a step, which meets the others' by flags.
    void queue_by_flags(int device) {
        use_device(ordinal(device));
        domain_->meet(device, domain::phase_t::embeddings_k, stream(device));
        for (int phase = 0; phase < phases(); ++phase) {
            if (phase) domain_->meet(device, meeting_before(phase), stream(device));
            queue_phase(device, phase, domain::half_t::both_k);
        }
        use_device(ordinal(0));
    }

    void queue() {
        if (meeting() == meeting_t::events_k) return queue_by_events();
        for (int d = 0; d < devices(); ++d) queue_by_flags(d);
    }
    void capture() {
        if (meeting() == meeting_t::events_k) return lane(0).graph.capture(stream(0), [this] { queue_by_events(); });
        for (int d = 0; d < devices(); ++d) {
            use_device(ordinal(d));
            lane(d).graph.capture(stream(d), [this, d] {
                queue_by_flags(d);
                use_device(ordinal(d));
            });
        }
        use_device(ordinal(0));
    }
    bool captured() const { return lanes_[0]->graph.captured(); }
    void replay() {
        int const graphs = meeting() == meeting_t::events_k ? 1 : devices();
        for (int d = 0; d < graphs; ++d) {
            if (graphs > 1) use_device(ordinal(d));
            lane(d).graph.replay(stream(d));
        }
        if (graphs > 1) use_device(ordinal(0));
    }

    /// Returns when all GPUs are done. Throws failure_t, timeout_k where a device missed another.
    void synchronize() {
        for (int d = 0; d < devices(); ++d) {
            use_device(ordinal(d));
            check(cudaStreamSynchronize(stream(d)), "running the step");
        }
        use_device(ordinal(0));
        if (domain_) domain_->require_all_met();
    }

  private:
    struct lane_t {
        device_t device;
        stream_t main;
        event_t met, done;
        std::unique_ptr<staging_t> staging;
        graph_t graph;
    };
    /// Makes every stream follow device 0's.
    struct fork_t {
        void on(box_t& box) {
            if (box.devices() == 1) return;
            use_device(box.ordinal(0));
            box.lane(0).done.record(box.stream(0));
            for (int d = 1; d < box.devices(); ++d) box.lane(0).done.wait(box.stream(d));
        }
    };

    lane_t& lane(int device) { return *lanes_[static_cast<std::size_t>(device)]; }
    int ordinal(int device) const { return lanes_[static_cast<std::size_t>(device)]->device.ordinal; }
    bool gathers() const { return lanes_[0]->device.step->gathers(); }
    /// Stretches between meetings, that of the scalars left out.
    int phases() const {
        if (devices() == 1) return 1;
        if (problem_.pairs_once) return 2 * pair_rounds(problem_);  // scored, taken, scored, taken, ...
        return 1 + gathers() + lanes_[0]->device.step->gathers_positives();
    }
    domain::phase_t meeting_before(int phase) const {
        return !problem_.pairs_once ? domain::phase_t::log_sums_k
               : phase % 2          ? domain::phase_t::pair_scored_k
                                    : domain::phase_t::pair_taken_k;
    }

    void meet_by_events() {
        for (int d = 0; d < devices(); ++d) {
            use_device(ordinal(d));
            lane(d).met.record(stream(d));
        }
        for (int d = 0; d < devices(); ++d)
            for (int peer = 0; peer < devices(); ++peer)
                if (peer != d) lane(peer).met.wait(stream(d));
    }

    candidates_t rows_of(int device) {
        auto const& from = lane(device).device;
        candidates_t block;
        block.device = device;
        block.labels = from.sets[0].labels;
        for (std::size_t set = 0; set < from.sets.size(); ++set) {
            block.embeddings[set] = from.sets[set].embeddings;
            block.log_sums[set] = from.step->log_sums(static_cast<int>(set));
        }
        return block;
    }

    /// Calls visit(block) for the device's own rows and then for each peer's, fetched.
    template <class visit_t>
    void walk(int device, bool log_sums, visit_t&& visit) {
        auto& own = lane(device);
        auto const blocks = blocks_of_peers(device, log_sums);
        auto fetch = [&](std::size_t i) {
            if (i < blocks.size()) own.staging->fetch(blocks[i], [this](int peer) { return rows_of(peer); });
        };
        for (std::size_t i = 0; i < staging_t::buffers_k; ++i) fetch(i);
        visit(rows_of(device));
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            own.staging->use(blocks[i], own.device.step->log_sum_count(blocks[i].device), own.main, visit);
            fetch(i + staging_t::buffers_k);
        }
    }

    /// The peers behind a device, in their order, in blocks of up to group_ that follow one another.
    std::vector<candidates_t> blocks_of_peers(int device, bool log_sums) {
        std::vector<candidates_t> blocks;
        for (int k = 1; k < devices(); ++k) {
            int const peer = (device + k) % devices();
            if (!blocks.empty() && blocks.back().devices < group_ &&
                peer == blocks.back().device + blocks.back().devices) {
                ++blocks.back().devices;
                continue;
            }
            blocks.push_back(rows_of(peer));
            if (!log_sums) blocks.back().log_sums[0] = blocks.back().log_sums[1] = nullptr;
        }
        return blocks;
    }

    /// One half of a round of pairs: its block is scored, or what others have left is taken, with the step's ends around.
    void queue_pairs_phase(int device, int phase, domain::half_t half) {
        use_device(ordinal(device));
        auto& own = lane(device);
        auto& step = *own.device.step;
        int const rounds = pair_rounds(problem_), round = phase / 2 + 1;
        auto block_of = [&](int of_round) { return rows_of((device + of_round) % devices()); };
        auto fetch = [&](int of_round) {
            if (of_round <= rounds) own.staging->fetch(block_of(of_round), [this](int peer) { return rows_of(peer); });
        };
        auto const partial = [&](int of) { return reinterpret_cast<std::byte*>(domain_->data(of)); };
        if (phase == 0) {
            own.staging->open(own.main);
            step.begin(own.main);
            for (int ahead = 1; ahead <= staging_t::buffers_k; ++ahead) fetch(ahead);
            step.score(rows_of(device), own.main);
        }
        if (phase % 2 == 0) {
            pair_t const pair = pair_of(problem_, device, round, device_step_t::pair_unit_k);
            own.staging->use(block_of(round), 0, own.main, [&](candidates_t const& block) {
                step.score_pair(block, pair, partial(device), own.main);
            });
            fetch(round + staging_t::buffers_k);
            return;
        }
        int const source = source_of(problem_, device, round);
        step.take_pair(partial(source), pair_of(problem_, source, round, device_step_t::pair_unit_k).candidates,
                       own.main);
        if (round < rounds) return;
        step.finish(own.main);
        add_scalars(device, half);
    }

    void queue_phase(int device, int phase, domain::half_t half) {
        if (problem_.pairs_once && devices() > 1) return queue_pairs_phase(device, phase, half);
        use_device(ordinal(device));
        auto& own = lane(device);
        auto& step = *own.device.step;
        if (phase == 0) {
            if (own.staging) own.staging->open(own.main);
            step.begin(own.main);
        }
        if (phase == 0 && gathers()) {
            walk(device, false, [&](candidates_t const& block) { step.gather(block, own.main); });
            step.close_gather(own.main);
            if (phases() > 1) return;
        }
        if (phase == std::min(1, phases() - 1) && step.gathers_positives()) {
            walk(device, true, [&](candidates_t const& block) { step.gather_positives(block, own.main); });
            step.close_positives(own.main);
            if (phases() > 1) return;
        }
        walk(device, gathers(), [&](candidates_t const& block) { step.score(block, own.main); });
        step.finish(own.main);
        if (devices() > 1) add_scalars(device, half);
    }

    void add_scalars(int device, domain::half_t half) {
        use_device(ordinal(device));
        auto const& own = lane(device).device;
        domain_->one_shot(device, own.part, own.total, 3, stream(device), half);
    }

    void synchronize_quietly() {
        for (auto& lane : lanes_) {
            cudaSetDevice(lane->device.ordinal);
            cudaStreamSynchronize(lane->main);
        }
        cudaSetDevice(lanes_[0]->device.ordinal);
    }

    problem_t problem_;
    domain::domain_t const* domain_;
    meeting_t meeting_;
    std::int64_t group_ = 1;  // devices in a block of candidates
    fork_t fork_;
    std::vector<std::unique_ptr<lane_t>> lanes_;
};

}  // namespace scaling_contrasts::gpu
