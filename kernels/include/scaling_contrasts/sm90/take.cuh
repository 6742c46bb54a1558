// Taking items: from the queue of all CTAs to the queue of one CTA's warps.
#pragma once
#include "scaling_contrasts/sm90/shared.cuh"

namespace scaling_contrasts::sm90 {

/// Tells the warps of a CTA of its items.
template <class kind_>
struct item_writer_t {
    using shared = shared_t<kind_>;
    uint32_t base;
    queue_t queue;
    __device__ __forceinline__ explicit item_writer_t(uint32_t base) : base(base) {
        queue.n = queue_k;  // leaves are there from the start
    }
    __device__ __forceinline__ void push(item_t const& item) {
        ptx::mbar_wait(base + shared::at_item_empty + queue.at() * 8, queue.phase());
        uint32_t const at = base + shared::at_item + queue.at() * sizeof(item_t);
        ptx::store_b128(at, item.kind, item.row, item.at, item.index);
        ptx::store_b128(at + 16, item.slot, item.k, item.origin, item.count);
        ptx::mbar_arrive(base + shared::at_item_full + queue.at() * 8);
        queue.next();
    }
};

/// The taker: one thread. That of a cluster's first CTA takes numbers from the queue and sends them to the others, when
/// its producer wants another item: as soon as it loads the one before (`ahead`), or once it has loaded it.
template <class kind_>
__device__ __forceinline__ void take(params_t const& a, uint32_t base, cluster_place_t<kind_> const& place) {
    using shared = shared_t<kind_>;
    uint32_t const items = items_of<kind_>(a);
    item_writer_t<kind_> writer(base);
    scheduler_t<kind_> scheduler = {int(place.row), int(place.column)};
    ring_t<numbers_k> ring;
    bool first = true;
    uint32_t wants = 0;
    while (true) {
        uint32_t const at = shared::at_number + ring.at() * 4, full = shared::at_number_full + ring.at() * 8,
                       empty = shared::at_number_empty + ring.at() * 8;
        uint32_t n;
        if (kind_::ctas == 1 || place.rank == 0) {
            if (!first) {
                ptx::mbar_wait(base + shared::at_wanted, wants);
                wants ^= 1;
            }
            n = atomicAdd(a.next_item, 1u);
            if constexpr (kind_::ctas > 1) {
                ptx::mbar_wait(base + empty, ring.phase() ^ 1);
#pragma unroll
                for (uint32_t i = 1; i < kind_::ctas; ++i)
                    ptx::store_remote(ptx::remote(base + at, i), n, ptx::remote(base + full, i));
            }
        } else {
            ptx::mbar_expect(base + full, 4);
            ptx::mbar_wait(base + full, ring.phase());
            n = uint32_t(ptx::load_int(base + at));
            ptx::mbar_arrive_remote(ptx::remote(base + empty, 0));
        }
        ring.next();
        if (n >= items) break;
        item_t item;
        uint32_t scored_needed = 0;
        first = !scheduler.decode(a, n, item, scored_needed);
        if (first) continue;  // nothing was pushed: nobody will ask again
        item.kind |= scored_needed << 8;
        writer.push(item);
    }
    writer.push({stop_k, 0, 0, 0, 0, 0, 0, 0});
}

}  // namespace scaling_contrasts::sm90
