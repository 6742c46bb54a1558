// One product of a superblock: rows of one side, weighted sums over the other. What it adds to the rows' weighted
// products.
#pragma once
#include "scaling_contrasts/sm80/pieces.cuh"
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

/// What one thread block computes: `rows` of one side, over all tiles of the other.
struct product_t {
    bool of_columns;  ///< gradients of the columns: weights are read transposed
    int tile, tiles;  ///< first tile row of the output, tile rows there are
    int depth;        ///< tiles to sum over
    bool triangle;    ///< sums of a triangle: tile (i, k) is stored as (k, i) where k < i
    pieces_t::piece_t piece;
};

/// Adds the superblock's partial sums of one prefix to the weighted products of the output's rows, always in the same
/// order.
template <int kThreads>
__device__ __forceinline__ void add_products(superblock_t const& a, product_t const& job, int prefix, int prefixes,
                                             int rows) {
    rows_t const& set = job.of_columns ? a.columns : a.rows;
    int const first = job.of_columns ? a.first_column : a.first_row;
    for (int row = threadIdx.x; row < rows; row += kThreads) {
        int const local = job.tile * tile_k + row, tile = local / tile_k;
        if (tile >= job.tiles || first + local >= set.rows) continue;
        int const transposed = job.of_columns ? job.depth
                               : job.triangle ? tile
                                              : 0;  // so many tiles are read transposed
        float sum = 0;
        auto add = [&](float const* parts, int begin, int end) {
            float const* part = parts + std::int64_t(prefix) * a.side + local;
            std::int64_t const step = std::int64_t(prefixes) * a.side;
#pragma unroll 16
            for (int i = begin; i < end; ++i) sum += __ldcg(part + i * step);
        };
        add(a.column_products, 0, transposed * 2);
        add(a.row_products, transposed * 4, job.depth * 4);
        set.weighted_products[std::int64_t(prefix) * set.padded + first + local] += sum;
    }
}

}  // namespace scaling_contrasts::sm80
