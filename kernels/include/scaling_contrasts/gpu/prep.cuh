// Inverse norms of every prefix of every row: the part of a step that reads the embeddings before any cell is scored.
#pragma once
#include <cstdint>

#include "scaling_contrasts/gpu/check.cuh"
#include "scaling_contrasts/ladder.hpp"

namespace scaling_contrasts::gpu {

/// One warp a row. `inverse` is [prefix][padded]; 0 for a prefix of norm below 1e-12 and for rows past `rows`.
/// Needs rows of 16-byte pieces: `dims` and every prefix a multiple of 8.
static __global__ void __launch_bounds__(256)
    inverse_norms_kernel(bf16_t const* embeddings, int rows, int padded, __grid_constant__ ladder_t const ladder,
                         float* inverse) {
    int const lane = threadIdx.x & 31;
    std::int64_t const row = (std::int64_t(blockIdx.x) * 256 + threadIdx.x) >> 5;
    if (row >= padded) return;
    float total = 0;
    for (int prefix = 0; prefix < ladder.count; ++prefix) {
        float sum = 0;
        if (row < rows)
            for (int column = ladder.bands[prefix].begin + lane * 8; column < ladder.bands[prefix].end; column += 256) {
                uint4 const piece = *reinterpret_cast<uint4 const*>(embeddings + row * ladder.dims + column);
                for (std::uint32_t const pair : {piece.x, piece.y, piece.z, piece.w}) {
                    float const low = __uint_as_float(pair << 16), high = __uint_as_float(pair & 0xffff0000u);
                    sum = fmaf(low, low, fmaf(high, high, sum));
                }
            }
        for (int lanes = 16; lanes; lanes >>= 1) sum += __shfl_xor_sync(~0u, sum, lanes);
        total += sum;
        float const norm = sqrtf(total);
        if (lane == 0)
            inverse[std::int64_t(prefix) * padded + row] = row < rows && !(norm < least_norm_k) ? 1.0f / norm : 0.0f;
    }
}

/// Queues the kernel on `stream`.
inline void find_inverse_norms(bf16_t const* embeddings, int rows, int padded, ladder_t const& ladder, float* inverse,
                               cudaStream_t stream) {
    if (padded == 0) return;
    inverse_norms_kernel<<<(padded + 7) / 8, 256, 0, stream>>>(embeddings, rows, padded, ladder, inverse);
    check_launch("inverse_norms_kernel");
}

}  // namespace scaling_contrasts::gpu
