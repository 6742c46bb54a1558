// The products of the score kernel: one 128 x 128 tile of dot products, accumulated in one ascending pass over the
// columns, so that after each band the accumulators are the prefix's dot products. A ring of stages, each a slab of up
// to 32 columns of 128 rows and 128 candidates with their inverse norms, is filled ahead by asynchronous copies.
#pragma once
#include "scaling_contrasts/sm80/cells.cuh"
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

inline constexpr int score_threads_k = 256, score_stages_k = 4, slab_k = 32;

/// One stage. Lines of 64 bytes; 16-byte pieces of a line are permuted so that ldmatrix meets no bank twice.
struct slab_t {
    alignas(128) bf16_t rows[tile_k][slab_k];
    alignas(128) bf16_t columns[tile_k][slab_k];
    float row_norms[tile_k], column_norms[tile_k];   ///< inverse, of the slab's prefix
};

struct score_shared_t {
    slab_t slab[score_stages_k];
    int row_labels[tile_k], column_labels[tile_k];
    kinds_t kinds[score_threads_k];   ///< of labelled tiles
};

/// Walks the slabs of the ladder: bands cut into pieces of 32 columns or less.
struct slab_place_t {
    int prefix = 0, begin = 0, end = 0;

    __device__ __forceinline__ explicit slab_place_t(ladder_t const& ladder) : end(min(ladder.bands[0].end, slab_k)) {}
    __device__ __forceinline__ bool closes_band(ladder_t const& ladder) const { return end == ladder.bands[prefix].end; }
    __device__ __forceinline__ bool past(ladder_t const& ladder) const { return prefix == ladder.count; }
    __device__ __forceinline__ void next(ladder_t const& ladder) {
        if (closes_band(ladder)) ++prefix;
        begin = end;
        if (!past(ladder)) end = min(ladder.bands[prefix].end, begin + slab_k);
    }
};

__device__ __forceinline__ std::uint32_t slab_offset(int line, int piece) { return line * 64 + ((piece ^ (line >> 1 & 3)) << 4); }

/// Starts the copies of one slab: lines past the live rows, and pieces past `dims`, become zeros.
__device__ __forceinline__ void load_slab(slab_t& slab, superblock_t const& a, int dims, int row, int column, slab_place_t const& at) {
    int const thread = threadIdx.x;
    std::uint32_t const to_rows = ptx::shared_address(slab.rows), to_columns = ptx::shared_address(slab.columns);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        int const line = half * 64 + (thread >> 2), piece = thread & 3, from = at.begin + piece * 8;
        bool const inside = from < dims;
        bool const row_valid = inside && row + line < a.rows.rows, column_valid = inside && column + line < a.columns.rows;
        auto const* row_from = a.rows.embeddings + (row_valid ? std::int64_t(row + line) * dims + from : 0);
        auto const* column_from = a.columns.embeddings + (column_valid ? std::int64_t(column + line) * dims + from : 0);
        ptx::copy_16(to_rows + slab_offset(line, piece), row_from, row_valid);
        ptx::copy_16(to_columns + slab_offset(line, piece), column_from, column_valid);
    }
    if (thread < 64) {
        int const piece = thread & 31;
        rows_t const& set = thread < 32 ? a.rows : a.columns;
        float* to = thread < 32 ? slab.row_norms : slab.column_norms;
        float const* from = set.inverse_norms + std::int64_t(at.prefix) * set.padded + (thread < 32 ? row : column);
        ptx::copy_16(ptx::shared_address(to + piece * 4), from + piece * 4, true);
    }
}

/// acc += rows x columns^T over the slab's columns, for this warp's 64 x 32 cells at (warp_row, warp_column).
__device__ __forceinline__ void multiply_slab(float (&acc)[64], slab_t const& slab, int warp_row, int warp_column, int steps) {
    int const lane = threadIdx.x & 31;
    std::uint32_t const rows = ptx::shared_address(slab.rows), columns = ptx::shared_address(slab.columns);
    int const a_line = warp_row + (lane & 15), b_line = warp_column + (lane & 7) + (lane >> 4) * 8;
#pragma unroll
    for (int step = 0; step < slab_k / 16; ++step) {
        if (step >= steps) break;
        std::uint32_t b[2][4];
#pragma unroll
        for (int n = 0; n < 2; ++n) ptx::load_matrices(b[n], columns + slab_offset(b_line + n * 16, step * 2 + (lane >> 3 & 1)));
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            std::uint32_t x[4];
            ptx::load_matrices(x, rows + slab_offset(a_line + m * 16, step * 2 + (lane >> 4)));
#pragma unroll
            for (int n = 0; n < 4; ++n) ptx::multiply_add(acc + (m * 4 + n) * 4, x, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
}

}  // namespace scaling_contrasts::sm80
