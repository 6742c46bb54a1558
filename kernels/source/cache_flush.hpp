// Emptying the CPU's caches before a step, for `--cache cold`: a buffer twice the largest of them is written.
#pragma once
#include <unistd.h>

#include <cstddef>
#include <vector>

namespace scaling_contrasts::bench {

class cache_flush_t {
  public:
    void operator()() {
        if (buffer_.empty()) buffer_.resize(2 * largest_bytes());
        for (auto& each : buffer_) each = static_cast<unsigned char>(each + 1);
        asm volatile("" : : "r"(buffer_.data()) : "memory");  // the writes must happen
    }

  private:
    static std::size_t largest_bytes() {
        long const size = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
        constexpr std::size_t unknown_k = std::size_t{128} << 20;  // where Linux does not say
        return size > 0 ? static_cast<std::size_t>(size) : unknown_k;
    }
    std::vector<unsigned char> buffer_;
};

}  // namespace scaling_contrasts::bench
