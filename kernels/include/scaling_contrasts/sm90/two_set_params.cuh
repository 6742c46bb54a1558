// The losses over two sets, images (rows) and captions (columns): what the kernels of one step share, and the order of
// their work.
//
// The grid of cells is walked in superblocks. Each is a list of score items (tiles of 128 x 256 cells) and, `lag`
// superblocks later, a list of gradient items, which read the superblock's weights twice: as they lie for dI += W C,
// and transposed for dC += W^T I. CTAs take items from one queue in this order, so that an item only waits for items
// taken before it.
#pragma once
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90::two_set {

constexpr int row_tile_k = 128, column_tile_k = 256;
constexpr int piece_k = 256;                          // most columns of a gradient tile
constexpr int quarter_bytes_k = row_tile_k * 64 * 2;  // weights of 128 rows x 64 columns: [row][64], 128-byte swizzle
constexpr int tile_bytes_k = 4 * quarter_bytes_k;     // of one tile and band
constexpr int share_k = 128 * 256;                    // floats of a gradient tile
constexpr int bins_k = 20;                            // see info_nce_sums.cuh

/// Words of a row's S. A sigmoid's fits one, in fixed point. Shares of softmaxes fall to 1e-20 where pairs are learnt,
/// beside others near 1: one that would have fewer than 17 bits goes to the next word, whose unit is 2^-26 as large. So
/// a word has room for 2^20 shares.
__host__ __device__ constexpr int s_words(bool softmax) { return softmax ? 4 : 1; }
constexpr int s_octaves_k = 26;
constexpr float s_least_k = 65536.f;  // units

/// What a launch is for. Two sets: two_set_sigmoid; info_nce's sums, then its slopes. One set (group_cells.cuh): sums
/// over negatives, sums over positives, slopes.
enum class pass_t { sigmoid_k, sums_k, softmax_k, negatives_k, positives_k, groups_k };
constexpr bool is_grouped(pass_t pass) { return pass >= pass_t::negatives_k; }
constexpr bool is_softmax(pass_t pass) { return pass == pass_t::softmax_k || pass == pass_t::groups_k; }
/// Passes that leave sums alone: no weights, no gradients.
constexpr bool is_sum(pass_t pass) {
    return pass == pass_t::sums_k || pass == pass_t::negatives_k || pass == pass_t::positives_k;
}

/// Gradient columns [column, column + width), at most 256, weighted by plane `band`.
struct piece_t {
    int16_t band, column, width;
};

/// One set of rows. Statistics are [prefix][padded]; pairs share a row number.
struct side_t {
    __nv_bfloat16 const* x;  // [rows][dims]
    float const* inverse;    // inverse norms; 0 for a prefix of norm 0 and for rows that are not there
    float const* log_sums;   // info_nce: log2 of the sum of 2^x over all candidates
    int64_t* bins;           // info_nce, first pass: [prefix][bin][padded]; null: this side's sums are not wanted
    int64_t* s;              // ladders: sums of weight times dot product, [prefix][s_words()][padded]; null: not wanted
    float* dx;               // [block of 128 rows][piece][share_k], as threads hold them; null: no gradient is wanted
    bool accumulate;         // dx holds shares of an earlier block already
    int live, padded;        // rows; rounded up to whole 256
    __host__ __device__ int blocks() const { return (live + row_tile_k - 1) / row_tile_k; }
};

constexpr int range_rows_k = 64;
/// What one_set_info_nce needs of a set besides (docs/one_set_info_nce.md); its log_sums are l.
struct groups_t {
    int32_t const* labels;   // [live]; null: every row is its own group
    int64_t first;           // global number of row 0
    int2 const* ranges;      // [padded / 64]: least and greatest label of 64 rows
    float const* negatives;  // n: log2 of the sum over negatives of 2^x
    float const* positives;  // u: log2 of the sum over positives of 2^x (SupCon) or of their slopes (NT-Xent)
    float const* each;       // [padded]: 1 / the row's positives, or 0
    __device__ __forceinline__ int label(int row) const {
        return labels ? __ldg(labels + row) : static_cast<int>(first + row);
    }
};

struct params_t {
    int prefixes, dims, columns;
    int slabs[max_prefixes_k];    // 64-column slabs of each band
    float omega[max_prefixes_k];  // weight of each prefix over that of the first
    double rows_everywhere;       // n
    int pieces;
    piece_t piece[max_programs_k];
    float const *t, *b;
    side_t row, column;
    int64_t*
        sums;  // [row tile][6]: loss, slopes, slopes times cosine, and their remainders; null: another GPU counts these cells
    bool own;          // rows and columns are pairs: cells (i, i) are positives, left out here
    bool output;       // weights and gradients are wanted
    uint8_t* weights;  // ring of superblocks: [superblock][tile][band][quarter][row][64]
    int high, wide;    // a superblock's row tiles and column tiles
    int ring, lag;
    int column_groups, superblocks;
    uint32_t* next_item;
    uint32_t* scored;    // [superblock]: halves of tiles stored
    uint32_t* consumed;  // [superblock]: halves of gradient tiles that have read their weights
    uint32_t* turn;      // [row blocks, then column blocks][piece][warpgroup]: shares added
    // one_set_info_nce alone
    groups_t row_groups, column_groups_of;
    float* residual;  // [prefix][padded]: what rounding took off the weight of a row's one positive; null: not wanted
    int* partner;     // [padded]: that positive, of this GPU; -1: the row has none here, or several
    bool
        triangle;  // rows and columns are the same: superblocks below the diagonal are left out, `turn` has row blocks alone
    bool sup_con;
};

struct superblock_t {
    int i0, i1, j0, j1;  // row tiles, column tiles
};
template <bool grouped_ = false>
__device__ __forceinline__ superblock_t superblock(params_t const& a, int index) {
    superblock_t r;
    if (grouped_ && a.triangle) {  // row by row, from the diagonal on
        int i = 0;
        for (int row = a.column_groups; index >= row; --row) index -= row, ++i;
        r.i0 = i * a.high;
        r.j0 = (i + index) * a.wide;
    } else {
        r.i0 = index / a.column_groups * a.high;
        r.j0 = index % a.column_groups * a.wide;
    }
    r.i1 = min(r.i0 + a.high, a.row.blocks());
    r.j1 = min(r.j0 + a.wide, (a.column.live + column_tile_k - 1) / column_tile_k);
    return r;
}
/// Whether a superblock holds its own mirror image: the columns' sums and gradients are the rows'.
__device__ __forceinline__ bool on_diagonal(params_t const& a, int row_tile, int column_tile) {
    return a.triangle && row_tile / a.high == column_tile / a.wide;
}
/// Blocks of 128 columns of a superblock.
__device__ __forceinline__ int column_blocks(params_t const& a, superblock_t const& s) {
    return min(2 * s.j1, a.column.blocks()) - 2 * s.j0;
}
template <bool grouped_ = false>
__device__ __forceinline__ int gradients_of(params_t const& a, superblock_t const& s) {
    bool const columns = a.column.dx && !(grouped_ && on_diagonal(a, s.i0, s.j0));
    return a.pieces * ((a.row.dx ? s.i1 - s.i0 : 0) + (columns ? column_blocks(a, s) : 0));
}
__device__ __forceinline__ uint32_t score_slots(params_t const& a) { return a.high * a.wide; }
__device__ __forceinline__ uint32_t gradient_slots(params_t const& a) {
    return a.output ? a.pieces * ((a.row.dx ? a.high : 0) + (a.column.dx ? 2 * a.wide : 0)) : 0;
}
__device__ __forceinline__ uint32_t items_of(params_t const& a) {
    return uint32_t(a.superblocks + (a.output ? a.lag : 0)) * (score_slots(a) + gradient_slots(a));
}

enum kind_t : uint32_t { stop_k, score_k, row_gradient_k, column_gradient_k };

/// Eight words, passed from the producer to the other warps of a CTA through shared memory.
struct alignas(16) item_t {
    uint32_t kind;
    uint32_t row;    // score: row tile; gradient: block of 128 rows of its side
    uint32_t at;     // score: column tile; gradient: piece
    uint32_t index;  // superblock
    uint32_t slot;   // first tile of weights
    uint32_t wait;   // score: what `consumed` of superblock index - ring must be; gradient: shares that come before
    uint32_t first;  // gradient: first row of the sum
    uint32_t slabs;  // gradient: slabs of 64 rows in the sum
};

/// Decodes item `n`; false where the slot is empty.
template <bool grouped_ = false>
__device__ __forceinline__ bool decode(params_t const& a, uint32_t n, item_t& out, uint32_t& scored_needed) {
    uint32_t const ns = score_slots(a), ng = gradient_slots(a);
    int const stage = n / (ns + ng);
    uint32_t k = n % (ns + ng);
    out.first = out.slabs = out.wait = 0;
    if (k < ns) {
        if (stage >= a.superblocks) return false;
        superblock_t const b = superblock<grouped_>(a, stage);
        int const i = b.i0 + k / a.wide, j = b.j0 + k % a.wide;
        if (i >= b.i1 || j >= b.j1) return false;
        out.kind = score_k;
        out.row = i;
        out.at = j;
        out.index = stage;
        out.slot = stage % a.ring * ns + k;
        if (a.output && stage >= a.ring)
            out.wait = 2 * gradients_of<grouped_>(a, superblock<grouped_>(a, stage - a.ring));
        return true;
    }
    k -= ns;
    int const s = stage - a.lag;
    if (s < 0 || s >= a.superblocks) return false;
    superblock_t const b = superblock<grouped_>(a, s);
    int const r = k / a.pieces, rows = a.row.dx ? a.high : 0;
    out.at = k % a.pieces;
    out.index = s;
    if (r < rows) {
        if (b.i0 + r >= b.i1) return false;
        out.kind = row_gradient_k;
        out.row = b.i0 + r;
        out.slot = s % a.ring * ns + r * a.wide;
        out.first = b.j0 * column_tile_k;
        out.slabs = (min(b.j1 * column_tile_k, a.column.live) - int(out.first) + slab_k - 1) / slab_k;
        out.wait = grouped_ ? b.j0 / a.wide : s % a.column_groups;
    } else {
        if (r - rows >= column_blocks(a, b)) return false;
        if (grouped_ && on_diagonal(a, b.i0, b.j0)) return false;
        out.kind = column_gradient_k;
        out.row = 2 * b.j0 + r - rows;
        out.slot = s % a.ring * ns + (r - rows) / 2;
        out.first = b.i0 * row_tile_k;
        out.slabs = (min(b.i1 * row_tile_k, a.row.live) - int(out.first) + slab_k - 1) / slab_k;
        out.wait =
            grouped_ ? b.i0 / a.high : s / a.column_groups;  // of a triangle: before those of the block's own row
    }
    scored_needed = 2 * (b.i1 - b.i0) * (b.j1 - b.j0);
    return true;
}

/// Scales of the fixed-point sums, which do not depend on the order in which tiles finish.
struct scales_t {
    float t2, b2;  // scale and bias times log2(e); t2 is never 0, so that weights can carry it
    float s, sum;  // units per 1 of S (of its first word) and of the sums
};
/// The sums keep what their units do not resolve, too: info_nce's slopes fall to 1e-17 where pairs are learnt.
constexpr float remainder_k = 1.0995116e12f;         // 2^40, units of a remainder per unit of its sum
template <bool grouped_ = false, class arguments_t>  // params_t or pairs_t
__device__ __forceinline__ scales_t scales_of(arguments_t const& a) {
    scales_t r;
    float const t = *a.t, b = *a.b;
    r.t2 = t * log2e_k;
    r.b2 = b * log2e_k;
    if (!(fabsf(r.t2) >= 1e-25f)) r.t2 = 1e-25f;
    float omega = 0.f;
    for (int p = 0; p < a.prefixes; ++p) omega += a.omega[p];
    float const n = fmaxf(float(a.rows_everywhere), 2.f) * omega * 1.01f;
    if constexpr (grouped_) {  // a row's pull on others is bounded by all positive pairs, n^2 at most
        float const n2 = n * fmaxf(float(a.rows_everywhere) + 1.f, 128.f);
        r.sum = exp2f(floorf(60.f - log2f(n2 * (2.f * fabsf(t) + 32.f))));
        r.s = exp2f(fminf(floorf(60.f - log2f(n2) - log2f(fabsf(r.t2))), 120.f));
        return r;
    }
    r.sum = exp2f(floorf(60.f - log2f(n * row_tile_k * (fabsf(t) + fabsf(b) + 2.f))));
    r.s = exp2f(fminf(floorf(60.f - log2f(n) - log2f(fabsf(r.t2))), 120.f));
    return r;
}

}  // namespace scaling_contrasts::sm90::two_set
