// The products of the score kernel: one 128 x 128 tile of dot products, accumulated in one ascending pass over the
// columns, so that after each band the accumulators are the prefix's dot products. A ring of stages, each a slab of up
// to 32 columns of 128 rows and 128 candidates with their inverse norms, is filled ahead by asynchronous copies.
#pragma once
#include <algorithm>
#include <array>

#include "scaling_contrasts/sm80/cells.cuh"
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

inline constexpr int score_threads_k = 256, score_stages_k = 4, slab_k = 32;

/// One stage. Lines of 64 bytes; 16-byte pieces of a line are permuted so that ldmatrix meets no bank twice.
struct slab_t {
    alignas(128) bf16_t rows[tile_k][slab_k];
    alignas(128) bf16_t columns[tile_k][slab_k];
    float row_norms[tile_k], column_norms[tile_k];  ///< inverse, of the slab's prefix
};

/// The slabs of a ladder: bands cut into pieces of 32 columns or less.
struct slabs_t {
    struct slab_place_t {
        std::uint16_t begin;  ///< first column
        std::uint8_t prefix;
        std::uint8_t steps;  ///< of 16 columns: 1 or 2; | closes_band_k on the last slab of a band
    };
    static constexpr int closes_band_k = 4;
    int count = 0;
    std::array<slab_place_t, 4096 / slab_k + max_prefixes_k> place = {};
};

inline slabs_t make_slabs(ladder_t const& ladder) {
    slabs_t slabs;
    for (int p = 0; p < ladder.count; ++p)
        for (int begin = ladder.bands[p].begin, end = ladder.bands[p].end; begin < end; begin += slab_k) {
            int const width = std::min(slab_k, end - begin),
                      closes = begin + slab_k >= end ? slabs_t::closes_band_k : 0;
            slabs.place[slabs.count++] = {std::uint16_t(begin), std::uint8_t(p), std::uint8_t(width / 16 | closes)};
        }
    return slabs;
}

__device__ __forceinline__ std::uint32_t slab_offset(int line, int piece) {
    return line * 64 + ((piece ^ (line >> 1 & 3)) << 4);
}

/// Where a thread copies and reads in every slab. Kept in shared memory between slabs: registers are short.
struct slab_places_t {
    bf16_t const* rows;  ///< its piece of the rows' line, of slab 0: it copies two, 64 lines apart, on either side
    std::uint32_t to;    ///< where that piece goes
    std::uint16_t read_a, read_b;  ///< its lane's first matrices, see multiply_slab()
};

__device__ __forceinline__ slab_places_t slab_places(superblock_t const& a, int dims, int row, int warp_row,
                                                     int warp_column) {
    int const thread = threadIdx.x, lane = thread & 31, line = thread >> 2, piece = thread & 3;
    return {a.rows.embeddings + std::int64_t(row + line) * dims + piece * 8, slab_offset(line, piece),
            std::uint16_t(slab_offset(warp_row + (lane & 15), lane >> 4)),
            std::uint16_t(slab_offset(warp_column + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1))};
}

struct score_shared_t {
    slab_t slab[score_stages_k];
    int row_labels[tile_k], column_labels[tile_k];
    kinds_t kinds[score_threads_k];
    slab_places_t places[score_threads_k];
    int whole;  ///< the tile has no dead line, and its slabs no piece past the dimensions
};

/// Starts the copies of one slab: lines past the live rows, and pieces past `dims`, become zeros. `whole`: there are
/// none.
__device__ __forceinline__ void load_slab(slab_t& slab, superblock_t const& a, slab_places_t const& mine, bool whole,
                                          int dims, int row, int column, slabs_t::slab_place_t const& at) {
    int const thread = threadIdx.x;
    std::uint32_t const to = ptx::shared_address(&slab) + mine.to;  // the columns' lines follow the rows'
    std::int64_t const half = std::int64_t(64) * dims;
    std::int64_t const across =
        (a.columns.embeddings + std::int64_t(column) * dims) - (a.rows.embeddings + std::int64_t(row) * dims);
    auto const *rows = mine.rows + at.begin, *columns = rows + across;
    if (whole) {
        ptx::copy_16(to, rows);
        ptx::copy_16(to + 64 * 64, rows + half);
        ptx::copy_16(to + 128 * 64, columns);
        ptx::copy_16(to + 192 * 64, columns + half);
    } else {
        bool const inside = at.begin + (thread & 3) * 8 < dims;
        int const line = thread >> 2;
        for (int i = 0; i < 2; ++i) {
            bool const row_valid = inside && row + line + i * 64 < a.rows.rows,
                       column_valid = inside && column + line + i * 64 < a.columns.rows;
            ptx::copy_16(to + i * 64 * 64, row_valid ? rows + i * half : a.rows.embeddings, row_valid);
            ptx::copy_16(to + (128 + i * 64) * 64, column_valid ? columns + i * half : a.columns.embeddings,
                         column_valid);
        }
    }
    if (thread < 64) {
        auto const* norms = thread < 32 ? a.rows.inverse_norms + std::int64_t(at.prefix) * a.rows.padded + row
                                        : a.columns.inverse_norms + std::int64_t(at.prefix) * a.columns.padded + column;
        ptx::copy_16(ptx::shared_address(slab.row_norms) + thread * 16, norms + (thread & 31) * 4);
    }
}

/// acc += rows x columns^T over the slab's columns, for this warp's 64 x 32 cells. `read_a` and `read_b` are where its
/// lane reads first: the second step's pieces differ in one bit, and 16 lines do not change the permutation.
__device__ __forceinline__ void multiply_slab(float (&acc)[64], slab_t const& slab, std::uint32_t read_a,
                                              std::uint32_t read_b, int steps) {
    std::uint32_t const rows = ptx::shared_address(slab.rows) + read_a,
                        columns = ptx::shared_address(slab.columns) + read_b;
#pragma unroll
    for (int step = 0; step < slab_k / 16; ++step) {
        if (step && steps == 1) break;
        std::uint32_t b[2][4];
#pragma unroll
        for (int n = 0; n < 2; ++n) ptx::load_matrices(b[n], (columns ^ step * 32) + n * 1024);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            std::uint32_t x[4];
            ptx::load_matrices(x, (rows ^ step * 32) + m * 1024);
#pragma unroll
            for (int n = 0; n < 4; ++n)
                ptx::multiply_add(acc + (m * 4 + n) * 4, x, b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
    }
}

/// Where a warp works within a tile, and a tile within its superblock.
struct warp_place_t {
    int tile_row, tile_column, row, column;  ///< tile's; warp's first row and column within the tile
    int lane, warp;
};

}  // namespace scaling_contrasts::sm80
