// The producer: one thread that takes items, tells the other warps of them, and loads what they multiply. (Two threads, one for the
// rows and one for the columns, were no faster: see docs/performance.md.)
#pragma once
#include "scaling_contrasts/sm90/shared.cuh"

namespace scaling_contrasts::sm90 {

struct maps_t {
    CUtensorMap row, column;  // 64 columns x 128 rows
    CUtensorMap slab, half;   // 64 columns x 64 rows x 4 or 2 of the next 64 columns
};

template <bool fast_>
struct producer_t {
    using shared = shared_t<fast_>;
    params_t const& a;
    maps_t const& maps;
    uint32_t base;
    uint32_t used = 0;  // a bit a slot: parity of its fills
    uint32_t score_head = 0, parity = 0;

    __device__ __forceinline__ uint32_t open(uint32_t slot) {  // waits until the slot is free
        ptx::mbar_wait(base + shared::at_empty + slot * 8, (used >> slot & 1) ^ 1);
        used ^= 1u << slot;
        return base + shared::at_full + slot * 8;
    }

    __device__ __forceinline__ void score(item_t const& item) {
        int const prefixes = fast_ ? 5 : a.prefixes, slabs = fast_ ? 16 : a.columns / slab_k;
        float const* row_stats = a.row.records + int64_t(item.row) * record_floats(prefixes);
        float const* column_stats = a.column.records + int64_t(item.at) * record_floats(prefixes) + prefixes * tile_k;
        uint32_t const stats_bytes = (prefixes + 1) * tile_k * 4;
        for (int s = 0; s < slabs; ++s) {
            for (int side = 0; side < 2; ++side) {
                uint32_t const slot = score_head, full = open(slot);
                if (++score_head == score_ring_k) score_head = 0;
                ptx::mbar_expect(full, slot_bytes_k + (s == 0 ? stats_bytes : 0));
                ptx::tma_load(base + slot * slot_bytes_k, side == 0 ? &maps.row : &maps.column, s * slab_k,
                              int(side == 0 ? item.row : item.at) * tile_k, full);
                if (s ==
                    0)  // safe: slab 0 of tile n + 2 is loaded after every consumer has begun the last band of tile n + 1
                    ptx::bulk_load(base + shared::at_stats(0, side) + parity * 2 * shared::stats_k * 4,
                                   side == 0 ? row_stats : column_stats, stats_bytes, full);
            }
            if (fast_ && s == 2)  // the stash: free once the last gradient item has left it
                for (int i = first_stash_k; i < first_stash_k + 2 * stash_k; ++i) ptx::mbar_arrive(open(i));
        }
        parity ^= 1;
    }

    __device__ __forceinline__ void gradient(item_t const& item) {
        sum_t const sum = sum_of(a, item);
        program_t const program = a.program[item.at];
        bool const narrow = fast_ && program.band < 0;
        int const side = program.column / 64;
        uint32_t const width = strip_k * a.wide, i0 = (item.origin >> 16) * strip_k,
                       j0 = (item.origin & 0xffff) * strip_k;
        uint32_t const block_bytes = (fast_ ? 5 : a.prefixes) * plane_bytes_k;
        uint32_t slot = 0;
        auto advance = [&] {
            if (++slot == shared::wide_ring_k) slot = 0;
        };
        for (uint32_t k = 0; k < sum.transposed + sum.direct; ++k) {
            bool const transposed = k < sum.transposed;
            uint32_t const block = sum.first + k;
            uint32_t const tile =
                item.slot + (transposed ? (block - i0) * width + item.row - j0 : (item.row - i0) * width + block - j0);
            uint8_t const* weights = a.weights + int64_t(tile) * block_bytes;
#pragma unroll 1
            for (uint32_t slab = 0; slab < 2; ++slab) {
                auto load_weights = [&](int band) {
                    uint32_t const full = open(slot), dst = base + slot * slot_bytes_k;
                    uint8_t const* plane = weights + band * plane_bytes_k;
                    ptx::mbar_expect(full, slot_bytes_k);
                    if (!transposed) {  // all 128 rows of the tile, 64 of its columns
                        ptx::bulk_load(dst, plane + slab * (plane_bytes_k / 2), slot_bytes_k, full);
                    } else {  // 64 of its rows, all columns: two halves
                        ptx::bulk_load(dst, plane + slab * 8192, 8192, full);
                        ptx::bulk_load(dst + 8192, plane + slab * 8192 + plane_bytes_k / 2, 8192, full);
                    }
                    advance();
                };
                int const row = int(block) * tile_k + int(slab) * slab_k;
                if (narrow) {  // rows, then one plane or two
                    uint32_t const full = open(slot);
                    ptx::mbar_expect(full, slot_bytes_k);
                    ptx::tma_load(base + slot * slot_bytes_k, &maps.half, 0, row, side, full);
                    advance();
                    if (program.band == right_k) load_weights(2);
                    else load_weights(1), load_weights(0);
                } else {
                    load_weights(program.band);  // and rows, in one copy for two slots, counted on the first
                    uint32_t const full = open(slot), second = open(slot + 1);
                    ptx::mbar_expect(full, 2 * slot_bytes_k);
                    ptx::tma_load(base + slot * slot_bytes_k, &maps.slab, 0, row, program.column / 64, full);
                    ptx::mbar_arrive(second);
                    advance(), advance();
                }
            }
        }
    }
};

template <bool fast_>
__device__ __forceinline__ void produce(params_t const& a, maps_t const& maps, uint32_t base) {
    using shared = shared_t<fast_>;
    producer_t<fast_> producer = {a, maps, base};
    uint32_t const items = items_of(a);
    queue_t queue;
    queue.phase = 1;
    scheduler_t scheduler;
    auto push = [&](item_t const& item) {
        ptx::mbar_wait(base + shared::at_item_empty + queue.at * 8, queue.phase);
        uint32_t const at = base + shared::at_item + queue.at * sizeof(item_t);
        ptx::store_b128(at, item.kind, item.row, item.at, item.index);
        ptx::store_b128(at + 16, item.slot, item.k, item.origin, item.count);
        ptx::mbar_arrive(base + shared::at_item_full + queue.at * 8);
        queue.next();
    };
    while (true) {
        uint32_t const n = atomicAdd(a.next_item, 1u);
        if (n >= items) break;
        item_t item;
        uint32_t scored_needed = 0;
        if (!scheduler.decode(a, n, item, scored_needed)) continue;
        push(item);
        if (item.kind == score_k) {
            producer.score(item);
        } else {
            stopwatch_t watch;
            ptx::wait_count(a.scored + item.index, scored_needed);
            watch.lap(producer_wait_k, true);
            ptx::fence_async();
            producer.gradient(item);
        }
    }
    push({stop_k, 0, 0, 0, 0, 0, 0, 0});
}

}  // namespace scaling_contrasts::sm90
