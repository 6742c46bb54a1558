// Sums over the lanes of a warp that hold one tile of accumulators. A warp's accumulator is 64 x 32 cells: [16 rows][8
// columns][row r: 2 columns, row r + 8: 2 columns], r = lane / 4, columns 2 (lane % 4) and the next.
#pragma once
#include <cstdint>

namespace scaling_contrasts::sm80 {

/// Halves a vector over two groups of lanes: lanes with `upper` keep its upper half, and add what the others had there.
template <int kSize>
__device__ __forceinline__ void fold(float (&v)[8], int lanes, bool upper) {
#pragma unroll
    for (int i = 0; i < kSize / 2; ++i) {
        float const send = upper ? v[i] : v[i + kSize / 2];
        float const keep = upper ? v[i + kSize / 2] : v[i];
        v[i] = keep + __shfl_xor_sync(~0u, send, lanes);
    }
}

/// Sums of eight row values over the four lanes of a row: v[0], v[1] become those of rows 16 (lane % 4) + lane / 4 and
/// + 8.
__device__ __forceinline__ void fold_rows(float (&v)[8], int lane) {
    fold<8>(v, 2, lane & 2);
    fold<4>(v, 1, lane & 1);
}

/// Sums of two row values over the four lanes of a row: even lanes get the first row's, odd lanes the second's.
__device__ __forceinline__ float quad_sum(float const (&v)[2], int lane) {
    float const send = lane & 1 ? v[0] : v[1], keep = lane & 1 ? v[1] : v[0];
    float const sum = keep + __shfl_xor_sync(~0u, send, 1);
    return sum + __shfl_xor_sync(~0u, sum, 2);
}

/// Sums of eight column values over the eight lanes of a column: v[0] becomes that of column folded_column(lane).
__device__ __forceinline__ void fold_columns(float (&v)[8], int lane) {
    fold<8>(v, 16, lane & 16);
    fold<4>(v, 8, lane & 8);
    fold<2>(v, 4, lane & 4);
}
__device__ __forceinline__ int folded_column(int lane) { return (lane >> 3) * 8 + (lane & 3) * 2 + (lane >> 2 & 1); }

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int lanes = 16; lanes; lanes >>= 1) v += __shfl_xor_sync(~0u, v, lanes);
    return v;
}
__device__ __forceinline__ double warp_sum(double v) {
#pragma unroll
    for (int lanes = 16; lanes; lanes >>= 1) v += __shfl_xor_sync(~0u, v, lanes);
    return v;
}

}  // namespace scaling_contrasts::sm80
