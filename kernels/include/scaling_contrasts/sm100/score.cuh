// Scores one superblock: a tile of 128 x 128 cells a thread block, two thread blocks a multiprocessor, so that one's
// products run under the other's cells. Two warps feed the tensor cores (one copies, one issues); of four more, every
// thread takes one row of the accumulator out of tensor memory after each band. Sums, weights and passes are sm80's
// (sm80/score.cuh), thread for row instead of fragment for fragment.
#pragma once
#include <cuda.h>

#include "scaling_contrasts/ptx/barrier.cuh"
#include "scaling_contrasts/ptx/copy.cuh"
#include "scaling_contrasts/ptx/tcgen05.cuh"
#include "scaling_contrasts/sm100/kinds.cuh"
#include "scaling_contrasts/sm100/sums.cuh"
#include "scaling_contrasts/sm80/sums.cuh"

namespace scaling_contrasts::sm100 {

using sm80::pass_t;

inline constexpr int threads_k = 192, row_warps_k = 4, copy_warp_k = 4, issue_warp_k = 5, rows_barrier_k = 1;
inline constexpr int score_stages_k = 3, score_stage_bytes_k = 2 * slab_bytes_k;

struct score_shared_t {
    float norms[2][tile_k];           ///< inverse, of the columns; two bands' worth
    float logs[2][tile_k];            ///< info_nce: log sums of the columns
    float sums[row_warps_k][tile_k];  ///< of the columns over a warp's 32 rows
    float2 maxima[row_warps_k][tile_k];
    uint2 kinds[chunks_k][tile_k];  ///< of each line's cells: positive, ignored
    int labels[tile_k];
    std::uint64_t full[score_stages_k], empty[score_stages_k], scored, taken;
    std::uint32_t tensor;
};
inline constexpr int score_bytes_k = 1024 + score_stages_k * score_stage_bytes_k + int(sizeof(score_shared_t));

/// Where a thread block and a thread are.
struct place_t {
    int tile_row, tile_column;  ///< of the superblock
    int row, column;            ///< the tile's first ones, within their sets
    int line, warp, lane;       ///< the thread's line of the tile
};

/// Copies slabs of 64 columns of both sides, one stage after another. One thread.
__device__ __forceinline__ void copy_slabs(CUtensorMap const* rows, CUtensorMap const* columns, std::uint32_t ring,
                                           std::uint32_t full, std::uint32_t empty, place_t const& at, int slabs) {
    for (int slab = 0; slab < slabs; ++slab) {
        int const stage = slab % score_stages_k;
        ptx::mbar_wait(empty + stage * 8, (slab / score_stages_k & 1) ^ 1);
        ptx::mbar_expect(full + stage * 8, score_stage_bytes_k);
        std::uint32_t const to = ring + stage * score_stage_bytes_k;
        ptx::tma_load(to, rows, slab * slab_k, at.row, full + stage * 8);
        ptx::tma_load(to + slab_bytes_k, columns, slab * slab_k, at.column, full + stage * 8);
    }
}

/// Issues the products band by band; a band's first waits until the one before has been read. One thread.
__device__ __forceinline__ void issue_slabs(ladder_t const& ladder, std::uint32_t ring, std::uint32_t full,
                                            std::uint32_t empty, std::uint32_t scored, std::uint32_t taken,
                                            std::uint32_t tensor) {
    constexpr std::uint32_t product = instruction(tile_k, major_t::k_k, major_t::k_k);
    int slab = 0;
    for (int prefix = 0; prefix < ladder.count; ++prefix) {
        if (prefix) {
            ptx::mbar_wait(taken, (prefix - 1) & 1);
            ptx::tensor_fence_after();
        }
        for (; slab * slab_k < ladder.bands.data()[prefix].end; ++slab) {
            int const stage = slab % score_stages_k;
            ptx::mbar_wait(full + stage * 8, slab / score_stages_k & 1);
            ptx::tensor_fence_after();
            std::uint32_t const from = ring + stage * score_stage_bytes_k;
            for (int step = 0; step < slab_k / 16; ++step) {
                std::uint32_t const offset = step * step_bytes(major_t::k_k);
                ptx::tensor_multiply(tensor, operand(from + offset), operand(from + slab_bytes_k + offset), product,
                                     slab > 0 || step > 0);
            }
            ptx::tensor_commit(empty + stage * 8);
        }
        ptx::tensor_commit(scored);
    }
}

/// Where the weights of a thread's row begin, of one prefix.
__device__ __forceinline__ unsigned char* plane_of(superblock_t const& a, place_t const& at, int prefix) {
    return reinterpret_cast<unsigned char*>(a.weights + sm80::tile_words(a.side, prefix, at.tile_row, at.tile_column));
}

/// info_nce: slopes of eight cells of a row, both softmaxes, halved; positives as in sm80::softmax_slopes().
__device__ __forceinline__ void softmax_slopes(superblock_t const& a, std::uint32_t positives, std::uint32_t ignoreds,
                                               int prefix, place_t const& at, int place, float const* dots,
                                               float const (&q)[8], float row_log, float const* column_logs,
                                               float (&slope)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        float const x = dots[i] * q[i];
        slope[i] = sm80::ptx::exp2_approx(x - row_log) + sm80::ptx::exp2_approx(x - column_logs[i]);
        if (ignoreds >> i & 1) slope[i] = 0;
        else if (positives >> i & 1) {
            float const row_rest =
                sm80::negatives_log(a.rows.maxima[std::int64_t(prefix) * a.rows.padded + at.row + at.line]);
            float const column_rest =
                sm80::negatives_log(a.columns.maxima[std::int64_t(prefix) * a.columns.padded + at.column + place + i]);
            slope[i] =
                -(sm80::ptx::exp2_approx(row_rest - row_log) + sm80::ptx::exp2_approx(column_rest - column_logs[i]));
        }
    }
}

/// Slopes and sums of one prefix of the thread's row.
template <pass_t kPass>
__device__ __forceinline__ void score_band(superblock_t const& a, ladder_t const& ladder, score_shared_t& shared,
                                           row_kinds_t& kinds, place_t const& at, int prefix, float scale, float bias,
                                           std::uint32_t tensor, std::uint32_t taken, sm80::cell_sums_t& sums) {
    constexpr float unit = sm80::slope_unit_k<kPass>;
    float const prefix_weight = ladder.weights.data()[prefix], product_unit = prefix_weight / (scale * unit);
    std::int64_t const statistic = std::int64_t(prefix) * a.rows.padded + at.row + at.line;
    float const u = a.rows.inverse_norms[statistic] * scale;
    float const row_log = kPass == pass_t::softmax_k ? a.rows.log_sums[statistic] + 1 : 0.0f;
    float const *norms = shared.norms[prefix & 1], *logs = shared.logs[prefix & 1];
    unsigned char* const plane = plane_of(a, at, prefix);
#pragma unroll 1
    for (int chunk = 0; chunk < chunks_k; ++chunk) {
        float dots[32], column[32], row_sum = 0;
        ptx::tensor_load(dots, tensor + (std::uint32_t(at.warp) << 21) + chunk * 32);
        ptx::tensor_wait_load(dots);
        if (chunk == chunks_k - 1) {  // the next band may overwrite the accumulator
            ptx::tensor_fence_before();
            __syncwarp();
            if (at.lane == 0) ptx::mbar_arrive(taken);
        }
        uint2 const kind = shared.kinds[chunk][at.line];
        sm80::kinds_t chunk_kinds = {{kind.x, 0}, {kind.y, 0}, 0.0f, true};
#pragma unroll
        for (int group = 0; group < 4; ++group) {
            int const place = chunk * 32 + group * 8;
            float q[8], slope[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) q[i] = u * norms[place + i];
            if constexpr (kPass == pass_t::softmax_k)
                softmax_slopes(a, kind.x >> group * 8, kind.y >> group * 8, prefix, at, place, dots + group * 8, q,
                               row_log, logs + place, slope);
            else if (kinds.labelled)
                sm80::labelled_slopes(chunk_kinds, group / 2, group % 2 * 2, dots + group * 8, q, bias, prefix_weight,
                                      product_unit, slope, sums);
            else sm80::negative_slopes(dots + group * 8, q, bias, prefix_weight, slope, sums);
            std::uint32_t packed[4];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float const product = slope[i] * q[i] * dots[group * 8 + i];  // in units of product_unit
                row_sum += product;
                column[group * 8 + i] = product;
                if (i % 2) packed[i / 2] = sm80::ptx::pack_fractions(slope[i - 1], slope[i]);
            }
            *reinterpret_cast<uint4*>(plane + plane_at(at.line, place)) = {packed[0], packed[1], packed[2], packed[3]};
        }
        kinds.self += chunk_kinds.self;
        a.row_products[(std::int64_t(at.tile_column * chunks_k + chunk) * ladder.count + prefix) * a.side +
                       at.tile_row * tile_k + at.line] = row_sum * product_unit;
        shared.sums[at.warp][chunk * 32 + at.lane] = sum_columns(column, at.lane) * product_unit;
    }
    ptx::named_sync(rows_barrier_k, row_warps_k * 32);
    for (int half = 0; half < 2; ++half)  // of the rows: sums over 64; this thread's column is its line
        a.column_products[(std::int64_t(at.tile_row * 2 + half) * ladder.count + prefix) * a.side +
                          at.tile_column * tile_k + at.line] =
            shared.sums[half * 2][at.line] + shared.sums[half * 2 + 1][at.line];
}

/// info_nce's first pass over one prefix: maxima and sums of 2^(x - maximum) of the row's and columns' negatives.
__device__ __forceinline__ void find_maxima(superblock_t const& a, int prefixes, score_shared_t& shared,
                                            place_t const& at, int prefix, float scale, std::uint32_t tensor,
                                            std::uint32_t taken) {
    std::int64_t const statistic = std::int64_t(prefix) * a.rows.padded + at.row + at.line;
    float const u = a.rows.inverse_norms[statistic] * scale;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks_k; ++chunk) {
        float x[32], v[32], row_maximum = -1e30f, row_sum = 0;
        ptx::tensor_load(x, tensor + (std::uint32_t(at.warp) << 21) + chunk * 32);
        ptx::tensor_wait_load(x);
        if (chunk == chunks_k - 1) {
            ptx::tensor_fence_before();
            __syncwarp();
            if (at.lane == 0) ptx::mbar_arrive(taken);
        }
        uint2 const kind = shared.kinds[chunk][at.line];
        std::uint32_t const positives = kind.x, skipped = kind.x | kind.y;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            x[i] *= u * shared.norms[prefix & 1][chunk * 32 + i];
            if (positives >> i & 1) a.rows.positive_logits[statistic] = x[i];
            if (skipped >> i & 1) x[i] = -1e30f;
            row_maximum = fmaxf(row_maximum, x[i]);
            v[i] = x[i];
        }
        float const maximum = greatest_of_columns(v, at.lane);
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            row_sum += sm80::ptx::exp2_approx(x[i] - row_maximum);
            v[i] = sm80::ptx::exp2_approx(x[i] - __shfl_sync(~0u, maximum, i));
        }
        a.row_maxima[(std::int64_t(at.tile_column * chunks_k + chunk) * prefixes + prefix) * a.side +
                     at.tile_row * tile_k + at.line] = {row_maximum, row_sum};
        shared.maxima[at.warp][chunk * 32 + at.lane] = {maximum, sum_columns(v, at.lane)};
    }
    ptx::named_sync(rows_barrier_k, row_warps_k * 32);
    for (int half = 0; half < 2; ++half) {
        float2 const one = shared.maxima[half * 2][at.line], two = shared.maxima[half * 2 + 1][at.line];
        float const maximum = fmaxf(one.x, two.x);
        a.column_maxima[(std::int64_t(at.tile_row * 2 + half) * prefixes + prefix) * a.side + at.tile_column * tile_k +
                        at.line] = {maximum, one.y * sm80::ptx::exp2_approx(one.x - maximum) +
                                                 two.y * sm80::ptx::exp2_approx(two.x - maximum)};
    }
}

/// Turns the row's stored slopes of prefixes into weights of bands, in place: band b's are the sum over the prefixes b
/// and up.
template <pass_t kPass>
__device__ __forceinline__ void suffix_sums(superblock_t const& a, ladder_t const& ladder, score_shared_t const& shared,
                                            place_t const& at) {
    std::int64_t const second_part = sm80::tile_words(a.side, ladder.count, 0, 0) * 4;
#pragma unroll 1
    for (int piece = 0; piece < tile_k / 8; ++piece) {
        float sum[8] = {};
        std::uint32_t const negative =
            shared.kinds[piece / 4][at.line].x >> piece % 4 * 8;  // only positives' slopes are
        for (int prefix = ladder.count - 1; prefix >= 0; --prefix) {
            auto* const at_piece = reinterpret_cast<uint4*>(plane_of(a, at, prefix) + plane_at(at.line, piece * 8));
            uint4 const read = *at_piece;
            std::uint32_t const packed[4] = {read.x, read.y, read.z, read.w};
            float const u = a.rows.inverse_norms[std::int64_t(prefix) * a.rows.padded + at.row + at.line] *
                            (ladder.weights.data()[prefix] / sm80::slope_unit_k<kPass>);
            auto const* norms = reinterpret_cast<float4 const*>(
                a.columns.inverse_norms + std::int64_t(prefix) * a.columns.padded + at.column + piece * 8);
            float4 const low = __ldg(norms), high = __ldg(norms + 1);
            float const v[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
            std::uint32_t rounded[4], rest[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                float first = sm80::ptx::low_fraction(packed[i]), second = sm80::ptx::high_fraction(packed[i]);
                if (negative >> i * 2 & 1) first = -first;
                if (negative >> (i * 2 + 1) & 1) second = -second;
                sum[i * 2] = fmaf(first, u * v[i * 2], sum[i * 2]);
                sum[i * 2 + 1] = fmaf(second, u * v[i * 2 + 1], sum[i * 2 + 1]);
                rounded[i] = sm80::ptx::pack_bf16(sum[i * 2], sum[i * 2 + 1]);
                float const lost = sum[i * 2] - sm80::ptx::low_bf16(rounded[i]),
                            lost_next = sum[i * 2 + 1] - sm80::ptx::high_bf16(rounded[i]);
                rest[i] = sm80::ptx::pack_bf16(lost, lost_next);
                if (a.rows.residuals && (negative >> i * 2 & 3))  // a positive's, as sm80/score.cuh keeps it
                    a.rows.residuals[std::int64_t(prefix) * a.rows.padded + at.row + at.line] =
                        negative >> i * 2 & 1 ? lost : lost_next;
            }
            *at_piece = {rounded[0], rounded[1], rounded[2], rounded[3]};
            if (a.parts == 2)
                *reinterpret_cast<uint4*>(reinterpret_cast<unsigned char*>(at_piece) +
                                          second_part) = {rest[0], rest[1], rest[2], rest[3]};
        }
    }
}

/// What the four warps of rows do.
template <pass_t kPass>
__device__ __forceinline__ void score_rows(superblock_t const& a, ladder_t const& ladder, score_shared_t& shared,
                                           place_t const& at, std::uint32_t scored, std::uint32_t taken,
                                           std::uint32_t tensor) {
    int const thread = threadIdx.x;
    shared.labels[thread] = label_of(a.columns, at.column + thread, -2);
    ptx::named_sync(rows_barrier_k, row_warps_k * 32);
    row_kinds_t kinds;
    kinds.labelled = find_kinds(a, at.row + at.line, at.column, at.line, shared.labels, shared.kinds);
    // see sm80/score.cuh for a scale of 0
    float const given = *a.scale * log2e_k, scale = fabsf(given) < 0x1p-40f ? 0x1p-40f : given,
                bias = *a.bias * log2e_k;
    sm80::cell_sums_t sums;
    for (int prefix = 0; prefix < ladder.count; ++prefix) {
        std::int64_t const statistic = std::int64_t(prefix) * a.columns.padded + at.column + thread;
        shared.norms[prefix & 1][thread] = a.columns.inverse_norms[statistic];
        if constexpr (kPass == pass_t::softmax_k) shared.logs[prefix & 1][thread] = a.columns.log_sums[statistic] + 1;
        ptx::named_sync(rows_barrier_k, row_warps_k * 32);
        ptx::mbar_wait(scored, prefix & 1);
        ptx::tensor_fence_after();
        if constexpr (kPass == pass_t::maxima_k) find_maxima(a, ladder.count, shared, at, prefix, scale, tensor, taken);
        else score_band<kPass>(a, ladder, shared, kinds, at, prefix, scale, bias, tensor, taken, sums);
    }
    if constexpr (kPass != pass_t::maxima_k) {
        suffix_sums<kPass>(a, ladder, shared, at);
        float const weight = a.triangle && at.tile_row == at.tile_column ? 1.0f : a.cell_weight;
        float const loss = sm80::warp_sum(sums.loss), slope = sm80::warp_sum(sums.slope),
                    self = sm80::warp_sum(kinds.self);
        if (at.lane == 0) {  // a slot belongs to a place in the superblock: the order of additions never changes
            double* slot = a.slots + ((at.tile_row * (a.side / tile_k) + at.tile_column) * row_warps_k + at.warp) * 3;
            slot[0] += double(weight) * loss;
            slot[1] += double(weight) * slope;
            slot[2] += self;
        }
    }
}

template <pass_t kPass>
__global__ void __launch_bounds__(threads_k, 2)
    score_kernel(__grid_constant__ superblock_t const a, __grid_constant__ ladder_t const ladder,
                 __grid_constant__ CUtensorMap const rows, __grid_constant__ CUtensorMap const columns) {
    extern __shared__ unsigned char raw[];
    std::uint32_t const base = ptx::smem(raw), ring = (base + 1023) & ~1023u;
    auto& shared = *reinterpret_cast<score_shared_t*>(raw + (ring - base) + score_stages_k * score_stage_bytes_k);
    std::uint32_t const full = ptx::smem(shared.full), empty = ptx::smem(shared.empty),
                        scored = ptx::smem(&shared.scored), taken = ptx::smem(&shared.taken);
    place_t at;
    at.warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    at.lane = threadIdx.x & 31;
    at.line = threadIdx.x & (tile_k - 1);
    if (a.triangle) sm80::triangle_tile(blockIdx.x, a.tile_rows, at.tile_row, at.tile_column);
    else at.tile_row = blockIdx.x / a.tile_columns, at.tile_column = blockIdx.x % a.tile_columns;
    at.row = a.first_row + at.tile_row * tile_k;
    at.column = a.first_column + at.tile_column * tile_k;

    if (threadIdx.x == 0) {
        for (int i = 0; i < score_stages_k; ++i) ptx::mbar_init(full + i * 8, 1), ptx::mbar_init(empty + i * 8, 1);
        ptx::mbar_init(scored, 1);
        ptx::mbar_init(taken, row_warps_k);
        ptx::fence_mbar_init();
    }
    if (at.warp == issue_warp_k) {
        ptx::tensor_alloc<tile_k>(ptx::smem(&shared.tensor));
        ptx::tensor_relinquish();
    }
    ptx::tensor_fence_before();
    __syncthreads();
    ptx::tensor_fence_after();
    std::uint32_t const tensor = shared.tensor;

    if (at.warp == copy_warp_k) {
        if (at.lane == 0)
            copy_slabs(&rows, &columns, ring, full, empty, at, ladder.bands.data()[ladder.count - 1].end / slab_k);
    } else if (at.warp == issue_warp_k) {
        if (at.lane == 0) issue_slabs(ladder, ring, full, empty, scored, taken, tensor);
    } else {
        score_rows<kPass>(a, ladder, shared, at, scored, taken, tensor);
    }
    ptx::tensor_fence_before();
    __syncthreads();
    ptx::tensor_fence_after();
    if (at.warp == issue_warp_k) ptx::tensor_free<tile_k>(tensor);
}

}  // namespace scaling_contrasts::sm100
