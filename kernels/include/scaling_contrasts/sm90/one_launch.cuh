// A step in one launch, for few rows and no other device: what else the step kernel does then. Before anything else, six
// warps of each CTA find the rows' norms, under the first loads; a score item waits for those of its two row blocks. Two
// of them have no other work: they look up what a gradient tile needs at its end (row_terms.cuh), where its last share is
// finished (finish_share.cuh). The last CTA to leave sums up the scalars, and zeroes all counts for the next step.
//
// Norms are found before anything is waited for, and items wait only for items taken before them, in whatever order CTAs
// start. Nobody waits for a CTA that has not started, for rows are taken, each by one warp: first by the warps that they
// are shared out to, then, where a score item is about to wait for its row blocks, by those two of its CTA that read the
// items ahead. Whoever has taken a row finishes it, and waits for nothing until then.
#pragma once
#include "scaling_contrasts/sm90/finish.cuh"
#include "scaling_contrasts/sm90/shared.cuh"

namespace scaling_contrasts::sm90 {

/// A row that a warp is about to look at, if it is the first: columns 256 k + 8 lane and on, and, in lane 0, which rows
/// of its 32 were taken before.
struct wanted_row_t {
    int at;
    uint4 v[4];
    uint32_t taken;
};
/// The answers are waited for when they are used.
__device__ __forceinline__ void want_row(one_launch_params_t const& a, wanted_row_t& row, int at, int lane) {
    row.at = at;
#pragma unroll
    for (int k = 0; k < 4; ++k)
        row.v[k] = at < a.row.live ? __ldg(reinterpret_cast<uint4 const*>(a.x + int64_t(at) * a.dims) + k * 32 + lane)
                                   : make_uint4(0, 0, 0, 0);
    row.taken = 0;
    if (lane == 0 && at < a.row.blocks * tile_k) row.taken = atomicOr(a.taken + at / 32, 1u << at % 32);
}

/// One warp: the article's prefixes' statistics of a row, unless another has taken it. `meanwhile`: what to start under
/// the sums; it may change `row`.
template <class work_at>
__device__ __forceinline__ void find_row(one_launch_params_t const& a, wanted_row_t& row, int lane,
                                         work_at const& meanwhile) {
    int const at = row.at, block = at / tile_k, in_block = at % tile_k;
    bool const live = at < a.row.live;
    float square[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        uint32_t const word[4] = {row.v[k].x, row.v[k].y, row.v[k].z, row.v[k].w};
        square[k] = 0.f;
#pragma unroll
        for (uint32_t const w : word)
            square[k] = fmaf(ptx::lo_bf16(w), ptx::lo_bf16(w), fmaf(ptx::hi_bf16(w), ptx::hi_bf16(w), square[k]));
    }
    bool const mine = !(__shfl_sync(~0u, row.taken, 0) >> at % 32 & 1);
    meanwhile();
    if (!mine) return;
    float later = square[1], last = square[2] + square[3], sum = square[0], part[5];
#pragma unroll
    for (int m = 1; m < 32; m *= 2) {
        if (m == 8) part[0] = __shfl_sync(~0u, sum, 0);
        if (m == 16) part[1] = __shfl_sync(~0u, sum, 0);
        sum += __shfl_xor_sync(~0u, sum, m);
        later += __shfl_xor_sync(~0u, later, m);
        last += __shfl_xor_sync(~0u, last, m);
    }
    part[2] = sum;
    part[3] = sum + later;
    part[4] = part[3] + last;
    float* const record = a.records + int64_t(block) * record_floats(5);
    if (lane < 5) {
        float const norm = sqrtf(lane == 0   ? part[0]
                                 : lane == 1 ? part[1]
                                 : lane == 2 ? part[2]
                                 : lane == 3 ? part[3]
                                             : part[4]);
        float const inv = norm < least_norm_k ? 0.f : 1.f / norm;
        record[lane * tile_k + in_block] = inv;
        record[(6 + lane) * tile_k + permuted(in_block)] = inv;
        a.s[(int64_t(block) * 5 + lane) * tile_k + in_block] = 0;
    }
    if (lane == 0) {
        a.residual_count[at] = 0;
        int32_t const label = !live ? 0 : a.labels ? a.labels[at] : int32_t(a.first_row + at);
        record[5 * tile_k + in_block] = __int_as_float(label);
    }
    if (in_block == 0 && lane < 2) a.sums[block * 2 + lane] = 0;
    __syncwarp();
    if (lane == 0) ptx::add_release(a.ready + block, 1);
}

/// All warps of all CTAs but the first two of each: the rows that are shared out to them, a row at a time.
__device__ __forceinline__ void find_statistics(one_launch_params_t const& a, int warp, int lane) {
    int const rows = a.row.blocks * tile_k, step = int(gridDim.x) * (threads_k / 32 - 2);
    wanted_row_t row;
    want_row(a, row, (warp - 2) * int(gridDim.x) + int(blockIdx.x), lane);
#pragma unroll 1
    while (row.at < rows) find_row(a, row, lane, [&] { want_row(a, row, row.at + step, lane); });
}

/// One warp: the rows of a block that nobody has taken, which there are where CTAs have not started.
__device__ __forceinline__ void find_left_rows(one_launch_params_t const& a, int block, int lane) {
#pragma unroll 1
    while (true) {
        uint32_t const volatile* const taken = a.taken + block * (tile_k / 32) + lane;
        uint32_t const left = lane < tile_k / 32 ? ~*taken : 0;
        uint32_t const words = __ballot_sync(~0u, left != 0);
        if (words == 0) return;
        auto const first = [](uint32_t bits, uint32_t from) {  // not all CTAs begin with the same row
            uint32_t const behind = bits & ~0u << from;
            return __ffs(int(behind != 0 ? behind : bits)) - 1;
        };
        int const word = first(words, blockIdx.x % (tile_k / 32));
        int const bit = first(__shfl_sync(~0u, left, word), blockIdx.x / (tile_k / 32) % 32);
        wanted_row_t row;
        want_row(a, row, block * tile_k + word * 32 + bit, lane);
        find_row(a, row, lane, [] {});
    }
}

/// One thread: waits for the statistics of a row block.
__device__ __forceinline__ void await_statistics(one_launch_params_t const& a, uint32_t block) {
    ptx::wait_count(a.ready + block, tile_k);
}

/// All threads, when their work is done. `at_last`: a word of shared memory.
__device__ __forceinline__ void leave(one_launch_params_t const& a, uint32_t at_last) {
    __syncwarp();
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        uint32_t const before = atomicAdd(a.left, 1u);
        ptx::store_int(at_last, before == gridDim.x - 1);
    }
    __syncthreads();
    if (!ptx::load_int(at_last)) return;
    __threadfence();
    for (int i = int(threadIdx.x); i < a.flag_words; i += threads_k) a.flags[i] = 0;
    int const k = threadIdx.x / 32, lane = threadIdx.x & 31;  // loss, dL/dt, dL/db
    if (k >= 3) return;
    scales_t const scale = scales_of(a);
    double sum = 0.0;
    for (int block = lane; block < a.row.blocks; block += 32) {
        if (k == 1)
            for (int part = 0; part < 2; ++part) sum += __ldcg(a.partials + 2 * block + part);
        else sum += double(__ldcg(reinterpret_cast<long long const*>(a.sums) + 2 * block + k / 2)) / double(scale.sum);
    }
    sum = sum_over_warp(sum) * (double(a.weight) / a.rows_everywhere);
    if (k == 1) sum /= double(scale.t2);
    if (lane != 0) return;
    if (a.scalars) a.scalars[k] = float(sum);
    if (a.scalars_double) a.scalars_double[k] = sum;
}

}  // namespace scaling_contrasts::sm90
