// A pool of threads for short parallel loops: the caller works too, tasks are handed out one by one, and `run` returns
// when all are done. Workers spin briefly between loops (a superblock lasts about a millisecond), then sleep.
#pragma once
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace scaling_contrasts {

class pool_t {
  public:
    explicit pool_t(int threads) {
        for (int i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
    }
    ~pool_t() {
        stop_ = true;
        round_.fetch_add(1);
        round_.notify_all();
        for (auto& worker : workers_) worker.join();
    }
    pool_t(pool_t const&) = delete;
    pool_t& operator=(pool_t const&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    /// Calls `task(0) ... task(count - 1)`, each once, on any thread. Tasks must not throw.
    template <class task_t>
    void run(int count, task_t&& task) {
        if (workers_.empty() || count <= 1) {
            for (int i = 0; i < count; ++i) task(i);
            return;
        }
        call_ = [](void* context, int i) { (*static_cast<std::remove_reference_t<task_t>*>(context))(i); };
        context_ = const_cast<void*>(static_cast<void const*>(&task));
        count_ = count;
        next_.store(0, std::memory_order_relaxed);
        busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
        round_.fetch_add(1, std::memory_order_release);
        round_.notify_all();
        drain();
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

    void drain() {
        for (int i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) call_(context_, i);
    }

    void work() {
        for (unsigned seen = 0;;) {
            wait_until([&] { return round_.load(std::memory_order_acquire) != seen; }, round_);
            seen = round_.load(std::memory_order_acquire);
            if (stop_) return;
            drain();
            if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_all();
        }
    }

    std::vector<std::thread> workers_;
    std::atomic<unsigned> round_ = 0;
    std::atomic<int> next_ = 0, busy_ = 0;
    std::atomic<bool> stop_ = false;
    int count_ = 0;
    void* context_ = nullptr;
    void (*call_)(void*, int) = nullptr;
};

}  // namespace scaling_contrasts
