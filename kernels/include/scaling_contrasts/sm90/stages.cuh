// A breakdown of the step kernel's time by stage, compiled in with -DSCALING_CONTRASTS_STAGES: clocks of one thread a
// warpgroup, summed.
#pragma once
#include <cstdint>

namespace scaling_contrasts::sm90 {

enum stage_t : int {
    item_wait_k,
    score_products_k,
    score_cells_k,
    score_output_k,
    score_second_output_k,
    wide_products_k,
    narrow_products_k,
    gradient_output_k,
    producer_wait_k,
    publisher_wait_k,
    score_items_k,
    wide_items_k,
    narrow_items_k,
    stages_k
};

#ifdef SCALING_CONTRASTS_STAGES
__device__ unsigned long long stage_clocks[stages_k];
struct stopwatch_t {
    uint32_t at;
    __device__ __forceinline__ stopwatch_t() { asm volatile("mov.u32 %0, %%clock;" : "=r"(at)::"memory"); }
    __device__ __forceinline__ void lap(stage_t stage, bool mine) {
        uint32_t now;
        asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
        if (mine) atomicAdd(stage_clocks + stage, static_cast<unsigned long long>(now - at));
        asm volatile("mov.u32 %0, %%clock;" : "=r"(at)::"memory");
    }
    __device__ __forceinline__ static void count(stage_t stage, bool mine) {
        if (mine) atomicAdd(stage_clocks + stage, 1ull);
    }
};
#else
struct stopwatch_t {
    __device__ __forceinline__ void lap(stage_t, bool) {}
    __device__ __forceinline__ static void count(stage_t, bool) {}
};
#endif

}  // namespace scaling_contrasts::sm90
