// Pinned memory of the host, in large pages where the system has them: copies to and from the GPU run at full speed
// beside kernels, and tens of GiB are ready in seconds.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "scaling_contrasts/gpu/check.cuh"

namespace scaling_contrasts::gpu {

/// Zeroed elements, pinned for all devices. Movable, not copyable.
template <class element_t>
class pinned_t {
  public:
    pinned_t() = default;
    /// `threads` touch the pages. Throws failure_t: out_of_memory_k, with the size, where the host refuses.
    pinned_t(std::int64_t count, int threads) : count_(count) {
        if (count == 0) return;
        auto const size = static_cast<std::size_t>(bytes());
        void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            throw failure_t(status_t::out_of_memory_k, "the host refuses " + std::to_string(size) + " bytes");
        data_ = static_cast<element_t*>(at);
        madvise(at, size, MADV_HUGEPAGE);  // a wish
        touch(static_cast<unsigned char*>(at), size, threads);
        if (auto const error = cudaHostRegister(at, size, cudaHostRegisterPortable); error != cudaSuccess) {
            munmap(at, size);
            data_ = nullptr;
            check(error, ("pinning " + std::to_string(size) + " bytes of the host").c_str());
        }
    }
    pinned_t(pinned_t&& other) noexcept { *this = std::move(other); }
    pinned_t& operator=(pinned_t&& other) noexcept {
        std::swap(count_, other.count_);
        std::swap(data_, other.data_);
        return *this;
    }
    ~pinned_t() {
        if (!data_) return;
        cudaHostUnregister(data_);
        munmap(data_, static_cast<std::size_t>(bytes()));
    }
    element_t* data() const { return data_; }
    std::int64_t size() const { return count_; }
    std::int64_t bytes() const { return count_ * static_cast<std::int64_t>(sizeof(element_t)); }

  private:
    static void touch(unsigned char* at, std::size_t size, int threads) {
        std::size_t const page = 4096, pages = (size + page - 1) / page;
        std::vector<std::thread> crew;
        for (int t = 0; t < threads; ++t)
            crew.emplace_back([=] {
                auto const begin = pages * static_cast<std::size_t>(t) / static_cast<std::size_t>(threads),
                           end = pages * static_cast<std::size_t>(t + 1) / static_cast<std::size_t>(threads);
                for (std::size_t i = begin; i < end; ++i) static_cast<unsigned char volatile*>(at)[i * page] = 0;
            });
        for (auto& thread : crew) thread.join();
    }

    std::int64_t count_ = 0;
    element_t* data_ = nullptr;
};

}  // namespace scaling_contrasts::gpu
