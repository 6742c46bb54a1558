// Scores one superblock: a tile of 128 x 128 cells a thread block, eight warps of 64 x 32 cells.
// After each band it forms the cells' slopes, sums the loss and the rows' and columns' weighted products, and stores
// the slopes where weights will lie; after the last band a thread reads back its own slopes and turns them into the
// weights of bands, so that only one rounding to bf16 remains. info_nce takes two passes: maxima and sums of
// exponentials first, slopes second.
#pragma once
#include "scaling_contrasts/sm80/groups.cuh"
#include "scaling_contrasts/sm80/kinds.cuh"
#include "scaling_contrasts/sm80/maxima.cuh"
#include "scaling_contrasts/sm80/sums.cuh"
#include "scaling_contrasts/sm80/tiles.cuh"

namespace scaling_contrasts::sm80 {

/// Words of this lane's first weight of a plane: blocks of 16 x 16 cells are 128 words, one lane's are 32 apart.
__device__ __forceinline__ std::uint32_t* weights_at(superblock_t const& a, warp_place_t const& w, int prefix) {
    return a.weights + tile_words(a.side, prefix, w.tile_row, w.tile_column) + (w.row / 16 * 8 + w.column / 16) * 128 +
           w.lane;
}
__device__ __forceinline__ constexpr int weight_word(int m, int n, int half) {
    return (m * 8 + n / 2) * 128 + (n % 2 * 2 + half) * 32;
}

/// Slopes and sums of one prefix.
template <pass_t kPass, bool kLabelled>
__device__ __forceinline__ void score_band(superblock_t const& a, ladder_t const& ladder, float const (&acc)[64],
                                           slab_t const& slab, kinds_t& kinds, warp_place_t const& w, int prefix,
                                           float scale, float bias, cell_sums_t& sums) {
    float const prefix_weight = ladder.weights[prefix], product_unit = prefix_weight / (scale * slope_unit_k<kPass>);
    int const r = w.row + (w.lane >> 2), c = w.column + (w.lane & 3) * 2;
    std::uint32_t* out = weights_at(a, w, prefix);
    float* row_products = a.row_products +
                          (std::int64_t(w.tile_column * 4 + w.column / 32) * ladder.count + prefix) * a.side +
                          w.tile_row * tile_k + r;
    float column_sum[8] = {};
#pragma unroll
    for (int m = 0; m < 4; ++m) {
        float u[2], row_sum[2] = {};
#pragma unroll
        for (int h = 0; h < 2; ++h) u[h] = slab.row_norms[r + m * 16 + h * 8] * scale;
#pragma unroll
        for (int n = 0; n < 4; n += 2) {  // eight cells at a time
            float const* dots = acc + (m * 4 + n) * 4;
            float v[4], q[8], slope[8];  // q: both inverse norms times the scale
#pragma unroll
            for (int i = 0; i < 4; i += 2) {
                float2 const pair = *reinterpret_cast<float2 const*>(&slab.column_norms[c + (n + i / 2) * 8]);
                v[i] = pair.x;
                v[i + 1] = pair.y;
            }
#pragma unroll
            for (int i = 0; i < 8; ++i) q[i] = u[i >> 1 & 1] * v[(i >> 2) * 2 + (i & 1)];
            if constexpr (kPass == pass_t::softmax_k || kPass == pass_t::groups_k) {
                int const row = a.first_row + w.tile_row * tile_k + r,
                          column = a.first_column + w.tile_column * tile_k + c;
                float row_log[2], column_log[4];
                float const* row_logs = a.rows.log_sums + std::int64_t(prefix) * a.rows.padded + row + m * 16;
                float const* column_logs =
                    a.columns.log_sums + std::int64_t(prefix) * a.columns.padded + column + n * 8;
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    row_log[h] = __ldg(row_logs + h * 8) + log_unit_k<kPass>;  // halves: see slope_unit_k
#pragma unroll
                for (int i = 0; i < 4; ++i) column_log[i] = __ldg(column_logs + i / 2 * 8 + i % 2) + log_unit_k<kPass>;
                if constexpr (kPass == pass_t::softmax_k)
                    softmax_slopes<kLabelled>(a, kinds, m, n, prefix, row, column, dots, q, row_log, column_log, slope);
                else
                    group_slopes<kLabelled>(a, kinds, m, n, prefix, row, column, dots, q, row_log, column_log,
                                            prefix_weight, slope, sums);
            } else if constexpr (kLabelled) {
                labelled_slopes(kinds, m, n, dots, q, bias, prefix_weight, product_unit, slope, sums);
            } else {
                negative_slopes(dots, q, bias, prefix_weight, slope, sums);
            }
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                int const h = i >> 1 & 1, k = i >> 2;
                float const w0 = slope[i] * q[i], w1 = slope[i + 1] * q[i + 1];  // in units of product_unit
                out[weight_word(m, n + k, h)] = kPass == pass_t::groups_k && kLabelled && a.sup_con
                                                    ? ptx::pack_signed_fractions(slope[i], slope[i + 1])
                                                    : ptx::pack_fractions(slope[i], slope[i + 1]);
                row_sum[h] = fmaf(w0, dots[i], fmaf(w1, dots[i + 1], row_sum[h]));
                column_sum[(n + k) * 2] = fmaf(w0, dots[i], column_sum[(n + k) * 2]);
                column_sum[(n + k) * 2 + 1] = fmaf(w1, dots[i + 1], column_sum[(n + k) * 2 + 1]);
            }
        }
        float const total = quad_sum(row_sum, w.lane);
        if ((w.lane & 3) < 2) row_products[m * 16 + (w.lane & 1) * 8] = total * product_unit;
    }
    fold_columns(column_sum, w.lane);
    a.column_products[(std::int64_t(w.tile_row * 2 + w.row / 64) * ladder.count + prefix) * a.side +
                      w.tile_column * tile_k + w.column + folded_column(w.lane)] = column_sum[0] * product_unit;
}

/// Turns the stored slopes of prefixes into weights of bands: band b's are the sum over the prefixes b and up.
/// kPlain: no positives, and one part of weights.
template <pass_t kPass, bool kPlain>
__device__ __forceinline__ void suffix_sums(superblock_t const& a, warp_place_t const& w, ladder_t const& ladder,
                                            kinds_t const& kinds) {
    float sum[64] = {};
    int const row = a.first_row + w.tile_row * tile_k + w.row + (w.lane >> 2),
              column = a.first_column + w.tile_column * tile_k + w.column + (w.lane & 3) * 2;
    constexpr bool is_groups = kPass == pass_t::groups_k;
    bool const labelled = !kPlain && kinds.labelled;
    std::int64_t const to_second_part = !kPlain && a.parts == 2 ? tile_words(a.side, ladder.count, 0, 0) : 0;
    for (int prefix = ladder.count - 1; prefix >= 0; --prefix) {
        std::uint32_t* plane = weights_at(a, w, prefix);
        float const* row_norms = a.rows.inverse_norms + std::int64_t(prefix) * a.rows.padded + row;
        auto const* column_norms =
            reinterpret_cast<float2 const*>(a.columns.inverse_norms + std::int64_t(prefix) * a.columns.padded + column);
        float const factor = ladder.weights[prefix] / slope_unit_k<kPass>;
        float2 v[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) v[n] = __ldg(column_norms + n * 4);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            std::uint32_t packed[16];
            float u[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) u[i] = __ldg(row_norms + half * 32 + i * 8) * factor;
#pragma unroll
            for (int i = 0; i < 16; ++i) packed[i] = __ldcg(plane + weight_word(half * 2 + i / 8, i / 2 % 4, i % 2));
            std::uint32_t const negative = labelled ? kinds.positive[half] : 0;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                int const at = (half * 16 + i) * 2, n = i / 2 % 4, m = i / 8 * 2 + i % 2;
                float low = ptx::low_fraction(packed[i]), high = ptx::high_fraction(packed[i]);
                if (kPass == pass_t::groups_k && labelled && a.sup_con) {
                    low = ptx::low_signed_fraction(packed[i]), high = ptx::high_signed_fraction(packed[i]);
                } else if (!kPlain) {
                    if (negative >> i * 2 & 1) low = -low;
                    if (negative >> (i * 2 + 1) & 1) high = -high;
                }
                sum[at] = fmaf(low, u[m] * v[n].x, sum[at]);
                sum[at + 1] = fmaf(high, u[m] * v[n].y, sum[at + 1]);
                std::uint32_t const rounded = ptx::pack_bf16(sum[at], sum[at + 1]);
                std::uint32_t* to = plane + weight_word(half * 2 + i / 8, n, i % 2);
                *to = rounded;
                if (!kPlain && !is_groups && a.rows.residuals && (negative >> i * 2 & 3)) {
                    // a positive outweighs the row's other cells by far: its rounding would be the gradient's error
                    float const lost = negative >> i * 2 & 1 ? sum[at] - ptx::low_bf16(rounded)
                                                             : sum[at + 1] - ptx::high_bf16(rounded);
                    a.rows.residuals[std::int64_t(prefix) * a.rows.padded + row + half * 32 + m * 8] = lost;
                }
                if (!kPlain && to_second_part)
                    to[to_second_part] =
                        ptx::pack_bf16(sum[at] - ptx::low_bf16(rounded), sum[at + 1] - ptx::high_bf16(rounded));
            }
        }
    }
}

template <pass_t kPass>
__global__ void __launch_bounds__(score_threads_k, kPass == pass_t::sigmoid_k ? 2 : 1)
    score_kernel(__grid_constant__ superblock_t const a, __grid_constant__ ladder_t const ladder,
                 __grid_constant__ slabs_t const slabs) {
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

    slab_places_t const places = slab_places(a, ladder.dims, row, w.row, w.column);
    shared.places[thread] = places;
    auto load = [&](int number, int stage, slab_places_t const& mine, bool whole) {
        if (number < slabs.count)
            load_slab(shared.slab[stage], a, mine, whole, ladder.dims, row, column, slabs.place.data()[number]);
        ptx::copy_commit();
    };
    bool const whole = row + tile_k <= a.rows.rows && column + tile_k <= a.columns.rows && ladder.dims % slab_k == 0;
    shared.whole = whole;  // not kept in a register
#pragma unroll
    for (int stage = 0; stage < score_stages_k - 1; ++stage) load(stage, stage, places, whole);
    {  // labels; padding rows get labels that equal no other, though being dead is what counts
        rows_t const& set = thread < tile_k ? a.rows : a.columns;
        int const index = thread & (tile_k - 1), local = (thread < tile_k ? row : column) + index;
        int const label = local >= set.rows ? (thread < tile_k ? -1 : -2)
                          : set.labels      ? set.labels[local]
                                            : static_cast<int>(set.first + local);
        (thread < tile_k ? shared.row_labels : shared.column_labels)[index] = label;
    }
    __syncthreads();
    find_kinds(a, shared, w, row, column);
    kinds_t& kinds = shared.kinds[thread];
    if constexpr (kPass == pass_t::positives_k)
        if (!__syncthreads_or(kinds.labelled && (kinds.positive[0] | kinds.positive[1]))) {
            ptx::copy_wait<0>();
            return leave_no_maxima(a, ladder.count, w);
        }
    // a scale of 0 would lose the weighted products, which are formed with it and divided by it: one too small to
    // matter serves
    float const given = *a.scale * log2e_k, scale = fabsf(given) < 0x1p-40f ? 0x1p-40f : given,
                bias = *a.bias * log2e_k;

    float acc[64] = {};
    cell_sums_t sums;
    for (int number = 0; number < slabs.count; ++number) {
        ptx::copy_wait<score_stages_k - 2>();
        __syncthreads();  // the slab has come, and everyone is done with the one before it
        slab_places_t const mine = shared.places[thread];
        load(number + score_stages_k - 1, (number + score_stages_k - 1) % score_stages_k, mine, shared.whole);
        slab_t const& slab = shared.slab[number % score_stages_k];
        auto const here = slabs.place.data()[number];
        multiply_slab(acc, slab, mine.read_a, mine.read_b, here.steps & ~slabs_t::closes_band_k);
        if (here.steps & slabs_t::closes_band_k) {
            if constexpr (gathers(kPass)) {
                if (kinds.labelled) find_maxima<kPass, true>(a, ladder.count, acc, slab, kinds, w, here.prefix, scale);
                else find_maxima<kPass, false>(a, ladder.count, acc, slab, kinds, w, here.prefix, scale);
            } else {
                if (kinds.labelled)
                    score_band<kPass, true>(a, ladder, acc, slab, kinds, w, here.prefix, scale, bias, sums);
                else score_band<kPass, false>(a, ladder, acc, slab, kinds, w, here.prefix, scale, bias, sums);
            }
        }
    }
    if constexpr (!gathers(kPass)) {
        if (kinds.labelled || a.parts == 2) suffix_sums<kPass, false>(a, w, ladder, kinds);
        else suffix_sums<kPass, true>(a, w, ladder, kinds);
        float const weight = a.triangle && w.tile_row == w.tile_column ? 1.0f : a.cell_weight;
        float const loss = warp_sum(sums.loss), slope = warp_sum(sums.slope),
                    self = warp_sum(kinds.labelled ? kinds.self : 0.0f);
        if (w.lane == 0) {  // a slot belongs to a place in the superblock: the order of additions never changes
            double* slot =
                a.slots + ((w.tile_row * (a.side / tile_k) + w.tile_column) * (score_threads_k / 32) + w.warp) * 3;
            slot[0] += double(weight) * loss;
            slot[1] += double(weight) * slope;
            slot[2] += self;
        }
    }
}

}  // namespace scaling_contrasts::sm80
