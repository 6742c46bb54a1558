// A stack of its own for every CUDA thread, and the switch between two of them. One OS thread runs all.
#pragma once
#include <cstddef>
#include <functional>
#if !defined(__x86_64__) || defined(EMULATION_PORTABLE_FIBERS)
#include <ucontext.h>
#endif

namespace emulation {

inline constexpr std::size_t stack_bytes_k = 256 << 10;

/// Where a stack was left. The first one is the OS thread's own.
class fiber_t {
  public:
    fiber_t() = default;
    fiber_t(fiber_t const&) = delete;
    fiber_t& operator=(fiber_t const&) = delete;

    /// The next switch_to() of this calls `entry(argument)` on `stack`, which must never return.
    void prepare(void* stack, void (*entry)(void*), void* argument);
    /// Leaves `from`, goes on where this was left.
    void switch_from(fiber_t& from);

  private:
#if defined(__x86_64__) && !defined(EMULATION_PORTABLE_FIBERS)
    void* top_ = nullptr;
#else
    ucontext_t context_;
#endif
};

}  // namespace emulation
