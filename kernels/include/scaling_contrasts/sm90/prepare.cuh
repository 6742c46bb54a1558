// Before scoring: inverse norms of every prefix of every row, labels, and zeroed sums. One warp a row.
//
// For the kernels that multiply fp16, also the rows themselves as fp16: y = 2^k x, k a row's own, so that the norm of
// its first prefix that is not zero comes to about 2^span. The step is the same with y for x: logits and sums S do not
// change, and dL/dx = 2^k dL/dy. Weights are at most |t| log2(e) / 4^span times the sum of omega then, which `span` keeps
// below fp16's largest number; a row whose first prefix is more than a thousandfold shorter than the whole has fewer
// bits. So has a weight below 1e-9 of the largest that there can be: where no row has positives and logits are under -16.
#pragma once
#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

constexpr int prepare_warps_k = 8;

struct prepare_t {
    __nv_bfloat16 const* x;
    int32_t const* labels;  // or null: every row its own group
    float* records;         // see record_floats()
    int live, dims, prefixes;
    int prefix[max_prefixes_k];
    int64_t first_row;
    int64_t* s;  // zeroed where given
    int64_t* sums;
    uint32_t* residual_count;
    uint32_t* flags;  // zeroed, where given: the queue and the counts of the step kernel
    int64_t flag_words;
    uint32_t* finished;  // likewise
    // fp16 alone
    uint16_t* y;   // [rows][dims]
    float* scale;  // [rows]: 2^k
    float const* t;
    float omega;  // params_t::omega, summed, times the most that a slope can be
};

/// See above. 2^15 / 2 for weights: a norm is up to twice what it is scaled to, and one band's weights add to the next
/// one's.
__device__ __forceinline__ int span_of(float t, float omega) {
    float const most = omega * fabsf(t) * log2e_k / 32768.f;
    return most > 1.5258789e-5f ? min(int(ceilf(0.5f * log2f(most))), 6) : -8;  // 4^-8
}

/// Writes a row as fp16, by a warp whose lanes hold the inverse norms of its prefixes; returns 2^k.
__device__ __forceinline__ float write_fp16(prepare_t const& a, int row, bool live, float inv, int lane) {
    uint32_t const there = __ballot_sync(~0u, inv > 0.f);
    float scale = 1.f;
    if (there) {
        // exponents of the inverse norms: y's first prefix about 2^span long, all of it less than 2^15
        auto const exponent = [](float v) { return (__float_as_int(v) >> 23 & 255) - 127; };
        int const first = exponent(__shfl_sync(~0u, inv, __ffs(int(there)) - 1)),
                  last = exponent(__shfl_sync(~0u, inv, a.prefixes - 1));
        int const k = min(first + 1 + span_of(*a.t, a.omega), last + 14);
        scale = __int_as_float((min(max(k, -120), 120) + 127) << 23);
    }
    if (live) {
        auto const* from = reinterpret_cast<uint4 const*>(a.x + int64_t(row) * a.dims);
        auto* to = reinterpret_cast<uint4*>(a.y + int64_t(row) * a.dims);
        auto const scaled = [&](uint32_t v) {
            return ptx::pack_fp16(ptx::lo_bf16(v) * scale, ptx::hi_bf16(v) * scale);
        };
        for (int c = lane; c < a.prefix[a.prefixes - 1] / 8; c += 32) {
            uint4 const v = __ldg(from + c);
            to[c] = make_uint4(scaled(v.x), scaled(v.y), scaled(v.z), scaled(v.w));
        }
        if (lane == 0 && a.scale) a.scale[row] = scale;
    }
    return scale;
}

/// Grid: row blocks * 128 / prepare_warps_k.
template <bool fp16_>
__global__ void __launch_bounds__(prepare_warps_k * 32) prepare_kernel(prepare_t const __grid_constant__ a) {
    __shared__ float chunk[prepare_warps_k][64];  // squares of 64 columns each
    int const warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    int const row = blockIdx.x * prepare_warps_k + warp;
    int const block = row / tile_k, in_block = row % tile_k;
    bool const live = row < a.live;
    int const columns = a.prefix[a.prefixes - 1];
    if (live) {
        auto const* x = reinterpret_cast<uint4 const*>(a.x + int64_t(row) * a.dims);
        auto const squares = [](uint4 v) {
            uint32_t const word[4] = {v.x, v.y, v.z, v.w};
            float sum = 0.f;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float const lo = ptx::lo_bf16(word[i]), hi = ptx::hi_bf16(word[i]);
                sum = fmaf(lo, lo, fmaf(hi, hi, sum));
            }
            return sum;
        };
#pragma unroll 4
        for (int c = lane; c < (columns + 255) / 256 * 32; c += 32) {
            float sum = c * 8 < columns ? squares(__ldg(x + c)) : 0.f;
#pragma unroll
            for (int m = 1; m < 8; m *= 2) sum += __shfl_xor_sync(~0u, sum, m);
            if ((lane & 7) == 0) chunk[warp][c / 8] = sum;
        }
    }
    __syncwarp();
    float* record = a.records + int64_t(block) * record_floats(a.prefixes);
    float inv = 0.f;
    if (lane < a.prefixes && live) {
        float sum = 0.f;
        for (int c = 0; c < a.prefix[lane] / 64; ++c) sum += chunk[warp][c];
        float const norm = sqrtf(sum);
        inv = norm < least_norm_k ? 0.f : 1.f / norm;
    }
    if constexpr (fp16_) inv /= write_fp16(a, row, live, inv, lane);
    if (lane < a.prefixes) {
        record[lane * tile_k + in_block] = inv;
        record[(a.prefixes + 1 + lane) * tile_k + permuted(in_block)] = inv;
        if (a.s) a.s[(int64_t(block) * a.prefixes + lane) * tile_k + in_block] = 0;
    }
    if (lane == 0) {
        if (a.residual_count) a.residual_count[row] = 0;
        int32_t const label = !live ? 0 : a.labels ? a.labels[row] : int32_t(a.first_row + row);
        record[a.prefixes * tile_k + in_block] = __int_as_float(label);
    }
    if (a.flags)
        for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < a.flag_words;
             i += int64_t(gridDim.x) * blockDim.x)
            a.flags[i] = 0;
    if (a.finished && blockIdx.x == 0 && threadIdx.x == 0) *a.finished = 0;
    if (a.sums && in_block == 0 && lane < 2) a.sums[block * 2 + lane] = 0;
}

}  // namespace scaling_contrasts::sm90
