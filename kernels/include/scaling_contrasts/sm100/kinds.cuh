// Which cells of a thread's row are other than live negatives: at the edge, on the diagonal, or of equal labels.
#pragma once
#include "scaling_contrasts/sm100/layout.hpp"
#include "scaling_contrasts/sm80/cells.cuh"

namespace scaling_contrasts::sm100 {

using sm80::rows_t;
using sm80::superblock_t;

constexpr int chunks_k = tile_k / 32;  ///< of a row: what one load from tensor memory brings

struct row_kinds_t {
    bool labelled;   ///< whether any cell of the warp is other than a live negative
    float self = 0;  ///< sum of what self pairs add to dL/dt
};

/// Label of line `local` of a set; lines past the live rows get one that equals no other.
__device__ __forceinline__ int label_of(rows_t const& set, int local, int dead) {
    return local >= set.rows ? dead : set.labels ? set.labels[local] : static_cast<int>(set.first + local);
}

/// Finds the kinds of the 128 cells of one row, a bit each: a positive pair; dead or a self pair; both: a self pair
/// that counts. `row`, `column`: the row, and the tile's first column, within their sets. `labels`: of the columns.
/// Returns whether the warp has any; called by whole warps.
__device__ __forceinline__ bool find_kinds(superblock_t const& a, int row, int column, int line, int const* labels,
                                           uint2 (*kinds)[tile_k]) {
    int const own = label_of(a.rows, row, -1);
    bool const row_dead = row >= a.rows.rows;
    std::int64_t const self = a.rows.first + row - (a.columns.first + column);  // the column of the self pair
    std::uint32_t any = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < chunks_k; ++chunk) {
        uint2 kind = {0, 0};
        for (int i = 0; i < 32; ++i) {
            int const place = chunk * 32 + i;
            bool const is_self = a.labelled_self && self == place, dead = row_dead || column + place >= a.columns.rows;
            bool const match = !dead && own == labels[place] && (!is_self || a.self_pairs);
            kind.x |= std::uint32_t(match) << i;
            kind.y |= std::uint32_t(dead || is_self) << i;
        }
        kinds[chunk][line] = kind;
        any |= kind.x | kind.y;
    }
    return __any_sync(~0u, any != 0);
}

}  // namespace scaling_contrasts::sm100
