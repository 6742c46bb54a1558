// The producer: one warp that takes items, tells the other warps of them, and loads what they multiply. All its lanes do
// the same, so that addresses are in uniform registers, where copies take them from; one of them issues. (Two threads,
// one for the rows and one for the columns, were no faster, and neither was a warp of its own that takes the items: see
// docs/performance.md.)
#pragma once
#include "scaling_contrasts/sm90/one_launch.cuh"
#include "scaling_contrasts/sm90/softmax_shares.cuh"

namespace scaling_contrasts::sm90 {

/// How rows are read: boxes of 64 columns.
struct maps_t {
    CUtensorMap row;     // 64 of the rows that get gradients
    CUtensorMap column;  // 128 candidates
    CUtensorMap single;  // 64 candidates
    CUtensorMap pair;    // 64 candidates, twice 64 columns side by side
};
/// The same, and what candidates' gradients are sums of.
struct both_maps_t : maps_t {
    CUtensorMap row_pair;  // like `pair`, of the rows
};
template <class kind_>
using maps_of = std::conditional_t<kind_::both, both_maps_t, maps_t>;

template <class kind_>
struct producer_t {
    using shared = shared_t<kind_>;
    params_of<kind_> const& a;
    maps_of<kind_> const& maps;
    uint32_t base;
    ring_t<shared::score_stages_k> score_ring;
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
    __device__ __forceinline__ void await_drained() {
        if (kind_::fast && undrained) {
            ptx::mbar_wait(base + shared::at_drained, drains);
            drains ^= 1;
            undrained = false;
        }
    }

    __device__ __forceinline__ void score(item_t const& item) {
        if (!scored) await_all(gradient_ring, shared::score_stages_k);
        scored = true;
        int const prefixes = kind_::fast ? 5 : a.prefixes, slabs = kind_::fast ? 16 : a.columns / slab_k;
        float const* row_stats = a.row.records + int64_t(item.row) * record_floats(prefixes);
        float const* column_stats = a.column.records + int64_t(item.at) * record_floats(prefixes) + prefixes * tile_k;
        uint32_t const stats_bytes = (prefixes + 1) * shared::side_k * 4;
        [[maybe_unused]] constexpr uint32_t share_bytes = (share_floats(5) - column_shares(5)) * 4;
        if (slabs == 1)
            await_all(score_ring, 0);  // or tile n + 2 follows tile n's only slab, whose statistics are in use
        int const row = int(item.row * tile_k + (item.k & 1) * (tile_k / 2)), column = int(item.at) * tile_k;
        auto const load = [&](int s, uint32_t more_bytes, auto const& load_more) {
            uint32_t const at = base + score_ring.at() * shared::score_stage_bytes_k,
                           full = base + shared::at_full + score_ring.at() * 8;
            ptx::mbar_wait(base + shared::at_empty + score_ring.at() * 8, score_ring.phase() ^ 1);
            if (ptx::elect()) {
                ptx::mbar_expect(full, shared::score_stage_bytes_k + more_bytes);
                ptx::tma_load(at, &maps.row, s * slab_k, row, full);
                if constexpr (kind_::small_items)
                    ptx::tma_load(at + rows_bytes_k, &maps.single, s * slab_k, column + (item.k >> 2) * 64, full);
                else ptx::tma_load(at + rows_bytes_k, &maps.column, s * slab_k, column, full);
                load_more(full);
            }
            score_ring.next();
        };
        // the statistics are safe: slab 0 of tile n + 2 is loaded after every consumer has multiplied one of n + 1
        uint32_t const stats = base + shared::at_stats(0, 0) + (item.k & 2) * shared::stats_k * 4;
        auto const load_stats = [&](uint32_t full) {
            if constexpr (kind_::small_items) {  // half of each row of numbers
#pragma unroll 1
                for (int p = 0; p < 6; ++p) {
                    uint32_t const to = stats + p * shared::side_k * 4;
                    ptx::bulk_load(to, row_stats + p * tile_k + (item.k & 1) * 64, shared::side_k * 4, full);
                    ptx::bulk_load(to + shared::stats_k * 4, column_stats + p * tile_k + (item.k >> 2) * 64,
                                   shared::side_k * 4, full);
                }
                return;
            }
            if constexpr (kind_::softmax) {
                float const* const shares = a.column.shares + int64_t(item.at) * share_floats(5) + column_shares(5);
                ptx::bulk_load(stats, shares, share_bytes, full);
            } else {
                ptx::bulk_load(stats, row_stats, stats_bytes, full);
            }
            ptx::bulk_load(stats + shared::stats_k * 4, column_stats, stats_bytes, full);
        };
        if constexpr (kind_::one_launch) {  // they are found under the first loads
#pragma unroll 1
            for (int s = 0; s < slabs; ++s) {
                load(s, 0, [](uint32_t) {});
                if (s != shared::score_stages_k - 1) continue;
                if (ptx::elect()) {
                    await_statistics(a, item.row);
                    if (item.at != item.row) await_statistics(a, item.at);
                    ptx::fence_async();
                    ptx::mbar_expect(base + shared::at_stats_full, 2 * stats_bytes);
                    load_stats(base + shared::at_stats_full);
                }
                __syncwarp();
            }
        } else {
            load(0, stats_bytes + (kind_::softmax ? share_bytes : stats_bytes), load_stats);
#pragma unroll 1
            for (int s = 1; s < slabs; ++s) load(s, 0, [](uint32_t) {});
        }
        await_drained();  // of the item before: long done
        undrained = true;
    }

    /// What a sum multiplies: candidates, or rows where it is one of candidates' gradients.
    __device__ __forceinline__ CUtensorMap const* single(bool column_side) const {
        return kind_::both && column_side ? &maps.row : &maps.single;
    }
    __device__ __forceinline__ CUtensorMap const* pair(bool column_side) const {
        if constexpr (kind_::both)
            if (column_side) return &maps.row_pair;
        return &maps.pair;
    }

    __device__ __forceinline__ void gradient(item_t const& item) {
        if (scored) await_all(score_ring, 0);
        scored = false;
        sum_t const sum = sum_of<kind_>(a, item);
        program_t const program = a.program[item.at];
        bool const narrow = program.width < piece_k;
        auto const fill = [&](auto const& copy) {
            uint32_t const at = base + gradient_ring.at() * gradient_stage_bytes_k,
                           full = base + shared::at_full + (shared::score_stages_k + gradient_ring.at()) * 8;
            // the stash lies under the later stages
            if (gradient_ring.at() >= shared::at_stash / gradient_stage_bytes_k) await_drained();
            ptx::mbar_wait(base + shared::at_empty + (shared::score_stages_k + gradient_ring.at()) * 8,
                           gradient_ring.phase() ^ 1);
            if (ptx::elect()) copy(at, full);
            gradient_ring.next();
        };
        uint32_t const width = strip_k * a.wide, i0 = (item.origin >> 16) * strip_k,
                       j0 = (item.origin & 0xffff) * strip_k;
        uint32_t const block_bytes = (kind_::fast ? 5 : a.prefixes) * plane_bytes_k;
#pragma unroll 1
        for (uint32_t k = 0; k < sum.transposed + sum.direct; ++k) {
            bool const transposed = k < sum.transposed;
            uint32_t const block = sum.first + k;
            uint32_t const tile =
                item.slot + (transposed ? (block - i0) * width + item.row - (kind_::both ? first_candidate(a) : 0) - j0
                                        : (item.row - i0) * width + block - j0);
            uint8_t const* weights = a.weights + int64_t(tile) * block_bytes;
#pragma unroll 1
            for (uint32_t slab = 0; slab < 2; ++slab) {
                int const row = int(block) * tile_k + int(slab) * slab_k;
                uint8_t const* plane = weights + program.band * plane_bytes_k;
                fill([&](uint32_t at, uint32_t full) {
                    ptx::mbar_expect(full, gradient_stage_bytes_k - (narrow ? slab_k * 128 : 0));
                    if (!transposed) {  // all 128 rows of the tile, 64 of its columns
                        ptx::bulk_load(at, plane + slab * (plane_bytes_k / 2), plane_bytes_k / 2, full);
                    } else {  // 64 of its rows, all columns: two halves
                        ptx::bulk_load(at, plane + slab * 8192, 8192, full);
                        ptx::bulk_load(at + 8192, plane + slab * 8192 + plane_bytes_k / 2, 8192, full);
                    }
                    uint32_t const rows = at + gradient_stage_bytes_k / 2;
                    if (narrow) ptx::tma_load(rows, single(sum.column_side), program.column, row, full);
                    else ptx::tma_load(rows, pair(sum.column_side), 0, row, program.column / slab_k, full);
                });
            }
        }
        if (kind_::one_launch && completes<kind_>(a, item, sum))  // the rows themselves, for their norms' share
            fill([&](uint32_t at, uint32_t full) {
                ptx::mbar_expect(full, narrow ? 2 * slab_k * 128 : gradient_stage_bytes_k);
                for (int half = 0; half < 2; ++half) {
                    int const row = int(item.row) * tile_k + half * slab_k;
                    uint32_t const to = at + half * (gradient_stage_bytes_k / 2);
                    if (narrow) ptx::tma_load(to, &maps.single, program.column, row, full);
                    else ptx::tma_load(to, &maps.pair, 0, row, program.column / slab_k, full);
                }
            });
    }
};

template <class kind_>
__device__ __forceinline__ void produce(params_of<kind_> const& a, maps_of<kind_> const& maps, uint32_t base) {
    using shared = shared_t<kind_>;
    bool const leader = (threadIdx.x & 31) == 0;
    producer_t<kind_> producer = {a, maps, base, {}, {}};
    uint32_t const items = items_of<kind_>(a);
    queue_t queue;
    queue.n = queue_k;  // leaves are there from the start
    scheduler_t<kind_> scheduler;
    auto push = [&](item_t const& item) {
        ptx::mbar_wait(base + shared::at_item_empty + queue.at() * 8, queue.phase());
        uint32_t const at = base + shared::at_item + queue.at() * sizeof(item_t);
        if (ptx::elect()) {
            ptx::store_b128(at, item.kind, item.row, item.at, item.index);
            ptx::store_b128(at + 16, item.slot, item.k, item.origin, item.count);
            ptx::mbar_arrive(base + shared::at_item_full + queue.at() * 8);
        }
        queue.next();
    };
    while (true) {
        uint32_t n = 0;
        if (leader) n = atomicAdd(a.next_item, 1u);
        n = __reduce_or_sync(~0u, n);
        if (n >= items) break;
        item_t item;
        if (!scheduler.decode(a, n, item)) continue;
        push(item);
        if (item.kind == score_k) {
            producer.score(item);
        } else {
            stopwatch_t watch;
            await_scored<kind_>(a, item);
            __syncwarp();
            watch.lap(producer_wait_k, leader);
            ptx::fence_async();
            producer.gradient(item);
        }
    }
    push({stop_k, 0, 0, 0, 0, 0, 0, 0});
}

}  // namespace scaling_contrasts::sm90
