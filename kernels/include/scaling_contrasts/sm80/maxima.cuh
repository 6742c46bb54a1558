// The gathering passes of the softmax losses: what the softmaxes over rows and columns are made of.
#pragma once
#include "scaling_contrasts/sm80/groups.cuh"
#include "scaling_contrasts/sm80/tiles.cuh"

namespace scaling_contrasts::sm80 {

/// What keeps a cell out of a maximum: about -1e30 where `out` is 1, the greatest float where it is 0. By bits, for
/// ptxas 13.0 runs out of predicates over 64 selections on Blackwell.
__device__ __forceinline__ float ceiling(std::uint32_t out) {
    constexpr std::uint32_t in_k = 0x7f7fffff, out_k = 0xf149f2ca;
    return __uint_as_float(in_k ^ (-out & (in_k ^ out_k)));
}

/// One prefix: of this warp's negatives, every row's and every column's maximum and sum of 2^(x - maximum); info_nce's
/// positives leave their x. The pass over positives takes group_value() of them instead. None at all: about -1e30.
template <pass_t kPass, bool kLabelled>
__device__ __forceinline__ void find_maxima(superblock_t const& a, int prefixes, float const (&acc)[64],
                                            slab_t const& slab, kinds_t const& kinds, warp_place_t const& w, int prefix,
                                            float scale) {
    int const r = w.row + (w.lane >> 2), c = w.column + (w.lane & 3) * 2;
    auto x_of = [&](int m, int n, int k, float u, float2 const& v, bool of_column) {
        float const x = acc[(m * 4 + n) * 4 + k] * (u * (k & 1 ? v.y : v.x));
        if (kPass == pass_t::positives_k) {
            if (!kLabelled || !(kinds.positives(m, n) >> k & 1)) return -1e30f;
            if (a.sup_con) return x;
            return of_column
                       ? log_share(a.columns, prefix, a.first_column + w.tile_column * tile_k + c + n * 8 + k % 2, x)
                       : log_share(a.rows, prefix, a.first_row + w.tile_row * tile_k + r + m * 16 + k / 2 * 8, x);
        }
        if (!kLabelled) return x;
        if (!of_column && !a.grouped && kinds.positives(m, n) >> k & 1)
            a.rows.positive_logits[std::int64_t(prefix) * a.rows.padded + a.first_row + w.tile_row * tile_k + r +
                                   m * 16 + k / 2 * 8] = x;
        return fminf(x, ceiling((kinds.ignoreds(m, n) | kinds.positives(m, n)) >> k & 1));
    };
    float2* rows = a.row_maxima + (std::int64_t(w.tile_column * 4 + w.column / 32) * prefixes + prefix) * a.side +
                   w.tile_row * tile_k + r;
#pragma unroll
    for (int m = 0; m < 4; ++m)  // rows: the eight cells of each lane, four lanes a row
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float const u = slab.row_norms[r + m * 16 + h * 8] * scale;
            float x[8], maximum = -1e30f, sum = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                x[i] = x_of(m, i / 2, h * 2 + i % 2, u,
                            *reinterpret_cast<float2 const*>(&slab.column_norms[c + i / 2 * 8]), false);
                maximum = fmaxf(maximum, x[i]);
            }
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, lanes));
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += ptx::exp2_approx(x[i] - maximum);
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
            if ((w.lane & 3) == 0) rows[m * 16 + h * 8] = {maximum, sum};
        }
    float2* columns = a.column_maxima + (std::int64_t(w.tile_row * 2 + w.row / 64) * prefixes + prefix) * a.side +
                      w.tile_column * tile_k + c;
#pragma unroll
    for (int n = 0; n < 4; ++n)  // columns: the same, eight lanes a column
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            float2 const v = *reinterpret_cast<float2 const*>(&slab.column_norms[c + n * 8]);
            float x[8], maximum = -1e30f, sum = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                x[i] = x_of(i / 2, n, i % 2 * 2 + k, slab.row_norms[r + i / 2 * 16 + i % 2 * 8] * scale, v, true);
                maximum = fmaxf(maximum, x[i]);
            }
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, lanes));
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += ptx::exp2_approx(x[i] - maximum);
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
            if (w.lane < 4) columns[n * 8 + k] = {maximum, sum};
        }
}

/// The pass over positives leaves this of a tile without any.
__device__ __forceinline__ void leave_no_maxima(superblock_t const& a, int prefixes, warp_place_t const& w) {
    for (int i = threadIdx.x; i < prefixes * tile_k * 4; i += blockDim.x) {
        int const part = i / tile_k / prefixes, prefix = i / tile_k % prefixes, line = i % tile_k;
        a.row_maxima[(std::int64_t(w.tile_column * 4 + part) * prefixes + prefix) * a.side + w.tile_row * tile_k +
                     line] = {-1e30f, 0.0f};
        if (part < 2)
            a.column_maxima[(std::int64_t(w.tile_row * 2 + part) * prefixes + prefix) * a.side +
                            w.tile_column * tile_k + line] = {-1e30f, 0.0f};
    }
}

}  // namespace scaling_contrasts::sm80
