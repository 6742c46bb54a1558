// A thread of a kernel as a lane of a domain's channel: its thread block.
#pragma once
#include <cstdint>

#include "scaling_contrasts/domain/member.hpp"

namespace scaling_contrasts::domain {

struct gpu_place_t {
    __device__ int lane() const { return static_cast<int>(threadIdx.x); }
    __device__ int lanes() const { return static_cast<int>(blockDim.x); }
    __device__ int channel() const { return static_cast<int>(blockIdx.x); }
    __device__ int channels() const { return static_cast<int>(gridDim.x); }
    __device__ void sync() const { __syncthreads(); }
    __device__ std::uint64_t now() const {
        std::uint64_t ns;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
        return ns;
    }
    __device__ std::uint32_t load_acquire(std::uint32_t const* p) const {
        std::uint32_t v;
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
        return v;
    }
    __device__ void store_release(std::uint32_t* p, std::uint32_t v) const {
        asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
    }
    /// Returns the value before.
    __device__ std::uint32_t add(std::uint32_t* p, std::uint32_t v) const {
        std::uint32_t old;
        asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
        return old;
    }
};

}  // namespace scaling_contrasts::domain
