// one_set_info_nce's work per row, between the passes over cells: how many positives each row has, what the mean is
// over, and what the second pass's sums make of the third (groups.cuh).
#pragma once
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

/// Adds to each row's number of positives among `columns`. Integers: the order of additions does not matter.
static __global__ void __launch_bounds__(256)
    count_positives_kernel(__grid_constant__ rows_t const rows, __grid_constant__ rows_t const columns, int* counts) {
    int const row = blockIdx.x * 256 + threadIdx.x, begin = blockIdx.y * 4096;
    if (row >= rows.rows) return;
    int const label = rows.labels[row], end = min(begin + 4096, columns.rows);
    int count = 0;
    for (int j = begin; j < end; ++j) count += columns.labels[j] == label;
    std::int64_t const self = rows.first + row - columns.first;
    if (self >= begin && self < end) --count;
    if (count) atomicAdd(counts + row, count);
}

/// 1 / each row's positives, and over all rows the sum of positives and of rows that have any, one after the other.
static __global__ void __launch_bounds__(1024)
    close_counts_kernel(int const* counts, int rows, float* each, float* out) {
    __shared__ double sums[32][2];
    double pairs = 0, anchors = 0;
    for (int row = threadIdx.x; row < rows; row += 1024) {
        int const count = counts[row];
        each[row] = count ? 1.0f / static_cast<float>(count) : 0.0f;
        pairs += count, anchors += count > 0;
    }
    for (int lanes = 16; lanes; lanes >>= 1) {
        pairs += __shfl_xor_sync(~0u, pairs, lanes);
        anchors += __shfl_xor_sync(~0u, anchors, lanes);
    }
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][0] = pairs, sums[threadIdx.x / 32][1] = anchors;
    __syncthreads();
    if (threadIdx.x < 2) {
        double sum = 0;
        for (auto const& part : sums) sum += part[threadIdx.x];
        out[threadIdx.x] = static_cast<float>(sum);
    }
}

/// What the mean is over, one device after another.
static __global__ void add_count_kernel(float const* from, double* mean_over) { *mean_over += *from; }

/// After the pass over negatives: n_i.
static __global__ void negatives_kernel(float2 const* running, float* negatives, std::int64_t count) {
    std::int64_t const i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) negatives[i] = running[i].y > 0 ? running[i].x + log2f(running[i].y) : -1e30f;
}

/// After the pass over positives: u_i and l_i. Rows without positives pull nothing: l_i is 1e30.
static __global__ void group_sums_kernel(float const* negatives, float2 const* positives, bool sup_con,
                                         float* positive_logits, float* log_sums, std::int64_t count) {
    std::int64_t const i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    bool const has = positives[i].y > 0 && positives[i].x > -1e29f;
    float const rest = negatives[i], own = has ? positives[i].x + log2f(positives[i].y) : -1e30f;
    positive_logits[i] = own;
    float const whole = fmaxf(rest, own) + log2f(1 + exp2f(-fabsf(rest - own)));
    log_sums[i] = !has ? 1e30f : sup_con ? whole : rest - own;
}

}  // namespace scaling_contrasts::sm80
