// Score items of the losses over two sets and of one_set_info_nce: 128 x 256 cells, two warpgroups of 64 x 256, all
// prefixes in one ascending pass over the columns. With one prefix the weights go out a quarter of a tile at a time
// while the next quarter is computed. With more, each band's weights wait in the tile's planes in memory, each thread's
// words together, and become suffix sums at the end.
#pragma once
#include "scaling_contrasts/sm90/group_cells.cuh"

namespace scaling_contrasts::sm90::two_set {

/// acc (+)= rows x columns of one band.
__device__ __forceinline__ void multiply(consumer_t& c, float (&acc)[128], int slabs, bool first_band) {
    uint32_t before = 0;
#pragma unroll 1
    for (int s = 0; s < slabs; ++s) {
        uint32_t const slab = c.wait_slab();
        uint64_t const da = ptx::operand(slab + c.wg * 8192), db = ptx::operand(slab + 16384);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k)
            ptx::wgmma_n256<0, 0>(acc, da + 2 * k, db + 2 * k, k > 0 ? 1 : !first_band | (s > 0));
        ptx::wgmma_commit();
        if (s > 0) {
            ptx::wgmma_wait<1>();
            c.release(before);
        }
        before = c.ring.at;
        c.ring.next();
    }
    ptx::wgmma_wait<0>();
    c.release(before);
}

/// Stages 64 rows x 64 columns of a warpgroup's weights and hands them to the warp that stores them. in_place: where the
/// threads have read what waited.
template <bool in_place_ = false>
__device__ __forceinline__ void stage(consumer_t& c, uint32_t const (&words)[16]) {
    uint32_t const row = c.warp * 16 + (c.lane & 15), chunk = c.lane >> 4,
                   at = c.base + at_stage_k + c.wg * (quarter_bytes_k / 2) + row * 128;
    c.await_stage();
#pragma unroll
    for (uint32_t k = 0; k < 8; k += 2)
        ptx::stmatrix_x4(at + (((k + chunk) ^ (row & 7)) << 4), words[2 * k], words[2 * k + 1], words[2 * k + 2],
                         words[2 * k + 3]);
    if constexpr (in_place_) ptx::fence_async();
    else ptx::fence_async_shared();
    c.hand_over();
}

/// Adds a share to S of one row. `unit`: units per 1 of its first word.
template <bool softmax_>
__device__ __forceinline__ void add_to_s(side_t const& side, int p, int row, float share, float unit) {
    int64_t* to = side.s + int64_t(p) * s_words(softmax_) * side.padded + row;
    float units = share * unit;
#pragma unroll
    for (int k = 1; k < s_words(softmax_); ++k)
        if (fabsf(units) < s_least_k) {
            units *= float(1 << s_octaves_k);
            to += side.padded;
        }
    ptx::red_add(to, __float2ll_rn(units));
}

template <pass_t pass_, bool ladder_>
__device__ __forceinline__ void score_item(params_t const& a, item_t const& item, consumer_t& c,
                                           scales_t const& scale) {
    int const prefixes = ladder_ ? a.prefixes : 1, lane = c.lane;
    int const row = item.row * row_tile_k + c.wg * 64 + c.warp * 16 + (lane >> 2), column = item.at * column_tile_k;
    // this thread's words of the tile's planes, while they wait, in the place of the quarter that they become:
    // [4][thread][4]
    uint8_t* const waiting =
        a.weights + int64_t(item.slot) * prefixes * tile_bytes_k + c.wg * (quarter_bytes_k / 2) + c.thread * 16;
    float acc[128];
    totals_t totals;
    stopwatch_t watch;
    watch.count(score_items_k, c.thread == 0);
    // one set: a cell off the diagonal stands for its mirror image, too; on it and in another GPU's block both are
    // there
    bool const columns_too = is_grouped(pass_) && a.triangle && !on_diagonal(a, item.row, item.at);
#pragma unroll 1
    for (int p = 0; p < prefixes; ++p) {
        band_t band;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int64_t const at = int64_t(p) * a.row.padded + row + 8 * h;
            band.u[h] = __ldg(a.row.inverse + at) * scale.t2;
            if constexpr (is_softmax(pass_)) band.log_sum[h] = __ldg(a.row.log_sums + at);
        }
        band.omega = ladder_ ? a.omega[p] : 1.f;
        band.at_columns =
            c.base + at_statistics_k + (c.bands++ % statistics_k) * (2 * column_tile_k * 4) + (lane & 3) * 8;
        multiply(c, acc, a.slabs[p], p == 0);
        watch.lap(score_products_k, c.thread == 0);
        if constexpr (pass_ == pass_t::sums_k) {
            sum_band<place_of_cells_t>(a, acc, band, p, row, column, lane, bin_scale(scale.t2), a.column.bins);
            continue;
        }
        if constexpr (pass_ == pass_t::negatives_k) {
            sum_band<negatives_of_groups_t>(a, acc, band, p, row, column, lane, bin_scale(scale.t2), columns_too);
            continue;
        }
        if constexpr (pass_ == pass_t::positives_k) {
            sum_positives(a, acc, band, p, row, column, lane, scale.t2, columns_too);
            continue;
        }
        if (ladder_ && p == 0 &&
            item.wait) {  // planes are written as they come, so the ring's superblock must have been read
            if (lane == 0) ptx::wait_count(a.consumed + item.index - a.ring, item.wait);
            __syncwarp();
        }
        products_t products;
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            float const* d = acc + q * 32;
            uint32_t const at = band.at_columns + q * 256;
            uint32_t words[16];
            place_of_cells_t const place = {row, column + q * 64, lane};
            [[maybe_unused]] bool const special = !is_grouped(pass_) && place.special(a);
            if constexpr (pass_ == pass_t::softmax_k) {
                if (special) softmax_quarter<ladder_, true>(d, band, at, place.absent(a), words, totals, products);
                else softmax_quarter<ladder_, false>(d, band, at, 0, words, totals, products);
            } else if constexpr (pass_ == pass_t::groups_k) {
                cells_of_groups_t const cells = {row, column + q * 64, lane};
                if (cells.special(a))
                    group_quarter<ladder_>(a, cells, p, d, band, at, words, totals, products, columns_too);
                else softmax_quarter<ladder_, false>(d, band, at, 0, words, totals, products);
            } else {
                // the last tile only hints whether to try or to look first: which path is taken depends on the cells
                // alone
                bool exact = special;
                if (!exact) {
                    exact = c.exact >> q & 1 ? !is_far(d, band, at, scale.b2) : false;
                    if (!exact) exact = !far_quarter<ladder_>(d, band, at, scale.b2, words, totals, products);
                    c.exact = (c.exact & ~(1u << q)) | uint32_t(exact) << q;
                }
                if (exact) {
                    if (special)
                        exact_quarter<ladder_, true>(d, band, at, scale.b2, place.absent(a), words, totals, products);
                    else exact_quarter<ladder_, false>(d, band, at, scale.b2, 0, words, totals, products);
                }
            }
            if constexpr (ladder_) {
#pragma unroll
                for (int h = 0; h < 2; ++h)
                    if (is_grouped(pass_) ? columns_too && a.output : a.column.s != nullptr)
                        add_to_s<is_softmax(pass_)>(a.column, p, column + q * 64 + h * 32 + summed_column(lane),
                                                    sum_columns(products.column + 8 * h, lane), scale.s);
                if (a.output)
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        *reinterpret_cast<uint4*>(waiting + p * tile_bytes_k + q * quarter_bytes_k + i * 2048) =
                            make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
            } else {
                watch.lap(score_cells_k, c.thread == 0);
                if (a.output) stage(c, words);
                watch.lap(score_output_k, c.thread == 0);
            }
        }
        if constexpr (ladder_) totals.product += products.row[0] + products.row[1];
        if constexpr (ladder_)
            if (a.row.s)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    float v = products.row[h];
                    v += __shfl_xor_sync(~0u, v, 1);
                    v += __shfl_xor_sync(~0u, v, 2);
                    if ((lane & 3) == 0) add_to_s<is_softmax(pass_)>(a.row, p, row + 8 * h, v, scale.s);
                }
        watch.lap(score_cells_k, c.thread == 0);
    }
    if constexpr (!is_sum(pass_)) {
        if (a.sums) {
            if constexpr (is_grouped(pass_)) {
                float const share = columns_too ? 1.f : 0.5f;
                totals.loss *= share;
                totals.product *= share;
            }
            float const loss = sum_over_warp(totals.loss), slope = sum_over_warp(totals.slope),
                        product = sum_over_warp(totals.product) / scale.t2;
            if (lane < 3) {
                float const v = (lane == 0 ? loss : lane == 1 ? slope : product) * scale.sum, whole = rintf(v);
                int64_t* const to = a.sums + 6 * int64_t(item.row) + lane;
                ptx::red_add(to, __float2ll_rn(whole));
                ptx::red_add(to + 3, __float2ll_rn((v - whole) * remainder_k));
            }
        }
        if constexpr (ladder_)
            if (a.output) {  // suffix sums, last plane first, in fp32, so that a plane is rounded once
                float sum[128];
#pragma unroll
                for (int i = 0; i < 128; ++i) sum[i] = 0.f;
                [[maybe_unused]] uint32_t positive[4] = {};
                if constexpr (is_grouped(pass_))
#pragma unroll
                    for (int q = 0; q < 4; ++q)
                        if (cells_of_groups_t const cells = {row, column + q * 64, lane}; cells.special(a))
                            positive[q] = cells.positive(a) & ~cells.absent(a);
                uint4 next[4];  // a quarter's words come while the one before is staged
                auto const fetch = [&](int p, int q) {
#pragma unroll
                    for (int i = 0; i < 4; ++i)
                        next[i] = *reinterpret_cast<uint4 const*>(waiting + p * tile_bytes_k + q * quarter_bytes_k +
                                                                  i * 2048);
                };
                fetch(prefixes - 1, 0);
#pragma unroll 1
                for (int p = prefixes - 1; p >= 0; --p)
#pragma unroll
                    for (int q = 0; q < 4; ++q) {
                        uint32_t words[16];
#pragma unroll
                        for (int i = 0; i < 4; ++i) {
                            words[4 * i] = next[i].x, words[4 * i + 1] = next[i].y;
                            words[4 * i + 2] = next[i].z, words[4 * i + 3] = next[i].w;
                        }
                        if (q < 3) fetch(p, q + 1);
                        else if (p > 0) fetch(p - 1, 0);
                        [[maybe_unused]] float lost[2] = {};
#pragma unroll
                        for (int i = 0; i < 16; ++i) {
                            float* s = sum + q * 32 + 2 * i;
                            s[0] += ptx::lo_bf16(words[i]);
                            s[1] += ptx::hi_bf16(words[i]);
                            words[i] = ptx::pack_bf16(s[0], s[1]);
                            if constexpr (is_grouped(pass_)) {
                                if (positive[q] >> 2 * i & 1) lost[i & 1] = s[0] - ptx::lo_bf16(words[i]);
                                if (positive[q] >> 2 * i & 2) lost[i & 1] = s[1] - ptx::hi_bf16(words[i]);
                            }
                        }
                        if constexpr (is_grouped(pass_))
                            keep_residuals(a, {row, column + q * 64, lane}, positive[q], p, lost, columns_too);
                        stage<true>(c, words);
                    }
                watch.lap(score_second_output_k, c.thread == 0);
            }
    }
}

}  // namespace scaling_contrasts::sm90::two_set
