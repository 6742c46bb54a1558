// From dot products to weights: what each pass does with the cells that one thread holds.
// x is the logit times log2(e), so that 2^x is its exponential. The weight of a cell is its slope dL/dlogit times both
// inverse norms and the prefix's own weight: sums of weight * candidate, and of weight * dot product, give the
// gradient.
#pragma once
#include "scaling_contrasts/cell.hpp"
#include "scaling_contrasts/sm80/ptx.cuh"
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

/// Slopes come in this unit, and wait as fractions without their signs: only positives' are negative. Two softmaxes
/// make 2 at most, so they are halved; in the exponent, for ptxas 13.0 lost a factor of 0.5 before the fraction's
/// shift. NT-Xent's slopes reach a row's number of positives, below 2^31, and SupCon's positives have either sign
/// (groups.cuh).
template <pass_t kPass>
inline constexpr float slope_unit_k = kPass == pass_t::softmax_k  ? 0.5f
                                      : kPass == pass_t::groups_k ? 0x1p-32f
                                                                  : 1.0f;
/// What that adds to the logarithms of the sums that a softmax divides by. Groups: one more, for a mean of two.
template <pass_t kPass>
inline constexpr float log_unit_k = kPass == pass_t::groups_k ? 33.0f : 1.0f;

/// Eight cells whose 2^x sum to less than this take three terms of the series of softplus and sigmoid: errors stay
/// below e^2 / 6 and e^3 of them, 1e-5 and less.
inline constexpr float far_sum_k = 1.0f / 128;

/// What edges, diagonal and labels make of a thread's 64 cells, a bit each, cell [m][n][k] = bit 16 m + 4 n + k.
/// Positive: a positive pair. Ignored: dead or a self pair; both bits: a self pair that counts.
struct kinds_t {
    std::uint32_t positive[2], ignored[2];
    float self;    ///< sum of what self pairs add to dL/dt
    int labelled;  ///< whether any cell of the warp is other than a live negative; if not, only this is set

    /// Those of the eight cells [m][n .. n + 1], from bit 0 up.
    __device__ __forceinline__ std::uint32_t positives(int m, int n) const {
        return positive[m / 2] >> (m % 2 * 16 + n * 4);
    }
    __device__ __forceinline__ std::uint32_t ignoreds(int m, int n) const {
        return ignored[m / 2] >> (m % 2 * 16 + n * 4);
    }
};

/// Sums over a thread's cells, times the prefix's weight: of the loss and of the slopes.
struct cell_sums_t {
    float loss = 0, slope = 0;
};

/// Slopes of eight cells, all negatives: `dots` are their dot products, [2 n][k], `q` the factors that make
/// them x, but for the bias.
__device__ __forceinline__ void negative_slopes(float const* dots, float const (&q)[8], float bias, float prefix_weight,
                                                float (&slope)[8], cell_sums_t& sums) {
    float below = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        slope[i] = ptx::exp2_approx(fmaf(dots[i], q[i], bias));
        below += slope[i];
    }
    float sum = 0;
    if (__any_sync(~0u, below >= far_sum_k)) {
        float product = 1, above = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float const x = fmaf(dots[i], q[i], bias);
            float const e = ptx::exp2_approx(-fabsf(x)), d = 1 + e;
            slope[i] = (x > 0 ? 1 : e) * ptx::reciprocal_approx(d);
            sum += slope[i];
            above += fmaxf(x, 0.0f);
            product *= d;  // at most 2^8
        }
        sums.loss = fmaf(prefix_weight * ln2_k, above + ptx::log2_approx(product), sums.loss);
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            float const e = slope[i];
            slope[i] = fmaf(e, fmaf(e, e, -e), e);  // e - e^2 + e^3
            sum += slope[i];
        }
        sums.loss = fmaf(prefix_weight * 0.5f, below + sum, sums.loss);  // e - e^2 / 2 + ...
    }
    sums.slope = fmaf(prefix_weight, sum, sums.slope);
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

/// Slopes of eight cells that may be dead, self pairs or positives. A self
/// pair's cosine does not change, so its slope counts in the sums only; what it adds to dL/dt goes apart.
__device__ __forceinline__ void labelled_slopes(kinds_t& kinds, int m, int n, float const* dots, float const (&q)[8],
                                                float bias, float prefix_weight, float product_unit, float (&slope)[8],
                                                cell_sums_t& sums) {
    cell_sums_t own;
    std::uint32_t const positives = kinds.positives(m, n), ignoreds = kinds.ignoreds(m, n);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        bool const positive = positives >> i & 1, ignored = ignoreds >> i & 1;
        slope[i] = 0;
        if (ignored && !positive) continue;
        float const g = any_slope(fmaf(dots[i], q[i], bias), positive, own);
        if (ignored) kinds.self += g * dots[i] * q[i] * product_unit;
        else slope[i] = g;
    }
    sums.loss = fmaf(prefix_weight, own.loss, sums.loss);
    sums.slope = fmaf(prefix_weight, own.slope, sums.slope);
}

/// info_nce: log2 of the sum over negatives of 2^x, of a row or column of the statistics.
__device__ __forceinline__ float negatives_log(float2 const& maximum) {
    return maximum.y > 0 ? maximum.x + ptx::log2_approx(maximum.y) : -1e30f;
}

/// info_nce: slopes of eight cells, both softmaxes. `row_log` and `column_log` are the log sums, and
/// 1 more, which halves the slopes. A positive's slope is
/// what its negatives' are together, so that it keeps its digits where it is small; `row` and `column` count from the
/// sets' first row, at m = n = 0.
template <bool kLabelled>
__device__ __forceinline__ void softmax_slopes(superblock_t const& a, kinds_t const& kinds, int m, int n, int prefix,
                                               int row, int column, float const* dots, float const (&q)[8],
                                               float const (&row_log)[2], float const (&column_log)[4],
                                               float (&slope)[8]) {
    [[maybe_unused]] std::uint32_t const positives = kLabelled ? kinds.positives(m, n) : 0,
                                         ignoreds = kLabelled ? kinds.ignoreds(m, n) : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        int const h = i >> 1 & 1, k = (i >> 2) * 2 + (i & 1);
        float const x = dots[i] * q[i];
        slope[i] = ptx::exp2_approx(x - row_log[h]) + ptx::exp2_approx(x - column_log[k]);
        if (kLabelled) {
            if (ignoreds >> i & 1) slope[i] = 0;
            else if (positives >> i & 1) {
                float const row_rest =
                    negatives_log(a.rows.maxima[std::int64_t(prefix) * a.rows.padded + row + m * 16 + h * 8]);
                float const column_rest = negatives_log(
                    a.columns.maxima[std::int64_t(prefix) * a.columns.padded + column + (n + k / 2) * 8 + k % 2]);
                slope[i] = -(ptx::exp2_approx(row_rest - row_log[h]) + ptx::exp2_approx(column_rest - column_log[k]));
            }
        }
    }
}

}  // namespace scaling_contrasts::sm80
