// After the last block: gradient tiles to rows of the output, with the share that comes from the rows' own norms
//   dX_b(i) = 2 ln2 w / n * (sum_j W_b(i, j) X_j - T_b(i) X_i),   T_b(i) = sum_{p >= b} inv_p(i)^2 S_p(i),
// and the three scalars. Grid: (row blocks, programs); 256 threads hold a tile as the consumer threads did.
#pragma once
#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

__device__ __forceinline__ double sum_over_warp(double v) {
#pragma unroll
    for (int m = 16; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);
    return v;
}

__global__ void __launch_bounds__(256) finish_kernel(params_t const __grid_constant__ a) {
    __shared__ float own[max_prefixes_k][tile_k];   // T_b of this block's rows
    __shared__ double part[8];
    __shared__ bool last;
    int const block = blockIdx.x, which = blockIdx.y, thread = threadIdx.x & 127, wg = threadIdx.x / 128, lane = thread & 31;
    scales_t const scale = scales_of(a);
    float const* inv = a.row.records + int64_t(block) * record_floats(a.prefixes);
    int64_t const* s = a.s + int64_t(block) * a.prefixes * tile_k;
    double dt = 0.0;
    if (wg == 0) {
        float sum = 0.f;
        for (int p = a.prefixes - 1; p >= 0; --p) {
            float const v = inv[p * tile_k + thread], sp = float(double(s[p * tile_k + thread]) / double(scale.s));
            sum = fmaf(v * v, sp, sum);
            own[p][thread] = sum;
            dt += double(s[p * tile_k + thread]) / double(scale.s);
        }
    }
    __syncthreads();

    program_t const program = a.program[which];
    float const factor = 2.f * ln2_k * a.weight / float(a.rows_everywhere);
    float4 const* tile = reinterpret_cast<float4 const*>(a.dx + (int64_t(block) * a.programs + which) * gradient_tile_k) + wg * 4096 + thread;
    int const row = wg * 64 + thread / 32 * 16 + lane / 4;
#pragma unroll 4
    for (int j = 0; j < 32; ++j) {
        int band = program.band, column = program.column + 8 * j + (lane & 3) * 2;
        if (band < 0) {   // narrow: 16 chunks of band 2, 8 of band 1, 8 of band 0
            band = j < 16 ? 2 : j < 24 ? 1 : 0;
            column = (j < 16 ? 128 + 8 * j : j < 24 ? 8 * j - 64 : 8 * j - 192) + (lane & 3) * 2;
        } else if (8 * j >= program.width) break;
        float4 const v = tile[j * 128];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int const r = row + 8 * h;
            int64_t const at = (int64_t(block) * tile_k + r) * a.dims + column;
            if (block * tile_k + r >= a.rows) continue;
            bool const live = block * tile_k + r < a.row.live;
            uint32_t const x = live ? *reinterpret_cast<uint32_t const*>(a.x + at) : 0u;
            float const lo = live ? factor * ((h ? v.z : v.x) - own[band][r] * ptx::lo_bf16(x)) : 0.f;
            float const hi = live ? factor * ((h ? v.w : v.y) - own[band][r] * ptx::hi_bf16(x)) : 0.f;
            if (a.fp32_gradients) *reinterpret_cast<float2*>(static_cast<float*>(a.gradient) + at) = make_float2(lo, hi);
            else *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.gradient) + at) = ptx::pack_bf16(lo, hi);
        }
    }
    if (which == 0 && a.columns < a.dims) {   // columns past the last prefix
        int const width = a.dims - a.columns;
        for (int i = threadIdx.x; i < tile_k * width; i += 256) {
            int const r = i / width;
            int64_t const at = (int64_t(block) * tile_k + r) * a.dims + a.columns + i % width;
            if (block * tile_k + r >= a.rows) break;
            if (a.fp32_gradients) static_cast<float*>(a.gradient)[at] = 0.f;
            else static_cast<__nv_bfloat16*>(a.gradient)[at] = __float2bfloat16(0.f);
        }
    }
    if (which != 0) return;

    // the scalars: blocks in any order write their part, the last one adds all parts in a fixed order
    dt = sum_over_warp(dt);
    if (wg == 0 && lane == 0) part[thread / 32] = dt;
    __syncthreads();
    if (threadIdx.x == 0) {
        double* mine = a.partials + 3 * int64_t(block);
        mine[0] = double(a.sums[2 * block]) / double(scale.sum);
        mine[1] = part[0] + part[1] + part[2] + part[3];
        mine[2] = double(a.sums[2 * block + 1]) / double(scale.sum);
        __threadfence();
        last = atomicAdd(a.finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int k = 0; k < 3; ++k) {
        double sum = 0.0;
        for (int i = threadIdx.x; i < int(gridDim.x); i += 256) sum += __ldcg(a.partials + 3 * int64_t(i) + k);
        sum = sum_over_warp(sum);
        __syncthreads();
        if (lane == 0) part[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) {
            double all = 0.0;
            for (double v : part) all += v;
            all *= double(a.weight) / a.rows_everywhere;
            a.scalars[k] = float(k == 1 ? all / double(scale.t2) : all);
        }
    }
}

}  // namespace scaling_contrasts::sm90
