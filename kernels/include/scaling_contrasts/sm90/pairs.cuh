// Pairs scored once: what another device has found of this one's gradients is added to its own. It comes as the step
// kernel leaves both: gradient tiles in the order that threads hold them, and sums S in fixed point, whose unit is the
// same on every device.
#pragma once
#include <cstddef>

#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

/// What one device finds for another, in memory that both read: gradient tiles of row blocks, and their sums S.
struct partial_t {
    float* dx;
    int64_t* s;
};
/// `blocks`: that there is room for.
__host__ inline size_t partial_bytes(params_t const& a, int blocks) {
    return size_t(blocks) * tile_k * (a.columns * sizeof(float) + a.prefixes * sizeof(int64_t));
}
__host__ inline partial_t partial_at(params_t const& a, int blocks, void* base) {
    auto* const dx = static_cast<float*>(base);
    return {dx, reinterpret_cast<int64_t*>(dx + size_t(blocks) * tile_k * a.columns)};
}

constexpr int add_threads_k = 256, add_blocks_k = 1056;

/// `tiles`, `sums`: how many numbers of either.
static __global__ void __launch_bounds__(add_threads_k)
    add_partial_kernel(float4* __restrict__ dx, float4 const* __restrict__ from, int64_t tiles, int64_t* __restrict__ s,
                       int64_t const* __restrict__ from_s, int64_t sums) {
    int64_t const first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
#pragma unroll 4
    for (int64_t i = first; i < tiles / 4; i += step) {
        float4 const part = from[i];
        float4 sum = dx[i];
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        dx[i] = sum;
    }
    for (int64_t i = first; i < sums; i += step) s[i] += from_s[i];
}

}  // namespace scaling_contrasts::sm90
