// The order of work. Superblock after superblock, row of superblocks after row: each superblock is a list of score
// items (halves of 128 x 128 tiles, 64 rows each) and, `lag` superblocks later, a list of gradient items. CTAs take
// items from one queue in this order, so that an item only ever waits for items taken before it.
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
/// Counts of a superblock: for each of its rows of tiles, then for each of its columns, how many halves are stored.
__host__ __device__ inline int counts_of(params_t const& a) { return strip_k * (1 + a.wide); }
/// Whether weights serve twice: for the rows, and transposed for the candidates.
template <class kind_>
__device__ bool serves_twice(params_t const& a) {
    return kind_::both || a.own;
}
template <class kind_>
__device__ int gradients_of(params_t const& a, superblock_t const& s) {
    return a.programs * (s.i1 - s.i0 + (serves_twice<kind_>(a) ? s.j1 - s.j0 - s.diagonal : 0));
}
/// Score items of a tile.
template <class kind_>
__host__ __device__ constexpr int parts_of() {
    return kind_::small_items ? 4 : 2;
}
template <class kind_>
__device__ int score_slots(params_t const& a) {
    return parts_of<kind_>() * strip_k * strip_k * a.wide;
}
template <class kind_>
__device__ int gradient_slots(params_t const& a) {
    return a.programs * strip_k * (serves_twice<kind_>(a) ? 1 + a.wide : 1);
}
template <class kind_>
__device__ uint32_t items_of(params_t const& a) {
    return uint32_t(a.superblocks + a.lag) * uint32_t(score_slots<kind_>(a) + gradient_slots<kind_>(a));
}

enum item_kind_t : uint32_t { stop_k, score_k, gradient_k };

/// Eight words, passed from the producer to the other warps of a CTA through shared memory.
struct alignas(16) item_t {
    uint32_t kind;
    uint32_t row;     // row block; first_candidate() + a block of candidates, where both sides get gradients
    uint32_t at;      // score: column block; gradient: program
    uint32_t index;   // superblock
    uint32_t slot;    // score: tile slot in the ring of weights; gradient: that of tile (i0, j0)
    uint32_t k;       // gradient: blocks of the sum; score: half of the rows | half of the statistics << 1
                      //   | half of the columns << 2, where items are small
    uint32_t origin;  // gradient: j0 / strip_k | i0 / strip_k << 16; score: superblock to wait for, + 1
    uint32_t count;   // gradient: shares that come before; score: what `consumed` must be there
};

/// Decodes item `n`; false where the slot is empty.
template <class kind_>
struct scheduler_t {
    uint32_t parity = 0;  // of the score items so far
    cursor_t score, gradient, before;

    __device__ bool decode(params_t const& a, uint32_t n, item_t& out) {
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
            uint32_t const wide = strip_k * a.wide;
            uint32_t const in = k / parts_of<kind_>();
            int const i = b.i0 + in / wide, j = b.j0 + in % wide;
            if (i >= b.i1 || j >= b.j1 || (a.own && j < i)) return false;
            out.kind = score_k;
            out.row = i;
            out.at = j;
            out.index = stage;
            out.slot = (stage % a.ring) * tiles + in;
            out.k = (k & 1) | parity << 1;
            if constexpr (kind_::small_items) out.k |= (k & 2) << 1;
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
        int const r = k / a.programs;
        bool const column_side = r >= strip_k;
        int const block = column_side ? b.j0 + r - strip_k : b.i0 + r;
        if (column_side ? block >= b.j1 || block - b.j0 < b.diagonal : block >= b.i1) return false;
        out.kind = gradient_k;
        out.row = block + (kind_::both && column_side ? first_candidate(a) : 0);
        out.at = k % a.programs;
        out.index = s;
        out.slot = (s % a.ring) * tiles;
        out.k = column_side ? b.i1 - b.i0 : b.j1 - b.j0;
        out.origin = uint32_t(b.j0 / strip_k) | uint32_t(b.i0 / strip_k) << 16;
        out.count = column_side ? gradient.si : (a.own ? gradient.si : 0) + gradient.group;
        return true;
    }
};

}  // namespace scaling_contrasts::sm90
