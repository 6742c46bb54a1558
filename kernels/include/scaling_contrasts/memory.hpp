// Owned, aligned, counted memory of the host: every workspace of the CPU engine comes from here, so that a step's peak
// is known exactly.
#pragma once
#include <atomic>
#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

namespace scaling_contrasts {

/// Bytes held by buffers of this process, and the most since the last reset.
struct memory_counter_t {
    std::atomic<std::int64_t> held = 0;
    std::atomic<std::int64_t> peak = 0;

    void add(std::int64_t bytes) {
        std::int64_t const now = held.fetch_add(bytes) + bytes;
        std::int64_t seen = peak.load();
        while (seen < now && !peak.compare_exchange_weak(seen, now)) {}
    }
    void reset_peak() { peak.store(held.load()); }
};

inline memory_counter_t& memory_counter() {
    static memory_counter_t counter;
    return counter;
}

/// Zeroed elements at a 64-byte boundary; moves, never copies. Throws std::bad_alloc.
template <class element_t>
class buffer_t {
  public:
    buffer_t() = default;
    explicit buffer_t(std::size_t count) : count_(count) {
        if (count == 0) return;
        data_ = static_cast<element_t*>(::operator new(bytes(), std::align_val_t{64}));
        std::memset(static_cast<void*>(data_), 0, bytes());
        memory_counter().add(static_cast<std::int64_t>(bytes()));
    }
    buffer_t(buffer_t&& other) noexcept { swap(other); }
    buffer_t& operator=(buffer_t&& other) noexcept {
        buffer_t(std::move(other)).swap(*this);
        return *this;
    }
    ~buffer_t() {
        if (!data_) return;
        ::operator delete(static_cast<void*>(data_), std::align_val_t{64});
        memory_counter().add(-static_cast<std::int64_t>(bytes()));
    }

    element_t* data() { return data_; }
    element_t const* data() const { return data_; }
    std::size_t size() const { return count_; }
    element_t& operator[](std::size_t i) { return data_[i]; }
    element_t const& operator[](std::size_t i) const { return data_[i]; }
    void zero() {
        if (data_) std::memset(static_cast<void*>(data_), 0, bytes());
    }

  private:
    std::size_t bytes() const { return count_ * sizeof(element_t); }
    void swap(buffer_t& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }

    element_t* data_ = nullptr;
    std::size_t count_ = 0;
};

}  // namespace scaling_contrasts
