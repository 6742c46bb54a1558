// A pool of threads for short parallel loops: the caller works too, and `run` returns when all tasks are done. Thread t
// of T starts with the t-th part of the tasks, so that loops over the same data leave it in the same core's cache
// (cores may lie far apart), and then helps the others. Workers spin briefly between loops, then sleep.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace scaling_contrasts {

class pool_t {
  public:
    explicit pool_t(int threads) {
        parts_ = std::vector<part_t>(static_cast<std::size_t>(std::max(threads, 1)));
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
    }
    ~pool_t() {
        stop_ = true;
        round_.fetch_add(1);
        round_.notify_all();
        for (auto& worker : workers_) worker.join();
    }
    pool_t(pool_t const&) = delete;
    pool_t& operator=(pool_t const&) = delete;

    int threads() const { return static_cast<int>(parts_.size()); }

    /// Calls `task(0) ... task(count - 1)`, each once, on any thread. Tasks must not throw.
    template <class task_t>
    void run(int count, task_t&& task) {
        if (workers_.empty() || count <= 1) {
            for (int i = 0; i < count; ++i) task(i);
            return;
        }
        call_ = [](void* context, int i) { (*static_cast<std::remove_reference_t<task_t>*>(context))(i); };
        context_ = const_cast<void*>(static_cast<void const*>(&task));
        for (int t = 0; t < threads(); ++t) {
            auto& part = parts_[static_cast<std::size_t>(t)];
            part.next.store(first_of(t, count), std::memory_order_relaxed);
            part.end = first_of(t + 1, count);
        }
        busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
        round_.fetch_add(1, std::memory_order_release);
        round_.notify_all();
        drain(0);
        wait_until([this] { return busy_.load(std::memory_order_acquire) == 0; }, busy_);
    }

  private:
    static constexpr int spins_k = 4000;

    static void pause() {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    template <class condition_t, class value_t>
    static void wait_until(condition_t done, std::atomic<value_t>& watched) {
        for (int spin = 0; spin < spins_k; ++spin) {
            if (done()) return;
            pause();
        }
        while (true) {
            value_t const seen = watched.load(std::memory_order_acquire);
            if (done()) return;
            watched.wait(seen, std::memory_order_acquire);
        }
    }

    /// A thread's own tasks; on a cache line of its own.
    struct alignas(64) part_t {
        std::atomic<int> next = 0;
        int end = 0;
    };

    int first_of(int thread, int count) const { return static_cast<int>(std::int64_t{count} * thread / threads()); }

    void drain(int own) {
        for (int step = 0; step < threads(); ++step) {
            auto& part = parts_[static_cast<std::size_t>((own + step) % threads())];
            for (int i = part.next.fetch_add(1); i < part.end; i = part.next.fetch_add(1)) call_(context_, i);
        }
    }

    void work(int own) {
        for (unsigned seen = 0;;) {
            wait_until([&] { return round_.load(std::memory_order_acquire) != seen; }, round_);
            seen = round_.load(std::memory_order_acquire);
            if (stop_) return;
            drain(own);
            if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
        }
    }

    std::vector<part_t> parts_;
    std::vector<std::thread> workers_;
    std::atomic<unsigned> round_ = 0;
    std::atomic<int> busy_ = 0;
    std::atomic<bool> stop_ = false;
    void* context_ = nullptr;
    void (*call_)(void*, int) = nullptr;
};

}  // namespace scaling_contrasts
