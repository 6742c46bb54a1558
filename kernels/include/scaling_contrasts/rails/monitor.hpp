// What all threads of a box know of its run: whether it has failed, and when to look again. Every wait for another box
// goes through here, so every wait ends: with what it waited for, with the first failure, or at its deadline.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::rails {

using steady_t = std::chrono::steady_clock;
using deadline_t = steady_t::time_point;

inline deadline_t in_seconds(double seconds) {
    return steady_t::now() + std::chrono::duration_cast<steady_t::duration>(std::chrono::duration<double>(seconds));
}

inline failure_t lost(std::string const& reason) { return {status_t::crashed_k, reason}; }

class monitor_t {
  public:
    /// Records why the run cannot go on; the first reason stays. Wakes all waits.
    void fail(std::string const& reason) {
        {
            std::lock_guard const lock(mutex_);
            if (failed_) return;
            reason_ = reason;
            failed_ = true;
        }
        changed_.notify_all();
    }
    bool failed() const { return failed_; }
    std::string reason() const {
        std::lock_guard const lock(mutex_);
        return reason_;
    }

    /// Throws failure_t, the recorded failure and `phase`, where there is one.
    void require(std::string const& phase) const {
        if (failed_) throw lost(reason() + ", while this box " + phase);
    }

    /// Something that a wait may be about has changed.
    void notify() {
        { std::lock_guard const lock(mutex_); }
        changed_.notify_all();
    }

    /// Returns once `ready()` holds, which is looked at first. Throws failure_t: with the recorded failure and
    /// `phase()`, or at the deadline with `late()`, which is recorded too.
    template <class ready_t, class phase_t, class late_t>
    void wait(deadline_t deadline, ready_t&& ready, phase_t&& phase, late_t&& late) {
        for (int spin = 0; spin < spins_k; ++spin)
            if (ready()) return;
        std::unique_lock lock(mutex_);
        while (!ready()) {
            if (failed_) throw lost(reason_ + ", while this box " + phase());
            if (changed_.wait_until(lock, deadline) == std::cv_status::no_timeout || ready()) continue;
            lock.unlock();
            fail(late());
            throw lost(reason());
        }
    }

  private:
    static constexpr int spins_k = 200;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<bool> failed_ = false;
    std::string reason_;
};

}  // namespace scaling_contrasts::rails
