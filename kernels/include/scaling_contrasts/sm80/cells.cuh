// From dot products to weights: what each pass does with the cells that one thread holds.
// x is the logit times log2(e), so that 2^x is its exponential. The weight of a cell is its slope dL/dlogit times both
// inverse norms and the prefix's own weight: sums of weight * candidate, and of weight * dot product, give the gradient.
#pragma once
#include "scaling_contrasts/cell.hpp"
#include "scaling_contrasts/sm80/ptx.cuh"

namespace scaling_contrasts::sm80 {

/// Eight cells whose 2^x sum to less than this take three terms of the series of softplus and sigmoid: errors stay
/// below e^2 / 6 and e^3 of them, 1e-5 and less.
inline constexpr float far_sum_k = 1.0f / 128;

/// What edges, diagonal and labels make of a thread's 64 cells, a bit each, cell [m][n][k] = bit 16 m + 4 n + k. Positive:
/// a positive pair. Ignored: dead or a self pair; both bits: a self pair that counts.
struct kinds_t {
    std::uint32_t positive[2], ignored[2];
    float self;   ///< sum of what self pairs add to dL/dt

    /// Those of the eight cells [m][n .. n + 1], from bit 0 up.
    __device__ __forceinline__ std::uint32_t positives(int m, int n) const { return positive[m / 2] >> (m % 2 * 16 + n * 4); }
    __device__ __forceinline__ std::uint32_t ignoreds(int m, int n) const { return ignored[m / 2] >> (m % 2 * 16 + n * 4); }
};

/// Sums over a thread's cells: of the loss and of the slopes.
struct cell_sums_t {
    float loss = 0, slope = 0;
};

/// Slopes of eight cells, all negatives: `dots` are their dot products, [2 n][k], `u` the rows' factors of x, `v` the
/// columns' inverse norms.
__device__ __forceinline__ void negative_slopes(float const* dots, float const (&u)[2], float const (&v)[4], float bias, float (&slope)[8],
                                                cell_sums_t& sums) {
    float below = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        slope[i] = ptx::exp2_approx(fmaf(dots[i] * u[i >> 1 & 1], v[(i >> 2) * 2 + (i & 1)], bias));
        below += slope[i];
    }
    float sum = 0;
    if (__any_sync(~0u, below >= far_sum_k)) {
        float product = 1, above = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float const x = fmaf(dots[i] * u[i >> 1 & 1], v[(i >> 2) * 2 + (i & 1)], bias);
            float const e = ptx::exp2_approx(-fabsf(x)), d = 1 + e;
            slope[i] = (x > 0 ? 1 : e) * ptx::reciprocal_approx(d);
            sum += slope[i];
            above += fmaxf(x, 0.0f);
            product *= d;   // at most 2^8
        }
        sums.loss += ln2_k * (above + ptx::log2_approx(product));
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float const e = slope[i];
            slope[i] = fmaf(e, fmaf(e, e, -e), e);   // e - e^2 + e^3
            sum += slope[i];
        }
        sums.loss += 0.5f * (below + sum);           // e - e^2 / 2 + ...
    }
    sums.slope += sum;
}

/// Slope and loss of one cell of any kind.
__device__ __forceinline__ float any_slope(float x, bool positive, cell_sums_t& sums) {
    float const y = positive ? -x : x;
    float const e = ptx::exp2_approx(-fabsf(y)), d = 1 + e;
    float const log1p = e < 1.0f / 64 ? e * fmaf(e, fmaf(e, 1.0f / 3, -0.5f), 1.0f) : ln2_k * ptx::log2_approx(d);
    float const g = (y > 0 ? 1 : e) * ptx::reciprocal_approx(d);
    sums.loss += ln2_k * fmaxf(y, 0.0f) + log1p;
    sums.slope += positive ? -g : g;
    return positive ? -g : g;
}

/// Slopes of eight cells that may be dead, self pairs or positives. `s` are the rows' factors of the weight: a self
/// pair's cosine does not change, so its slope counts in the sums only; what it adds to dL/dt goes apart.
__device__ __forceinline__ void labelled_slopes(kinds_t& kinds, int m, int n, float const* dots, float const (&u)[2],
                                                float const (&s)[2], float const (&v)[4], float bias, float (&slope)[8], cell_sums_t& sums) {
    std::uint32_t const positives = kinds.positives(m, n), ignoreds = kinds.ignoreds(m, n);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        bool const positive = positives >> i & 1, ignored = ignoreds >> i & 1;
        int const row = i >> 1 & 1, column = (i >> 2) * 2 + (i & 1);
        slope[i] = 0;
        if (ignored && !positive) continue;
        float const g = any_slope(fmaf(dots[i] * u[row], v[column], bias), positive, sums);
        if (ignored) kinds.self += g * dots[i] * s[row] * v[column];
        else slope[i] = g;
    }
}

/// info_nce: slopes of eight cells, both softmaxes. `row_log` and `column_log` are the log sums; positives leave their x.
template <bool kLabelled>
__device__ __forceinline__ void softmax_slopes(kinds_t const& kinds, int m, int n, float const* dots, float const (&u)[2],
                                               float const (&v)[4], float const (&row_log)[2], float const (&column_log)[4],
                                               float (&slope)[8], float* positive_logits) {
    [[maybe_unused]] std::uint32_t const positives = kLabelled ? kinds.positives(m, n) : 0, ignoreds = kLabelled ? kinds.ignoreds(m, n) : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        int const row = i >> 1 & 1, column = (i >> 2) * 2 + (i & 1);
        float const x = dots[i] * u[row] * v[column];
        slope[i] = ptx::exp2_approx(x - row_log[row]) + ptx::exp2_approx(x - column_log[column]);
        if (kLabelled) {
            if (ignoreds >> i & 1) slope[i] = 0;
            else if (positives >> i & 1) {
                slope[i] -= 2;
                positive_logits[m * 16 + row * 8] = x;
            }
        }
    }
}

}  // namespace scaling_contrasts::sm80
