// What a softmax's second pass knows of a row besides its norms. With x = logit times log2(e), and a and b the log sums
// (base 2) of a cell's row and column from the first pass, the slope of a negative cell is 2^(x - a) + 2^(x - b).
//
// Log sums lie around h, half of the largest |x| that there can be, so the slope is 2^(x - h) (A + B) with the shares
// A = 2^(h - a) and B = 2^(h - b): one exp2 a cell. Where a row block has log sums further than reach_k from h, its
// shares of that prefix are the log sums themselves, and its cells take two.
#pragma once
#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

/// Octaves. x - h is below h and below a - h, so nothing overflows, and what underflows is 2^-54 of its sum.
constexpr float reach_k = 72.f;
__device__ __forceinline__ float middle_of(float t2) { return 0.5f * fabsf(t2); }

/// A row block's: [prefix][row]; four words, the first with a bit a prefix, set where they are log sums;
/// [prefix][permuted row].
__host__ __device__ constexpr int share_floats(int prefixes) { return 2 * prefixes * tile_k + 4; }
/// Where the column side's part begins, with those words.
__host__ __device__ constexpr int column_shares(int prefixes) { return prefixes * tile_k; }

struct shares_t {
    float const* log_sums[2];  // of up to two sets: [prefix][padded]
    float* shares[2];
    int live, padded, prefixes;
    float const* t;
};

/// Grid: (row blocks, sets). Rows that are not there have no share in any cell.
static __global__ void __launch_bounds__(tile_k) shares_kernel(shares_t const __grid_constant__ a) {
    int const r = threadIdx.x, row = blockIdx.x * tile_k + r;
    float const h = middle_of(*a.t * log2e_k);
    float* const out = a.shares[blockIdx.y] + int64_t(blockIdx.x) * share_floats(a.prefixes);
    uint32_t logs = 0;
    for (int p = 0; p < a.prefixes; ++p) {
        float v = row < a.live ? a.log_sums[blockIdx.y][int64_t(p) * a.padded + row] : 1e30f;
        bool const far = row < a.live && !(fabsf(v - h) <= reach_k);
        if (__syncthreads_or(far)) logs |= 1u << p;
        else v = ptx::ex2(h - v);
        out[p * tile_k + r] = v;
        out[column_shares(a.prefixes) + 4 + p * tile_k + permuted(r)] = v;
    }
    if (r < 4) out[column_shares(a.prefixes) + r] = __uint_as_float(r == 0 ? logs : 0u);
}

}  // namespace scaling_contrasts::sm90
