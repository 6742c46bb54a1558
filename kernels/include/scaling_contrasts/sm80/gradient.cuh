// Multiplies the weights of a scored superblock with embeddings: rows' gradients += W X_columns, and, where the block
// is symmetric or both its sets are ours, columns' gradients += W^T X_rows, from the same weights.
//
// A thread block computes one piece of columns (pieces.cuh) of 128 or 256 rows, four warps of 64 x 64 outputs. A block
// of weights is a tile's 8 x 8 matrices in ldmatrix's order, read as it is or transposed.
#pragma once
#include "scaling_contrasts/sm80/products.cuh"
#include "scaling_contrasts/sm80/ptx.cuh"

namespace scaling_contrasts::sm80 {

inline constexpr int gradient_threads_k = 128, gradient_stages_k = 4, depth_k = 32;  // cells a stage is deep

/// Weights of 128 or 256 rows, and embeddings of 32 candidates.
struct gradient_stage_t {
    alignas(128) unsigned char weights[16384];    ///< [16 rows][16 candidates][512 bytes]
    alignas(128) unsigned char embeddings[8192];  ///< [candidate][128 or 64 columns], 16-byte pieces permuted
};

/// Where a thread copies, for every stage: blocks of weights `block`, + 2, + 4, ... of the output's rows, one of the
/// stage's two candidate blocks; and pieces of candidates some lines apart.
struct stage_places_t {
    unsigned char const* direct[2];  ///< of candidate tile 0 as it is stored, for one or two tile rows of the output
    unsigned char const* transposed[2];
    bf16_t const* embeddings;  ///< of candidate 0
    bf16_t const* valid;       ///< some address that may be read
    std::uint32_t to_weights, to_embeddings;
    int candidates;  ///< live ones
    bool inside;     ///< all columns of the piece's copies are there
};

template <bool kWide>
__device__ __forceinline__ stage_places_t stage_places(superblock_t const& a, product_t const& job, int dims) {
    int const thread = threadIdx.x, block = thread >> 6, deep = thread >> 5 & 1, lane = thread & 31;
    constexpr int kPieces = kWide ? 16 : 8;
    int const line = thread / kPieces, piece = thread % kPieces;
    rows_t const& set = job.of_columns ? a.rows : a.columns;
    int const first = job.of_columns ? a.first_row : a.first_column;
    stage_places_t places;
    for (int part = 0; part < 2; ++part) {
        int const tile =
            min(job.tile + part, job.tiles - 1);  // of a last tile alone, the second half is computed and dropped
        auto const* direct =
            reinterpret_cast<unsigned char const*>(a.weights + tile_words(a.side, job.piece.prefix, tile, 0));
        auto const* transposed =
            reinterpret_cast<unsigned char const*>(a.weights + tile_words(a.side, job.piece.prefix, 0, tile));
        places.direct[part] = direct + (block * 8 + deep) * 512 + lane * 16;
        places.transposed[part] = transposed + (deep * 8 + block) * 512 + lane * 16;
    }
    places.embeddings = set.embeddings + std::int64_t(first + line) * dims + job.piece.column + piece * 8;
    places.valid = set.embeddings;
    places.candidates = set.rows - first;
    places.inside = job.piece.column + kPieces * 8 <= dims;
    places.to_weights = thread * 16;
    places.to_embeddings = sizeof(gradient_stage_t::weights) + line * (kPieces * 16) + ((piece ^ (line & 7)) << 4);
    return places;
}

/// Starts the copies of one stage: candidates 32 `slab` and up; those past the live ones, and pieces past `dims`,
/// become zeros. kWide: 128 rows x 128 columns, else 256 x 64.
template <bool kWide>
__device__ __forceinline__ void load_stage(std::uint32_t to, superblock_t const& a, product_t const& job,
                                           stage_places_t const& places, int dims, int slab, std::int64_t part_bytes) {
    constexpr int kTileBytes = tile_k * tile_k * 2, kPieces = kWide ? 16 : 8, kLines = gradient_threads_k / kPieces;
    int const k = slab / 4, quarter = slab % 4;
#pragma unroll
    for (int part = 0; part < (kWide ? 1 : 2); ++part) {
        if (job.of_columns || (job.triangle && k < job.tile + part)) {
            unsigned char const* from =
                places.transposed[part] +
                (part_bytes + std::int64_t(k) * (a.side / tile_k) * kTileBytes + quarter * (2 * 8 * 512));
#pragma unroll
            for (int j = 0; j < 4; ++j)
                ptx::copy_16(to + places.to_weights + (part * 4 + j) * 2048, from + j * (2 * 512));
        } else {
            unsigned char const* from = places.direct[part] + (part_bytes + k * kTileBytes + quarter * (2 * 512));
#pragma unroll
            for (int j = 0; j < 4; ++j)
                ptx::copy_16(to + places.to_weights + (part * 4 + j) * 2048, from + j * (2 * 8 * 512));
        }
    }
    int const first = slab * depth_k;
    bf16_t const* from = places.embeddings + std::int64_t(slab) * depth_k * dims;
    if (first + depth_k <= places.candidates && places.inside) {
#pragma unroll
        for (int i = 0; i < depth_k / kLines; ++i)
            ptx::copy_16(to + places.to_embeddings + i * kLines * kPieces * 16, from + std::int64_t(i * kLines) * dims);
    } else {
        int const line = threadIdx.x / kPieces, column = job.piece.column + threadIdx.x % kPieces * 8;
        for (int i = 0; i < depth_k / kLines; ++i) {
            bool const valid = first + line + i * kLines < places.candidates && column < dims;
            ptx::copy_16(to + places.to_embeddings + i * kLines * kPieces * 16,
                         valid ? from + std::int64_t(i * kLines) * dims : places.valid, valid);
        }
    }
}

/// acc += weights x embeddings of one stage, for this warp's 64 x 64 outputs.
template <bool kWide>
__device__ __forceinline__ void multiply_stage(float (&acc)[128], std::uint32_t stage, bool transposed) {
    int const lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int const row_block = (kWide ? warp & 1 : warp) * 4, column = kWide ? (warp >> 1) * 64 : 0;
    // a lane's address within a block: matrices lie in order, transposed ones change places 1 and 2
    int const matrix = lane >> 3, place = transposed ? (matrix & 1) * 2 + (matrix >> 1) : matrix;
    std::uint32_t const weights = stage + row_block * 1024 + place * 128 + (lane & 7) * 16;
    constexpr int kLine = kWide ? 256 : 128;
    // 16 lines on, the permutation is the same; two pieces on, it differs in the pieces' own bits
    std::uint32_t const line = stage + std::uint32_t(sizeof(gradient_stage_t::weights)) + (lane & 15) * kLine,
                        piece = (column / 8 + (lane >> 4)) ^ (lane & 7);
#pragma unroll
    for (int step = 0; step < depth_k / 16; ++step) {
        std::uint32_t w[4][4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
            if (transposed) ptx::load_matrices_transposed(w[m], weights + (m * 2 + step) * 512);
            else ptx::load_matrices(w[m], weights + (m * 2 + step) * 512);
        }
#pragma unroll
        for (int n = 0; n < 4; ++n) {  // 16 columns at a time
            std::uint32_t x[4];
            ptx::load_matrices_transposed(x, line + ((piece ^ n * 2) << 4) + step * 16 * kLine);
#pragma unroll
            for (int m = 0; m < 4; ++m) {
                ptx::multiply_add(acc + (m * 8 + n * 2) * 4, w[m], x[0], x[1]);
                ptx::multiply_add(acc + (m * 8 + n * 2 + 1) * 4, w[m], x[2], x[3]);
            }
        }
    }
}

/// Adds the accumulators to the gradient, rows `first` to `end`. One thread of a launch adds to an element, and
/// launches follow one another: the order never changes.
template <bool kWide>
__device__ __forceinline__ void add_outputs(float const (&acc)[128], rows_t const& set, int first, int end, int dims,
                                            pieces_t::piece_t const& piece) {
    int const lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int const row = first + (kWide ? warp & 1 : warp) * 64 + (lane >> 2), column = kWide ? (warp >> 1) * 64 : 0;
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int const r = row + m * 16 + h * 8;
            if (r >= end) continue;
            float* to = set.gradient + std::int64_t(r) * dims + piece.column + column + (lane & 3) * 2;
#pragma unroll
            for (int n = 0; n < 8; ++n)
                if (column + n * 8 < piece.width) {
                    ptx::add_to(to + n * 8, acc[(m * 8 + n) * 4 + h * 2]);
                    ptx::add_to(to + n * 8 + 1, acc[(m * 8 + n) * 4 + h * 2 + 1]);
                }
        }
}

template <bool kWide>
__device__ __forceinline__ void multiply(gradient_stage_t* stages, superblock_t const& a, product_t const& job,
                                         int prefixes, int dims) {
    int const slabs =
        min(job.depth * 4,
            ((job.of_columns ? a.rows.rows - a.first_row : a.columns.rows - a.first_column) + depth_k - 1) / depth_k);
    stage_places_t const places = stage_places<kWide>(a, job, dims);
    std::int64_t const part_bytes = tile_words(a.side, prefixes, 0, 0) * 4;
    int const all = slabs * a.parts;  // weights of two parts: all candidates again, with what the first part left
    std::uint32_t const ring = ptx::kept(ptx::shared_address(stages));
    auto stage = [&](int number) {
        return ring + number % gradient_stages_k * std::uint32_t(sizeof(gradient_stage_t));
    };
    auto load = [&](int number) {
        if (number < all)
            load_stage<kWide>(stage(number), a, job, places, dims, number < slabs ? number : number - slabs,
                              number < slabs ? 0 : part_bytes);
        ptx::copy_commit();
    };
    for (int number = 0; number < gradient_stages_k - 1; ++number) load(number);
    // which half of a narrow job's 256 rows this warp works on decides whether its tile is read transposed
    int const tile = job.tile + (kWide ? 0 : int(threadIdx.x) >> 6);
    float acc[128] = {};
    for (int number = 0; number < all; ++number) {
        ptx::copy_wait<gradient_stages_k - 2>();
        __syncthreads();  // the stage has come, and everyone is done with the one before it
        load(number + gradient_stages_k - 1);
        int const slab = number < slabs ? number : number - slabs;
        multiply_stage<kWide>(acc, stage(number), job.of_columns || (job.triangle && slab / 4 < tile));
    }
    rows_t const& set = job.of_columns ? a.columns : a.rows;
    int const first = job.of_columns ? a.first_column : a.first_row;  // rows past the superblock are another launch's
    add_outputs<kWide>(acc, set, first + job.tile * tile_k, min(set.rows, first + job.tiles * tile_k), dims, job.piece);
}

static __global__ void __launch_bounds__(gradient_threads_k, 2)
    gradient_kernel(__grid_constant__ superblock_t const a, __grid_constant__ pieces_t const pieces, int prefixes,
                    int dims) {
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
    // the pieces of a row tile share the prefixes among them; narrow ones, whose tiles come in twos, leave them to the
    // wide ones, if there are any
    int const sharers = pieces.count > pieces.narrow ? pieces.count - pieces.narrow : pieces.count,
              share = sharers == pieces.count ? number : number - pieces.narrow;
    if (sharers == pieces.count || !narrow)
        for (int prefix = share; prefix < prefixes; prefix += sharers)
            add_products<gradient_threads_k>(a, job, prefix, prefixes, narrow ? 256 : 128);
    if (narrow) multiply<false>(stages, a, job, prefixes, dims);
    else multiply<true>(stages, a, job, prefixes, dims);
}

}  // namespace scaling_contrasts::sm80
