// After the last block: gradient tiles to rows of the output, with the share that comes from the rows' own norms
//   dX_b(i) = 2 ln2 w / n * (sum_j W_b(i, j) X_j - T_b(i) X_i),   T_b(i) = sum_{p >= b} inv_p(i)^2 S_p(i),
// and the three scalars. Grid: (row blocks, 2 programs, sets); 128 threads hold half of what a consumer warpgroup did.
// With fp16 rows and bf16 gradients x may lie where the gradient goes: what four lanes write over they have read.
#pragma once
#include <type_traits>

#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

__device__ __forceinline__ double sum_over_warp(double v) {
#pragma unroll
    for (int m = 16; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);
    return v;
}

constexpr int finish_threads_k = 128;

/// What is read and written of one set of rows; see params_t.
struct finished_set_t {
    side_t row;
    __nv_bfloat16 const* x;
    float const* row_scale;
    int64_t *s, *sums;
    float* dx;
    void* gradient;
};
__host__ __device__ inline finished_set_t rows_of(params_t const& a) {
    return {a.row, a.x, a.row_scale, a.s, a.sums, a.dx, a.gradient};
}

/// Where every positive was a cell of the grid.
struct no_positives_t {
    static constexpr bool any = false;
};

/// Half a gradient tile of `set`; `first_part`: of the set's row blocks among the parts of the scalars. `positives`: what
/// softmax_finish.cuh adds, which finds the scalars elsewhere.
template <class pair_, class positives_t = no_positives_t>
__device__ __forceinline__ void finish_half(params_t const& a, finished_set_t const& set, int first_part, int parts,
                                            positives_t const& positives = {}) {
    __shared__ float own[max_prefixes_k][tile_k / 2];                              // T_b of this quarter's rows
    __shared__ float positive[positives_t::any ? max_prefixes_k : 1][tile_k / 2];  // the weights of theirs
    __shared__ residual_t residuals[tile_k / 2][residuals_k];
    __shared__ int residual_count[tile_k / 2];
    __shared__ double part[4];
    __shared__ bool last;
    int const block = blockIdx.x, which = blockIdx.y / 2, row_half = blockIdx.y % 2;
    int const thread = threadIdx.x, lane = thread & 31;
    program_t const program = a.program[which];
    float4 const* tile =
        reinterpret_cast<float4 const*>(set.dx + (int64_t(block) * a.columns + program.column) * tile_k) +
        row_half * (program.width * tile_k / 8) + thread;
    float4 first[4];  // on their way while the rows' sums are looked up
#pragma unroll
    for (int j = 0; j < 4; ++j) first[j] = __ldcs(tile + j * 128);

    scales_t const scale = scales_of(a);
    float const unit = 1.f / scale.s;  // a power of two
    float const* inv = set.row.records + int64_t(block) * record_floats(a.prefixes) + row_half * (tile_k / 2);
    int64_t const* s = set.s + int64_t(block) * a.prefixes * tile_k;
    for (int i = thread; i < a.prefixes * (tile_k / 2); i += finish_threads_k) {
        int const p = i / (tile_k / 2), r = i % (tile_k / 2);
        float const v = inv[p * tile_k + r];
        float product = float(s[p * tile_k + row_half * (tile_k / 2) + r]) * unit;
        if constexpr (positives_t::any) {
            int const row = block * tile_k + row_half * (tile_k / 2) + r;
            float2 const cell = row < set.row.live ? positives.of(p, row, v) : make_float2(0.f, 0.f);
            product += cell.x;
            positive[p][r] = cell.y;
        }
        own[p][r] = v * v * product;
    }
    if (thread < tile_k / 2) {  // a row's residuals, in the order of the other rows' addresses, so that bits repeat
        int64_t const r = int64_t(block) * tile_k + row_half * (tile_k / 2) + thread;
        int n = 0;
        if (a.residuals && r < set.row.live) {
            uint32_t const count = a.residual_count[r];
            if (count <= residuals_k)
                for (; n < int(count); ++n) {
                    residual_t const e = a.residuals[r * residuals_k + n];
                    int at = n;
                    for (; at > 0 && residuals[thread][at - 1].x > e.x; --at)
                        residuals[thread][at] = residuals[thread][at - 1];
                    residuals[thread][at] = e;
                }
        }
        residual_count[thread] = n;
    }
    __syncthreads();
    if (thread < tile_k / 2)
        for (int p = a.prefixes - 2; p >= 0; --p) {
            own[p][thread] += own[p + 1][thread];
            if constexpr (positives_t::any) positive[p][thread] += positive[p + 1][thread];
        }
    __syncthreads();

    // weights carry a scale that is never 0
    float const factor = *a.t == 0.f ? 0.f : 2.f * ln2_k * a.weight / float(a.rows_everywhere);
    int const row = thread / 32 * 16 + lane / 4, quad = lane & 3;
    int const band = program.band;
#pragma unroll
    for (int j = 0; j < 16; j += 2) {
        if (8 * j >= program.width) break;
        float4 const v[2] = {j < 4 ? first[j & 3] : __ldcs(tile + j * 128),
                             j < 4 ? first[(j + 1) & 3] : __ldcs(tile + (j + 1) * 128)};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int const r = row + 8 * h, in_block = row_half * (tile_k / 2) + r;
            bool const live = block * tile_k + in_block < set.row.live, there = block * tile_k + in_block < a.rows;
            int64_t const at = (int64_t(block) * tile_k + in_block) * a.dims;
            uint32_t packed[2];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                int const column = program.column + 8 * (j + k) + quad * 2;
                uint32_t const x = live ? *reinterpret_cast<uint32_t const*>(set.x + at + column) : 0u;
                float lo = (h ? v[k].z : v[k].x) - own[band][r] * pair_::lo(x),
                      hi = (h ? v[k].w : v[k].y) - own[band][r] * pair_::hi(x);
                if constexpr (positives_t::any) {
                    int const row = block * tile_k + in_block;
                    uint32_t const y = live ? *reinterpret_cast<uint32_t const*>(positives.other(row) + column) : 0u;
                    lo = fmaf(positive[band][r], ptx::lo_bf16(y), lo);
                    hi = fmaf(positive[band][r], ptx::hi_bf16(y), hi);
                }
                for (int e = 0; e < residual_count[r]; ++e) {
                    residual_t const& other = residuals[r][e];
                    uint32_t const y = *reinterpret_cast<uint32_t const*>(other.x + column);
                    lo = fmaf(other.band[band], pair_::lo(y), lo);
                    hi = fmaf(other.band[band], pair_::hi(y), hi);
                }
                if constexpr (std::is_same_v<pair_, ptx::fp16_pair_t>)
                    if (live)
                        lo *= set.row_scale[block * tile_k + in_block], hi *= set.row_scale[block * tile_k + in_block];
                lo = live ? factor * lo : 0.f;
                hi = live ? factor * hi : 0.f;
                packed[k] = ptx::pack_bf16(lo, hi);
                if (a.fp32_gradients && there)
                    *reinterpret_cast<float2*>(static_cast<float*>(set.gradient) + at + column) = make_float2(lo, hi);
            }
            if (!a.fp32_gradients) {  // the four lanes of a row swap, so that each has four columns in a row and together a whole sector
                uint32_t const from = lane / 4 * 4 + (quad & 1) * 2;
                uint32_t const l0 = __shfl_sync(~0u, packed[0], from), l1 = __shfl_sync(~0u, packed[1], from);
                uint32_t const h0 = __shfl_sync(~0u, packed[0], from + 1), h1 = __shfl_sync(~0u, packed[1], from + 1);
                if (there)
                    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(set.gradient) + at + program.column +
                                              8 * (j + quad / 2) + (quad & 1) * 4) =
                        make_uint2(quad & 2 ? l1 : l0, quad & 2 ? h1 : h0);
            }
        }
    }
    if (blockIdx.y == 0 && a.columns < a.dims) {  // columns past the last prefix
        int const width = a.dims - a.columns;
        for (int i = thread; i < tile_k * width; i += finish_threads_k) {
            int const r = i / width;
            int64_t const at = (int64_t(block) * tile_k + r) * a.dims + a.columns + i % width;
            if (block * tile_k + r >= a.rows) break;
            if (a.fp32_gradients) static_cast<float*>(set.gradient)[at] = 0.f;
            else static_cast<__nv_bfloat16*>(set.gradient)[at] = __float2bfloat16(0.f);
        }
    }
    if (positives_t::any || blockIdx.y != 0) return;

    // the scalars: blocks in any order write their part, the last one adds all parts in a fixed order
    double dt = 0.0;
    for (int i = thread; i < a.prefixes * tile_k; i += finish_threads_k) dt += double(s[i]) * double(unit);
    dt = sum_over_warp(dt);
    if (lane == 0) part[thread / 32] = dt;
    __syncthreads();
    if (threadIdx.x == 0) {
        double* mine = a.partials + 3 * int64_t(first_part + block);
        mine[0] = double(set.sums[2 * block]) / double(scale.sum);
        mine[1] = part[0] + part[1] + part[2] + part[3];
        mine[2] = double(set.sums[2 * block + 1]) / double(scale.sum);
        __threadfence();
        last = atomicAdd(a.finished, 1u) == uint32_t(parts) - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int k = 0; k < 3; ++k) {
        double sum = 0.0;
        for (int i = threadIdx.x; i < parts; i += finish_threads_k) sum += __ldcg(a.partials + 3 * int64_t(i) + k);
        sum = sum_over_warp(sum);
        __syncthreads();
        if (lane == 0) part[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            double all = 0.0;
            for (double v : part) all += v;
            all *= double(a.weight) / a.rows_everywhere;
            if (k == 1) all /= double(scale.t2);
            if (a.scalars) a.scalars[k] = float(all);
            if (a.scalars_double) a.scalars_double[k] = all;
        }
    }
}

template <class pair_>
__global__ void __launch_bounds__(finish_threads_k) finish_kernel(params_t const __grid_constant__ a) {
    finish_half<pair_>(a, rows_of(a), 0, int(gridDim.x));
}
/// The same of two sets of as many rows, whose scalars are summed.
template <class pair_>
__global__ void __launch_bounds__(finish_threads_k)
    finish_two_kernel(params_t const __grid_constant__ a, finished_set_t const __grid_constant__ second) {
    finish_half<pair_>(a, blockIdx.z == 0 ? rows_of(a) : second, int(blockIdx.z * gridDim.x), int(2 * gridDim.x));
}

}  // namespace scaling_contrasts::sm90
