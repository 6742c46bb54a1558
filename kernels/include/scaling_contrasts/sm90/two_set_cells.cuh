// Cells of the losses over two sets, a quarter of a tile (64 columns) at a time: a warp holds 16 rows x 64 columns of
// dot products, a thread 32 cells, [chunk of 8 columns][row r: 2 columns, row r + 8: 2 columns]. Positives and rows
// that are not there are "absent": positives are an exact correction of their own (two_set_finish.cuh), so every cell
// here is a negative.
//
// A quarter leaves packed weights w = dl/dlogit inv_i inv_j t log2(e), and adds to sums.
#pragma once
#include "scaling_contrasts/sm90/two_set_shared.cuh"

namespace scaling_contrasts::sm90::two_set {

/// Where no sum of eight e^logit reaches this: sigmoid = e - e^2, softplus = e - e^2 / 2, both good to 2e-5 of a cell
/// at the edge and 1e-8 of the sums far below.
constexpr float far_k = 1.f / 256;

/// What a thread needs of a band.
struct band_t {
    float u[2];        // of its two rows: inverse norm times t log2(e)
    float log_sum[2];  // info_nce
    float omega;       // the prefix's weight
    uint32_t
        at_columns;  // in shared memory: inverse norms of the tile's columns, from the thread's first one on; log sums 1 KiB on
};
/// Sums over a thread's cells.
struct totals_t {
    float loss = 0.f, slope = 0.f, product = 0.f;  // product: slope times cosine times t log2(e)
};
/// Sums of weight times dot product, for ladders: of two rows, and of the columns of a quarter.
struct products_t {
    float row[2] = {}, column[16];
};

__device__ __forceinline__ float sum_over_warp(float v) {
#pragma unroll
    for (int m = 16; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);
    return v;
}
/// Sums over a warp's rows of eight values a thread, of four chunks: lane l ends with column summed_column(l) of the
/// 32.
__device__ __forceinline__ float sum_columns(float const* v, int lane) {
    bool const b4 = lane & 16, b3 = lane & 8, b2 = lane & 4;
    float h[4], m[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) h[i] = (b4 ? v[i + 4] : v[i]) + __shfl_xor_sync(~0u, b4 ? v[i] : v[i + 4], 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = (b3 ? h[i + 2] : h[i]) + __shfl_xor_sync(~0u, b3 ? h[i] : h[i + 2], 8);
    return (b2 ? m[1] : m[0]) + __shfl_xor_sync(~0u, b2 ? m[0] : m[1], 4);
}
__device__ __forceinline__ int summed_column(int lane) { return (lane >> 3) * 8 + (lane & 3) * 2 + (lane >> 2 & 1); }

/// Which of a warp's cells are absent. `row`, `column`: the thread's first row and the quarter's first column.
struct place_of_cells_t {
    int row, column, lane;

    /// Whether any cell of the warp is.
    __device__ __forceinline__ bool special(params_t const& a) const {
        int const first = row - (lane >> 2);
        return first + 16 > a.row.live || column + 64 > a.column.live ||
               (a.own && first < column + 64 && column < first + 16);
    }
    /// A bit a cell.
    __device__ __forceinline__ uint32_t absent(params_t const& a) const {
        uint32_t bits = 0;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            int const r = row + (i & 2) * 4, c = column + i / 4 * 8 + (lane & 3) * 2 + (i & 1);
            if (r >= a.row.live || c >= a.column.live || (a.own && r == c)) bits |= 1u << i;
        }
        return bits;
    }
};

/// inverse norms (or log sums) of the columns of chunk `k` that a thread holds.
__device__ __forceinline__ float2 of_columns(uint32_t at, int k) { return ptx::load_float2(at + k * 32); }

template <bool ladder_>
__device__ __forceinline__ void keep(float const (&w)[4], float const* d, int k, uint32_t (&words)[16],
                                     totals_t& totals, products_t& products) {
    words[2 * k] = ptx::pack_bf16(w[0], w[1]);
    words[2 * k + 1] = ptx::pack_bf16(w[2], w[3]);
    if constexpr (ladder_) {
        float s[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) s[i] = w[i] * d[i];
        products.row[0] += s[0] + s[1];
        products.row[1] += s[2] + s[3];
        products.column[2 * k] = s[0] + s[2];
        products.column[2 * k + 1] = s[1] + s[3];
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) totals.product = fmaf(w[i], d[i], totals.product);
    }
}

/// What far_quarter() would find, in its order.
__device__ __forceinline__ bool is_far(float const* d, band_t const& band, uint32_t at, float b2) {
    float e4[4] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        float2 const v = of_columns(at, k);
#pragma unroll
        for (int i = 0; i < 4; ++i) e4[i] += ptx::ex2(fmaf(d[4 * k + i], band.u[i >> 1] * (i & 1 ? v.y : v.x), b2));
    }
    return !__any_sync(~0u, !(fmaxf(fmaxf(e4[0], e4[1]), fmaxf(e4[2], e4[3])) < far_k));
}

/// sigmoid: straight code for a quarter far below zero; false if it is not.
template <bool ladder_>
__device__ __forceinline__ bool far_quarter(float const* d, band_t const& band, uint32_t at, float b2,
                                            uint32_t (&words)[16], totals_t& totals, products_t& products) {
    float e4[4] = {}, g4[4] = {};
    totals_t mine;
    products_t sums = products;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        float2 const v = of_columns(at, k);
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float const q = band.u[i >> 1] * (i & 1 ? v.y : v.x), e = ptx::ex2(fmaf(d[4 * k + i], q, b2)),
                        g = fmaf(-e, e, e);
            e4[i] += e;
            g4[i] += g;
            w[i] = g * q;
            if constexpr (ladder_) w[i] *= band.omega;
        }
        keep<ladder_>(w, d + 4 * k, k, words, mine, sums);
    }
    if (__any_sync(~0u, !(fmaxf(fmaxf(e4[0], e4[1]), fmaxf(e4[2], e4[3])) < far_k))) return false;
    float const e = (e4[0] + e4[1]) + (e4[2] + e4[3]), g = (g4[0] + g4[1]) + (g4[2] + g4[3]);
    totals.loss = fmaf(band.omega, 0.5f * (e + g), totals.loss);
    totals.slope = fmaf(band.omega, g, totals.slope);
    totals.product += mine.product;
    products = sums;
    return true;
}

/// sigmoid: any logit. Absent cells have logit -inf.
template <bool ladder_, bool special_>
__device__ __forceinline__ void exact_quarter(float const* d, band_t const& band, uint32_t at, float b2,
                                              uint32_t absent, uint32_t (&words)[16], totals_t& totals,
                                              products_t& products) {
    float loss = 0.f, slope = 0.f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {  // sixteen cells share a logarithm
        float prod = 1.f, relu = 0.f, below = 0.f, small = 0.f;
#pragma unroll
        for (int k = half * 4; k < half * 4 + 4; ++k) {
            float2 const v = of_columns(at, k);
            float w[4];
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                float const u = band.u[i >> 1], q[2] = {u * v.x, u * v.y};
                float d1[2], num[2];
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float x = fmaf(d[4 * k + i + h], q[h], b2);
                    if (special_ && absent >> (4 * k + i + h) & 1) x = -1e30f;
                    float const e = ptx::ex2(-fabsf(x));
                    d1[h] = 1.f + e;
                    num[h] = x > 0.f ? 1.f : e;
                    relu += fmaxf(x, 0.f);
                    below += num[h];
                    small += fmaf(-0.5f * num[h], num[h], num[h]);
                }
                float const both = d1[0] * d1[1], r = ptx::rcp(both);  // one reciprocal for two cells
                float const g0 = num[0] * (r * d1[1]), g1 = num[1] * (r * d1[0]);
                slope += g0 + g1;
                prod *= both;
                w[i] = g0 * q[0];
                w[i + 1] = g1 * q[1];
                if constexpr (ladder_) w[i] *= band.omega, w[i + 1] *= band.omega;
            }
            keep<ladder_>(w, d + 4 * k, k, words, totals, products);
        }
        // the logarithm of the product is good to 2e-7 absolute, so small sums take the series
        loss += below < 4e-3f ? small : ln2_k * (relu + ptx::lg2(prod));
    }
    totals.loss = fmaf(band.omega, loss, totals.loss);
    totals.slope = fmaf(band.omega, slope, totals.slope);
}

/// info_nce: both softmaxes of every cell, from the log sums of the first pass.
template <bool ladder_, bool special_>
__device__ __forceinline__ void softmax_quarter(float const* d, band_t const& band, uint32_t at, uint32_t absent,
                                                uint32_t (&words)[16], totals_t& totals, products_t& products) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        float2 const v = of_columns(at, k), l = of_columns(at + column_tile_k * 4, k);
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float const q = band.u[i >> 1] * (i & 1 ? v.y : v.x);
            float g = ptx::ex2(fmaf(d[4 * k + i], q, -band.log_sum[i >> 1])) +
                      ptx::ex2(fmaf(d[4 * k + i], q, -(i & 1 ? l.y : l.x)));
            if (special_ && absent >> (4 * k + i) & 1) g = 0.f;
            w[i] = g * q;
            if constexpr (ladder_) w[i] *= band.omega;
        }
        keep<ladder_>(w, d + 4 * k, k, words, totals, products);
    }
}

}  // namespace scaling_contrasts::sm90::two_set
