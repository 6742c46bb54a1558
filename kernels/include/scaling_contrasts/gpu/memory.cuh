// Device memory with a count of what is allocated, for the `allocated_peak_bytes` of a record.
#pragma once
#include <algorithm>
#include <cstdint>
#include <utility>

#include "scaling_contrasts/gpu/check.cuh"

namespace scaling_contrasts::gpu {

/// Bytes allocated now and at most. One per device; buffers refer to theirs.
struct ledger_t {
    std::int64_t now = 0, peak = 0;

    void add(std::int64_t bytes) { peak = std::max(peak, now += bytes); }
    void reset_peak() { peak = now; }
};

/// An array on the current device, freed with its owner. Not copyable.
template <class element_t>
class buffer_t {
  public:
    buffer_t() = default;
    /// Throws failure_t: out_of_memory_k, with the size, where the device has no room.
    buffer_t(ledger_t& ledger, std::int64_t count) : ledger_(&ledger), count_(count) {
        if (count == 0) return;
        auto const error = cudaMalloc(reinterpret_cast<void**>(&data_), static_cast<std::size_t>(bytes()));
        if (error != cudaSuccess)
            check(error, ("allocating " + std::to_string(bytes()) + " bytes on the device").c_str());
        ledger_->add(bytes());
    }
    buffer_t(buffer_t&& other) noexcept { *this = std::move(other); }
    buffer_t& operator=(buffer_t&& other) noexcept {
        std::swap(ledger_, other.ledger_);
        std::swap(count_, other.count_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~buffer_t() {
        if (!data_) return;
        cudaFree(data_);
        ledger_->add(-bytes());
    }
    element_t* data() const { return data_; }
    std::int64_t size() const { return count_; }
    std::int64_t bytes() const { return count_ * static_cast<std::int64_t>(sizeof(element_t)); }

  private:
    ledger_t* ledger_ = nullptr;
    std::int64_t count_ = 0;
    element_t* data_ = nullptr;
};

}  // namespace scaling_contrasts::gpu
