// A domain whose ranks are threads of one process: the schedules of the GPUs' domain, run truly at the same time, so
// that their ordering can be tested (and held to a race detector) without a GPU.
#pragma once
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "scaling_contrasts/domain/all_reduce.hpp"
#include "scaling_contrasts/memory.hpp"

namespace scaling_contrasts::domain {

/// One thread is a channel of one lane.
struct thread_place_t {
    int lane() const { return 0; }
    int lanes() const { return 1; }
    int channel() const { return 0; }
    int channels() const { return 1; }
    void sync() const {}
    std::uint64_t now() const {
        return static_cast<std::uint64_t>(
            std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
                .count());
    }
    std::uint32_t load_acquire(std::uint32_t const* p) const {
        std::this_thread::yield();
        return __atomic_load_n(p, __ATOMIC_ACQUIRE);
    }
    void store_release(std::uint32_t* p, std::uint32_t v) const { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
    std::uint32_t add(std::uint32_t* p, std::uint32_t v) const { return __atomic_fetch_add(p, v, __ATOMIC_ACQ_REL); }
};

/// Thrown to leave work in which a wait was in vain, or that another rank has left.
struct stopped_t {};

class thread_domain_t {
  public:
    explicit thread_domain_t(int world, std::size_t inbox_bytes = 4096, double deadline_seconds = 10)
        : states_(static_cast<std::size_t>(world)), missing_(static_cast<std::size_t>(world)) {
        inbox_bytes = (inbox_bytes + 15) / 16 * 16;
        for (int rank = 0; rank < world; ++rank) {
            flags_.emplace_back(flag_bytes_k / sizeof(std::uint32_t));
            inboxes_.emplace_back(2 * static_cast<std::size_t>(world) * inbox_bytes);
            states_[static_cast<std::size_t>(rank)].deadline_ns = static_cast<std::uint64_t>(deadline_seconds * 1e9);
        }
        for (int rank = 0; rank < world; ++rank) {
            auto& m = members_.emplace_back();
            m.rank = rank, m.world = world, m.inbox_bytes = inbox_bytes;
            m.state = &states_[static_cast<std::size_t>(rank)], m.missing = &missing_[static_cast<std::size_t>(rank)];
            for (std::size_t peer = 0; peer < flags_.size(); ++peer)
                m.flags[peer] = flags_[peer].data(), m.inbox[peer] = inboxes_[peer].data();
        }
    }

    member_t const& member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

    /// A barrier of a rank's thread. Throws stopped_t where it was in vain: what others write then must not be read.
    void meet(int rank, phase_t phase) const {
        wait(rank, phase);
        close(thread_place_t(), member(rank), 1);
    }
    /// out = sum over ranks of in, as the one_shot of all_reduce.hpp. Throws stopped_t.
    template <class value_t>
    void one_shot(int rank, value_t const* in, value_t* out, std::size_t count) const {
        domain::one_shot(thread_place_t(), member(rank), in, out, count, half_t::write_k);
        wait(rank, phase_t::small_k);
        domain::one_shot(thread_place_t(), member(rank), in, out, count, half_t::add_k);
        close(thread_place_t(), member(rank), 1);
    }

    /// Calls `work(rank)` on a thread for each rank, and returns when all have; a rank that throws keeps no other
    /// waiting. Throws what a rank threw, then failure_t timeout_k, naming who was missing, where a wait was in vain.
    /// Once it has thrown, it does so in every further call.
    void run(std::function<void(int)> const& work) {
        std::vector<std::exception_ptr> thrown(members_.size());
        std::vector<std::thread> threads;
        for (std::size_t rank = 0; rank < members_.size(); ++rank)
            threads.emplace_back([&, rank] {
                try {
                    work(static_cast<int>(rank));
                } catch (stopped_t) {
                    stop_all();
                } catch (...) {
                    thrown[rank] = std::current_exception();
                    stop_all();
                }
            });
        for (auto& thread : threads) thread.join();
        for (auto const& each : thrown)
            if (each) std::rethrow_exception(each);
        for (auto const& missing : missing_)
            if (missing.set) throw failure_t(status_t::timeout_k, describe(missing));
        if (stopped_) throw failure_t(status_t::crashed_k, "a device failed in an earlier step");
    }

  private:
    void wait(int rank, phase_t phase) const {
        barrier(thread_place_t(), member(rank), member(rank).state->round, 0, phase);
        if (thread_place_t().load_acquire(&member(rank).state->failed)) throw stopped_t();
    }
    void stop_all() {
        stopped_ = true;
        for (auto& state : states_) thread_place_t().add(&state.failed, 1);
    }

    std::vector<buffer_t<std::uint32_t>> flags_;
    std::vector<buffer_t<std::byte>> inboxes_;
    std::vector<state_t> states_;
    std::vector<missing_t> missing_;
    std::vector<member_t> members_;
    std::atomic<bool> stopped_ = false;
};

}  // namespace scaling_contrasts::domain
