// The box: one host thread drives all GPUs and waits for none. Each GPU scores its rows against its own block, then
// walks its peers: GPU g takes g + 1, g + 2, ..., so that no two fetch from one peer at a time. The next block is
// fetched while the current one is scored, into two buffers that all peers share. Embedding gradients stay where their
// rows are; three scalars are summed.
//
// With problem.pairs_once a block of two devices is scored by one of them (pair_phases.cuh).
//
// Devices meet at the start of a step (embeddings are ready), in softmax losses between the passes, in a round of pairs
// before and after the gradients change hands, and in the sum of the scalars. How they meet is one of two:
//   flags   kernels wait on flags in each other's memory (domain.cuh): the GPUs' work is independent for the host, one graph each
//   events  streams wait for each other's events: nothing spins, one graph for all; also what virtual devices of one GPU use
//
// Of several boxes (boxes.cuh) this one drives its share of the problem's devices. Devices are numbered over all boxes;
// a `lane` is a device of this box, counted from 0.
#pragma once
#include <memory>
#include <vector>

#include "scaling_contrasts/box/elsewhere.cuh"
#include "scaling_contrasts/box/pair_phases.cuh"
#include "scaling_contrasts/box/staging.cuh"
#include "scaling_contrasts/devices.hpp"
#include "scaling_contrasts/domain/domain.cuh"
#include "scaling_contrasts/gpu/graph.cuh"

namespace scaling_contrasts::gpu {

enum class meeting_t { flags_k, events_k };

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

    /// `domain` outlives the box; may be null for one device. `own`: which of the problem's devices these are.
    box_t(problem_t const& problem, std::vector<device_t> devices, domain::domain_t const* domain, meeting_t meeting,
          devices_t own)
        : problem_(problem), domain_(domain), meeting_(meeting), own_(own) {
        std::int64_t log_sums = 0;
        for (int device = 0; device < problem.world_size; ++device)
            log_sums = std::max(log_sums, devices[0].step->log_sum_count(device));
        for (auto& given : devices) {
            use_device(given.ordinal);
            auto& lane = *lanes_.emplace_back(std::make_unique<lane_t>());
            lane.device = std::move(given);
            group_ = lane.device.step->takes_groups() ? candidate_rows(problem_) / problem_.rows : 1;
            if (problem.world_size > 1)
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
    cudaStream_t stream(int lane) const { return lanes_[static_cast<std::size_t>(lane)]->main; }
    device_t const& device(int lane) const { return lanes_[static_cast<std::size_t>(lane)]->device; }

    /// Queues a step as events order it, after what is in device 0's stream, which ends with it.
    void queue_by_events() {
        fork_.on(*this);
        for (int phase = 0; phase < phases(); ++phase) {
            for (int d = 0; d < devices(); ++d) queue_phase(d, phase, domain::half_t::write_k);
            if (devices() > 1) meet_by_events();
        }
        if (devices() > 1) join_by_events();
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

    // A step in pieces, as several boxes need it: a piece is what is queued between two waits for another box.

    /// Where the rows of other boxes' devices are; outlives the box.
    void look_elsewhere(elsewhere_t& elsewhere) { elsewhere_ = &elsewhere; }
    /// The devices meet: each is done with the step before.
    void start() {
        if (meeting() == meeting_t::events_k) return fork_.on(*this);
        for_lanes([&](int d) { domain_->meet(d, domain::phase_t::embeddings_k, stream(d)); });
    }
    void begin() {
        for_lanes([&](int d) { queue_begin(d); });
    }
    /// The devices' rows against each other's.
    void own_blocks(pass_t pass) {
        if (gathers() && pass != pass_t::gather_k && devices() > 1) {  // log-sums are read from here on
            if (meeting() == meeting_t::events_k) meet_by_events();
            else for_lanes([&](int d) { domain_->meet(d, domain::phase_t::log_sums_k, stream(d)); });
        }
        for_lanes([&](int d) { walk(d, pass, peers_of(d), true); });
    }
    /// The same against the rows of another box. GPU g begins with its own counterpart's, which have come to it, and
    /// goes on with g + 1, g + 2, ..., so that no two fetch from one GPU at a time.
    void blocks_of(int box, pass_t pass) {
        for_lanes([&](int d) {
            std::vector<int> order;
            bool const rotate = group_ == 1;
            for (int k = 0; k < devices(); ++k) order.push_back(box * devices() + (rotate ? (d + k) % devices() : k));
            if (rotate) {
                elsewhere_->wait_for_rows(order[0], stream(d));
                if (reads_log_sums(pass)) elsewhere_->wait_for_log_sums(order[0], stream(d));
                visit(d, pass, elsewhere_->rows_of(order[0]));
                order.erase(order.begin());
            }
            walk(d, pass, order, false);
        });
    }
    void close(pass_t pass) {
        for_lanes([&](int d) { queue_close(d, pass); });
    }
    /// Gradients, and the sums over this box's devices.
    void finish() {
        bool const by_events = meeting() == meeting_t::events_k;
        for_lanes([&](int d) { queue_finish(d, by_events ? domain::half_t::write_k : domain::half_t::both_k); });
        if (!by_events || devices() == 1) return;
        meet_by_events();
        join_by_events();
        use_device(ordinal(0));
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

    lane_t& lane(int d) { return *lanes_[static_cast<std::size_t>(d)]; }
    int ordinal(int d) const { return lanes_[static_cast<std::size_t>(d)]->device.ordinal; }
    bool gathers() const { return lanes_[0]->device.step->gathers(); }
    /// Stretches between meetings, that of the scalars left out.
    int phases() const {
        if (devices() == 1) return 1;
        if (problem_.pairs_once) return pair_phases_t::count(problem_);
        return 1 + gathers() + lanes_[0]->device.step->gathers_positives();
    }
    domain::phase_t meeting_before(int phase) const {
        return problem_.pairs_once ? pair_phases_t::meeting_before(phase) : domain::phase_t::log_sums_k;
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

    /// The scalars' second half; device 0's stream follows all.
    void join_by_events() {
        for (int d = 0; d < devices(); ++d) add_scalars(d, domain::half_t::add_k);
        for (int d = 1; d < devices(); ++d) {
            use_device(ordinal(d));
            lane(d).done.record(stream(d));
        }
        use_device(ordinal(0));
        for (int d = 1; d < devices(); ++d) lane(d).done.wait(stream(0));
    }
    template <class queue_t>
    void for_lanes(queue_t&& queue) {
        for (int d = 0; d < devices(); ++d) {
            use_device(ordinal(d));
            queue(d);
        }
        use_device(ordinal(0));
    }

    bool is_own(int device) const { return device >= own_.first && device < own_.first + devices(); }
    candidates_t rows_of(int device) {
        if (!is_own(device)) return elsewhere_->rows_of(device);
        auto const& from = lane(device - own_.first).device;
        candidates_t block;
        block.device = device;
        block.labels = from.sets[0].labels;
        for (std::size_t set = 0; set < from.sets.size(); ++set) {
            block.embeddings[set] = from.sets[set].embeddings;
            block.log_sums[set] = from.step->log_sums(static_cast<int>(set));
        }
        return block;
    }
    bool reads_log_sums(pass_t pass) const { return gathers() && pass != pass_t::gather_k; }

    void visit(int d, pass_t pass, candidates_t const& block) {
        auto& own = lane(d);
        if (pass == pass_t::gather_k) own.device.step->gather(block, own.main);
        if (pass == pass_t::positives_k) own.device.step->gather_positives(block, own.main);
        if (pass == pass_t::score_k) own.device.step->score(block, own.main);
    }

    /// Visits the device's own rows, where `own_too`, and then each peer's, fetched.
    void walk(int d, pass_t pass, std::vector<int> const& peers, bool own_too) {
        auto& own = lane(d);
        auto const blocks = blocks_in(peers, reads_log_sums(pass));
        auto fetch = [&](std::size_t i) {
            if (i >= blocks.size()) return;
            own.staging->fetch(blocks[i], [this](int peer, cudaStream_t reader) {
                if (!is_own(peer)) elsewhere_->wait_for_rows(peer, reader);
                return rows_of(peer);
            });
        };
        for (std::size_t i = 0; i < staging_t::buffers_k; ++i) fetch(i);
        if (own_too) visit(d, pass, rows_of(own_.first + d));
        for (std::size_t i = 0; i < blocks.size(); ++i) {
            int const peer = blocks[i].device;
            if (reads_log_sums(pass) && !is_own(peer)) elsewhere_->wait_for_log_sums(peer, own.main);
            own.staging->use(blocks[i], own.device.step->log_sum_count(peer), own.main,
                             [&](candidates_t const& block) { visit(d, pass, block); });
            fetch(i + staging_t::buffers_k);
        }
    }

    /// The peers behind a lane's device in this box, in their order.
    std::vector<int> peers_of(int d) const {
        std::vector<int> peers;
        for (int k = 1; k < devices(); ++k) peers.push_back(own_.first + (d + k) % devices());
        return peers;
    }
    /// Devices in their order, in blocks of up to group_ that follow one another.
    std::vector<candidates_t> blocks_in(std::vector<int> const& peers, bool log_sums) {
        std::vector<candidates_t> blocks;
        auto const grouped = peer_blocks(peers, problem_.world_size, static_cast<int>(group_));
        for (auto const& [first, count] : grouped) {
            auto& block = blocks.emplace_back(rows_of(first));
            block.devices = count;
            block.stays = devices() == problem_.world_size && grouped.size() <= staging_t::buffers_k;
            if (!log_sums) block.log_sums[0] = block.log_sums[1] = nullptr;
        }
        return blocks;
    }

    void queue_begin(int d) {
        auto& own = lane(d);
        if (own.staging) own.staging->open(own.main);
        own.device.step->begin(own.main);
    }
    void queue_close(int d, pass_t pass) {
        auto& own = lane(d);
        if (pass == pass_t::gather_k) own.device.step->close_gather(own.main);
        if (pass == pass_t::positives_k) own.device.step->close_positives(own.main);
    }
    void queue_finish(int d, domain::half_t half) {
        lane(d).device.step->finish(stream(d));
        if (devices() > 1) add_scalars(d, half);
    }
    void queue_pair_phase(int d, int phase, domain::half_t half) {
        auto& own = lane(d);
        pair_phases_t(problem_, *domain_).queue(d, phase, *own.device.step, *own.staging, own.main, [this](int device) {
            return rows_of(device);
        });
        if (phase == phases() - 1) queue_finish(d, half);
    }

    void queue_phase(int d, int phase, domain::half_t half) {
        use_device(ordinal(d));
        if (problem_.pairs_once && devices() > 1) return queue_pair_phase(d, phase, half);
        auto pass = [&](pass_t each) {
            walk(d, each, peers_of(d), true);
            queue_close(d, each);
        };
        if (phase == 0) queue_begin(d);
        if (phase == 0 && gathers()) {
            pass(pass_t::gather_k);
            if (phases() > 1) return;
        }
        if (phase == std::min(1, phases() - 1) && lane(d).device.step->gathers_positives()) {
            pass(pass_t::positives_k);
            if (phases() > 1) return;
        }
        pass(pass_t::score_k);
        queue_finish(d, half);
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
    devices_t own_;
    elsewhere_t* elsewhere_ = nullptr;
    std::int64_t group_ = 1;  // devices in a block of candidates
    fork_t fork_;
    std::vector<std::unique_ptr<lane_t>> lanes_;
};

}  // namespace scaling_contrasts::gpu
