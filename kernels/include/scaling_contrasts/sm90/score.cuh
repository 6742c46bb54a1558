// Score items: half a 128 x 128 tile of cells, 64 rows, all prefixes in one ascending pass over the columns; their
// logistic coefficients, the loss, the sums S, and the tile's planes of band weights
//   W_b = sum_{p >= b} w_p,   w_p = dl/dlogit inv_i inv_j t log2(e)   (bf16 or fp16).
//
// Each of two consumer warpgroups holds 64 x 128 cells. After each band the accumulators are the prefix's dot products.
// A band whose logits are all far below zero, with no positives among them, takes one exp2 a cell and short
// polynomials: the whole band is one piece of straight code, and one vote at its end says whether that was allowed.
// Else the band is done again, exactly.
#pragma once
#include "scaling_contrasts/sm90/gradient.cuh"
#include "scaling_contrasts/sm90/softmax_cells.cuh"
#include "scaling_contrasts/sm90/two_set_params.cuh"

namespace scaling_contrasts::sm90 {

/// Where no sum of sixteen e^logit reaches this: sigmoid = e - e^2, softplus = e - e^2 / 2 + e^3 / 3.
constexpr float far_k = 1.f / 128;
/// Positives stay below it there: logits of at most 0, and what rounding adds.
constexpr float positive_k = 2.0625f;

/// Column sums of a warp's 16 rows x 8 chunks_ columns, from packed pairs with rows r and r + 8 already added. Lane l
/// ends with two columns of each of chunks_ / 8 chunks, from summed_chunk(l) * 8 + (l & 3) * 2 on.
template <int chunks_>
__device__ __forceinline__ void sum_columns(uint32_t const (&v)[chunks_], int lane, uint32_t (&out)[chunks_ / 8]) {
    constexpr int half = chunks_ / 2, quarter = chunks_ / 4, eighth = chunks_ / 8;
    bool const b4 = lane & 16, b3 = lane & 8, b2 = lane & 4;
    uint32_t h[half], m[quarter];
#pragma unroll
    for (int i = 0; i < half; ++i)
        h[i] = ptx::add_bf16x2(b4 ? v[i + half] : v[i], __shfl_xor_sync(~0u, b4 ? v[i] : v[i + half], 16));
#pragma unroll
    for (int i = 0; i < quarter; ++i)
        m[i] = ptx::add_bf16x2(b3 ? h[i + quarter] : h[i], __shfl_xor_sync(~0u, b3 ? h[i] : h[i + quarter], 8));
#pragma unroll
    for (int i = 0; i < eighth; ++i)
        out[i] = ptx::add_bf16x2(b2 ? m[i + eighth] : m[i], __shfl_xor_sync(~0u, b2 ? m[i] : m[i + eighth], 4));
}
template <int chunks_>
__device__ __forceinline__ int summed_chunk(int lane) {
    return (lane >> 4 & 1) * (chunks_ / 2) + (lane >> 3 & 1) * (chunks_ / 4) + (lane >> 2 & 1) * (chunks_ / 8);
}

/// The same in fp32 for 32 columns, eight values a thread: lane l ends with column summed_column(l).
__device__ __forceinline__ float sum_columns(float const (&v)[8], int lane) {
    bool const b4 = lane & 16, b3 = lane & 8, b2 = lane & 4;
    float h[4], m[2];
#pragma unroll
    for (int i = 0; i < 4; ++i) h[i] = (b4 ? v[i + 4] : v[i]) + __shfl_xor_sync(~0u, b4 ? v[i] : v[i + 4], 16);
#pragma unroll
    for (int i = 0; i < 2; ++i) m[i] = (b3 ? h[i + 2] : h[i]) + __shfl_xor_sync(~0u, b3 ? h[i] : h[i + 2], 8);
    return (b2 ? m[1] : m[0]) + __shfl_xor_sync(~0u, b2 ? m[0] : m[1], 4);
}
__device__ __forceinline__ int summed_column(int lane) { return (lane >> 3) * 8 + (lane & 3) * 2 + (lane >> 2 & 1); }

__device__ __forceinline__ float sum_over_warp(float v) {
#pragma unroll
    for (int m = 16; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);
    return v;
}

template <class kind_>
__device__ __forceinline__ void score_item(params_t const& a, item_t const& item, consumer_t<kind_>& c,
                                           scales_t const& scale) {
    using shared = shared_t<kind_>;
    using pair = typename kind_::pair;
    int const prefixes = kind_::fast ? 5 : a.prefixes;
    int const I = item.row, J = item.at, lane = c.lane;
    int const half = item.k & 1;
    int const my_row = half * 64 + c.warp * 16 + (lane >> 2);  // and my_row + 8
    constexpr int width = shared::width_k;
    // where statistics have this row, and the first of the tile's columns
    int const row_at = kind_::small_items ? my_row % 64 : my_row, first = kind_::small_items ? (item.k >> 2) * 64 : 0;
    uint32_t const at_rows =
        c.base + shared::at_stats(0, 0) + (item.k & 2) * shared::stats_k * 4;  // inverse norms, then labels;
                                                                               // softmaxes: columns' shares
    uint32_t const at_columns = at_rows + shared::stats_k * 4;                 // labels, then inverse norms
    uint32_t const at_piece = c.base + shared::at_stash + c.thread * 16;       // this thread's part of a stashed plane
    uint32_t const at_marks = c.base + shared::at_marks + c.thread * (width / 8);
    uint8_t* const tile = a.weights + int64_t(item.slot) * prefixes * plane_bytes_k;

    float acc[width / 2] = {};  // dot products: [chunk of 8 columns][row r: 2 columns, row r + 8: 2 columns]
    uint32_t last[width / 4] = {},
                          before[width / 4] = {};  // packed weights of the last two bands: [chunk][row r, row r + 8]
    float loss = 0.f, grad = 0.f;
    uint32_t row_logs = 0;  // softmaxes: a bit a band, where the rows' shares are log sums
    if constexpr (kind_::softmax)
        row_logs =
            __ldg(reinterpret_cast<uint32_t const*>(a.row.shares + int64_t(I) * share_floats(5) + column_shares(5)));
    bool special = false;  // this warp's cells hold positives, self pairs, or rows that are not there
    // exact weights of this thread's first positives, and which cells they are: in local memory, touched by few tiles
    constexpr int kept_k = 4;
    float kept[kind_::gives_back ? kept_k : 1][5];
    int kept_cell[kept_k], positives = 0;

    float4 norm[width / 16];  // a band's inverse norms of this thread's columns
    float norm0, norm1;       // and of its rows
    [[maybe_unused]] float share0, share1;
    auto load_rows = [&](int p) {  // softmaxes: straight from memory, for their place has columns' shares
        float const *const inverse = a.row.records + int64_t(I) * record_floats(5) + p * tile_k + my_row,
                           *const share = a.row.shares + int64_t(I) * share_floats(5) + p * tile_k + my_row;
        norm0 = __ldg(inverse), norm1 = __ldg(inverse + 8);
        share0 = __ldg(share), share1 = __ldg(share + 8);
    };
    auto load_norms = [&](int p) {
        if constexpr (!kind_::softmax) {
            norm0 = ptx::load_float(at_rows + (p * shared::side_k + row_at) * 4);
            norm1 = ptx::load_float(at_rows + (p * shared::side_k + row_at + 8) * 4);
        }
#pragma unroll
        for (int h = 0; h < width / 16; ++h)
            norm[h] = ptx::load_float4(at_columns + ((p + 1) * shared::side_k + (lane & 3) * 4) * 4 + h * 64);
    };
    auto multiply = [&](int p) {
        int const slabs = kind_::fast ? (p == 0 ? 1 : 1 << (p - 1)) : a.slabs[p];
        auto release = [&](uint32_t stage) { c.release(shared::at_empty + stage * 8); };
        if constexpr (kind_::softmax) load_rows(p);
#pragma unroll 1
        for (int s = 0; s < slabs; ++s) {
            uint32_t const at = c.base + c.score.at() * shared::score_stage_bytes_k;
            uint64_t const da = ptx::operand(at), db = ptx::operand(at + rows_bytes_k);
            bool unread = s > 0;
            await_stage(c, c.score, 0, unread);
            ptx::wgmma_fence();
#pragma unroll
            for (int k = 0; k < slab_k / 16; ++k) {
                uint64_t const ak = ptx::further(da, 32 * k), bk = ptx::further(db, 32 * k);
                if constexpr (width == 64) ptx::wgmma_n64<0, 0>(acc, ak, bk, k > 0 ? 1 : p | s);
                else if constexpr (kind_::fp16) ptx::wgmma_fp16_n128<0, 0>(acc, ak, bk, k > 0 ? 1 : p | s);
                else ptx::wgmma_n128<0, 0>(acc, ak, bk, k > 0 ? 1 : p | s);
            }
            ptx::wgmma_commit();
            if (unread) {
                ptx::wgmma_wait<1>();
                release(c.score.before());
            }
            c.score.next();
        }
        if constexpr (kind_::one_launch)
            if (p == 0) ptx::mbar_wait(c.base + shared::at_stats_full, item.k >> 1 & 1);
        load_norms(p);  // under the last products
        ptx::wgmma_wait<0>();
        release(c.score.before());
    };
    auto await_empty = [&] { ptx::mbar_wait(c.base + shared::at_out_empty, c.outputs ^ 1); };
    auto look_at_labels = [&] {
        int const rows_left = a.row.live - I * tile_k, columns_left = a.column.live - J * tile_k;
        special = rows_left < tile_k || columns_left < tile_k || (a.own && I == J);
        if constexpr (kind_::small_items)  // of a tile of the diagonal, two items in four
            if (rows_left >= tile_k && columns_left >= tile_k && first != half * 64) special = false;
        int const mine = ptx::load_int(
            at_rows +
            (prefixes * shared::side_k + (kind_::small_items ? 0 : half * 64) + c.warp * 16 + (lane & 15)) * 4);
        int column[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) column[i] = ptx::load_int(at_columns + (lane + 32 * (i % (width / 32))) * 4);
        int const least = __reduce_min_sync(~0u, min(min(column[0], column[1]), min(column[2], column[3])));
        int const most = __reduce_max_sync(~0u, max(max(column[0], column[1]), max(column[2], column[3])));
        if (!special && __reduce_max_sync(~0u, mine) >= least && __reduce_min_sync(~0u, mine) <= most) {  // perhaps
            bool any = false;
            for (int r = 0; r < 16; ++r) {
                int const label = __shfl_sync(~0u, mine, r);
                any |= label == column[0] | label == column[1] | label == column[2] | label == column[3];
            }
            special = __any_sync(~0u, any);
        }
    };

    auto add_s = [&](int block, int p, int row, float v, bool candidates = false) {
        ptx::red_add((kind_::both && candidates ? a.column_s : a.s) + (int64_t(block) * prefixes + p) * tile_k + row,
                     __float2ll_rn(v * scale.s));
    };
    // where this thread's sums of the first band go
    int64_t* const to_row = a.s + int64_t(I) * prefixes * tile_k + my_row + (lane & 1) * 8;
    int64_t* const to_column = (kind_::both ? a.column_s : a.s) + int64_t(J) * prefixes * tile_k + first +
                               summed_chunk<8>(lane) * 8 + (lane & 3) * 2;
    auto add_column_s = [&](int p, int column, float v) { add_s(J, p, first + column, v, true); };
    auto add_row_s = [&](int p, float s0, float s1) {  // lanes 0 and 1 of the four that hold two rows get a sum each
        float row = (lane & 1 ? s1 : s0) + __shfl_xor_sync(~0u, lane & 1 ? s0 : s1, 1);
        row += __shfl_xor_sync(~0u, row, 2);
        if ((lane & 3) < 2) add_s(I, p, my_row + (lane & 1) * 8, row);
    };

    auto is_far = [&](float u0, float u1) {  // what far_band would find, in its order
        float e4[4] = {};
#pragma unroll
        for (int h = 0; h < width / 16; ++h) {
            float4 const v = norm[h];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float const q = (i & 2 ? u1 : u0) * (i < 4 ? (i & 1 ? v.y : v.x) : (i & 1 ? v.w : v.z));
                e4[i & 3] += ptx::ex2(fmaf(acc[h * 8 + i], q, scale.b2));
            }
            if (h == 1 && __any_sync(~0u, !(fmaxf(fmaxf(e4[0], e4[1]), fmaxf(e4[2], e4[3])) < far_k)))
                return false;  // most bands that are not show it early
        }
        return !__any_sync(~0u, !(fmaxf(fmaxf(e4[0], e4[1]), fmaxf(e4[2], e4[3])) < far_k));
    };
    bool correctable = false;                        // special cells may be far below zero all the same
    uint32_t marked = 0;                             // a bit for 16 columns that hold them
    float positive_loss = 0.f, positive_grad = 0.f;  // of a band's positives far below zero
    bool hot = false;                                // not all of them are
    // A marked cell's weight; adds it to these, and takes it out of what is summed as negatives.
    auto marked_weight = [&](int p, int cell, uint32_t marks, float q, float& e) {
        float weight = 0.f;
        if constexpr (kind_::small_items)
            if (!(marks & 0x10000)) {
                float const sum = 1.f + e, r = ptx::rcp(sum);
                hot |= !(sum < positive_k);
                positive_loss += ptx::lg2(sum) - fmaf(acc[cell], q, scale.b2);
                positive_grad -= r;
                weight = -r * q;
                if constexpr (kind_::gives_back) {
                    if (positives < kept_k) kept[positives][p] = weight, kept_cell[positives] = cell;
                    ++positives;
                }
            }
        e = 0.f;
        return weight;
    };
    // True if it was allowed. `marked_`: with positives and absent cells, whose columns have a bit in `marked`.
    auto far_band = [&]<bool marked_>(std::bool_constant<marked_>, int p, float u0, float u1) {
        float e4[4] = {}, squares[4] = {}, row_s[2][2] = {};
        // weight times dot product, summed over two rows: in pairs of columns, 64 of them at a time, while the next ones
        // are computed; with fp16 weights and their sums in fp32, 32 columns, then rows
        [[maybe_unused]] uint32_t columns[8], pair_s[width / 64];
        [[maybe_unused]] float products[8], column_s[width / 32] = {};
        if constexpr (marked_) positives = 0, hot = false, positive_loss = positive_grad = 0.f;
#pragma unroll
        for (int h = 0; h < width / 16; ++h) {  // 16 columns: eight cells a thread
            float4 const v = norm[h];
            float const* d = acc + h * 8;
            float w[8];
            auto cells = [&]<bool with_marks_>(std::bool_constant<with_marks_>, uint32_t marks) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    float const q = (i & 2 ? u1 : u0) * (i < 4 ? (i & 1 ? v.y : v.x) : (i & 1 ? v.w : v.z));
                    float e = ptx::ex2(fmaf(d[i], q, scale.b2)), other = 0.f;
                    if constexpr (with_marks_)
                        if (marks >> i & 0x10001) other = marked_weight(p, h * 8 + i, marks >> i, q, e);
                    e4[i & 3] += e;
                    squares[i & 3] = fmaf(e, e, squares[i & 3]);
                    w[i] = fmaf(-e, e, e) * q;
                    if constexpr (with_marks_) w[i] += other;
                    row_s[i >> 1 & 1][i & 1] = fmaf(w[i], d[i], row_s[i >> 1 & 1][i & 1]);
                }
            };
            if constexpr (marked_) {
                if (marked >> h & 1) {
                    cells(std::true_type{}, uint32_t(ptx::load_int(at_marks + h / 2 * 4)) >> h % 2 * 8);
                } else {
                    cells(std::false_type{}, 0u);
                }
            } else {
                cells(std::false_type{}, 0u);
            }
            if constexpr (kind_::packed_sums) {  // rounded once more than with fp32 sums: gradients are bf16
#pragma unroll
                for (int k = 0; k < 4; ++k) last[h * 4 + k] = pair::pack(w[2 * k], w[2 * k + 1]);
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    columns[h % 4 * 2 + k] =
                        ptx::pack_bf16(fmaf(w[4 * k + 2], d[4 * k + 2], w[4 * k] * d[4 * k]),
                                       fmaf(w[4 * k + 3], d[4 * k + 3], w[4 * k + 1] * d[4 * k + 1]));
            } else if constexpr (kind_::fp16) {  // sums S of bf16 would be off by more than weights of fp16 are
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    last[h * 4 + k] = pair::pack(w[2 * k], w[2 * k + 1]);
                    int const i = k / 2 * 4 + k % 2;
                    products[h % 2 * 4 + k] = fmaf(w[i + 2], d[i + 2], w[i] * d[i]);
                }
                if (h % 2) column_s[h / 2] = sum_columns(products, lane);
            } else {
                uint32_t s2[4];
#pragma unroll
                for (int k = 0; k < 4; ++k) {
                    last[h * 4 + k] = pair::pack(w[2 * k], w[2 * k + 1]);
                    s2[k] = ptx::mul_bf16x2(last[h * 4 + k], ptx::pack_bf16(d[2 * k], d[2 * k + 1]));
                }
                columns[h % 4 * 2] = ptx::add_bf16x2(s2[0], s2[1]);
                columns[h % 4 * 2 + 1] = ptx::add_bf16x2(s2[2], s2[3]);
            }
            if constexpr (!kind_::fp16 || kind_::packed_sums)
                if (h % 4 == 3) {
                    uint32_t sum[1];
                    sum_columns(columns, lane, sum);
                    pair_s[h / 4] = sum[0];
                }
        }
        // lanes 0 and 1 of the four that hold two rows get a row's sum each
        float const s0 = row_s[0][0] + row_s[0][1], s1 = row_s[1][0] + row_s[1][1];
        float row = (lane & 1 ? s1 : s0) + __shfl_xor_sync(~0u, lane & 1 ? s0 : s1, 1);
        row += __shfl_xor_sync(~0u, row, 2);
        bool const near = !(fmaxf(fmaxf(e4[0], e4[1]), fmaxf(e4[2], e4[3])) < far_k);
        if (__any_sync(~0u, marked_ ? near | hot : near)) return false;
        // sixteen like cells stand in for the sum of e^3
        float const e = (e4[0] + e4[1]) + (e4[2] + e4[3]),
                    g = e - ((squares[0] + squares[1]) + (squares[2] + squares[3]));
        float const cubes =
            (e4[0] * e4[0] * e4[0] + e4[1] * e4[1] * e4[1] + e4[2] * e4[2] * e4[2] + e4[3] * e4[3] * e4[3]) *
            (width == 64 ? 1.f / 64 : 1.f / 256);
        float const omega = kind_::fast ? 1.f : a.omega[p];
        loss = fmaf(omega, fmaf(0.5f, e + g, cubes * (1.f / 3)), loss);
        grad = fmaf(omega, g + cubes, grad);
        if constexpr (marked_) {
            loss = fmaf(omega, ln2_k * positive_loss, loss);
            grad = fmaf(omega, positive_grad, grad);
        }
        int64_t const by = int64_t(p) * tile_k;
        if ((lane & 3) < 2) ptx::red_add(to_row + by, __float2ll_rn(row * scale.s));
        if (kind_::both || (a.own && I < J)) {
            if constexpr (kind_::fp16 && !kind_::packed_sums) {
#pragma unroll
                for (int group = 0; group < width / 32; ++group)
                    add_column_s(p, group * 32 + summed_column(lane), column_s[group]);
            } else {
#pragma unroll
                for (int i = 0; i < width / 64; ++i) {
                    ptx::red_add(to_column + by + 64 * i, __float2ll_rn(ptx::lo_bf16(pair_s[i]) * scale.s));
                    ptx::red_add(to_column + by + 64 * i + 1, __float2ll_rn(ptx::hi_bf16(pair_s[i]) * scale.s));
                }
            }
        }
        return true;
    };

    // Which cells hold positives (low half), and which are not there (high half): a bit a cell, a word for 32 columns.
    // Kept where this thread alone finds them, from band to band.
    auto mark_cells = [&] {
        int const at_labels = at_rows + (prefixes * shared::side_k + row_at) * 4;
        int const label0 = ptx::load_int(at_labels), label1 = ptx::load_int(at_labels + 32);
        int const row = I * tile_k + my_row, column = (lane & 3) * 2;
        uint32_t marks[4] = {};
#pragma unroll
        for (int group = 0; group < width / 32; ++group)
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                int const at = group * 32 + i / 4 * 8 + column + (i & 1), r = row + (i & 2 ? 8 : 0);
                if (ptx::load_int(at_columns + at * 4) == (i & 2 ? label1 : label0)) marks[group] |= 1u << i;
                if (r >= a.row.live || J * tile_k + first + at >= a.column.live ||
                    (a.own && !a.self_pairs && r == J * tile_k + first + at))
                    marks[group] |= 0x10000u << i;
            }
        if constexpr (width == 64) ptx::store_int(at_marks, marks[0]), ptx::store_int(at_marks + 4, marks[1]);
        else ptx::store_b128(at_marks, marks[0], marks[1], marks[2], marks[3]);
        if constexpr (kind_::small_items) {
#pragma unroll
            for (int h = 0; h < width / 16; ++h)
                marked |= uint32_t(__any_sync(~0u, (marks[h / 2] >> h % 2 * 8 & 0xff00ff) != 0)) << h;
            // columns' sums would take positives as bf16
            bool const positive = (marks[0] | marks[1] | marks[2] | marks[3]) & 0xffff;
            correctable = (a.own && I == J) || !__any_sync(~0u, positive);
        }
    };
    auto load_marks = [&](uint32_t (&marks)[4]) {
        if constexpr (width == 64) {
            marks[0] = ptx::load_int(at_marks), marks[1] = ptx::load_int(at_marks + 4);
        } else {
            uint4 const v = ptx::load_b128(at_marks);
            marks[0] = v.x, marks[1] = v.y, marks[2] = v.z, marks[3] = v.w;
        }
    };

    auto exact_band = [&](int p, float u0, float u1) {
        float const omega = kind_::fast ? 1.f : a.omega[p];
        float row_s[2] = {}, band_loss = 0.f, band_grad = 0.f;
        uint32_t marks[4] = {};
        if (special) load_marks(marks);
        positives = 0;
#pragma unroll
        for (int group = 0; group < width / 32; ++group) {  // 32 columns: sixteen cells a thread
            float const* d = acc + group * 16;
            bool const marked = special && __any_sync(~0u, marks[group] != 0);
            float q[16], g[16], columns[8] = {};
            auto add_sums = [&](int i, float w0, float w1) {  // of cells i and i + 1
                last[group * 8 + i / 2] = pair::pack(w0, w1);
                float& row = row_s[i >> 1 & 1];
                row = fmaf(w1, d[i + 1], fmaf(w0, d[i], row));
                columns[i / 4 * 2] = fmaf(w0, d[i], columns[i / 4 * 2]);
                columns[i / 4 * 2 + 1] = fmaf(w1, d[i + 1], columns[i / 4 * 2 + 1]);
            };
            // sigmoid and softplus of all cells; with `marks`, of negatives, positives and absent ones
            auto exact_cells = [&]<bool marked_>(std::bool_constant<marked_>) {
                float prod = 1.f, relu = 0.f, sum = 0.f, squares = 0.f;
#pragma unroll
                for (int i = 0; i < 16; i += 2) {
                    float d1[2], num[2];
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        float s2 = fmaf(d[i + h], q[i + h], scale.b2);
                        if constexpr (marked_) {
                            if (marks[group] >> (i + h) & 1) s2 = -s2;
                            if (marks[group] >> (16 + i + h) & 1) s2 = -1e30f;
                        }
                        float const e = ptx::ex2(-fabsf(s2));
                        d1[h] = 1.f + e;
                        num[h] = s2 > 0.f ? 1.f : e;
                        relu += fmaxf(s2, 0.f);
                    }
                    float const both = d1[0] * d1[1],
                                r = ptx::rcp(both);  // one reciprocal for two cells, one logarithm for sixteen
                    prod *= both;
                    g[i] = num[0] * (r * d1[1]);
                    g[i + 1] = num[1] * (r * d1[0]);
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        sum += g[i + h];
                        squares = fmaf(g[i + h], g[i + h], squares);
                        if constexpr (marked_) {
                            if (marks[group] >> (i + h) & 1) g[i + h] = -g[i + h];
                            band_grad += g[i + h];
                        }
                    }
                }
                if constexpr (!marked_) band_grad += sum;
                // the logarithm of the product is good to 2e-7 absolute, so small sums take the series
                band_loss += sum < 4e-3f ? fmaf(0.5f, squares, sum) : ln2_k * (relu + ptx::lg2(prod));
#pragma unroll
                for (int i = 0; i < 16; i += 2) {
                    float const w0 = g[i] * q[i] * omega, w1 = g[i + 1] * q[i + 1] * omega;
                    add_sums(i, w0, w1);
                    if constexpr (kind_::gives_back && marked_) {
                        uint32_t const positive = marks[group] & ~(marks[group] >> 16);
                        if (positive >> i & 3) {
#pragma unroll 1
                            for (int h = 0; h < 2; ++h)
                                if (positive >> (i + h) & 1) {
                                    if (positives < kept_k)
                                        kept[positives][p] = h ? w1 : w0, kept_cell[positives] = group * 16 + i + h;
                                    ++positives;
                                }
                        }
                    }
                }
            };
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float4 const v = norm[group * 2 + h];
#pragma unroll
                for (int i = 0; i < 8; ++i)
                    q[h * 8 + i] = (i & 2 ? u1 : u0) * (i < 4 ? (i & 1 ? v.y : v.x) : (i & 1 ? v.w : v.z));
            }
            float e_sum = 0.f, g_sum = 0.f;
            bool exact = !special || marked;
            if (!exact) {  // most cells of a diagonal tile are far below zero
#pragma unroll
                for (int i = 0; i < 16; ++i) {
                    float const e = ptx::ex2(fmaf(d[i], q[i], scale.b2));
                    e_sum += e;
                    g[i] = fmaf(-e, e, e);
                    g_sum += g[i];
                }
                exact = __any_sync(~0u, !(e_sum < far_k));
            }
            if (!exact) {
                float const cubes = e_sum * e_sum * e_sum * (1.f / 256);
                band_loss += fmaf(0.5f, e_sum + g_sum, cubes * (1.f / 3));
                band_grad += g_sum + cubes;
#pragma unroll
                for (int i = 0; i < 16; i += 2) add_sums(i, g[i] * q[i] * omega, g[i + 1] * q[i + 1] * omega);
            } else if (marked) {
                exact_cells(std::true_type{});
            } else {
                exact_cells(std::false_type{});
            }
            if (kind_::both || (a.own && I < J))
                add_column_s(p, group * 32 + summed_column(lane), sum_columns(columns, lane));
        }
        loss = fmaf(omega, band_loss, loss);
        grad = fmaf(omega, band_grad, grad);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float v = row_s[h];
            v += __shfl_xor_sync(~0u, v, 1);
            v += __shfl_xor_sync(~0u, v, 2);
            if ((lane & 3) == 0) add_s(I, p, my_row + 8 * h, v);
        }
    };

    auto softmax_cells = [&](int p) {
        if constexpr (kind_::softmax) {
            softmax_rows_t rows = {{norm0 * scale.t2, norm1 * scale.t2}, {share0, share1}};
            float const h = middle_of(scale.t2);
            uint32_t const at_shares = at_rows + 16 + (p * tile_k + (lane & 3) * 4) * 4;
            bool const rows_far = row_logs >> p & 1, columns_far = uint32_t(ptx::load_int(at_rows)) >> p & 1;
            float row_s[2];
            auto const add_columns = [&](int group, float const(&v)[8]) {
                add_column_s(p, group * 32 + summed_column(lane), sum_columns(v, lane));
            };
            if (rows_far | columns_far) {
#pragma unroll
                for (float& v : rows.share) v = rows_far ? v : h - ptx::lg2(v);
                softmax_band<pair, kind_::both, true>(acc, norm, rows, at_shares, h, columns_far, last, row_s,
                                                      add_columns);
            } else {
                softmax_band<pair, kind_::both, false>(acc, norm, rows, at_shares, h, false, last, row_s, add_columns);
            }
            grad += row_s[0] + row_s[1];  // slope times cosine times t log2(e)
            add_row_s(p, row_s[0], row_s[1]);
        }
    };

    stopwatch_t watch;
    watch.count(score_items_k, c.thread == 0);
#pragma unroll 1
    for (int p = 0; p < prefixes; ++p) {
        multiply(p);
        watch.lap(score_products_k, c.thread == 0);
#pragma unroll
        for (int i = 0; i < width / 4; ++i) before[i] = last[i];
        if (p == 0) {
            if constexpr (kind_::softmax) {
                if (a.paired && I == J) leave_out_positives(acc, my_row, (lane & 3) * 2, scale.t2);
            } else {
                look_at_labels();
                if (special) mark_cells();
            }
            if constexpr (kind_::fast) {
                await_empty();         // the item before has left the stash
            } else if (item.origin) {  // planes are written as they come, so the ring's superblock must have been read
                if (lane == 0) ptx::wait_count(a.consumed + item.origin - 1, item.count);
                __syncwarp();
            }
        }
        float const u0 = norm0 * scale.t2, u1 = norm1 * scale.t2;
        // the last tile only hints whether to try or to look first: which path is taken depends on the cells alone, so
        // that bits repeat
        bool exact = !kind_::softmax && (special | !(kind_::fast || a.omega[p] == 1.f));
        if constexpr (kind_::softmax) {
            softmax_cells(p);
        } else if (!exact) {
            exact = c.exact >> p & 1 ? !is_far(u0, u1) : false;
            if (!exact) exact = !far_band(std::false_type{}, p, u0, u1);
            c.exact = (c.exact & ~(1u << p)) | uint32_t(exact) << p;
        }
        if constexpr (kind_::small_items)
            if (special && correctable) exact = !far_band(std::true_type{}, p, u0, u1);
        if (exact) exact_band(p, u0, u1);
        if constexpr (kind_::fast) {
            if (p < stash_k)
#pragma unroll
                for (int i = 0; i < width / 16; ++i)
                    ptx::store_b128(at_piece + p * shared::area_bytes_k + i * 2048, last[4 * i], last[4 * i + 1],
                                    last[4 * i + 2], last[4 * i + 3]);
        } else {  // each thread keeps its own words of the plane in memory
            uint8_t* const plane = tile + p * plane_bytes_k;
#pragma unroll
            for (int i = 0; i < width / 4; ++i)
                *reinterpret_cast<uint32_t*>(plane + plane_at(my_row + (i & 1) * 8, i / 2 * 8 + (lane & 3) * 2)) =
                    last[i];
        }
        watch.lap(score_cells_k, c.thread == 0);
    }

    if constexpr (kind_::gives_back)
        if (positives && a.column_x) {
            auto append = [&](side_t const& side, int row, __nv_bfloat16 const* other, float const(&band)[5],
                              int count) {
                if (row >= side.live) return;
                uint32_t const at = atomicAdd(a.residual_count + row, uint32_t(count));
                if (count > 1 || at >= residuals_k) return;
                residual_t& r = a.residuals[int64_t(row) * residuals_k + at];
                r.x = other;
#pragma unroll
                for (int b = 0; b < 5; ++b) r.band[b] = band[b];
            };
#pragma unroll 1
            for (int n = 0; n < min(positives, kept_k); ++n) {
                int const cell = kept_cell[n], row = I * tile_k + my_row + (cell & 2 ? 8 : 0),
                          column = J * tile_k + first + cell / 4 * 8 + (lane & 3) * 2 + (cell & 1);
                float band[5], exact = 0.f, rounded = 0.f;
#pragma unroll
                for (int b = 4; b >= 0; --b) {  // as the planes are summed below
                    exact += kept[n][b];
                    rounded += pair::lo(pair::pack(kept[n][b], 0.f));
                    band[b] = exact - pair::lo(pair::pack(rounded, 0.f));
                }
                int const count = positives > kept_k ? too_many_k : 1;
                append(a.row, row, a.column_x + int64_t(column) * a.dims, band, count);
                if (a.own && I < J) append(a.row, column, a.x + int64_t(row) * a.dims, band, count);
            }
            if (positives > kept_k)  // rows that the kept cells may have missed
                for (int h = 0; h < 2; ++h)
                    if (I * tile_k + my_row + 8 * h < a.row.live)
                        atomicAdd(a.residual_count + I * tile_k + my_row + 8 * h, uint32_t(too_many_k));
        }

    if constexpr (kind_::softmax) {
        float const v = sum_over_warp(grad) * (scale.sum / scale.t2), whole = rintf(v);
        if (a.sums && lane < 2)
            ptx::red_add(a.sums + 6 * I + 2 + 3 * lane,
                         __float2ll_rn(lane == 0 ? whole : (v - whole) * two_set::remainder_k));
    } else {
        float const copies = kind_::both || (a.own && I < J) ? 2.f : 1.f;
        loss = sum_over_warp(loss) * copies;
        grad = sum_over_warp(grad) * copies;
        if (lane < 2) ptx::red_add(a.sums + 2 * I + lane, __float2ll_rn((lane ? grad : loss) * scale.sum));
    }

    // suffix sums of the planes, last band first
    // suffix sums run in fp32, so that a plane is rounded once and not once a band; fp16 has bits enough for that
    float sum[kind_::packed_sums ? 1 : width / 2];
    if constexpr (!kind_::packed_sums) {
#pragma unroll
        for (int i = 0; i < width / 4; ++i) sum[2 * i] = pair::lo(last[i]), sum[2 * i + 1] = pair::hi(last[i]);
    }
    auto add_word = [&](int i, uint32_t v) {
        if constexpr (kind_::packed_sums) {
            last[i] = ptx::add_fp16x2(last[i], v);
        } else {
            sum[2 * i] += pair::lo(v);
            sum[2 * i + 1] += pair::hi(v);
            last[i] = pair::pack(sum[2 * i], sum[2 * i + 1]);
        }
    };
    auto add = [&](uint32_t const(&v)[width / 4]) {
#pragma unroll
        for (int i = 0; i < width / 4; ++i) add_word(i, v[i]);
    };
    if constexpr (kind_::fast) {
        uint32_t stashed[stash_k][width / 4];
#pragma unroll
        for (int p = stash_k - 1; p >= 0; --p)
#pragma unroll
            for (int i = 0; i < width / 16; ++i) {
                uint4 const v = ptx::load_b128(at_piece + p * shared::area_bytes_k + i * 2048);
                stashed[p][4 * i] = v.x, stashed[p][4 * i + 1] = v.y, stashed[p][4 * i + 2] = v.z,
                               stashed[p][4 * i + 3] = v.w;
            }
        // where this lane's stmatrix row lands in a half: matrices are (rows 0-7, 8-15) x (chunk, chunk + 1)
        uint32_t const st_row = c.warp * 16 + (lane & 15), st_chunk = lane >> 4;
        uint32_t const at_row = c.base + shared::at_stash + st_row * 128;
        auto stage = [&](int area) {
#pragma unroll
            for (int k = 0; k < width / 8; k += 2)
                ptx::stmatrix_x4(at_row + area * shared::area_bytes_k + k / 8 * 8192 +
                                     ((((k & 7) + st_chunk) ^ (st_row & 7)) << 4),
                                 last[k * 2], last[k * 2 + 1], last[k * 2 + 2], last[k * 2 + 3]);
        };
        auto hand_over = [&] {
            ptx::fence_async_shared();
            __syncwarp();
            if (lane == 0) ptx::mbar_arrive(c.base + shared::at_out_full);
            c.outputs ^= 1;
        };
        ptx::named_sync(1, 128);  // every thread has its stashed words in registers
        stage(0);
        add(before);
        stage(1);
        add(stashed[2]);
        stage(2);
        if constexpr (!kind_::small_items) hand_over();
        watch.lap(score_output_k, c.thread == 0);
        add(stashed[1]);
        if constexpr (!kind_::small_items) await_empty();
        stage(shared::areas_k == 5 ? 3 : 0);
        add(stashed[0]);
        stage(shared::areas_k == 5 ? 4 : 1);
        hand_over();
        watch.lap(score_second_output_k, c.thread == 0);
    } else {
        for (int p = prefixes - 2; p >= 0; --p) {
            uint8_t* const plane = tile + p * plane_bytes_k;
#pragma unroll
            for (int i = 0; i < width / 4; ++i) {
                auto* word =
                    reinterpret_cast<uint32_t*>(plane + plane_at(my_row + (i & 1) * 8, i / 2 * 8 + (lane & 3) * 2));
                add_word(i, *word);
                *word = last[i];
            }
        }
        ptx::fence_async();
        ptx::named_sync(1, 128);
        if (c.thread == 0) tell_scored(a, item);
    }
}

}  // namespace scaling_contrasts::sm90
