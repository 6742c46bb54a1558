// Shared memory of the two-set kernel, and what its threads carry from item to item.
//
// Warp 0 takes items and loads slabs of 48 KiB into a ring: score items 64 columns of 128 rows and of 256 columns of
// the grid, gradient items 128 x 64 weights and 64 rows of 256 columns. Warpgroups 1 and 2 multiply 64 x 256 each. They
// stage weights a quarter of a tile at a time; warps 2 and 3 store and publish them.
#pragma once
#include <cstddef>

#include "scaling_contrasts/ptx/barrier.cuh"
#include "scaling_contrasts/ptx/copy.cuh"
#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/ptx/wgmma.cuh"
#include "scaling_contrasts/sm90/stages.cuh"
#include "scaling_contrasts/sm90/two_set_params.cuh"

namespace scaling_contrasts::sm90::two_set {

constexpr int threads_k = 384, ring_k = 4, slab_bytes_k = 49152, queue_k = 4;
constexpr int statistics_k = 8;  // bands whose statistics are here: more than the bands that four slabs can hold

struct alignas(1024) shared_t {
    uint8_t slab[ring_k][slab_bytes_k];
    uint8_t stage[2][quarter_bytes_k / 2];             // of each warpgroup
    float statistics[statistics_k][2][column_tile_k];  // inverse norms and log sums of a tile's columns
    item_t item[queue_k];
    uint64_t full[ring_k], empty[ring_k];
    uint64_t item_full[queue_k], item_empty[queue_k];
    uint64_t out_full[2], out_empty[2];  // a warpgroup's staged output, and leave to stage more
};
static_assert(sizeof(shared_t) + 1024 <= 232448);
constexpr uint32_t at_stage_k = offsetof(shared_t, stage), at_statistics_k = offsetof(shared_t, statistics),
                   at_item_k = offsetof(shared_t, item), at_full_k = offsetof(shared_t, full),
                   at_empty_k = offsetof(shared_t, empty), at_item_full_k = offsetof(shared_t, item_full),
                   at_item_empty_k = offsetof(shared_t, item_empty), at_out_full_k = offsetof(shared_t, out_full),
                   at_out_empty_k = offsetof(shared_t, out_empty);

/// A place in a ring of `count_` and the parity of its uses.
template <uint32_t count_>
struct place_t {
    uint32_t at = 0, phase = 0;
    __device__ __forceinline__ void next() {
        if (++at == count_) {
            at = 0;
            phase ^= 1;
        }
    }
};

constexpr int item_readers_k = 8 + 2;  // warps: the consumers' and the two that store
__device__ __forceinline__ item_t read_item(uint32_t base, place_t<queue_k>& queue, bool whole_warp) {
    ptx::mbar_wait(base + at_item_full_k + queue.at * 8, queue.phase);
    uint32_t const at = base + at_item_k + queue.at * sizeof(item_t);
    uint4 const lo = ptx::load_b128(at), hi = ptx::load_b128(at + 16);
    if (whole_warp) __syncwarp();
    if (!whole_warp || (threadIdx.x & 31) == 0) ptx::mbar_arrive(base + at_item_empty_k + queue.at * 8);
    queue.next();
    if (!whole_warp) return {lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w};
    // in uniform registers: the compiler sees that warps branch as one
    auto const uniform = [](uint32_t v) { return __reduce_or_sync(~0u, v); };
    return {uniform(lo.x), uniform(lo.y), uniform(lo.z), uniform(lo.w),
            uniform(hi.x), uniform(hi.y), uniform(hi.z), uniform(hi.w)};
}

/// What a consumer thread carries from item to item.
struct consumer_t {
    uint32_t base;               // of shared memory
    int wg, warp, lane, thread;  // warpgroup 0 or 1, warp and thread in it
    place_t<ring_k> ring;
    uint32_t bands = 0;    // scored so far
    uint32_t outputs = 0;  // parity of the stagings so far
    uint32_t exact = 0;    // a bit a quarter: the last tile's logits were not far below zero

    __device__ __forceinline__ uint32_t wait_slab() const {
        ptx::mbar_wait(base + at_full_k + ring.at * 8, ring.phase);
        return base + ring.at * slab_bytes_k;
    }
    __device__ __forceinline__ void release(uint32_t slab) const {
        if (thread == 0) ptx::mbar_arrive(base + at_empty_k + slab * 8);
    }
    __device__ __forceinline__ void await_stage() const { ptx::mbar_wait(base + at_out_empty_k + wg * 8, outputs ^ 1); }
    __device__ __forceinline__ void hand_over() {
        __syncwarp();
        if (lane == 0) ptx::mbar_arrive(base + at_out_full_k + wg * 8);
        outputs ^= 1;
    }
};

}  // namespace scaling_contrasts::sm90::two_set
