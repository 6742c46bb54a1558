// What the kernels of one step share: sets of rows on the device, and the superblock of cells in work.
//
// The grid of cells (row, candidate) is walked in superblocks of at most `side` x `side` cells. One launch scores a
// superblock and leaves its band weights in a scratch; the next multiplies them with the embeddings. The scratch is
// reused, so its size does not depend on the number of rows.
#pragma once
#include <cstdint>

#include "scaling_contrasts/ladder.hpp"

namespace scaling_contrasts::sm80 {

inline constexpr int tile_k = 128;   ///< cells are scored in tiles of 128 x 128
inline constexpr int block_k = 256;  ///< weights are stored in blocks of 16 x 16

/// What a visit to a block of candidates is for. Sigmoid, softmax (info_nce) and groups (one_set_info_nce): slopes.
/// Maxima: sums of exponentials over negatives; positives: over positives (groups.cuh).
enum class pass_t { sigmoid_k, maxima_k, positives_k, softmax_k, groups_k };
constexpr bool gathers(pass_t pass) { return pass == pass_t::maxima_k || pass == pass_t::positives_k; }

/// One set of rows as the kernels see it. Row statistics are [prefix][padded], zero past `rows`; `padded` is `rows`
/// rounded up to whole tiles.
struct rows_t {
    bf16_t const* embeddings = nullptr;    ///< [rows][dims]
    std::int32_t const* labels = nullptr;  ///< group of each row; null: every row's group is its global number
    float const* inverse_norms = nullptr;  ///< 0 for a prefix of norm 0
    float const* log_sums = nullptr;       ///< softmax losses: a negative's slope is 2^(x - log_sums)
    float2* maxima = nullptr;              ///< softmax losses: maximum over negatives of x, sum of 2^(x - maximum)
    float* positive_logits = nullptr;      ///< info_nce: x of the row's positive, one array for both sets
                                           ///< one_set_info_nce: u of groups.cuh, log2 of its sum over positives
    float2* positives = nullptr;           ///< one_set_info_nce: what u is made of, as maxima
    float const* negatives = nullptr;      ///< one_set_info_nce: log2 of the sum over negatives of 2^x
    float const* each = nullptr;           ///< one_set_info_nce, of a row: 1 / its positives, or 0
    float* gradient = nullptr;             ///< [rows][dims]: sum over candidates of weight * candidate
    float* weighted_products = nullptr;    ///< sum over candidates of weight * dot product, unsummed over prefixes
    float* residuals = nullptr;        ///< two sets: what rounding to bf16 took off the positives' weights, one array
                                       ///< for both sets
    bf16_t const* partners = nullptr;  ///< two sets: the other set's rows, whose i-th is row i's positive
    std::int64_t first = 0;            ///< global number of row 0
    int rows = 0;                      ///< live rows
    int padded = 0;
};

/// One superblock. Weights lie as [part][prefix][tile row][tile column][block row][block column][8 x 8 matrix][8][8],
/// so that a warp of the score kernel stores, and the gradient kernel copies, whole lines, and `ldmatrix` reads either
/// a matrix or its transpose without conflicts. The four matrices of a block are in the order of an accumulator's
/// registers: upper left, lower left, upper right, lower right.
struct superblock_t {
    rows_t rows, columns;
    int first_row = 0, first_column = 0;  ///< multiples of tile_k
    int tile_rows = 0, tile_columns = 0;
    int side = 0;                ///< capacity, a multiple of tile_k
    bool triangle = false;       ///< on the diagonal of a symmetric block: tiles above the diagonal, and on it
    bool labelled_self = false;  ///< one set: cells of equal global numbers are self pairs
    bool self_pairs = false;     ///< self pairs count, as positives
    bool grouped = false;        ///< one_set_info_nce
    bool sup_con = false;        ///< its form: SupCon, or NT-Xent
    float cell_weight = 1.0f;    ///< of a cell in the loss; diagonal tiles of a triangle always count once
    float const* scale = nullptr;
    float const* bias = nullptr;
    std::uint32_t* weights = nullptr;  ///< pairs of bf16
    int parts = 1;                     ///< 2: weights are sums of two bf16 numbers, for gradients in fp32
    float* row_products = nullptr;     ///< [side / 32][prefix][side]: partial sums over 32 columns
    float* column_products = nullptr;  ///< [side / 64][prefix][side]: partial sums over 64 rows
    float2* row_maxima = nullptr;      ///< the same, info_nce's first pass: maximum, sum of 2^(x - maximum)
    float2* column_maxima = nullptr;
    double* slots = nullptr;  ///< [tile of the superblock][warp][3]: loss, sum of slopes, self pairs' part of dL/dt
};

/// 32-bit words of the weights before those of a tile; the second part's prefixes follow the first's.
__host__ __device__ constexpr std::int64_t tile_words(int side, int prefix, int row, int column) {
    int const tiles = side / tile_k;
    return ((std::int64_t(prefix) * tiles + row) * tiles + column) * (tile_k * tile_k / 2);
}

/// Tiles of a superblock that are scored.
__host__ __device__ constexpr int tiles_of(superblock_t const& a) {
    return a.triangle ? a.tile_rows * (a.tile_rows + 1) / 2 : a.tile_rows * a.tile_columns;
}

/// Tile number `index` of a triangle of `tiles` tile rows, row by row: (row, column) with row <= column.
__host__ __device__ constexpr void triangle_tile(int index, int tiles, int& row, int& column) {
    row = 0;
    while (index >= tiles - row) index -= tiles - row++;
    column = row + index;
}

}  // namespace scaling_contrasts::sm80
