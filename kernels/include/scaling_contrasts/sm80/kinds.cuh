// Which cells of a tile are other than live negatives: at the edge, on the diagonal, or of equal labels.
#pragma once
#include "scaling_contrasts/sm80/tiles.cuh"

namespace scaling_contrasts::sm80 {

/// Finds the kinds of a thread's cells, in shared memory: registers are short.
__device__ __forceinline__ void find_kinds(superblock_t const& a, score_shared_t& shared, warp_place_t const& w,
                                           int row, int column) {
    int const r = w.row + (w.lane >> 2), c = w.column + (w.lane & 3) * 2;
    bool special = row + tile_k > a.rows.rows || column + tile_k > a.columns.rows;
    std::int64_t const apart = a.rows.first + row - (a.columns.first + column);  // of the global numbers
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
    kinds_t& kinds = shared.kinds[threadIdx.x];  // only this thread reads it
    kinds.labelled = __any_sync(~0u, special);
    if (!kinds.labelled) return;
    kinds.self = 0;
    for (int half = 0; half < 2; ++half) {
        std::uint32_t positive = 0, ignored = 0;
#pragma unroll 4
        for (int i = 0; i < 32; ++i) {
            int const line = r + half * 32 + i / 16 * 16 + (i >> 1 & 1) * 8, place = c + (i >> 2 & 3) * 8 + (i & 1);
            bool const self = has_self && apart + line == place,
                       dead = row + line >= a.rows.rows || column + place >= a.columns.rows;
            bool const match =
                !dead && shared.row_labels[line] == shared.column_labels[place] && (!self || a.self_pairs);
            positive |= std::uint32_t(match) << i;
            ignored |= std::uint32_t(dead || self) << i;
        }
        kinds.positive[half] = positive;
        kinds.ignored[half] = ignored;
    }
}

}  // namespace scaling_contrasts::sm80
