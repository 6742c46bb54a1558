// The kernel of the losses over two sets and of one_set_info_nce: persistent, one CTA an SM, scoring one superblock
// while others multiply the weights of earlier ones.
#pragma once
#include "scaling_contrasts/sm90/two_set_score.cuh"

namespace scaling_contrasts::sm90::two_set {

struct maps_t {
    CUtensorMap row, column;            // 64 columns x 128 or 256 rows, for scores
    CUtensorMap row_slab, column_slab;  // 64 columns x 64 rows x 4 of the next 64 columns, for gradients
};

/// One thread: takes items, tells the other warps of them, loads what they multiply.
template <pass_t pass_, bool ladder_>
struct producer_t {
    params_t const& a;
    maps_t const& maps;
    uint32_t base;
    place_t<ring_k> ring = {0, 1};
    place_t<queue_k> queue = {0, 1};
    uint32_t bands = 0;

    /// Waits until the next slab is free; its address. `bytes` are to come.
    __device__ __forceinline__ uint32_t open(uint32_t bytes) {
        ptx::mbar_wait(base + at_empty_k + ring.at * 8, ring.phase);
        ptx::mbar_expect(full(), bytes);
        return base + ring.at * slab_bytes_k;
    }
    __device__ __forceinline__ uint32_t full() const { return base + at_full_k + ring.at * 8; }

    __device__ __forceinline__ void score(item_t const& item) {
        constexpr uint32_t statistics_bytes = column_tile_k * 4;
        int column = 0;
        for (int p = 0; p < (ladder_ ? a.prefixes : 1); ++p) {
            for (int s = 0; s < a.slabs[p]; ++s, column += slab_k) {
                bool const last = s == a.slabs[p] - 1;  // brings what the cells need
                uint32_t const slab = open(slab_bytes_k + (last ? statistics_bytes * (is_softmax(pass_) ? 2 : 1) : 0));
                ptx::tma_load(slab, &maps.row, column, int(item.row) * row_tile_k, full());
                ptx::tma_load(slab + 16384, &maps.column, column, int(item.at) * column_tile_k, full());
                if (last) {
                    uint32_t const to = base + at_statistics_k + (bands++ % statistics_k) * (2 * statistics_bytes);
                    int64_t const from = int64_t(p) * a.column.padded + item.at * column_tile_k;
                    ptx::bulk_load(to, a.column.inverse + from, statistics_bytes, full());
                    if constexpr (is_softmax(pass_))
                        ptx::bulk_load(to + statistics_bytes, a.column.log_sums + from, statistics_bytes, full());
                }
                ring.next();
            }
        }
    }
    __device__ __forceinline__ void gradient(item_t const& item) {
        piece_t const piece = a.piece[item.at];
        bool const transposed = item.kind == column_gradient_k;
        int64_t const tile_bytes = int64_t(ladder_ ? a.prefixes : 1) * tile_bytes_k;
        uint8_t const* const plane = a.weights + item.slot * tile_bytes + piece.band * tile_bytes_k;
        CUtensorMap const* const map = transposed ? &maps.row_slab : &maps.column_slab;
        for (uint32_t k = 0; k < item.slabs; ++k) {
            uint32_t const slab = open(slab_bytes_k);
            if (transposed) {  // 64 rows of a tile, 128 of its columns
                uint8_t const* from = plane + k / 2 * a.wide * tile_bytes + (item.row & 1) * 2 * quarter_bytes_k +
                                      (k & 1) * (quarter_bytes_k / 2);
                ptx::bulk_load(slab, from, 8192, full());
                ptx::bulk_load(slab + 8192, from + quarter_bytes_k, 8192, full());
            } else {
                ptx::bulk_load(slab, plane + k / 4 * tile_bytes + k % 4 * quarter_bytes_k, quarter_bytes_k, full());
            }
            ptx::tma_load(slab + 16384, map, 0, int(item.first + k * slab_k), piece.column / 64, full());
            ring.next();
        }
    }
    __device__ __forceinline__ void push(item_t const& item) {
        ptx::mbar_wait(base + at_item_empty_k + queue.at * 8, queue.phase);
        uint32_t const at = base + at_item_k + queue.at * sizeof(item_t);
        ptx::store_b128(at, item.kind, item.row, item.at, item.index);
        ptx::store_b128(at + 16, item.slot, item.wait, item.first, item.slabs);
        ptx::mbar_arrive(base + at_item_full_k + queue.at * 8);
        queue.next();
    }
    __device__ __forceinline__ void run() {
        uint32_t const items = items_of(a);
        item_t
            now = {},
            item;  // the next item goes to the consumers before this one is loaded, so that nobody waits for the queue
        uint32_t needed = 0, next_needed = 0;
        do {
            uint32_t n;
            do n = atomicAdd(a.next_item, 1u);
            while (n < items && !(decode<is_grouped(pass_)>(a, n, item, next_needed) && is_wanted<pass_>(a, item)));
            if (n >= items) item.kind = stop_k;
            push(item);
            if (now.kind == score_k) {
                score(now);
            } else if (!is_sum(pass_) && now.kind != stop_k) {
                stopwatch_t watch;
                ptx::wait_count(a.scored + now.index, needed);
                watch.lap(producer_wait_k, true);
                ptx::fence_async();
                gradient(now);
            }
            now = item;
            needed = next_needed;
        } while (item.kind != stop_k);
    }
};

/// Block of gradient tiles that an item adds to, as `turn` counts them.
template <bool grouped_>
__device__ __forceinline__ int turn_of(params_t const& a, item_t const& item) {
    bool const offset = item.kind == column_gradient_k && !(grouped_ && a.triangle);
    return item.row + (offset ? a.row.blocks() : 0);
}

/// One thread a consumer warpgroup: stores what it staged, then tells the other CTAs.
template <bool ladder_, bool grouped_>
__device__ __forceinline__ void publish(params_t const& a, uint32_t base, int wg) {
    uint32_t const out_full = base + at_out_full_k + wg * 8, out_empty = base + at_out_empty_k + wg * 8,
                   staged = base + at_stage_k + wg * (quarter_bytes_k / 2);
    place_t<queue_k> queue;
    uint32_t outputs = 0;
    auto next = [&] {
        ptx::mbar_wait(out_full, outputs);
        outputs ^= 1;
    };
    while (true) {
        item_t const item = read_item(base, queue, false);
        if (item.kind == stop_k) return;
        if (item.kind != score_k) {
            next();
            int const row = turn_of<grouped_>(a, item);
            ptx::fence_gpu();
            ptx::add_release(a.consumed + item.index, 1);
            ptx::store_release(a.turn + (row * a.pieces + item.at) * 2 + wg, item.wait + 1);
            ptx::mbar_arrive(out_empty);
        } else if (a.output) {
            int const prefixes = ladder_ ? a.prefixes : 1;
            uint8_t* const tile = a.weights + int64_t(item.slot) * prefixes * tile_bytes_k + wg * (quarter_bytes_k / 2);
            stopwatch_t watch;
            if (item.wait) ptx::wait_count(a.consumed + item.index - a.ring, item.wait);
            watch.lap(publisher_wait_k, true);
            ptx::fence_async();
            for (int p = prefixes - 1; p >= 0; --p)
                for (int q = 0; q < 4; ++q) {
                    next();
                    ptx::bulk_store(tile + p * tile_bytes_k + q * quarter_bytes_k, staged, quarter_bytes_k / 2);
                    ptx::bulk_commit();
                    ptx::bulk_wait_read<0>();
                    ptx::mbar_arrive(out_empty);
                }
            ptx::bulk_wait<0>();
            ptx::fence_async();
            ptx::add_release(a.scored + item.index, 1);
        }
    }
}

template <int trans_a_>
__device__ __forceinline__ void multiply_weights(consumer_t& c, float (&acc)[128], uint32_t slabs) {
    uint32_t before = 0;
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s) {
        uint32_t const slab = c.wait_slab();
        uint64_t const da = ptx::operand(slab + c.wg * 8192), db = ptx::operand(slab + 16384, 8192);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k)
            ptx::wgmma_n256<trans_a_, 1>(acc, da + k * (trans_a_ ? 128 : 2), db + k * 128, k > 0 ? 1 : s > 0);
        ptx::wgmma_commit();
        if (s > 0) {
            ptx::wgmma_wait<1>();
            c.release(before);
        }
        before = c.ring.at;
        c.ring.next();
    }
    ptx::wgmma_wait<0>();
    c.release(before);
}

/// 128 rows x 256 columns of dI += W C or dC += W^T I over one superblock. Sums go to fp32 tiles in memory, in the
/// order in which threads hold them, one superblock after the other: `turn` counts the shares added, so that the order,
/// and every bit, repeats.
template <bool grouped_>
__device__ __forceinline__ void gradient_item(params_t const& a, item_t const& item, consumer_t& c) {
    bool const transposed = item.kind == column_gradient_k;
    side_t const& side = transposed ? a.column : a.row;
    uint32_t const* turn = a.turn + (turn_of<grouped_>(a, item) * a.pieces + item.at) * 2 + c.wg;
    uint32_t seen = 0;  // looked up early, so that the answer is here when it is needed
    if (c.lane == 0 && item.wait) seen = *const_cast<uint32_t const volatile*>(turn);
    stopwatch_t watch;
    float acc[128];
    if (transposed) multiply_weights<1>(c, acc, item.slabs);
    else multiply_weights<0>(c, acc, item.slabs);
    watch.lap(transposed ? narrow_products_k : wide_products_k, c.thread == 0);
    watch.count(transposed ? narrow_items_k : wide_items_k, c.thread == 0);
    c.await_stage();
    if (c.lane == 0 && seen < item.wait) ptx::wait_count(turn, item.wait);
    __syncwarp();
    float* out = side.dx + (int64_t(item.row) * a.pieces + item.at) * share_k + c.wg * (share_k / 2) + c.thread * 4;
    if (item.wait == 0 && !side.accumulate) {
#pragma unroll
        for (int j = 0; j < 32; ++j)
            ptx::store(out + j * 512, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    } else {
#pragma unroll
        for (int j = 0; j < 32; ++j)
            ptx::red_add(out + j * 512, acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]);
    }
    c.hand_over();
    watch.lap(gradient_output_k, c.thread == 0);
}

template <pass_t pass_, bool ladder_>
__global__ void __launch_bounds__(threads_k, 1)
    step_kernel(maps_t const __grid_constant__ maps, params_t const __grid_constant__ a) {
    extern __shared__ uint8_t raw[];
    uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u;
    int const group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x & 31;

    if (threadIdx.x == 0) {
        for (int i = 0; i < ring_k; ++i) {
            ptx::mbar_init(base + at_full_k + i * 8, 1);
            ptx::mbar_init(base + at_empty_k + i * 8, 2);  // one arrival a warpgroup
        }
        for (int i = 0; i < queue_k; ++i) {
            ptx::mbar_init(base + at_item_full_k + i * 8, 1);
            ptx::mbar_init(base + at_item_empty_k + i * 8, item_readers_k);
        }
        for (int i = 0; i < 2; ++i) {
            ptx::mbar_init(base + at_out_full_k + i * 8, 4);
            ptx::mbar_init(base + at_out_empty_k + i * 8, 1);
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();

    if (group == 0) {
        ptx::reg_free<40>();
        int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (lane == 0) {
            if (warp == 0) producer_t<pass_, ladder_>{a, maps, base}.run();
            else if (warp >= 2) publish<ladder_, is_grouped(pass_)>(a, base, warp - 2);
        }
    } else {
        ptx::reg_alloc<232>();
        consumer_t c;
        c.base = base;
        c.wg = group - 1;
        c.warp = __shfl_sync(~0u, threadIdx.x / 32 & 3, 0);
        c.lane = lane;
        c.thread = threadIdx.x & 127;
        scales_t const scale = scales_of<is_grouped(pass_)>(a);
        place_t<queue_k> queue;
        while (true) {
            stopwatch_t watch;
            item_t const item = read_item(base, queue, true);
            watch.lap(item_wait_k, c.thread == 0);
            if (item.kind == stop_k) break;
            if (item.kind == score_k) score_item<pass_, ladder_>(a, item, c, scale);
            else if constexpr (!is_sum(pass_)) gradient_item<is_grouped(pass_)>(a, item, c);
        }
    }
}

}  // namespace scaling_contrasts::sm90::two_set
