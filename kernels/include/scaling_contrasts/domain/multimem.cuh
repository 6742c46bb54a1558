// The NVSwitch as what adds (compute capability 9.0 and newer), by multimem instructions on a multicast address. In what
// order it adds is not documented. Compiles, never run on hardware.
//
// All are relaxed, and of system scope, so that additions by several GPUs to one place are atomic. What orders them is
// the barrier (member.hpp): bar.sync, then flags released and acquired at system scope, by one address, the same on all
// GPUs. PTX ISA, Causality Order, "proxy-preserved base causality order": accesses to aliases, which the multicast
// address and a GPU's own are, are ordered if an alias proxy fence lies on the way from one to the other, in whichever
// thread. Start and end of a kernel, a copy or a memset (Memory Synchronization, "API synchronization") need none.
#pragma once
#include "scaling_contrasts/domain/gpu_place.cuh"
#include "scaling_contrasts/domain/in_switch.hpp"
#include "scaling_contrasts/ptx/barrier.cuh"

namespace scaling_contrasts::domain {

struct multimem_t {
    __device__ __forceinline__ void fence() const { ptx::fence_alias(); }
    __device__ __forceinline__ four_t load(four_t const* at) const {
        four_t v;
#if __CUDA_ARCH__ >= 900
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                     : "l"(at)
                     : "memory");
#endif
        return v;
    }
    __device__ __forceinline__ eight_bf16_t load(eight_bf16_t const* at) const {
        eight_bf16_t v = {};
#if __CUDA_ARCH__ >= 900
        asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
                     : "l"(at)
                     : "memory");
#endif
        return v;
    }
    __device__ __forceinline__ void store(four_t* at, four_t const& v) const {
#if __CUDA_ARCH__ >= 900
        asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y),
                     "f"(v.z), "f"(v.w)
                     : "memory");
#endif
    }
    __device__ __forceinline__ void store(eight_bf16_t* at, eight_bf16_t const& v) const {
#if __CUDA_ARCH__ >= 900
        asm volatile("multimem.st.relaxed.sys.global.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.pairs[0]),
                     "r"(v.pairs[1]), "r"(v.pairs[2]), "r"(v.pairs[3])
                     : "memory");
#endif
    }
    __device__ __forceinline__ void add(four_t* at, four_t const& v) const {
#if __CUDA_ARCH__ >= 900
        asm volatile("multimem.red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y),
                     "f"(v.z), "f"(v.w)
                     : "memory");
#endif
    }
};

}  // namespace scaling_contrasts::domain
