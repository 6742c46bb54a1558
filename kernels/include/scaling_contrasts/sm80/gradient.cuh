// Multiplies the weights of a scored superblock with embeddings: rows' gradients += W X_columns, and, where the block is
// symmetric or both its sets are ours, columns' gradients += W^T X_rows, from the same weights.
//
// Columns of the embeddings are cut into pieces that lie in one band each, so that a thread block needs one plane of
// weights. Pieces of 128 columns go with 128 rows, narrower ones (64 or less) with 256 rows: four warps of 64 x 64
// outputs either way. A block of weights is a tile's 8 x 8 matrices in ldmatrix's order, read as it is or transposed.
#pragma once
#include <array>

#include "scaling_contrasts/sm80/ptx.cuh"
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

inline constexpr int gradient_threads_k = 128, gradient_stages_k = 4, depth_k = 32;   // cells a stage is deep
inline constexpr int max_pieces_k = 96;

/// The pieces that the ladder's columns are cut into, narrow ones first.
struct pieces_t {
    struct piece_t {
        std::int16_t column, width, prefix;
    };
    int count = 0, narrow = 0;
    std::array<piece_t, max_pieces_k> piece = {};
};

inline pieces_t make_pieces(ladder_t const& ladder) {
    pieces_t pieces;
    for (bool narrow : {true, false})
        for (int p = 0; p < ladder.count; ++p)
            for (int column = ladder.bands[p].begin; column < ladder.bands[p].end;) {
                int const left = ladder.bands[p].end - column, width = left >= 128 ? 128 : left < 64 ? left : 64;
                if ((width <= 64) == narrow) pieces.piece[pieces.count++] = {std::int16_t(column), std::int16_t(width), std::int16_t(p)};
                column += width;
            }
    for (auto const& piece : pieces.piece) pieces.narrow += piece.width > 0 && piece.width <= 64;
    return pieces;
}

/// Weights of 128 or 256 rows, and embeddings of 32 candidates.
struct gradient_stage_t {
    alignas(128) unsigned char weights[16384];   ///< [16 rows][16 candidates][512 bytes]
    alignas(128) unsigned char embeddings[8192]; ///< [candidate][128 or 64 columns], 16-byte pieces permuted
};

/// What one thread block computes: `rows` of one side, over all tiles of the other.
struct product_t {
    bool of_columns;      ///< gradients of the columns: weights are read transposed
    int tile, tiles;      ///< first tile row of the output, tile rows there are
    int depth;            ///< tiles to sum over
    bool triangle;        ///< sums of a triangle: tile (i, k) is stored as (k, i) where k < i
    pieces_t::piece_t piece;
};

/// Starts the copies of one stage: candidates 32 `slab` and up. kWide: 128 rows x 128 columns, else 256 x 64.
template <bool kWide>
__device__ __forceinline__ void load_stage(gradient_stage_t& stage, superblock_t const& a, product_t const& job, int dims, int slab) {
    int const thread = threadIdx.x, k = slab / 4, quarter = slab % 4;
    std::uint32_t const to = ptx::shared_address(stage.weights) + thread * 16;
    int const block = thread >> 6, deep = thread >> 5 & 1, lane = thread & 31;   // this thread's rows of blocks: block, + 2, + 4, ...
#pragma unroll
    for (int part = 0; part < (kWide ? 1 : 2); ++part) {
        int const i = job.tile + part;
        bool const transposed = job.of_columns || (job.triangle && k < i), valid = i < job.tiles;
        auto const* tile = reinterpret_cast<unsigned char const*>(
            a.weights + (valid ? tile_words(a.side, job.piece.prefix, transposed ? k : i, transposed ? i : k) : 0));
        int const along = quarter * 2 + deep;
        unsigned char const* from = tile + (transposed ? along * 8 + block : block * 8 + along) * 512 + lane * 16;
        int const step = transposed ? 2 * 512 : 2 * 8 * 512;
#pragma unroll
        for (int j = 0; j < 4; ++j) ptx::copy_16(to + (part * 4 + j) * 2048, from + j * step, valid);
    }
    rows_t const& set = job.of_columns ? a.rows : a.columns;
    int const first = (job.of_columns ? a.first_row : a.first_column) + slab * depth_k;
    constexpr int kPieces = kWide ? 16 : 8;
    std::uint32_t const embeddings = ptx::shared_address(stage.embeddings);
    int const piece = thread % kPieces, column = job.piece.column + piece * 8;
#pragma unroll
    for (int line = thread / kPieces; line < depth_k; line += gradient_threads_k / kPieces) {
        bool const valid = first + line < set.rows && column < dims;
        auto const* from = set.embeddings + (valid ? std::int64_t(first + line) * dims + column : 0);
        ptx::copy_16(embeddings + line * (kPieces * 16) + ((piece ^ (line & 7)) << 4), from, valid);
    }
}

/// acc += weights x embeddings of one stage, for this warp's 64 x 64 outputs.
template <bool kWide>
__device__ __forceinline__ void multiply_stage(float (&acc)[128], gradient_stage_t const& stage, bool transposed) {
    int const lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int const row_block = (kWide ? warp & 1 : warp) * 4, column = kWide ? (warp >> 1) * 64 : 0;
    // a lane's address within a block: matrices lie in order, transposed ones change places 1 and 2
    int const matrix = lane >> 3, place = transposed ? (matrix & 1) * 2 + (matrix >> 1) : matrix;
    std::uint32_t const weights = ptx::shared_address(stage.weights) + row_block * 1024 + place * 128 + (lane & 7) * 16;
    std::uint32_t const embeddings = ptx::shared_address(stage.embeddings);
#pragma unroll
    for (int step = 0; step < depth_k / 16; ++step) {
        std::uint32_t w[4][4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            if (transposed) ptx::load_matrices_transposed(w[m], weights + (m * 2 + step) * 512);
            else ptx::load_matrices(w[m], weights + (m * 2 + step) * 512);
        }
        int const line = step * 16 + (lane & 15);
#pragma unroll
        for (int n = 0; n < 4; ++n) {   // 16 columns at a time
            std::uint32_t x[4];
            int const piece = column / 8 + n * 2 + (lane >> 4);
            ptx::load_matrices_transposed(x, embeddings + line * (kWide ? 256 : 128) + ((piece ^ (line & 7)) << 4));
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                ptx::multiply_add(acc + (m * 8 + n * 2) * 4, w[m], x[0], x[1]);
                ptx::multiply_add(acc + (m * 8 + n * 2 + 1) * 4, w[m], x[2], x[3]);
            }
        }
    }
}

/// Adds the accumulators to the gradient.
template <bool kWide>
__device__ __forceinline__ void add_outputs(float const (&acc)[128], rows_t const& set, int first, int dims, pieces_t::piece_t const& piece) {
    int const lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int const row = first + (kWide ? warp & 1 : warp) * 64 + (lane >> 2), column = kWide ? (warp >> 1) * 64 : 0;
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int const r = row + m * 16 + h * 8;
            if (r >= set.rows) continue;
            auto* to = reinterpret_cast<float2*>(set.gradient + std::int64_t(r) * dims + piece.column + column + (lane & 3) * 2);
            float2 old[8];
#pragma unroll
            for (int n = 0; n < 8; ++n)
                if (column + n * 8 < piece.width) old[n] = to[n * 4];
#pragma unroll
            for (int n = 0; n < 8; ++n)
                if (column + n * 8 < piece.width) to[n * 4] = {old[n].x + acc[(m * 8 + n) * 4 + h * 2], old[n].y + acc[(m * 8 + n) * 4 + h * 2 + 1]};
        }
}

/// Adds the superblock's partial sums to the weighted products of these rows, always in the same order.
__device__ __forceinline__ void add_products(superblock_t const& a, product_t const& job, int prefixes, int tiles) {
    rows_t const& set = job.of_columns ? a.columns : a.rows;
    int const first = job.of_columns ? a.first_column : a.first_row;
    for (int index = threadIdx.x; index < tiles * tile_k * prefixes; index += gradient_threads_k) {
        int const local = job.tile * tile_k + index % (tiles * tile_k), prefix = index / (tiles * tile_k), tile = local / tile_k;
        if (first + local >= set.rows) continue;
        float sum = 0;
        for (int k = 0; k < job.depth; ++k) {
            bool const transposed = job.of_columns || (job.triangle && k < tile);
            int const parts = transposed ? 2 : 4;
            float const* part = transposed ? a.column_products : a.row_products;
            for (int i = 0; i < parts; ++i) sum += part[(std::int64_t(k * parts + i) * prefixes + prefix) * a.side + local];
        }
        set.weighted_products[std::int64_t(prefix) * set.padded + first + local] += sum;
    }
}

template <bool kWide>
__device__ __forceinline__ void multiply(gradient_stage_t* stages, superblock_t const& a, product_t const& job, int dims) {
    int const slabs = min(job.depth * 4, ((job.of_columns ? a.rows.rows - a.first_row : a.columns.rows - a.first_column) + depth_k - 1) / depth_k);
#pragma unroll
    for (int stage = 0; stage < gradient_stages_k - 1; ++stage) {
        if (stage < slabs) load_stage<kWide>(stages[stage], a, job, dims, stage);
        ptx::copy_commit();
    }
    // which half of a narrow job's 256 rows this warp works on decides whether its tile is read transposed
    int const tile = job.tile + (kWide ? 0 : int(threadIdx.x) >> 6);
    float acc[128] = {};
    for (int slab = 0; slab < slabs; ++slab) {
        ptx::copy_wait<gradient_stages_k - 2>();
        __syncthreads();   // the stage has come, and everyone is done with the one before it
        int const next = slab + gradient_stages_k - 1;
        if (next < slabs) load_stage<kWide>(stages[next % gradient_stages_k], a, job, dims, next);
        ptx::copy_commit();
        multiply_stage<kWide>(acc, stages[slab % gradient_stages_k], job.of_columns || (job.triangle && slab / 4 < tile));
    }
    add_outputs<kWide>(acc, job.of_columns ? a.columns : a.rows, (job.of_columns ? a.first_column : a.first_row) + job.tile * tile_k, dims, job.piece);
}

/// Thread blocks for one side of `tiles` tile rows.
__host__ __device__ constexpr int products_of_side(int pieces, int narrow, int tiles) { return narrow * ((tiles + 1) / 2) + (pieces - narrow) * tiles; }

static __global__ void __launch_bounds__(gradient_threads_k, 2)
    gradient_kernel(__grid_constant__ superblock_t const a, __grid_constant__ pieces_t const pieces, int prefixes, int dims) {
    extern __shared__ __align__(128) unsigned char raw[];
    auto* stages = reinterpret_cast<gradient_stage_t*>(raw);
    int index = blockIdx.x;
    int const rows_side = products_of_side(pieces.count, pieces.narrow, a.tile_rows);
    product_t job;
    job.of_columns = index >= rows_side;
    if (job.of_columns) index -= rows_side;
    job.triangle = a.triangle;
    job.tiles = job.of_columns ? a.tile_columns : a.tile_rows;
    job.depth = job.of_columns ? a.tile_rows : a.tile_columns;
    int const pairs = (job.tiles + 1) / 2;
    bool const narrow = index < pieces.narrow * pairs;
    int number;
    if (narrow) {
        number = index / pairs;
        job.tile = index % pairs * 2;
    } else {
        index -= pieces.narrow * pairs;
        number = pieces.narrow + index / job.tiles;
        job.tile = index % job.tiles;
    }
    job.piece = pieces.piece.data()[number];
    if (number == 0) add_products(a, job, prefixes, narrow ? min(2, job.tiles - job.tile) : 1);
    if (narrow) multiply<false>(stages, a, job, dims);
    else multiply<true>(stages, a, job, dims);
}

}  // namespace scaling_contrasts::sm80
