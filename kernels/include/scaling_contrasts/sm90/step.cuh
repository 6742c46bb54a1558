// The step kernel: persistent, two CTAs an SM, scoring one superblock while others multiply the weights of earlier
// ones.
#pragma once
#include "scaling_contrasts/sm90/finish_share.cuh"
#include "scaling_contrasts/sm90/produce.cuh"
#include "scaling_contrasts/sm90/score.cuh"

namespace scaling_contrasts::sm90 {

/// One warp: stores what the consumer warpgroup staged, then tells the other CTAs. Runs on lane 0 alone.
template <class kind_>
__device__ __forceinline__ void publish(params_t const& a, uint32_t base) {
    using shared = shared_t<kind_>;
    uint32_t const out_full = base + shared::at_out_full, out_empty = base + shared::at_out_empty;
    queue_t queue;
    uint32_t outputs = 0;
    while (true) {
        item_t const item = read_item_alone<kind_>(base, queue);
        if (item.kind == stop_k) return;
        if (item.kind == gradient_k) {
            ptx::mbar_wait(out_full, outputs);
            outputs ^= 1;
            if constexpr (kind_::one_launch)
                if (completes<kind_>(a, item, sum_of<kind_>(a, item)) && int(item.index) + a.ring >= a.superblocks) {
                    ptx::mbar_arrive(out_empty);  // nobody waits for this one
                    continue;
                }
            ptx::fence_gpu();
            ptx::add_release(a.consumed + item.index, 1);
            ptx::store_release(a.turn + item.row * a.programs + item.at, item.count + 1);
            ptx::mbar_arrive(out_empty);
        } else if constexpr (kind_::fast) {
            uint8_t* tile = a.weights + int64_t(item.slot) * 5 * plane_bytes_k + (item.k & 1) * 8192;
            if constexpr (kind_::small_items) tile += (item.k >> 2) * (plane_bytes_k / 2);
            auto store = [&](int band, int area) {
                uint32_t const from = base + shared::at_stash + area * shared::area_bytes_k;
                ptx::bulk_store(tile + band * plane_bytes_k, from, 8192);
                if constexpr (!kind_::small_items)
                    ptx::bulk_store(tile + band * plane_bytes_k + plane_bytes_k / 2, from + 8192, 8192);
                ptx::bulk_commit();
            };
            stopwatch_t watch;
            if (item.origin) ptx::wait_count(a.consumed + item.origin - 1, item.count);
            watch.lap(publisher_wait_k, true);
            ptx::mbar_wait(out_full, outputs);
            outputs ^= 1;
            ptx::fence_async();
            store(4, 0);
            store(3, 1);
            store(2, 2);
            if constexpr (kind_::small_items) {  // all planes at once
                store(1, 3);
                store(0, 4);
            } else {
                ptx::bulk_wait_read<1>();
                ptx::mbar_arrive(out_empty);
                ptx::mbar_wait(out_full, outputs);
                outputs ^= 1;
                store(1, 0);
                store(0, 1);
            }
            ptx::bulk_wait_read<0>();
            ptx::mbar_arrive(base + shared::at_drained);
            ptx::mbar_arrive(out_empty);
            ptx::bulk_wait<0>();
            ptx::fence_async();
            tell_scored(a, item);
        }
    }
}

/// Of a thread that does not multiply; a thread that does has what is left of the SM's.
template <class kind_>
constexpr int producer_registers_k = kind_::one_launch                      ? 48
                                     : kind_::small_items || kind_::softmax ? 40
                                                                            : 24;

template <class kind_>
__global__ void __launch_bounds__(threads_k, ctas_k)
    step_kernel(maps_of<kind_> const __grid_constant__ maps, params_of<kind_> const __grid_constant__ a) {
    using shared = shared_t<kind_>;
    extern __shared__ uint8_t raw[];
    uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u;
    int const group = __shfl_sync(~0u, threadIdx.x / 128, 0), lane = threadIdx.x & 31;

    if (threadIdx.x == 0) {
        for (int i = 0; i < shared::stages_k; ++i) {
            ptx::mbar_init(base + shared::at_full + i * 8, 1);
            ptx::mbar_init(base + shared::at_empty + i * 8, 1);
        }
        for (int i = 0; i < queue_k; ++i) {
            ptx::mbar_init(base + shared::at_item_full + i * 8, 1);
            ptx::mbar_init(base + shared::at_item_empty + i * 8, item_readers_k<kind_>);
        }
        ptx::mbar_init(base + shared::at_out_full, 4);
        ptx::mbar_init(base + shared::at_out_empty, 1);
        ptx::mbar_init(base + shared::at_drained, 1);
        if constexpr (kind_::one_launch) {
            ptx::mbar_init(base + shared::at_stats_full, 1);
            ptx::mbar_init(base + shared::at_terms_begun, 4);
            ptx::mbar_init(base + shared::at_terms_full, 64);  // all lanes of two warps
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();

    if constexpr (kind_::one_launch) {
        int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (warp > 1) find_statistics(a, warp, lane);
    }
    if (group == 0) {
        ptx::reg_free<producer_registers_k<kind_>>();
        int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
        if (warp == 0) produce<kind_>(a, maps, base);
        else if (warp == 1 && lane == 0) publish<kind_>(a, base);
        if constexpr (kind_::one_launch)
            if (warp > 1) find_terms<kind_>(a, base, warp, lane);
    } else {
        ptx::reg_alloc<65536 / ctas_k / 128 - producer_registers_k<kind_>>();
        consumer_t<kind_> c;
        c.base = base;
        c.warp = __shfl_sync(~0u, threadIdx.x / 32 & 3, 0);
        c.lane = lane;
        c.thread = threadIdx.x & 127;
        scales_t scale = scales_of(a);
        if constexpr (kind_::softmax) scale.sum = two_set::scales_of(a).sum;
        queue_t queue;
        while (true) {
            stopwatch_t watch;
            item_t item = read_item<kind_>(base, queue);
            watch.lap(item_wait_k, c.thread == 0);
            if (item.kind == stop_k) break;
            if (item.kind == score_k) score_item<kind_>(a, item, c, scale);
            else if (__reduce_or_sync(~0u, uint32_t(a.program[item.at].width)) == piece_k)
                gradient_item<kind_, 64>(a, item, c);
            else gradient_item<kind_, 32>(a, item, c);
        }
    }
    if constexpr (kind_::one_launch) leave(a, base + shared::at_item);
}

}  // namespace scaling_contrasts::sm90
