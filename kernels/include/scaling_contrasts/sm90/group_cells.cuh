// one_set_info_nce's cells (docs/one_set_info_nce.md): 16 rows x 64 columns a warp, as in two_set_cells.cuh. A quarter
// whose labels cannot meet, and that holds no self pair or dead row, is info_nce's; the others look at every cell's
// labels. Positives are cells of the grid here, for a row may have any number of them.
#pragma once
#include "scaling_contrasts/cell.hpp"
#include "scaling_contrasts/sm90/info_nce_sums.cuh"

namespace scaling_contrasts::sm90::two_set {

__device__ __forceinline__ bool meet(int2 a, int2 b) { return a.x <= b.y && b.x <= a.y; }

/// What a warp's cells are. `row`, `column`: the thread's first row and the quarter's first column.
struct cells_of_groups_t {
    int row, column, lane;

    /// Whether any cell of the warp may be other than a live negative.
    __device__ __forceinline__ bool special(params_t const& a) const {
        return place_of_cells_t{row, column, lane}.special(a) ||
               meet(__ldg(a.row_groups.ranges + row / range_rows_k),
                    __ldg(a.column_groups_of.ranges + column / range_rows_k));
    }
    /// A bit a cell: dead, or a row with itself.
    __device__ __forceinline__ uint32_t absent(params_t const& a) const {
        return place_of_cells_t{row, column, lane}.absent(a);
    }
    /// A bit a cell. Absent cells may be among them.
    __device__ __forceinline__ uint32_t positive(params_t const& a) const {
        int const upper = a.row_groups.label(min(row, a.row.live - 1)),
                  lower = a.row_groups.label(min(row + 8, a.row.live - 1));
        uint32_t bits = 0;
#pragma unroll 1
        for (int i = 0; i < 16; ++i) {  // not unrolled: registers are few here
            int const theirs = a.column_groups_of.label(min(column_of(i / 2 * 4 + (i & 1)), a.column.live - 1));
            bits |= (uint32_t(theirs == upper) | uint32_t(theirs == lower) << 2) << (i / 2 * 4 + (i & 1));
        }
        return bits;
    }
    __device__ __forceinline__ int row_of(int i) const { return row + (i & 2) * 4; }
    __device__ __forceinline__ int column_of(int i) const { return column + i / 4 * 8 + (lane & 3) * 2 + (i & 1); }
};

/// Of the pass over negatives: positives are absent, too.
struct negatives_of_groups_t {
    int row, column, lane;
    __device__ __forceinline__ bool special(params_t const& a) const {
        return cells_of_groups_t{row, column, lane}.special(a);
    }
    __device__ __forceinline__ uint32_t absent(params_t const& a) const {
        cells_of_groups_t const cells = {row, column, lane};
        return cells.absent(a) | cells.positive(a);
    }
};

/// softplus of z ln 2, and its slope.
__device__ __forceinline__ float softplus(float z, float& slope) {
    float loss;
    near_cell(z, ptx::ex2(-fabsf(z)), loss, slope);
    return loss;
}

/// Scale of the bins that hold sums over positives: of 2^x (SupCon), or of NT-Xent's slopes, which lie in (2^-2t, 1].
__device__ __forceinline__ bin_scale_t positive_bins(float t2, bool sup_con) {
    bin_scale_t r = bin_scale(t2);
    if (!sup_con) r.offset = 2 * r.offset;
    return r;
}
/// Adds 2^y to the sum of one row.
__device__ __forceinline__ void add_power(side_t const& side, bin_scale_t const& bins, int p, int index, float y) {
    if (y < -1e29f) return;
    float const whole = floorf(y);
    add_share(side, bins, p, index, ptx::ex2(y - whole), int(whole));
}
/// log2 of what a positive adds to the sum of its row `index`: 2^x, or NT-Xent's slope 2^n / (2^n + 2^x).
__device__ __forceinline__ float log_share(params_t const& a, side_t const& side, groups_t const& groups, int p,
                                           int index, float x) {
    if (a.sup_con) return x;
    float slope;
    return -log2e_k * softplus(x - __ldg(groups.negatives + int64_t(p) * side.padded + index), slope);
}

/// The pass over positives, of one band of a warp's 16 rows x 256 columns.
__device__ __forceinline__ void sum_positives(params_t const& a, float const (&acc)[128], band_t const& band, int p,
                                              int row, int first_column, int lane, float t2, bool columns_too) {
    bin_scale_t const bins = positive_bins(t2, a.sup_con);
#pragma unroll
    for (int q = 0; q < 4; ++q) {
        cells_of_groups_t const cells = {row, first_column + q * 64, lane};
        if (!cells.special(a)) continue;
        uint32_t const positive = cells.positive(a) & ~cells.absent(a);
        if (!__any_sync(~0u, positive != 0)) continue;
#pragma unroll
        for (int k = 0; k < 8; ++k) {
            float2 const v = of_columns(band.at_columns + q * 256, k);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (!(positive >> (4 * k + i) & 1)) continue;
                float const x = acc[q * 32 + 4 * k + i] * (band.u[i >> 1] * (i & 1 ? v.y : v.x));
                int const r = cells.row_of(i), c = cells.column_of(4 * k + i);
                add_power(a.row, bins, p, r, log_share(a, a.row, a.row_groups, p, r, x));
                if (columns_too) add_power(a.column, bins, p, c, log_share(a, a.column, a.column_groups_of, p, c, x));
            }
        }
    }
}

/// A positive's slope in the loss of row `index`, with its part of that loss added to `loss`.
__device__ __forceinline__ float positive_slope(params_t const& a, side_t const& side, groups_t const& groups, int p,
                                                int index, float x, float& loss) {
    int64_t const at = int64_t(p) * side.padded + index;
    float const negatives = __ldg(groups.negatives + at);
    if (!a.sup_con) {
        float slope;
        loss += softplus(negatives - x, slope);
        return -slope;
    }
    // its share of the positives, less 1 / k, less what that share loses to the negatives; alone it is 1, exactly
    float const each = __ldg(groups.each + index), above = each == 1.f ? 0.f : __ldg(groups.positives + at) - x;
    float const share = ptx::ex2(-above), lost = ptx::ex2(negatives - __ldg(side.log_sums + at));
    loss = fmaf(above * each, ln2_k, loss);
    return (share - each) - share * lost;
}

/// Keeps what rounding took off the weights of a thread's positives in a quarter, `lost` of its upper and its lower
/// row, where they are their row's only ones and so make its gradient: the finishing kernel gives it back. Of several
/// the roundings even out. Labels being equal, such a positive is its column's only one as well. One cell writes a
/// row's, so that bits repeat.
__device__ __forceinline__ void keep_residuals(params_t const& a, cells_of_groups_t const& cells, uint32_t positive,
                                               int p, float const (&lost)[2], bool columns_too) {
    if (!a.residual || !positive) return;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        uint32_t const mine = positive & (h ? 0xccccccccu : 0x33333333u);
        if (__popc(mine) != 1) continue;
        int const row = cells.row + 8 * h, column = cells.column_of(__ffs(mine) - 1);
        if (__ldg(a.row_groups.each + row) != 1.f) continue;
        a.residual[int64_t(p) * a.row.padded + row] = lost[h];
        a.partner[row] = column;
        if (columns_too) {
            a.residual[int64_t(p) * a.column.padded + column] = lost[h];
            a.partner[column] = row;
        }
    }
}

/// A quarter that may hold positives, self pairs or dead rows: what both rows of every cell make of it.
template <bool ladder_>
__device__ __forceinline__ void group_quarter(params_t const& a, cells_of_groups_t const& cells, int p, float const* d,
                                              band_t const& band, uint32_t at, uint32_t (&words)[16], totals_t& totals,
                                              products_t& products, bool columns_too) {
    uint32_t const absent = cells.absent(a), positive = cells.positive(a) & ~absent;
    float loss = 0.f;
    [[maybe_unused]] float lost[2] = {};
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        float2 const v = of_columns(at, k), l = of_columns(at + column_tile_k * 4, k);
        float w[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float const q = band.u[i >> 1] * (i & 1 ? v.y : v.x), x = d[4 * k + i] * q;
            float g = ptx::ex2(x - band.log_sum[i >> 1]) + ptx::ex2(x - (i & 1 ? l.y : l.x));
            if (absent >> (4 * k + i) & 1) g = 0.f;
            if (positive >> (4 * k + i) & 1)
                g = positive_slope(a, a.row, a.row_groups, p, cells.row_of(i), x, loss) +
                    positive_slope(a, a.column, a.column_groups_of, p, cells.column_of(4 * k + i), x, loss);
            w[i] = g * q;
            if constexpr (ladder_) w[i] *= band.omega;
        }
        keep<ladder_>(w, d + 4 * k, k, words, totals, products);
        if constexpr (!ladder_)  // a ladder's weights are rounded once more: score_item() sees to them
#pragma unroll
            for (int i = 0; i < 4; ++i)
                if (positive >> (4 * k + i) & 1)
                    lost[i >> 1] = w[i] - (i & 1 ? ptx::hi_bf16 : ptx::lo_bf16)(words[2 * k + i / 2]);
    }
    if constexpr (!ladder_) keep_residuals(a, cells, positive, p, lost, columns_too);
    totals.loss = fmaf(band.omega, loss, totals.loss);
}

/// Whether an item has anything to do in this pass: sums over positives, and the loss alone, need tiles whose labels
/// can meet.
template <pass_t pass_>
__device__ __forceinline__ bool is_wanted(params_t const& a, item_t const& item) {
    if constexpr (is_grouped(pass_) && pass_ != pass_t::negatives_k) {
        if (pass_ == pass_t::groups_k && a.output) return true;
        for (int i = 0; i < row_tile_k / range_rows_k; ++i)
            for (int j = 0; j < column_tile_k / range_rows_k; ++j)
                if (meet(__ldg(a.row_groups.ranges + item.row * (row_tile_k / range_rows_k) + i),
                         __ldg(a.column_groups_of.ranges + item.at * (column_tile_k / range_rows_k) + j)))
                    return true;
        return false;
    }
    return true;
}

}  // namespace scaling_contrasts::sm90::two_set
