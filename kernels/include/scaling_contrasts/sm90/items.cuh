// The order of work. Superblock after superblock, row of superblocks after row: each superblock is a list of score
// items (halves of 128 x 128 tiles, 64 rows each) and, `lag` superblocks later, a list of gradient items. CTAs take
// items from one queue in this order, so that an item only ever waits for items taken before it. A cluster takes an
// item for each of its CTAs at once: neighbours, which share operands.
#pragma once
#include "scaling_contrasts/sm90/kinds.cuh"
#include "scaling_contrasts/sm90/stages.cuh"

namespace scaling_contrasts::sm90 {

/// Walks the superblocks in order. Superblock: strip `si` of the rows against strips [sj, sj + wide) of the columns.
struct cursor_t {
    int index = 0, si = 0, group = 0;
    __host__ __device__ int first(params_t const& a) const { return (a.own ? si : 0) + group * a.wide; }
    __host__ __device__ void advance(params_t const& a, int to) {
        while (index < to) {
            ++index, ++group;
            if (first(a) >= a.strips_j) ++si, group = 0;
        }
    }
};

struct superblock_t {
    int i0, i1, j0, j1;  // row blocks
    int diagonal;        // blocks of [j0, j1) that are also in [i0, i1)
};
__host__ __device__ inline superblock_t superblock(params_t const& a, cursor_t const& c) {
    superblock_t r;
    r.i0 = c.si * strip_k;
    r.i1 = r.i0 + strip_k < a.row.blocks ? r.i0 + strip_k : a.row.blocks;
    r.j0 = c.first(a) * strip_k;
    r.j1 = r.j0 + a.wide * strip_k < a.column.blocks ? r.j0 + a.wide * strip_k : a.column.blocks;
    r.diagonal = a.own && c.group == 0 ? r.i1 - r.i0 : 0;
    return r;
}
__host__ __device__ inline int tiles_of(superblock_t const& s) {
    int const ni = s.i1 - s.i0, nj = s.j1 - s.j0;
    return s.diagonal ? ni * (ni + 1) / 2 + ni * (nj - ni) : ni * nj;
}
/// Most items that a gradient tile's sum is cut into, and how many it is over `blocks` blocks. Where nobody but the
/// producer takes items, one: its registers are too few for more.
template <class kind_>
__device__ int cut_of(params_t const& a) {
    return kind_::taker ? a.cut : 1;
}
template <class kind_>
__device__ int parts_of(params_t const& a, int blocks) {
    return kind_::taker ? min(a.cut, blocks) : 1;
}
template <class kind_>
__device__ int gradients_of(params_t const& a, superblock_t const& s) {
    int const ni = s.i1 - s.i0, nj = s.j1 - s.j0;
    return a.programs * (ni * parts_of<kind_>(a, nj) + (a.own ? (nj - s.diagonal) * parts_of<kind_>(a, ni) : 0));
}
/// Items of a superblock as clusters take them: several at a time.
template <class kind_>
__device__ int score_slots(params_t const& a) {
    return 2 * strip_k * strip_k * a.wide / kind_::ctas;
}
template <class kind_>
__device__ int gradient_slots(params_t const& a) {
    return cut_of<kind_>(a) * a.programs * strip_k * (a.own ? 1 + a.wide : 1) / kind_::ctas;
}
template <class kind_>
__device__ uint32_t items_of(params_t const& a) {
    return uint32_t(a.superblocks + a.lag) * uint32_t(score_slots<kind_>(a) + gradient_slots<kind_>(a));
}

/// The last two: there is nothing for this CTA, but its neighbours need the operands that it loads for them.
enum item_kind_t : uint32_t { stop_k, score_k, gradient_k, no_score_k, no_gradient_k };

/// Eight words, passed to the other warps of a CTA through shared memory by the one that takes items.
struct alignas(16) item_t {
    uint32_t kind;   // on its way from a taker: plus halves of tiles to wait for << 8
    uint32_t row;    // row block
    uint32_t at;     // score: column block; gradient: program
    uint32_t index;  // superblock
    uint32_t slot;   // score: tile slot in the ring of weights; gradient: that of tile (i0, j0)
    uint32_t k;  // gradient: blocks of the sum | the first << 16; score: half of the rows | half of the statistics << 1
    uint32_t origin;  // gradient: j0 / strip_k | i0 / strip_k << 16; score: superblock to wait for, + 1
    uint32_t count;   // gradient: shares that come before; score: what `consumed` must be there
};

/// Decodes item `n` for one CTA of a cluster; false where the slot is empty, for all of them.
template <class kind_>
struct scheduler_t {
    static constexpr int high = kind_::high, broad = kind_::broad;  // CTAs of a cluster
    int row_rank = 0, column_rank = 0;                              // of this CTA
    uint32_t parity = 0;                                            // of the score items so far
    cursor_t score, gradient, before;

    __device__ bool decode(params_t const& a, uint32_t n, item_t& out, uint32_t& scored_needed) {
        uint32_t const ns = score_slots<kind_>(a), ng = gradient_slots<kind_>(a), per = ns + ng;
        int const stage = n / per;
        uint32_t const pos = n % per;
        bool is_score;
        uint32_t k;
        if (a.interleave) {
            uint32_t const before_k = pos * ns / per;
            is_score = (pos + 1) * ns / per > before_k;
            k = is_score ? before_k : pos - before_k;
        } else {
            is_score = pos < ns;
            k = is_score ? pos : pos - ns;
        }
        uint32_t const tiles = strip_k * strip_k * a.wide;  // tile slots of a superblock
        if (is_score) {
            if (stage >= a.superblocks) return false;
            score.advance(a, stage);
            superblock_t const b = superblock(a, score);
            uint32_t const wide = strip_k * a.wide, groups = wide / broad;
            uint32_t const group = k / (2 / high);  // a cluster that is two high takes both halves of a tile
            int const i = b.i0 + group / groups, j = b.j0 + group % groups * broad + column_rank;
            auto const there = [&](int column) { return column < b.j1 && !(a.own && column < i); };
            if (i >= b.i1 || !(there(j) || (broad > 1 && there(j ^ 1)))) return false;
            out.kind = there(j) ? score_k : no_score_k;
            out.row = i;
            out.at = j;
            out.index = stage;
            out.slot = (stage % a.ring) * tiles + (i - b.i0) * wide + (j - b.j0);
            out.k = (high > 1 ? row_rank : k & 1) | parity << 1;
            parity ^= 1;
            out.origin = out.count = 0;
            if (stage >= a.ring) {
                before.advance(a, stage - a.ring);
                out.origin = stage - a.ring + 1;
                out.count = gradients_of<kind_>(a, superblock(a, before));
            }
            return true;
        }
        int const s = stage - a.lag;
        if (s < 0 || s >= a.superblocks) return false;
        gradient.advance(a, s);
        superblock_t const b = superblock(a, gradient);
        uint32_t const cut = cut_of<kind_>(a), pieces = a.programs / broad;
        uint32_t const part = kind_::taker ? k / (ng / cut) : 0;  // all first parts, then all second ones
        k -= part * (ng / cut);
        int const r = k / pieces * high + row_rank;
        bool const column_side = r >= strip_k;
        int const block = column_side ? b.j0 + r - strip_k : b.i0 + r;
        auto const there = [&](int row) { return column_side ? row < b.j1 && row - b.j0 >= b.diagonal : row < b.i1; };
        uint32_t const blocks = column_side ? b.i1 - b.i0 : b.j1 - b.j0, parts = parts_of<kind_>(a, blocks);
        if (part >= parts || !(there(block) || (high > 1 && there(block ^ 1)))) return false;
        out.kind = there(block) ? gradient_k : no_gradient_k;
        out.row = block;
        out.at = k % pieces * broad + column_rank;
        out.index = s;
        out.slot = (s % a.ring) * tiles;
        uint32_t const begin = part * blocks / parts, end = (part + 1) * blocks / parts;
        out.k = (end - begin) | begin << 16;
        out.origin = uint32_t(b.j0 / strip_k) | uint32_t(b.i0 / strip_k) << 16;
        // superblocks before have whole strips, and so as many parts as there can be
        out.count = part + cut * (column_side ? gradient.si : (a.own ? gradient.si : 0) + gradient.group);
        scored_needed = 2 * tiles_of(b);
        return true;
    }
};

}  // namespace scaling_contrasts::sm90
