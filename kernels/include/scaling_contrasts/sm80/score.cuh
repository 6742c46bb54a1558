// Scores one superblock: a tile of 128 x 128 cells a thread block, eight warps of 64 x 32 cells.
// After each band it forms the cells' slopes, sums the loss and the rows' and columns' weighted products, and stores
// the weights; after the last band a thread reads back its own weights and turns them into suffix sums, the weights
// of bands. info_nce takes two passes: maxima and sums of exponentials first, slopes second.
#pragma once
#include "scaling_contrasts/sm80/cells.cuh"
#include "scaling_contrasts/sm80/sums.cuh"
#include "scaling_contrasts/sm80/tiles.cuh"

namespace scaling_contrasts::sm80 {

enum class pass_t { sigmoid_k, maxima_k, softmax_k };

/// Where a warp works within a tile, and a tile within its superblock.
struct warp_place_t {
    int tile_row, tile_column, row, column;   ///< tile's; warp's first row and column within the tile
    int lane, warp;
};

/// Words of this lane's first weight of a plane: blocks of 16 x 16 cells are 128 words, one lane's are 32 apart.
__device__ __forceinline__ std::uint32_t* weights_at(superblock_t const& a, warp_place_t const& w, int prefix) {
    return a.weights + tile_words(a.side, prefix, w.tile_row, w.tile_column) + (w.row / 16 * 8 + w.column / 16) * 128 + w.lane;
}
__device__ __forceinline__ constexpr int weight_word(int m, int n, int half) { return (m * 8 + n / 2) * 128 + (n % 2 * 2 + half) * 32; }

/// Slopes, sums and weights of one prefix.
template <pass_t kPass, bool kLabelled>
__device__ __forceinline__ void score_band(superblock_t const& a, ladder_t const& ladder, float const (&acc)[64], slab_t const& slab, kinds_t& kinds,
                                           warp_place_t const& w, int prefix, float scale, float bias, cell_sums_t& sums) {
    float const prefix_weight = ladder.weights[prefix];
    int const r = w.row + (w.lane >> 2), c = w.column + (w.lane & 3) * 2;
    std::uint32_t* out = weights_at(a, w, prefix);
    float* row_products = a.row_products + (std::int64_t(w.tile_column * 4 + w.column / 32) * ladder.count + prefix) * a.side + w.tile_row * tile_k + r;
    float column_sum[8] = {};
    cell_sums_t band;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        float u[2], s[2], row_sum[2] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float const norm = slab.row_norms[r + m * 16 + h * 8];
            u[h] = norm * scale;
            s[h] = norm * prefix_weight;
        }
#pragma unroll
        for (int n = 0; n < 4; n += 2) {   // eight cells at a time
            float const* dots = acc + (m * 4 + n) * 4;
            float v[4], slope[8];
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                float2 const pair = *reinterpret_cast<float2 const*>(&slab.column_norms[c + (n + i / 2) * 8]);
                v[i] = pair.x;
                v[i + 1] = pair.y;
            }
            if constexpr (kPass == pass_t::softmax_k) {
                float row_log[2], column_log[4];
                float const* row_logs = a.rows.log_sums + std::int64_t(prefix) * a.rows.padded + a.first_row + w.tile_row * tile_k + r + m * 16;
                float const* column_logs = a.columns.log_sums + std::int64_t(prefix) * a.columns.padded + a.first_column + w.tile_column * tile_k + c + n * 8;
#pragma unroll
                for (int h = 0; h < 2; ++h) row_log[h] = __ldg(row_logs + h * 8);
#pragma unroll
                for (int i = 0; i < 4; ++i) column_log[i] = __ldg(column_logs + i / 2 * 8 + i % 2);
                softmax_slopes<kLabelled>(kinds, m, n, dots, u, v, row_log, column_log, slope,
                                           a.rows.positive_logits + std::int64_t(prefix) * a.rows.padded + a.first_row + w.tile_row * tile_k + r);
            } else if constexpr (kLabelled) {
                labelled_slopes(kinds, m, n, dots, u, s, v, bias, slope, band);
            } else {
                negative_slopes(dots, u, v, bias, slope, band);
            }
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                int const h = i >> 1 & 1, k = i >> 2;
                float const w0 = slope[i] * (s[h] * v[k * 2]), w1 = slope[i + 1] * (s[h] * v[k * 2 + 1]);
                out[weight_word(m, n + k, h)] = ptx::pack_bf16(w0, w1);
                row_sum[h] = fmaf(w0, dots[i], fmaf(w1, dots[i + 1], row_sum[h]));
                column_sum[(n + k) * 2] = fmaf(w0, dots[i], column_sum[(n + k) * 2]);
                column_sum[(n + k) * 2 + 1] = fmaf(w1, dots[i + 1], column_sum[(n + k) * 2 + 1]);
            }
        }
        float const total = quad_sum(row_sum, w.lane);
        if ((w.lane & 3) < 2) row_products[m * 16 + (w.lane & 1) * 8] = total;
    }
    fold_columns(column_sum, w.lane);
    a.column_products[(std::int64_t(w.tile_row * 2 + w.row / 64) * ladder.count + prefix) * a.side + w.tile_column * tile_k + w.column +
                      folded_column(w.lane)] = column_sum[0];
    sums.loss = fmaf(prefix_weight, band.loss, sums.loss);
    sums.slope = fmaf(prefix_weight, band.slope, sums.slope);
}

/// info_nce's first pass over one prefix: of this warp's cells, every row's and every column's maximum and sum of 2^(x - maximum).
template <bool kLabelled>
__device__ __forceinline__ void find_maxima(superblock_t const& a, int prefixes, float const (&acc)[64], slab_t const& slab, kinds_t const& kinds,
                                            warp_place_t const& w, int prefix, float scale) {
    int const r = w.row + (w.lane >> 2), c = w.column + (w.lane & 3) * 2;
    auto x_of = [&](int m, int n, int k, float u, float2 const& v) {
        float const x = acc[(m * 4 + n) * 4 + k] * u * (k & 1 ? v.y : v.x);
        return kLabelled && (kinds.ignoreds(m, n) >> k & 1) ? -1e30f : x;
    };
    float2* rows = a.row_maxima + (std::int64_t(w.tile_column * 4 + w.column / 32) * prefixes + prefix) * a.side + w.tile_row * tile_k + r;
#pragma unroll
    for (int m = 0; m < 4; ++m)   // rows: the eight cells of each lane, four lanes a row
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float const u = slab.row_norms[r + m * 16 + h * 8] * scale;
            float x[8], maximum = -1e30f, sum = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                x[i] = x_of(m, i / 2, h * 2 + i % 2, u, *reinterpret_cast<float2 const*>(&slab.column_norms[c + i / 2 * 8]));
                maximum = fmaxf(maximum, x[i]);
            }
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, lanes));
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += ptx::exp2_approx(x[i] - maximum);
#pragma unroll
            for (int lanes = 1; lanes < 4; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
            if ((w.lane & 3) == 0) rows[m * 16 + h * 8] = {maximum, sum};
        }
    float2* columns = a.column_maxima + (std::int64_t(w.tile_row * 2 + w.row / 64) * prefixes + prefix) * a.side + w.tile_column * tile_k + c;
#pragma unroll
    for (int n = 0; n < 4; ++n)   // columns: the same, eight lanes a column
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            float2 const v = *reinterpret_cast<float2 const*>(&slab.column_norms[c + n * 8]);
            float x[8], maximum = -1e30f, sum = 0;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                x[i] = x_of(i / 2, n, i % 2 * 2 + k, slab.row_norms[r + i / 2 * 16 + i % 2 * 8] * scale, v);
                maximum = fmaxf(maximum, x[i]);
            }
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, lanes));
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += ptx::exp2_approx(x[i] - maximum);
#pragma unroll
            for (int lanes = 4; lanes < 32; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
            if (w.lane < 4) columns[n * 8 + k] = {maximum, sum};
        }
}

/// Turns the stored weights of prefixes into weights of bands: band b's are the sum over the prefixes b and up.
__device__ __forceinline__ void suffix_sums(superblock_t const& a, warp_place_t const& w, int prefixes) {
    float sum[64];
    for (int prefix = prefixes - 1; prefix >= 0; --prefix) {
        std::uint32_t* plane = weights_at(a, w, prefix);
        bool const last = prefix == prefixes - 1;
        std::uint32_t packed[32];
#pragma unroll
        for (int i = 0; i < 32; ++i) packed[i] = __ldcg(plane + weight_word(i / 8, i / 2 % 4, i % 2));
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            sum[i * 2] = ptx::low_bf16(packed[i]) + (last ? 0 : sum[i * 2]);
            sum[i * 2 + 1] = ptx::high_bf16(packed[i]) + (last ? 0 : sum[i * 2 + 1]);
            if (!last) plane[weight_word(i / 8, i / 2 % 4, i % 2)] = ptx::pack_bf16(sum[i * 2], sum[i * 2 + 1]);
        }
    }
}

/// Whether this warp's cells are others than live negatives. If so, their kinds are in shared memory.
__device__ __forceinline__ bool find_kinds(superblock_t const& a, score_shared_t& shared, warp_place_t const& w, int row, int column) {
    int const r = w.row + (w.lane >> 2), c = w.column + (w.lane & 3) * 2;
    bool special = row + tile_k > a.rows.rows || column + tile_k > a.columns.rows;
    std::int64_t const apart = a.rows.first + row - (a.columns.first + column);   // of the global numbers
    bool const has_self = a.labelled_self && apart < tile_k && apart > -tile_k;
    special |= has_self;
    int labels[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) labels[i] = shared.column_labels[c + i / 2 * 8 + i % 2];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        int const label = shared.row_labels[r + i * 8];
#pragma unroll
        for (int k = 0; k < 8; ++k) special |= label == labels[k];
    }
    if (!__any_sync(~0u, special)) return false;
    kinds_t& kinds = shared.kinds[threadIdx.x];   // only this thread reads it
    kinds.self = 0;
    for (int half = 0; half < 2; ++half) {
        std::uint32_t positive = 0, ignored = 0;
#pragma unroll 4
        for (int i = 0; i < 32; ++i) {
            int const line = r + half * 32 + i / 16 * 16 + (i >> 1 & 1) * 8, place = c + (i >> 2 & 3) * 8 + (i & 1);
            bool const self = has_self && apart + line == place, dead = row + line >= a.rows.rows || column + place >= a.columns.rows;
            bool const match = !dead && shared.row_labels[line] == shared.column_labels[place] && (!self || a.self_pairs);
            positive |= std::uint32_t(match) << i;
            ignored |= std::uint32_t(dead || self) << i;
        }
        kinds.positive[half] = positive;
        kinds.ignored[half] = ignored;
    }
    return true;
}

template <pass_t kPass>
__global__ void __launch_bounds__(score_threads_k, kPass == pass_t::sigmoid_k ? 2 : 1)
    score_kernel(__grid_constant__ superblock_t const a, __grid_constant__ ladder_t const ladder) {
    extern __shared__ __align__(128) unsigned char raw[];
    auto& shared = *reinterpret_cast<score_shared_t*>(raw);
    int const thread = threadIdx.x;
    warp_place_t w;
    w.lane = thread & 31;
    w.warp = thread >> 5;
    w.row = (w.warp & 1) * 64;
    w.column = (w.warp >> 1) * 32;
    if (a.triangle) triangle_tile(blockIdx.x, a.tile_rows, w.tile_row, w.tile_column);
    else w.tile_row = blockIdx.x / a.tile_columns, w.tile_column = blockIdx.x % a.tile_columns;
    int const row = a.first_row + w.tile_row * tile_k, column = a.first_column + w.tile_column * tile_k;

    slab_place_t ahead(ladder), here(ladder);
#pragma unroll
    for (int stage = 0; stage < score_stages_k - 1; ++stage) {
        if (!ahead.past(ladder)) {
            load_slab(shared.slab[stage], a, ladder.dims, row, column, ahead);
            ahead.next(ladder);
        }
        ptx::copy_commit();
    }
    {   // labels; padding rows get labels that equal no other, though being dead is what counts
        rows_t const& set = thread < tile_k ? a.rows : a.columns;
        int const index = thread & (tile_k - 1), local = (thread < tile_k ? row : column) + index;
        int const label = local >= set.rows ? (thread < tile_k ? -1 : -2) : set.labels ? set.labels[local] : static_cast<int>(set.first + local);
        (thread < tile_k ? shared.row_labels : shared.column_labels)[index] = label;
    }
    __syncthreads();
    bool const labelled = find_kinds(a, shared, w, row, column);
    kinds_t& kinds = shared.kinds[thread];
    float const scale = *a.scale * log2e_k, bias = *a.bias * log2e_k;

    float acc[64] = {};
    cell_sums_t sums;
    int stage = 0, to_stage = score_stages_k - 1;
    for (; !here.past(ladder); here.next(ladder)) {
        ptx::copy_wait<score_stages_k - 2>();
        __syncthreads();   // the slab has come, and everyone is done with the one before it
        if (!ahead.past(ladder)) {
            load_slab(shared.slab[to_stage], a, ladder.dims, row, column, ahead);
            ahead.next(ladder);
        }
        ptx::copy_commit();
        slab_t const& slab = shared.slab[stage];
        multiply_slab(acc, slab, w.row, w.column, (here.end - here.begin) / 16);
        if (here.closes_band(ladder)) {
            if constexpr (kPass == pass_t::maxima_k) {
                if (labelled) find_maxima<true>(a, ladder.count, acc, slab, kinds, w, here.prefix, scale);
                else find_maxima<false>(a, ladder.count, acc, slab, kinds, w, here.prefix, scale);
            } else {
                if (labelled) score_band<kPass, true>(a, ladder, acc, slab, kinds, w, here.prefix, scale, bias, sums);
                else score_band<kPass, false>(a, ladder, acc, slab, kinds, w, here.prefix, scale, bias, sums);
            }
        }
        stage = stage + 1 == score_stages_k ? 0 : stage + 1;
        to_stage = to_stage + 1 == score_stages_k ? 0 : to_stage + 1;
    }
    if constexpr (kPass != pass_t::maxima_k) {
        suffix_sums(a, w, ladder.count);
        float const weight = a.triangle && w.tile_row == w.tile_column ? 1.0f : a.cell_weight;
        float const loss = warp_sum(sums.loss), slope = warp_sum(sums.slope), self = warp_sum(labelled ? kinds.self : 0.0f);
        if (w.lane == 0) {   // a slot belongs to a place in the superblock: the order of additions never changes
            double* slot = a.slots + ((w.tile_row * (a.side / tile_k) + w.tile_column) * (score_threads_k / 32) + w.warp) * 3;
            slot[0] += double(weight) * loss;
            slot[1] += double(weight) * slope;
            slot[2] += self;
        }
    }
}

}  // namespace scaling_contrasts::sm80
