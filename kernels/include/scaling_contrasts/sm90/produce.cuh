// The producer: one thread that loads what the other warps multiply and, where no other warp does, takes items and
// tells of them. (Two threads, one for the rows and one for the columns, were no faster: see docs/performance.md.)
#pragma once
#include "scaling_contrasts/sm90/take.cuh"

namespace scaling_contrasts::sm90 {

/// How rows are read: boxes of 64 columns. In a cluster, boxes are a CTA's share.
struct maps_t {
    CUtensorMap row;     // 64 of the rows that get gradients
    CUtensorMap column;  // 128 candidates
    CUtensorMap single;  // 64 candidates
    CUtensorMap pair;    // 64 candidates, twice 64 columns side by side; a CTA's share is one of the two
};

template <class kind_>
struct producer_t {
    using shared = shared_t<kind_>;
    params_t const& a;
    maps_t const& maps;
    uint32_t base;
    cluster_place_t<kind_> place;
    ring_t<score_stages_k> score_ring;
    ring_t<shared::gradient_stages_k> gradient_ring;
    uint32_t drains = 0;
    bool scored = false, undrained = false;  // the last item was a score; its planes may still lie in the stash

    /// Waits until everything that `ring` was filled with has been consumed.
    template <int size_>
    __device__ __forceinline__ void await_all(ring_t<size_> const& ring, uint32_t first) {
        for (uint32_t i = 0; i < size_; ++i)
            ptx::mbar_wait(base + shared::at_empty + (first + i) * 8,
                           (i >= ring.at() ? ring.phase() : ring.phase() ^ 1) ^ 1);
    }
    /// A box of rows, `bytes` in all, of which this CTA copies its share: to all CTAs that need it.
    enum share_t { by_row, by_column };
    __device__ __forceinline__ void load(uint32_t at, CUtensorMap const* map, int x, int y, uint32_t full,
                                         uint32_t bytes, share_t by) {
        uint32_t const parts = by == by_row ? kind_::broad : kind_::high;
        uint32_t const part = by == by_row ? place.column : place.row;
        if (parts == 1) return ptx::tma_load(at, map, x, y, full);
        ptx::tma_load_multicast(at + part * (bytes / parts), map, x, y + int(part * (bytes / 128 / parts)), full,
                                by == by_row ? place.row_mask() : place.column_mask());
    }
    __device__ __forceinline__ void await_drained() {
        if (kind_::fast && undrained) {
            ptx::mbar_wait(base + shared::at_drained, drains);
            drains ^= 1;
            undrained = false;
        }
    }

    __device__ __forceinline__ void score(item_t const& item) {
        if (!scored) await_all(gradient_ring, score_stages_k);
        scored = true;
        int const prefixes = kind_::fast ? 5 : a.prefixes, slabs = kind_::fast ? 16 : a.columns / slab_k;
        float const* row_stats = a.row.records + int64_t(item.row) * record_floats(prefixes);
        float const* column_stats = a.column.records + int64_t(item.at) * record_floats(prefixes) + prefixes * tile_k;
        uint32_t const stats_bytes = (prefixes + 1) * tile_k * 4;
        if (slabs == 1)
            await_all(score_ring, 0);  // or tile n + 2 follows tile n's only slab, whose statistics are in use
#pragma unroll 1
        for (int s = 0; s < slabs; ++s) {
            uint32_t const at = base + score_ring.at() * score_stage_bytes_k,
                           full = base + shared::at_full + score_ring.at() * 8;
            ptx::mbar_wait(base + shared::at_empty + score_ring.at() * 8, score_ring.phase() ^ 1);
            ptx::mbar_expect(full, score_stage_bytes_k + (s == 0 ? 2 * stats_bytes : 0));
            load(at, &maps.row, s * slab_k, int(item.row * tile_k + (item.k & 1) * (tile_k / 2)), full, rows_bytes_k,
                 by_row);
            load(at + rows_bytes_k, &maps.column, s * slab_k, int(item.at) * tile_k, full, columns_bytes_k, by_column);
            if (s == 0) {  // safe: slab 0 of tile n + 2 is loaded after every consumer has multiplied one of n + 1
                uint32_t const stats = base + shared::at_stats(0, 0) + (item.k & 2) * shared::stats_k * 4;
                ptx::bulk_load(stats, row_stats, stats_bytes, full);
                ptx::bulk_load(stats + shared::stats_k * 4, column_stats, stats_bytes, full);
            }
            score_ring.next();
        }
        await_drained();  // of the item before: long done
        undrained = true;
    }

    __device__ __forceinline__ void gradient(item_t const& item) {
        if (scored) await_all(score_ring, 0);
        scored = false;
        sum_t const sum = sum_of<kind_>(a, item);
        program_t const program = a.program[item.at];
        bool const narrow = program.width < piece_k;
        bool const shared_weights = kind_::broad > 1 && a.program[item.at ^ 1].band == program.band;
        uint32_t const width = strip_k * a.wide, i0 = (item.origin >> 16) * strip_k,
                       j0 = (item.origin & 0xffff) * strip_k;
        uint32_t const block_bytes = (kind_::fast ? 5 : a.prefixes) * plane_bytes_k;
#pragma unroll 1
        for (uint32_t k = 0; k < sum.transposed + sum.direct; ++k) {
            bool const transposed = k < sum.transposed;
            uint32_t const block = sum.first + k;
            uint32_t const tile =
                item.slot + (transposed ? (block - i0) * width + item.row - j0 : (item.row - i0) * width + block - j0);
            uint8_t const* weights = a.weights + int64_t(tile) * block_bytes;
#pragma unroll 1
            for (uint32_t slab = 0; slab < 2; ++slab) {
                int const row = int(block) * tile_k + int(slab) * slab_k;
                uint32_t const at = base + gradient_ring.at() * gradient_stage_bytes_k,
                               full = base + shared::at_full + (score_stages_k + gradient_ring.at()) * 8;
                if (gradient_ring.at() > 0) await_drained();  // the stash lies under the later stages
                ptx::mbar_wait(base + shared::at_empty + (score_stages_k + gradient_ring.at()) * 8,
                               gradient_ring.phase() ^ 1);
                ptx::mbar_expect(full, gradient_stage_bytes_k - (narrow ? slab_k * 128 : 0));
                // all 128 rows of the tile, 64 of its columns; transposed 64 of its rows, all columns: two pieces
                uint8_t const* plane =
                    weights + program.band * plane_bytes_k + slab * (transposed ? 8192 : plane_bytes_k / 2);
                uint32_t const apart = transposed ? plane_bytes_k / 2 : 8192;
                if (shared_weights) {
                    ptx::bulk_load_multicast(at + place.column * 8192, plane + place.column * apart, 8192, full,
                                             place.row_mask());
                } else if (!transposed) {
                    ptx::bulk_load(at, plane, plane_bytes_k / 2, full);
                } else {
                    ptx::bulk_load(at, plane, 8192, full);
                    ptx::bulk_load(at + 8192, plane + apart, 8192, full);
                }
                uint32_t const rows = at + gradient_stage_bytes_k / 2;
                if (narrow) load(rows, &maps.single, program.column, row, full, 8192, by_column);
                else if (kind_::high == 1) ptx::tma_load(rows, &maps.pair, 0, row, program.column / slab_k, full);
                else
                    ptx::tma_load_multicast(rows + place.row * 8192, &maps.pair,
                                            program.column + int(place.row) * slab_k, row, full, place.column_mask());
                gradient_ring.next();
            }
        }
    }
};

/// Where nobody else takes items.
template <class kind_>
__device__ __forceinline__ void take_and_produce(params_t const& a, producer_t<kind_>& producer) {
    uint32_t const items = items_of<kind_>(a);
    item_writer_t<kind_> writer(producer.base);
    scheduler_t<kind_> scheduler;
    while (true) {
        uint32_t const n = atomicAdd(a.next_item, 1u);
        if (n >= items) break;
        item_t item;
        uint32_t scored_needed = 0;
        if (!scheduler.decode(a, n, item, scored_needed)) continue;
        writer.push(item);
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
    writer.push({stop_k, 0, 0, 0, 0, 0, 0, 0});
}

template <class kind_>
__device__ __forceinline__ void produce(params_t const& a, maps_t const& maps, uint32_t base,
                                        cluster_place_t<kind_> const& place) {
    using shared = shared_t<kind_>;
    producer_t<kind_> producer = {a, maps, base, place, {}, {}};
    if constexpr (!kind_::taker) return take_and_produce(a, producer);
    queue_t queue;
    while (true) {
        item_t item = read_item_alone<kind_>(base, queue);
        uint32_t const scored_needed = item.kind >> 8;
        item.kind &= 0xff;
        if (item.kind == stop_k) return;
        if (a.ahead) ptx::mbar_arrive(base + shared::at_wanted);
        if (item.kind == score_k || item.kind == no_score_k) {
            producer.score(item);
        } else {
            stopwatch_t watch;
            ptx::wait_count(a.scored + item.index, scored_needed);
            watch.lap(producer_wait_k, true);
            ptx::fence_async();
            producer.gradient(item);
        }
        if (!a.ahead) ptx::mbar_arrive(base + shared::at_wanted);
    }
}

}  // namespace scaling_contrasts::sm90
