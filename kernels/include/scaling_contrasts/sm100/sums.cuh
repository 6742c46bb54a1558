// Sums and maxima over a warp's 32 rows: a thread holds one row and 32 columns.
#pragma once
#include <cstdint>

namespace scaling_contrasts::sm100 {

/// Combines 32 column values over the 32 lanes; v[0] becomes that of column `lane`. Each step halves the vector: lanes
/// with the step's bit keep the upper half, and combine it with what the others had there.
template <class combine_t>
__device__ __forceinline__ float fold_columns(float (&v)[32], int lane, combine_t combine) {
#pragma unroll
    for (int width = 16; width; width >>= 1) {
        bool const upper = lane & width;
#pragma unroll
        for (int i = 0; i < width; ++i) {
            float const send = upper ? v[i] : v[i + width], keep = upper ? v[i + width] : v[i];
            v[i] = combine(keep, __shfl_xor_sync(~0u, send, width));
        }
    }
    return v[0];
}

__device__ __forceinline__ float sum_columns(float (&v)[32], int lane) {
    return fold_columns(v, lane, [](float x, float y) { return x + y; });
}
__device__ __forceinline__ float greatest_of_columns(float (&v)[32], int lane) {
    return fold_columns(v, lane, [](float x, float y) { return fmaxf(x, y); });
}

}  // namespace scaling_contrasts::sm100
