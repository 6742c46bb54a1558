// one_set_info_nce's work per row, between the passes over cells (group_cells.cuh): ranges of labels, what the passes'
// sums make of one another, and SupCon's part of the loss that is a row's.
#pragma once
#include <climits>

#include "scaling_contrasts/sm90/group_cells.cuh"
#include "scaling_contrasts/sm90/two_set_rows.cuh"

namespace scaling_contrasts::sm90::two_set {

/// Least and greatest label of every 64 rows, live ones; of none, a range that meets no other. One warp each. Grid:
/// padded / 64.
static __global__ void __launch_bounds__(32)
    ranges_kernel(groups_t const __grid_constant__ groups, int live, int2* ranges) {
    int least = INT_MAX, most = INT_MIN;
    for (int i = threadIdx.x; i < range_rows_k; i += 32)
        if (int const row = blockIdx.x * range_rows_k + i; row < live) {
            int const label = groups.label(row);
            least = min(least, label);
            most = max(most, label);
        }
    least = __reduce_min_sync(~0u, least);
    most = __reduce_max_sync(~0u, most);
    if (threadIdx.x == 0) ranges[blockIdx.x] = make_int2(least, most);
}

/// log2 of what the bins of one row hold; -1e30 of nothing.
__device__ __forceinline__ float log_of_bins(side_t const& side, bin_scale_t const& bins, int p, int row) {
    int64_t const* from = side.bins + int64_t(p) * bins_k * side.padded + row;
    int top = bins_k - 1;
    while (top >= 0 && from[int64_t(top) * side.padded] == 0) --top;
    if (top < 0) return -1e30f;
    double sum = 0.0;  // in units of the highest bin's
    for (int k = 0; k <= top; ++k) sum += double(from[int64_t(k) * side.padded]) * exp2(double((k - top) * bins.width));
    return float(log2(sum) + double(top * bins.width - bins.offset - bins.fraction));
}

/// After the pass over negatives: n. One thread a row. Grid: (padded / 256, prefixes).
static __global__ void __launch_bounds__(rows_threads_k)
    negatives_kernel(pairs_t const __grid_constant__ a, float* negatives) {
    int const row = blockIdx.x * rows_threads_k + threadIdx.x, p = blockIdx.y;
    bin_scale_t const bins = bin_scale(scales_of<true>(a).t2);
    negatives[int64_t(p) * a.side[0].padded + row] = log_of_bins(a.side[0], bins, p, row);
}

/// After the pass over positives: u and l. Rows without positives pull nothing: l is 1e30. Grid as before.
static __global__ void __launch_bounds__(rows_threads_k)
    group_sums_kernel(pairs_t const __grid_constant__ a, float* positives, float* log_sums) {
    int const row = blockIdx.x * rows_threads_k + threadIdx.x, p = blockIdx.y;
    int64_t const at = int64_t(p) * a.side[0].padded + row;
    float const rest = a.groups.negatives[at],
                own = log_of_bins(a.side[0], positive_bins(scales_of<true>(a).t2, a.sup_con), p, row);
    float const whole = fmaxf(rest, own) + log2f(1.f + exp2f(-fabsf(rest - own)));
    positives[at] = own;
    log_sums[at] = own < -1e29f ? 1e30f : a.sup_con ? whole : rest - own;
}

/// SupCon: log(1 + N / P) of every row that has positives, to `partials`. Grid: partial_count.
static __global__ void __launch_bounds__(rows_threads_k) row_losses_kernel(pairs_t const __grid_constant__ a) {
    __shared__ double part[rows_threads_k / 32];
    int const row = blockIdx.x * rows_threads_k + threadIdx.x;
    double sum = 0.0;
    if (a.sup_con && row < a.side[0].live)
        for (int p = 0; p < a.prefixes; ++p) {
            int64_t const at = int64_t(p) * a.side[0].padded + row;
            double const own = a.groups.positives[at], rest = a.groups.negatives[at];
            if (own > -1e29) sum += double(a.omega[p]) * log1p(exp2(rest - own));
        }
    sum = sum_over_warp(sum);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 3) {
        double all = 0.0;
        for (double v : part) all += v;
        a.partials[3 * int64_t(blockIdx.x) + threadIdx.x] = threadIdx.x == 0 ? all : 0.0;
    }
}

}  // namespace scaling_contrasts::sm90::two_set
