// Shared memory of the step kernel, and how the warps of a CTA take turns in it.
//
// Warp 0 takes items from the queue and loads operands into slots of 16 KiB; warps 2 and 3 store what the two consumer warpgroups
// staged and publish it; warpgroups 1 and 2 multiply. A slot is filled and handed back in an order that both sides derive from the
// items alone; each keeps one bit per slot, the parity of its uses so far.
//
// Score items use slots 0-6 in turn, rows and columns alternately; slots 7-12 hold packed weights of the first three bands, and later
// the planes on their way out. Gradient items use slots 0-11 for weights and rows, three or two a slab.
#pragma once
#include <cstddef>

#include "scaling_contrasts/ptx/barrier.cuh"
#include "scaling_contrasts/ptx/copy.cuh"
#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/ptx/wgmma.cuh"
#include "scaling_contrasts/sm90/items.cuh"

namespace scaling_contrasts::sm90 {

constexpr int slot_bytes_k = 16384, threads_k = 384, queue_k = 4;
constexpr int score_ring_k = 7, stash_k = 3, first_stash_k = 7;

template <bool fast_>
struct alignas(1024) shared_t {
    static constexpr int slots_k = fast_ ? 13 : 11;
    static constexpr int wide_ring_k = fast_ ? 12 : 9;
    static constexpr int stats_k = (fast_ ? 6 : max_prefixes_k + 1) * tile_k;

    uint8_t slot[slots_k][slot_bytes_k];
    float stats[2][2][stats_k];  // [parity of the tile count][row or column side]
    item_t item[queue_k];
    uint64_t full[slots_k], empty[slots_k];
    uint64_t item_full[queue_k], item_empty[queue_k];
    uint64_t out_full[2], out_empty[2];  // a warpgroup's staged output, and leave to stage more

    static constexpr uint32_t at_slot = 0;
    __host__ __device__ static constexpr uint32_t at_stats(int parity, int side) {
        return slots_k * slot_bytes_k + (parity * 2 + side) * stats_k * 4;
    }
    static constexpr uint32_t at_item = slots_k * slot_bytes_k + 4 * stats_k * 4;
    static constexpr uint32_t at_full = at_item + queue_k * sizeof(item_t);
    static constexpr uint32_t at_empty = at_full + slots_k * 8;
    static constexpr uint32_t at_item_full = at_empty + slots_k * 8;
    static constexpr uint32_t at_item_empty = at_item_full + queue_k * 8;
    static constexpr uint32_t at_out_full = at_item_empty + queue_k * 8;
    static constexpr uint32_t at_out_empty = at_out_full + 16;
};
static_assert(offsetof(shared_t<true>, out_empty) == shared_t<true>::at_out_empty &&
              offsetof(shared_t<false>, out_empty) == shared_t<false>::at_out_empty);
static_assert(sizeof(shared_t<true>) + 1024 <= 232448 && sizeof(shared_t<false>) + 1024 <= 232448);

/// A reader's place in the queue of items.
struct queue_t {
    uint32_t at = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++at == queue_k) {
            at = 0;
            phase ^= 1;
        }
    }
};

template <bool fast_>
__device__ __forceinline__ item_t read_item(uint32_t base, queue_t& queue) {
    using shared = shared_t<fast_>;
    ptx::mbar_wait(base + shared::at_item_full + queue.at * 8, queue.phase);
    uint32_t const at = base + shared::at_item + queue.at * sizeof(item_t);
    uint4 const lo = ptx::load_b128(at), hi = ptx::load_b128(at + 16);
    __syncwarp();
    if ((threadIdx.x & 31) == 0) ptx::mbar_arrive(base + shared::at_item_empty + queue.at * 8);
    queue.next();
    auto const uniform = [](uint32_t v) {
        return __reduce_or_sync(~0u, v);
    };  // in uniform registers: the compiler sees that warps branch as one
    return {uniform(lo.x), uniform(lo.y), uniform(lo.z), uniform(lo.w),
            uniform(hi.x), uniform(hi.y), uniform(hi.z), uniform(hi.w)};
}
constexpr int item_readers_k = 8 + 2;  // warps: the consumers' and the two that store

/// How the sum of a gradient item runs: `transposed` blocks stored as (k, row), then `direct` ones stored as (row, k).
struct sum_t {
    uint32_t first;  // row block of the first k
    uint32_t transposed, direct;
    bool column_side;
};
__device__ __forceinline__ sum_t sum_of(params_t const& a, item_t const& item) {
    uint32_t const i0 = (item.origin >> 16) * strip_k, j0 = (item.origin & 0xffff) * strip_k, count = item.k >> 16;
    sum_t r;
    r.column_side = a.own && item.row / strip_k != i0 / strip_k;
    r.first = r.column_side ? i0 : j0;
    r.transposed = r.column_side ? count : a.own && item.row > j0 ? min(item.row - j0, count) : 0;
    r.direct = count - r.transposed;
    return r;
}

}  // namespace scaling_contrasts::sm90
