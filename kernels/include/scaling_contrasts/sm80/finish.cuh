// What happens to rows once all candidates are scored: norm corrections and rounding of the gradients, and the scalars.
#pragma once
#include "scaling_contrasts/cell.hpp"
#include "scaling_contrasts/sm80/ptx.cuh"
#include "scaling_contrasts/sm80/step.cuh"
#include "scaling_contrasts/sm80/sums.cuh"

namespace scaling_contrasts::sm80 {

inline constexpr int finish_threads_k = 256;

/// Merges a superblock's partial maxima into the running ones: [prefix][padded] of (maximum, sum of 2^(x - maximum)).
/// Of a triangle, a row's parts left of the diagonal tile are those of columns, as (j, i) stands for (i, j).
static __global__ void merge_maxima_kernel(__grid_constant__ superblock_t const a, bool of_columns, int prefixes,
                                           float2* running) {
    rows_t const& set = of_columns ? a.columns : a.rows;
    int const first = of_columns ? a.first_column : a.first_row, local = blockIdx.x * blockDim.x + threadIdx.x,
              prefix = blockIdx.y;
    int const tile = local / tile_k;
    int const of_rows = of_columns ? 0 : a.tile_columns * 4, skipped = a.triangle ? tile * 4 : 0;
    int const transposed = of_columns ? a.tile_rows * 2 : a.triangle ? tile * 2 : 0;
    if (local >= (of_columns ? a.tile_columns : a.tile_rows) * tile_k || first + local >= set.rows) return;
    float2& to = running[std::int64_t(prefix) * set.padded + first + local];
    float2 sum = to;
    auto add = [&](float2 const* parts, int begin, int end) {
        for (int i = begin; i < end; ++i) {
            float2 const part = parts[(std::int64_t(i) * prefixes + prefix) * a.side + local];
            float const maximum = fmaxf(sum.x, part.x);
            sum = {maximum, sum.y * exp2f(sum.x - maximum) + part.y * exp2f(part.x - maximum)};
        }
    };
    add(a.column_maxima, 0, transposed);
    add(a.row_maxima, skipped, of_rows);
    to = sum;
}

/// Adds another device's part of `rows` rows' gradients, `from` [rows][dims] in its memory, and of their weighted
/// products, [prefix][from_padded]. One thread adds to an element.
static __global__ void add_partial_kernel(__grid_constant__ rows_t const set, int rows,
                                          __grid_constant__ ladder_t const ladder, float4 const* from,
                                          float const* products, int from_padded) {
    std::int64_t const first = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x,
                       step = std::int64_t(gridDim.x) * blockDim.x;
    auto* const gradient = reinterpret_cast<float4*>(set.gradient);
    for (std::int64_t i = first; i < std::int64_t(rows) * ladder.dims / 4; i += step) {
        float4 sum = gradient[i];
        float4 const part = from[i];
        sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
        gradient[i] = sum;
    }
    for (std::int64_t i = first; i < std::int64_t(rows) * ladder.count; i += step) {
        std::int64_t const prefix = i / rows, row = i % rows;
        set.weighted_products[prefix * set.padded + row] += products[prefix * from_padded + row];
    }
}

/// Before the first block of candidates: no maximum yet.
static __global__ void clear_maxima_kernel(float2* running, std::int64_t count) {
    std::int64_t const i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < count) running[i] = {-1e30f, 0.0f};
}

/// After the last: log2 of the sum of 2^x over negatives and the positive.
static __global__ void log_sums_kernel(float2 const* running, float const* positive_logits, float* log_sums,
                                       std::int64_t count) {
    std::int64_t const i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float const rest = running[i].y > 0 ? running[i].x + log2f(running[i].y) : -1e30f, own = positive_logits[i];
    log_sums[i] = fmaxf(rest, own) + log2f(1 + exp2f(-fabsf(rest - own)));
}

/// With what rounding took off the positive's weight given back to gradient_i,
/// dX_i in band b = factor t (gradient_i - x_i sum over p >= b of weighted_products_p / |x_i[:p]|^2), rounded to what
/// is returned; zero for dead rows and past the ladder. One warp a row. `partial` gets each thread block's sums of the
/// weighted products, dL/dt but for a factor, and of the loss in units of ln 2 where it is a row's: info_nce's, and
/// SupCon's but for what lies between a row's positives. `mean_over`: divides the factor; null: 1. `row_losses`: there
/// are such.
template <class output_t>
static __global__ void __launch_bounds__(finish_threads_k)
    finish_kernel(__grid_constant__ rows_t const set, std::int64_t capacity, __grid_constant__ ladder_t const ladder,
                  float const* scale, double factor, double const* mean_over, bool row_losses, output_t* output,
                  double2* partial) {
    __shared__ double2 sums[finish_threads_k / 32];
    int const lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    std::int64_t const row = std::int64_t(blockIdx.x) * (finish_threads_k / 32) + warp;
    double products = 0, logs = 0;
    if (row < capacity) {
        bool const live = row < set.rows;
        float const outer = static_cast<float>(factor / (mean_over ? fmax(*mean_over, 1.0) : 1.0) * *scale);
        int column = ladder.dims;
        float correction = 0;
        for (int prefix = ladder.count; prefix >= 0;
             --prefix) {  // from the last band down; first what lies past the ladder
            int const begin = prefix == ladder.count ? ladder.bands[prefix - 1].end : ladder.bands[prefix].begin;
            bool const inside = live && prefix < ladder.count;
            float residual = 0;
            if (inside) {
                std::int64_t const at = std::int64_t(prefix) * set.padded + row;
                float const product = set.weighted_products[at], inverse = set.inverse_norms[at];
                correction = fmaf(product * inverse, inverse, correction);
                products += product;
                if (set.residuals) residual = set.residuals[at];
                if (row_losses && set.positive_logits[at] > -1e29f) {
                    // log2(1 + negatives / positive): small losses keep their digits
                    double const ratio =
                        double(set.maxima[at].x) - set.positive_logits[at] + log2(double(set.maxima[at].y));
                    logs += double(ladder.weights[prefix]) * log1p(exp2(ratio)) / double(ln2_k);
                }
            }
            for (int i = begin + lane * 2; output && i < column; i += 64) {  // forward only: no output
                float2 value = {0, 0};
                if (inside) {
                    std::uint32_t const x =
                        *reinterpret_cast<std::uint32_t const*>(set.embeddings + row * ladder.dims + i);
                    value = *reinterpret_cast<float2 const*>(set.gradient + row * ladder.dims + i);
                    if (set.residuals) {
                        auto const y = *reinterpret_cast<std::uint32_t const*>(set.partners + row * ladder.dims + i);
                        value.x = fmaf(residual, ptx::low_bf16(y), value.x);
                        value.y = fmaf(residual, ptx::high_bf16(y), value.y);
                    }
                    value.x = outer * fmaf(-correction, ptx::low_bf16(x), value.x);
                    value.y = outer * fmaf(-correction, ptx::high_bf16(x), value.y);
                }
                if constexpr (sizeof(output_t) == 2)
                    *reinterpret_cast<std::uint32_t*>(output + row * ladder.dims + i) =
                        ptx::pack_bf16(value.x, value.y);
                else *reinterpret_cast<float2*>(output + row * ladder.dims + i) = value;
            }
            column = begin;
        }
    }
    if (lane == 0) sums[warp] = {products, logs};
    __syncthreads();
    if (threadIdx.x == 0) {
        double2 sum = {0, 0};
        for (double2 const& part : sums) sum.x += part.x, sum.y += part.y;
        partial[blockIdx.x] = sum;
    }
}

/// What the scalars are summed from.
struct scalars_job_t {
    double const* slots;  ///< [count][3]
    int slot_count;
    double2 const* partial[2];  ///< of each set's finish_kernel; the second's loss counts, its products do not
    int partial_count;
    double factor;            ///< of all three: 1 / n, or 1 / 2n
    double const* mean_over;  ///< divides it, of one_set_info_nce
    bool has_bias;
    double* out;  ///< loss, dL/dt, dL/db
};

/// One thread block adds everything up, in an order that never changes.
static __global__ void __launch_bounds__(1024) scalars_kernel(__grid_constant__ scalars_job_t const job) {
    __shared__ double sums[32][3];
    double loss = 0, scale = 0, bias = 0;
    for (int i = threadIdx.x; i < job.slot_count; i += 1024) {
        loss += job.slots[i * 3];
        bias += job.slots[i * 3 + 1];
        scale += job.slots[i * 3 + 2];
    }
    for (int set = 0; set < 2; ++set)
        for (int i = threadIdx.x; job.partial[set] && i < job.partial_count; i += 1024) {
            if (set == 0) scale += job.partial[set][i].x;
            loss += double(ln2_k) * job.partial[set][i].y;
        }
    loss = warp_sum(loss), scale = warp_sum(scale), bias = warp_sum(bias);
    if (threadIdx.x % 32 == 0) {
        double* to = sums[threadIdx.x / 32];
        to[0] = loss, to[1] = scale, to[2] = bias;
    }
    __syncthreads();
    if (threadIdx.x < 3) {
        double sum = 0;
        for (auto const& part : sums) sum += part[threadIdx.x];
        double const factor = job.factor / (job.mean_over ? fmax(*job.mean_over, 1.0) : 1.0);
        job.out[threadIdx.x] = threadIdx.x == 2 && !job.has_bias ? 0.0 : sum * factor;
    }
}

}  // namespace scaling_contrasts::sm80
