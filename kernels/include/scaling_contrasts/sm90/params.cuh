// What the kernels of one step share: layouts in device memory and the arguments that travel in constant memory.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cstdint>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::sm90 {

constexpr int tile_k = 128;                         // cells are scored in 128 x 128 tiles; a row block is 128 rows
constexpr int strip_k = 8;                          // row blocks of a superblock's side
constexpr int slab_k = 64;                          // columns (score) or rows (gradient) that a pipeline stage holds
constexpr int plane_bytes_k = tile_k * tile_k * 2;  // weights of one tile and band
constexpr int piece_k = 128;                        // most columns of a gradient tile
constexpr int max_programs_k = 64;
constexpr float log2e_k = 1.4426950408889634f, ln2_k = 0.6931471805599453f;

/// One kind of gradient item: 128 rows times columns [column, column + width), weighted by plane `band`. Widths are 64
/// or 128.
struct program_t {
    int16_t band, column, width;
};

/// Statistics of a row block, one record: [prefix][row] inverse norms, [row] labels, [prefix][permuted row] inverse
/// norms. A tile's row side reads the first two parts, its column side the last two: one copy each.
__host__ __device__ constexpr int record_floats(int prefixes) { return (2 * prefixes + 1) * tile_k; }
/// Where the column side finds column x: a thread's four columns of two 8-column chunks lie side by side.
__host__ __device__ constexpr int permuted(int x) { return x / 16 * 16 + x % 8 / 2 * 4 + x / 8 % 2 * 2 + x % 2; }

/// One set of rows as scored: their statistics and how many there are.
struct side_t {
    float const* records;
    int blocks;                     // row blocks
    int live;                       // rows
    float const* shares = nullptr;  // softmaxes: softmax_shares.cuh
};

/// What rounding took from the weights of a positive cell, band by band: added back in fp32 at the end. A row keeps as
/// many as fit; a row with more positives needs none, since their errors average out.
struct residual_t {
    __nv_bfloat16 const* x;  // the other row
    float band[6];           // five bands
};
constexpr int residuals_k = 4, too_many_k = 1 << 16;

struct params_t {
    // the problem
    int prefixes, dims, columns;  // P, D, and the last prefix
    int slabs[max_prefixes_k];    // 64-column slabs of each band
    float omega[max_prefixes_k];  // weight of each prefix over that of the first
    float weight;                 // that of the first
    double rows_everywhere;       // n
    bool self_pairs, fp32_gradients;
    int programs;  // gradient tiles of a row block
    program_t program[max_programs_k];
    float const* t;  // scale and bias, in device memory
    float const* b;
    // the rows that get gradients
    side_t row;
    int64_t first_row;         // global number of row 0
    __nv_bfloat16 const* x;    // [rows][D]; with fp16 kernels, here and below, what prepare_kernel wrote
    float const* row_scale;    // [rows]: with those alone
    int64_t* s;                // [row block][prefix][row]: sums of weight times dot product, fixed point
    int64_t* sums;             // [row block][2]: loss and sum of sigmoids, fixed point; softmaxes: two_set_params.cuh's
    double* partials;          // [row block][3]
    uint32_t* finished;        // row blocks done by the finishing kernel
    uint32_t* residual_count;  // [row]
    residual_t* residuals;     // [row][residuals_k]
    float* dx;       // [row block][program]: gradient tiles, 128 * width floats, in the order that threads hold them
    void* gradient;  // [rows][D]
    float* scalars;  // loss, dL/dt, dL/db; or null
    double* scalars_double;  // the same; or null
    int rows;
    // the block of candidates being scored
    side_t column;
    __nv_bfloat16 const* column_x;  // null: they will be gone when the step is finished
    bool own;                       // candidates are the rows themselves: only tiles I <= J are scored
    bool paired;                    // softmaxes: row i and candidate i are positives, and left out
    bool accumulate;                // dx already holds the share of an earlier block
    uint8_t* weights;               // ring of superblocks: [superblock][tile][band][half][row][64], swizzled
    int wide, ring, lag;  // strips a superblock spans in J; superblocks in the ring; superblocks the gradient lags
    bool interleave;      // score and gradient items of a stage alternate
    int strips_i, strips_j, superblocks;
    uint32_t* next_item;  // work queue
    uint32_t* scored;     // [superblock][counts_of()]: halves of tiles stored
    uint32_t* consumed;   // [superblock]: gradient items that have read their weights
    uint32_t* turn;       // [row block][program]: shares added to a gradient tile
    // where candidates of another device get gradients, too: theirs, laid out as the rows' are
    float* column_dx;
    int64_t* column_s;
};

/// What the kernel of a step in one launch is told besides.
struct one_launch_params_t : params_t {
    int32_t const* labels;  // or null: every row its own group
    float* records;         // of the rows: what `row` and `column` refer to
    uint32_t* ready;        // [row block]: rows whose statistics are there
    uint32_t* taken;        // [row block][4]: a bit a row, whose statistics a warp has begun
    uint32_t* left;         // CTAs that are done
    uint32_t* flags;        // all counts, which are zero between steps
    int flag_words;
};

/// Where their blocks begin in `turn` and in the numbers of items: behind whole strips of the rows'.
__host__ __device__ inline int first_candidate(params_t const& a) { return a.strips_i * strip_k; }

/// Scales of the fixed-point sums. Fixed point makes them independent of the order in which tiles finish.
struct scales_t {
    float t2, b2;  // scale and bias times log2(e); t2 is never 0, so that weights can carry it
    float s, sum;  // units per 1 of S and of the loss sums
};
__device__ __forceinline__ scales_t scales_of(params_t const& a) {
    scales_t r;
    float const t = *a.t, b = *a.b;
    r.t2 = t * log2e_k;
    r.b2 = b * log2e_k;
    if (!(fabsf(r.t2) >= 1e-25f)) r.t2 = 1e-25f;
    float omega = 0.f;
    for (int p = 0; p < a.prefixes; ++p) omega += a.omega[p];
    float const n = fmaxf(float(a.rows_everywhere), 2.f) * omega * 1.01f;
    r.s = exp2f(fminf(floorf(61.f - log2f(n) - log2f(fabsf(r.t2))), 120.f));
    r.sum = exp2f(floorf(61.f - log2f(n * tile_k * (fabsf(t) + fabsf(b) + 2.f))));
    return r;
}

/// Position of element (row, column) of a tile's plane, in bytes: halves of 64 columns, 128-byte rows, 128-byte
/// swizzle.
__host__ __device__ constexpr int plane_at(int row, int column) {
    return column / 64 * (plane_bytes_k / 2) + row * 128 + ((column % 64 / 8 ^ row % 8) * 16) + column % 8 * 2;
}

}  // namespace scaling_contrasts::sm90
