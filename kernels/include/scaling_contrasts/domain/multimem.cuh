// Sums made by the NVSwitch (compute capability 9.0 and newer): one address stands for the same place in every rank's
// memory; a load from it is the sum over all, a store to it writes all. In what order the switch adds is not
// documented. Compiles, never run on hardware.
#pragma once
#include "scaling_contrasts/domain/all_reduce.hpp"
#include "scaling_contrasts/domain/gpu_place.cuh"

namespace scaling_contrasts::domain {

/// Eight bf16 numbers in pairs: summed in fp32, rounded once.
struct alignas(16) eight_bf16_t {
    std::uint32_t pairs[4];
};

__device__ __forceinline__ four_t multimem_load(four_t const* at) {
    four_t v;
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(at)
                 : "memory");
#endif
    return v;
}
__device__ __forceinline__ eight_bf16_t multimem_load(eight_bf16_t const* at) {
    eight_bf16_t v = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.pairs[0]), "=r"(v.pairs[1]), "=r"(v.pairs[2]), "=r"(v.pairs[3])
                 : "l"(at)
                 : "memory");
#endif
    return v;
}
__device__ __forceinline__ void multimem_store(four_t* at, four_t const& v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}
__device__ __forceinline__ void multimem_store(eight_bf16_t* at, eight_bf16_t const& v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.st.relaxed.sys.global.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(v.pairs[0]),
                 "r"(v.pairs[1]), "r"(v.pairs[2]), "r"(v.pairs[3])
                 : "memory");
#endif
}
/// Adds to all replicas of four floats.
__device__ __forceinline__ void multimem_add(four_t* at, four_t const& v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("multimem.red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(at), "f"(v.x), "f"(v.y),
                 "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}

/// two_shot's schedule with the switch in the place of the loops over ranks. `data`: the multicast address of the
/// buffers.
template <class value_t>
__device__ void in_switch(gpu_place_t const& at, member_t const& m, value_t* data, std::size_t count) {
    std::uint32_t const round = m.state->round;
    barrier(at, m, round, 0, phase_t::inputs_k);
    slice_t const mine = slice_of(m.rank, m.world, count);
    std::size_t const first = std::size_t(at.channel()) * std::size_t(at.lanes()) + std::size_t(at.lane()),
                      step = std::size_t(at.channels()) * std::size_t(at.lanes());
    for (std::size_t i = mine.begin + first; i < mine.end; i += step) multimem_store(data + i, multimem_load(data + i));
    barrier(at, m, round, 1, phase_t::outputs_k);
    close(at, m, 2);
}

/// Small payloads: every rank adds its own to all replicas of a slot, waits once and reads its own replica. `slots` is
/// the multicast address of small_slots_k slots of `capacity` values, zero at first, and `own` the rank's replica of
/// them. The slot of the call before the last is cleared meanwhile: nobody touches it before all have passed the next
/// call's barrier.
inline constexpr std::uint32_t small_slots_k = 4;
__device__ inline void in_switch_small(gpu_place_t const& at, member_t const& m, four_t const* in, four_t* slots,
                                       four_t* own, four_t* out, std::size_t count, std::size_t capacity) {
    std::uint32_t const round = m.state->round, call = m.state->small_calls;
    std::size_t const slot = call % small_slots_k * capacity, old = (call + 2) % small_slots_k * capacity;
    std::size_t const first = std::size_t(at.channel()) * std::size_t(at.lanes()) + std::size_t(at.lane()),
                      step = std::size_t(at.channels()) * std::size_t(at.lanes());
    for (std::size_t i = first; i < count; i += step) multimem_add(slots + slot + i, in[i]);
    for (std::size_t i = first; i < capacity; i += step) own[old + i] = {};
    barrier(at, m, round, 0, phase_t::small_k);
    for (std::size_t i = first; i < count; i += step) out[i] = own[slot + i];
    close(at, m, 1, 1);
}

}  // namespace scaling_contrasts::domain
