// one_set_info_nce's cells: NT-Xent and SupCon (docs/one_set_info_nce.md; the CPU's are in cpu/score_groups.inl). With
// n_i = log2 of the sum over row i's negatives of 2^x, and u_i the same over its positives (SupCon) or log2 of the sum
// of its positives' slopes (NT-Xent), row i pulls a negative by 2^(x - l_i), l_i = n_i - u_i or log2(2^n_i + 2^u_i). A
// cell's slope is the mean of what its two rows make of it.
#pragma once
#include "scaling_contrasts/sm80/cells.cuh"

namespace scaling_contrasts::sm80 {

/// softplus of z ln 2, in natural units, and its slope.
__device__ __forceinline__ float softplus(float z, float& slope) {
    float const e = ptx::exp2_approx(-fabsf(z)), d = 1 + e;
    float const log1p = e < 1.0f / 64 ? e * fmaf(e, fmaf(e, 1.0f / 3, -0.5f), 1.0f) : ln2_k * ptx::log2_approx(d);
    slope = (z > 0 ? 1 : e) * ptx::reciprocal_approx(d);
    return fmaf(ln2_k, fmaxf(z, 0.0f), log1p);
}

/// NT-Xent: log2 of a positive's slope in the loss of row `index`, 2^n / (2^n + 2^x).
__device__ __forceinline__ float log_share(rows_t const& set, int prefix, int index, float x) {
    float slope;
    return -log2e_k * softplus(x - set.negatives[std::int64_t(prefix) * set.padded + index], slope);
}

/// A positive's slope in the loss of row `index`, with its part of that loss added to `loss`.
__device__ __forceinline__ float positive_slope(superblock_t const& a, rows_t const& set, int prefix, int index,
                                                float x, float& loss) {
    std::int64_t const at = std::int64_t(prefix) * set.padded + index;
    float const negatives = set.negatives[at];
    if (!a.sup_con) {
        float slope;
        loss += softplus(negatives - x, slope);
        return -slope;
    }
    // its share of the positives, less 1 / k, less what that share loses to the negatives; alone it is 1, exactly
    float const each = set.each[index], above = each == 1 ? 0.0f : set.positive_logits[at] - x;
    float const share = ptx::exp2_approx(-above), lost = ptx::exp2_approx(negatives - set.log_sums[at]);
    loss = fmaf(above * each, ln2_k, loss);
    return (share - each) - share * lost;
}

/// Slopes of eight cells in their unit; `row_log` and `column_log` are l_i and log_unit_k more. Positives'
/// part of the loss is added to `sums`; `row` and `column` count from the sets' first row, at m = n = 0.
template <bool kLabelled>
__device__ __forceinline__ void group_slopes(superblock_t const& a, kinds_t const& kinds, int m, int n, int prefix,
                                             int row, int column, float const* dots, float const (&q)[8],
                                             float const (&row_log)[2], float const (&column_log)[4],
                                             float prefix_weight, float (&slope)[8], cell_sums_t& sums) {
    [[maybe_unused]] std::uint32_t const positives = kLabelled ? kinds.positives(m, n) : 0,
                                         ignoreds = kLabelled ? kinds.ignoreds(m, n) : 0;
    [[maybe_unused]] float loss = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        int const h = i >> 1 & 1, k = (i >> 2) * 2 + (i & 1);
        float const x = dots[i] * q[i];
        slope[i] = ptx::exp2_approx(x - row_log[h]) + ptx::exp2_approx(x - column_log[k]);
        if (kLabelled) {
            if (ignoreds >> i & 1) slope[i] = 0;
            else if (positives >> i & 1)
                slope[i] = (positive_slope(a, a.rows, prefix, row + m * 16 + h * 8, x, loss) +
                            positive_slope(a, a.columns, prefix, column + (n + k / 2) * 8 + k % 2, x, loss)) *
                           (slope_unit_k<pass_t::groups_k> / 2);
        }
    }
    if (kLabelled) sums.loss = fmaf(prefix_weight * 0.5f, loss, sums.loss);
}

}  // namespace scaling_contrasts::sm80
