// info_nce's first pass: for every row and every column, the sum over its negatives of 2^x, x = logit times log2(e).
//
// x lies anywhere in +-t log2(e), +-144 at t = 100, too far for one float or one fixed-point number. So a row's sum is
// kept in bins: bin k takes the shares that lie in `width` octaves from 2^(k width - offset) on, as 64-bit fixed point.
// Adding to a bin commutes, so that bits repeat whatever order tiles finish in, and no row needs its maximum
// beforehand. Twenty bins of sixteen octaves reach to t = 100; for larger t bins get wider and lose a bit of precision
// an octave (27 bits at t = 100, 11 at t = 220).
#pragma once
#include "scaling_contrasts/sm90/two_set_cells.cuh"

namespace scaling_contrasts::sm90::two_set {

struct bin_scale_t {
    int offset, width, fraction;
    float each;  // 1 / width
};
__host__ __device__ inline bin_scale_t bin_scale(float t2) {
    bin_scale_t r;
    float const most = fminf(fabsf(t2), 1e6f);
    r.offset = int(ceilf(most)) + 1;
    int const width = int(ceilf((2.f * most + 12.f) / bins_k));
    r.width = width < 16 ? 16 : width;
    r.fraction = 43 - r.width;
    r.each = 1.f / float(r.width);
    return r;
}

/// Adds v 2^exponent, v >= 0, to the sum of one row or column.
__device__ __forceinline__ void add_share(side_t const& side, bin_scale_t const& bins, int p, int index, float v,
                                          int exponent) {
    if (!(v >= 1.2e-38f)) return;  // nothing, or below all that a float resolves
    int const bits = __float_as_int(v), top = (bits >> 23) - 127 + exponent + bins.offset;
    int const k = min(int((float(max(top, 0)) + 0.5f) * bins.each), bins_k - 1);  // top / width
    float const fixed = __int_as_float(bits + ((bins.fraction - k * bins.width + bins.offset + exponent) << 23));
    ptx::red_add(side.bins + (int64_t(p) * bins_k + k) * side.padded + index, __float2ll_rn(fixed));
}

/// What a warp adds of one band of its 16 rows x 256 columns, every cell over 2^top. plain: no cell is absent. window:
/// only cells with x in (top - window_k, top] count.
enum class share_t { plain_k, special_k, window_k };
constexpr int window_k = 64;
constexpr int near_k = 100;  // octaves: nothing that matters to any row or column is lost below 2^-126
template <share_t share_, class cells_t>
__device__ __forceinline__ void add_shares(params_t const& a, float const (&acc)[128], band_t const& band, int p,
                                           int row, int first_column, int lane, bin_scale_t const& bins, int top,
                                           bool columns_too) {
    float row_sum[2] = {};
    float const minus = float(-top);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        uint32_t absent = 0;
        if constexpr (share_ != share_t::plain_k) absent = cells_t{row, first_column + q * 64, lane}.absent(a);
        float columns[16];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            float2 const v = of_columns(band.at_columns + q * 256, k);
            float e[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float const x = fmaf(acc[q * 32 + 4 * k + i], band.u[i >> 1] * (i & 1 ? v.y : v.x), minus);
                e[i] = ptx::ex2(x);
                if (share_ != share_t::plain_k && absent >> (4 * k + i) & 1) e[i] = 0.f;
                if (share_ == share_t::window_k && !(x <= 0.f && x > -float(window_k))) e[i] = 0.f;
            }
            row_sum[0] += e[0] + e[1];
            row_sum[1] += e[2] + e[3];
            columns[2 * k] = e[0] + e[2];
            columns[2 * k + 1] = e[1] + e[3];
        }
        if (columns_too)
#pragma unroll
            for (int h = 0; h < 2; ++h)
                add_share(a.column, bins, p, first_column + q * 64 + h * 32 + summed_column(lane),
                          sum_columns(columns + 8 * h, lane), top);
    }
    if (a.row.bins)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float v = row_sum[h];
            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            if ((lane & 3) == 0) add_share(a.row, bins, p, row + 8 * h, v, top);
        }
}

/// Of one band of a warp's 16 rows x 256 columns. `cells_t` says which cells count: place_of_cells_t, or one like it.
template <class cells_t>
__device__ __forceinline__ void sum_band(params_t const& a, float const (&acc)[128], band_t const& band, int p, int row,
                                         int first_column, int lane, bin_scale_t const& bins, bool columns_too) {
    bool special = false;
#pragma unroll
    for (int q = 0; q < 4; ++q) special |= cells_t{row, first_column + q * 64, lane}.special(a);
    int top = bins.offset, low = -top;  // cosines lie in [-1, 1]
    if (top - low > near_k) {
        float most = -1e30f, least = 1e30f;
#pragma unroll
        for (int q = 0; q < 4; ++q)  // absent cells too: at worst they send a warp to the windows
#pragma unroll
            for (int k = 0; k < 8; ++k) {
                float2 const v = of_columns(band.at_columns + q * 256, k);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float const x = acc[q * 32 + 4 * k + i] * (band.u[i >> 1] * (i & 1 ? v.y : v.x));
                    most = fmaxf(most, x);
                    least = fminf(least, x);
                }
            }
        top = __reduce_max_sync(~0u, __float2int_ru(most));
        low = __reduce_min_sync(~0u, __float2int_rd(least));
    }
    if (top - low <= near_k) {
        if (special)
            add_shares<share_t::special_k, cells_t>(a, acc, band, p, row, first_column, lane, bins, top, columns_too);
        else add_shares<share_t::plain_k, cells_t>(a, acc, band, p, row, first_column, lane, bins, top, columns_too);
        return;
    }
#pragma unroll 1
    for (; top > low - 1; top -= window_k)
        add_shares<share_t::window_k, cells_t>(a, acc, band, p, row, first_column, lane, bins, top, columns_too);
}

}  // namespace scaling_contrasts::sm90::two_set
