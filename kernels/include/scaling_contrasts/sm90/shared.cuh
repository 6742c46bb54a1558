// Shared memory of the step kernel, and how the warps of a CTA take turns in it.
//
// Two CTAs share an SM, so that one's products run under the other's epilogue. In each, warp 0 takes items from the
// queue and loads operands, warp 1 stores what the consumer warpgroup staged and publishes it, and warpgroup 1
// multiplies.
//
// Score items use two stages of 24 KiB (64 rows, 128 columns), and the stash: packed weights of the first three bands,
// and later the planes on their way out. Gradient items use stages of 32 KiB (weights, rows) over all of that memory.
// Each kind has barriers of its own; whoever changes from one kind to the other first waits until the memory is free.
#pragma once
#include <cstddef>

#include "scaling_contrasts/ptx/barrier.cuh"
#include "scaling_contrasts/ptx/copy.cuh"
#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/ptx/wgmma.cuh"
#include "scaling_contrasts/ptx/wgmma_fp16.cuh"
#include "scaling_contrasts/sm90/items.cuh"
#include "scaling_contrasts/sm90/kinds.cuh"

namespace scaling_contrasts::sm90 {

constexpr int ctas_k = 2, threads_k = 256, queue_k = 4;
constexpr int rows_bytes_k = 8192;  // 64 rows of a slab
constexpr int gradient_stage_bytes_k = 32768;
constexpr int stash_k = 3;  // bands whose weights wait in shared memory

template <class kind_>
struct alignas(1024) shared_t {
    // score items: columns, rows of either side that statistics are of, areas of the stash that fill a part of a plane
    static constexpr int width_k = kind_::small_items ? 64 : tile_k, side_k = width_k,
                         areas_k = kind_::small_items ? 5 : stash_k, area_bytes_k = width_k * 128,
                         score_stages_k = kind_::small_items ? 4 : 2,
                         score_stage_bytes_k = rows_bytes_k + width_k * 128;
    static constexpr int gradient_stages_k = kind_::fast ? 3 : 2;
    static constexpr int operand_bytes_k = kind_::small_items
                                               ? score_stages_k * score_stage_bytes_k + areas_k * area_bytes_k
                                               : gradient_stages_k * gradient_stage_bytes_k;
    static constexpr int stats_k = (kind_::fast ? 6 : max_prefixes_k + 1) * side_k;
    static constexpr int stages_k = score_stages_k + gradient_stages_k;  // those of scores first

    uint8_t operands[operand_bytes_k];
    float stats[2][2][stats_k];         // [parity of the tile count][row or column side]
    uint32_t marks[128][width_k / 32];  // [consumer thread]: its cells that are no plain negatives
    item_t item[queue_k];
    uint64_t full[stages_k], empty[stages_k];
    uint64_t item_full[queue_k], item_empty[queue_k];
    uint64_t out_full, out_empty;      // staged output, and leave to stage more
    uint64_t drained;                  // a score item's planes have left the stash
    uint64_t stats_full;               // one launch: those of a score item are there
    uint64_t terms_begun, terms_full;  // rows' own terms: S is whole and their place free; they are there

    static constexpr uint32_t at_stash = score_stages_k * score_stage_bytes_k;
    __host__ __device__ static constexpr uint32_t at_stats(int parity, int side) {
        return operand_bytes_k + (parity * 2 + side) * stats_k * 4;
    }
    static constexpr uint32_t at_marks = operand_bytes_k + 4 * stats_k * 4;
    static constexpr uint32_t at_item = at_marks + 128 * width_k / 8;
    static constexpr uint32_t at_full = at_item + queue_k * sizeof(item_t);
    static constexpr uint32_t at_empty = at_full + stages_k * 8;
    static constexpr uint32_t at_item_full = at_empty + stages_k * 8;
    static constexpr uint32_t at_item_empty = at_item_full + queue_k * 8;
    static constexpr uint32_t at_out_full = at_item_empty + queue_k * 8;
    static constexpr uint32_t at_out_empty = at_out_full + 8;
    static constexpr uint32_t at_drained = at_out_empty + 8;
    static constexpr uint32_t at_stats_full = at_drained + 8;
    static constexpr uint32_t at_terms_begun = at_stats_full + 8;
    static constexpr uint32_t at_terms_full = at_terms_begun + 8;
};
using article_shared_t = shared_t<article_t<false>>;
using small_shared_t = shared_t<small_items_t>;
using general_shared_t = shared_t<general_t<false>>;
static_assert(offsetof(article_shared_t, terms_full) == article_shared_t::at_terms_full &&
              offsetof(general_shared_t, terms_full) == general_shared_t::at_terms_full);
static_assert(article_shared_t::at_stash + stash_k * article_shared_t::area_bytes_k <=
              article_shared_t::operand_bytes_k);
static_assert(small_shared_t::gradient_stages_k * gradient_stage_bytes_k <= small_shared_t::operand_bytes_k);
static_assert(sizeof(article_shared_t) + 1024 <= 115712 && sizeof(small_shared_t) + 1024 <= 115712 &&
              sizeof(general_shared_t) + 1024 <= 115712);  // two an SM

/// A place in a ring of `size_` stages, with the parity of the round: one register.
template <int size_>
struct ring_t {
    uint32_t n = 0;
    __device__ __forceinline__ uint32_t at() const { return n >= size_ ? n - size_ : n; }
    __device__ __forceinline__ uint32_t phase() const { return n >= size_; }
    __device__ __forceinline__ uint32_t before() const { return (at() == 0 ? size_ : at()) - 1; }
    __device__ __forceinline__ void next() { n = n == 2 * size_ - 1 ? 0 : n + 1; }
};
using queue_t = ring_t<queue_k>;

template <class kind_>
__device__ __forceinline__ item_t read_item(uint32_t base, queue_t& queue) {
    using shared = shared_t<kind_>;
    ptx::mbar_wait(base + shared::at_item_full + queue.at() * 8, queue.phase());
    uint32_t const at = base + shared::at_item + queue.at() * sizeof(item_t);
    uint4 const lo = ptx::load_b128(at), hi = ptx::load_b128(at + 16);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) ptx::mbar_arrive(base + shared::at_item_empty + queue.at() * 8);
    queue.next();
    auto const uniform = [](uint32_t v) {
        return __reduce_or_sync(~0u, v);
    };  // in uniform registers: the compiler sees that warps branch as one
    return {uniform(lo.x), uniform(lo.y), uniform(lo.z), uniform(lo.w),
            uniform(hi.x), uniform(hi.y), uniform(hi.z), uniform(hi.w)};
}
/// The same for one thread.
template <class kind_>
__device__ __forceinline__ item_t read_item_alone(uint32_t base, queue_t& queue) {
    using shared = shared_t<kind_>;
    ptx::mbar_wait(base + shared::at_item_full + queue.at() * 8, queue.phase());
    uint32_t const at = base + shared::at_item + queue.at() * sizeof(item_t);
    uint4 const lo = ptx::load_b128(at), hi = ptx::load_b128(at + 16);
    ptx::mbar_arrive(base + shared::at_item_empty + queue.at() * 8);
    queue.next();
    return {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
}
/// Warps: the consumers', the one that stores, and those that look ahead.
template <class kind_>
constexpr int item_readers_k = 4 + 1 + (kind_::one_launch ? 2 : 0);

/// How the sum of a gradient item runs: `transposed` blocks stored as (k, row), then `direct` ones stored as (row, k).
struct sum_t {
    uint32_t first;  // row block of the first k
    uint32_t transposed, direct;
    bool column_side;
};
template <class kind_>
__device__ __forceinline__ sum_t sum_of(params_t const& a, item_t const& item) {
    uint32_t const i0 = (item.origin >> 16) * strip_k, j0 = (item.origin & 0xffff) * strip_k, count = item.k;
    sum_t r;
    r.column_side = kind_::both ? item.row >= first_candidate(a) : a.own && item.row / strip_k != i0 / strip_k;
    r.first = r.column_side ? i0 : j0;
    r.transposed = r.column_side ? count : a.own && item.row > j0 ? min(item.row - j0, count) : 0;
    r.direct = count - r.transposed;
    return r;
}

/// Whether a gradient item, whose sum is `sum`, has the last share of its tile.
template <class kind_>
__device__ __forceinline__ bool completes(params_t const& a, item_t const& item, sum_t const& sum) {
    return kind_::one_launch && !sum.column_side && int(item.origin & 0xffff) + a.wide >= a.strips_j;
}

/// A score item's part of a tile is stored. Strips begin at multiples of strip_k.
__device__ __forceinline__ void tell_scored(params_t const& a, item_t const& item) {
    uint32_t* const counts = a.scored + int64_t(item.index) * counts_of(a);
    ptx::add_release(counts + item.row % strip_k, 1);
    ptx::add_release(counts + strip_k + item.slot % (strip_k * a.wide), 1);
}
/// Waits for the tiles that a gradient item is a sum over: a row of them, a column, or, on the diagonal, both.
template <class kind_>
__device__ __forceinline__ void await_scored(params_t const& a, item_t const& item) {
    sum_t const sum = sum_of<kind_>(a, item);
    uint32_t const* const counts = a.scored + int64_t(item.index) * counts_of(a);
    uint32_t const column = item.row - (kind_::both ? first_candidate(a) : 0) - (item.origin & 0xffff) * strip_k;
    if (sum.direct) ptx::wait_count(counts + item.row % strip_k, parts_of<kind_>() * sum.direct);
    if (sum.transposed)  // on the diagonal, a column ends with the tile that its row begins with
        ptx::wait_count(counts + strip_k + column, parts_of<kind_>() * (sum.transposed + (sum.column_side ? 0 : 1)));
}

}  // namespace scaling_contrasts::sm90
