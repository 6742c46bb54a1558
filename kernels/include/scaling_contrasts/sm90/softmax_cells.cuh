// Cells of both softmaxes, a band of a warp's 16 rows x 128 columns at a time: weights, and sums of weight times dot
// product, from the shares of softmax_shares.cuh. Left out cells have a dot product so low that nothing is left of them;
// rows that are not there have an inverse norm of 0.
#pragma once
#include "scaling_contrasts/ptx/copy.cuh"
#include "scaling_contrasts/sm90/softmax_shares.cuh"

namespace scaling_contrasts::sm90 {

/// Of a thread's two rows.
struct softmax_rows_t {
    float u[2];  // inverse norm times t log2(e)
    float share[2];
};

/// Makes a positive's dot product what it is in a cell left out; with a row of norm 0 its weight is 0 anyway. `row`, `column`: of d[0] in the tile.
__device__ __forceinline__ void leave_out_positives(float (&d)[64], int row, int column, float t2) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
        if (row + (i & 2) * 4 == column + i / 4 * 8 + (i & 1)) d[i] = t2 > 0.f ? -1e30f : 1e30f;
}

/// `d`: dot products, `norm`: inverse norms of the thread's columns, `at_shares`: their shares in shared memory.
/// `logs_`: the rows' shares are log sums, and the columns' where `column_logs` says so. Gives packed weights, sums of
/// weight times dot product of the thread's two rows, and, where `columns_` says so, calls `add_columns` with those of
/// every 32 columns, eight values a thread.
template <class pair_, bool columns_, bool logs_, class add_columns_t>
__device__ __forceinline__ void softmax_band(float const (&d)[64], float4 const (&norm)[8], softmax_rows_t const& rows,
                                             uint32_t at_shares, float h, bool column_logs, uint32_t (&words)[32],
                                             float (&row_s)[2], add_columns_t const& add_columns) {
    float row_sums[2][2] = {};
    [[maybe_unused]] float products[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {  // 16 columns: eight cells a thread
        float4 const v = norm[k];
        float4 share = ptx::load_float4(at_shares + k * 64);
        if constexpr (logs_)
            if (!column_logs) {
                share.x = h - ptx::lg2(share.x), share.y = h - ptx::lg2(share.y);
                share.z = h - ptx::lg2(share.z), share.w = h - ptx::lg2(share.w);
            }
        float const* const dot = d + k * 8;
        float w[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            int const r = i >> 1 & 1;
            float const q = rows.u[r] * (i < 4 ? (i & 1 ? v.y : v.x) : (i & 1 ? v.w : v.z)),
                        s = i < 4 ? (i & 1 ? share.y : share.x) : (i & 1 ? share.w : share.z);
            if constexpr (logs_)  // at most 2, but where a row is not there, or a column, and q is 0
                w[i] = fminf(ptx::ex2(fmaf(dot[i], q, -rows.share[r])) + ptx::ex2(fmaf(dot[i], q, -s)), 4.f) * q;
            else w[i] = ptx::ex2(fmaf(dot[i], q, -h)) * (rows.share[r] + s) * q;
            row_sums[r][i & 1] = fmaf(w[i], dot[i], row_sums[r][i & 1]);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            words[k * 4 + j] = pair_::pack(w[2 * j], w[2 * j + 1]);
            int const i = j / 2 * 4 + j % 2;
            if constexpr (columns_) products[k % 2 * 4 + j] = fmaf(w[i + 2], dot[i + 2], w[i] * dot[i]);
        }
        if constexpr (columns_)
            if (k % 2) add_columns(k / 2, products);
    }
    row_s[0] = row_sums[0][0] + row_sums[0][1];
    row_s[1] = row_sums[1][0] + row_sums[1][1];
}

}  // namespace scaling_contrasts::sm90
