// Gradient items: 128 rows x 128 columns (64 where a band is no wider) of dX += sum over the blocks of one superblock
// of W_b(row, k) X_k. Tiles of W serve twice: as they lie, and transposed (the wgmma A operand read M-major). The sums
// go to fp32 tiles in memory, in the order in which threads hold them, one superblock after the other: `turn` counts
// the shares added, so that the order, and every bit, repeats.
#pragma once
#include "scaling_contrasts/sm90/shared.cuh"

namespace scaling_contrasts::sm90 {

/// What a consumer thread carries from item to item.
template <class kind_>
struct consumer_t {
    using shared = shared_t<kind_>;
    uint32_t base;  // of shared memory
    int warp, lane, thread;
    ring_t<shared::score_stages_k> score;
    ring_t<shared::gradient_stages_k> gradient;
    uint32_t outputs = 0;  // parity of the stagings so far
    uint32_t terms = 0;    // parity of the tiles finished here
    uint32_t exact = 0;    // score: a bit a band, where the last tile's logits were not far below zero

    /// One arrival at the barrier at `offset`.
    __device__ __forceinline__ void release(uint32_t offset) {
        if (thread == 0) ptx::mbar_arrive(base + offset);
    }
};

/// Waits for the next stage of `ring`, whose barriers begin with number `first`. `unread`: the one before is not handed
/// back yet. That is done here if the next one has not come: its own place is then the next to be loaded.
template <class kind_, int size_>
__device__ __forceinline__ void await_stage(consumer_t<kind_>& c, ring_t<size_> const& ring, uint32_t first,
                                            bool& unread) {
    using shared = shared_t<kind_>;
    uint32_t const full = c.base + shared::at_full + (first + ring.at()) * 8;
    if (__all_sync(~0u, ptx::mbar_try_once(full, ring.phase()))) return;
    if (unread) {
        ptx::wgmma_wait<0>();
        c.release(shared::at_empty + (first + ring.before()) * 8);
        unread = false;
    }
    ptx::mbar_wait(full, ring.phase());
}
/// Runs `multiply(weights, rows)` over the stages of a sum, one behind: a stage is handed back when the next one's
/// products are queued, or when there is nothing to queue.
template <class kind_, class multiply_at>
__device__ __forceinline__ void gradient_stages(consumer_t<kind_>& c, uint32_t stages, bool& unread,
                                                multiply_at const& multiply) {
    using shared = shared_t<kind_>;
#pragma unroll 1
    for (uint32_t s = 0; s < stages; ++s) {
        uint32_t const at = c.base + c.gradient.at() * gradient_stage_bytes_k;
        await_stage(c, c.gradient, shared::score_stages_k, unread);
        ptx::wgmma_fence();
        multiply(at, at + gradient_stage_bytes_k / 2);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (unread) c.release(shared::at_empty + (shared::score_stages_k + c.gradient.before()) * 8);
        unread = true;
        c.gradient.next();
    }
}
/// Waits for the products that are left, and hands their stage back.
template <class kind_>
__device__ __forceinline__ void last_stage(consumer_t<kind_>& c) {
    using shared = shared_t<kind_>;
    ptx::wgmma_wait<0>();
    c.release(shared::at_empty + (shared::score_stages_k + c.gradient.before()) * 8);
}

/// `top` and `bottom`: the item's first and last 64 rows, 2 * size_ columns each.
template <class kind_, int trans_a_, int size_>
__device__ __forceinline__ void sum_stages(consumer_t<kind_>& c, float (&top)[size_], float (&bottom)[size_],
                                           uint32_t stages, bool& unread) {
    gradient_stages<kind_>(c, stages, unread, [&](uint32_t weights, uint32_t rows) {
        uint64_t const a = ptx::operand(weights), b = ptx::operand(rows, 8192);
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k) {
            uint64_t const upper = ptx::further(a, k * (trans_a_ ? 2048 : 32)), lower = ptx::further(upper, 8192),
                           bk = ptx::further(b, k * 2048);
            if constexpr (kind_::fp16 && size_ == 64) {
                ptx::wgmma_fp16_n128<trans_a_, 1>(top, upper, bk, 1);
                ptx::wgmma_fp16_n128<trans_a_, 1>(bottom, lower, bk, 1);
            } else if constexpr (kind_::fp16) {
                ptx::wgmma_fp16_n64<trans_a_, 1>(top, upper, bk, 1);
                ptx::wgmma_fp16_n64<trans_a_, 1>(bottom, lower, bk, 1);
            } else if constexpr (size_ == 64) {
                ptx::wgmma_n128<trans_a_, 1>(top, upper, bk, 1);
                ptx::wgmma_n128<trans_a_, 1>(bottom, lower, bk, 1);
            } else {
                ptx::wgmma_n64<trans_a_, 1>(top, upper, bk, 1);
                ptx::wgmma_n64<trans_a_, 1>(bottom, lower, bk, 1);
            }
        }
    });
}

/// Adds every thread's part to the gradient tile, after the shares that come before.
template <class kind_, int size_>
__device__ __forceinline__ void write_share(params_t const& a, item_t const& item, consumer_t<kind_>& c, uint32_t seen,
                                            float const (&top)[size_], float const (&bottom)[size_]) {
    using shared = shared_t<kind_>;
    ptx::mbar_wait(c.base + shared::at_out_empty, c.outputs ^ 1);
    if (c.lane == 0 && seen < item.count) ptx::wait_count(a.turn + item.row * a.programs + item.at, item.count);
    __syncwarp();
    bool const of_candidates = kind_::both && item.row >= first_candidate(a);
    float* const dx = of_candidates ? a.column_dx - int64_t(first_candidate(a)) * a.columns * tile_k : a.dx;
    float* const out = dx + (int64_t(item.row) * a.columns + a.program[item.at].column) * tile_k + c.thread * 4;
    auto const each = [&](auto const& write) {
#pragma unroll
        for (int j = 0; j < size_ / 4; ++j) {
            write(out + j * 512, top[4 * j], top[4 * j + 1], top[4 * j + 2], top[4 * j + 3]);
            write(out + (size_ / 4 + j) * 512, bottom[4 * j], bottom[4 * j + 1], bottom[4 * j + 2], bottom[4 * j + 3]);
        }
    };
    if (item.count == 0 && (of_candidates || !a.accumulate))
        each([](float* p, float x, float y, float z, float w) { ptx::store(p, x, y, z, w); });
    else each([](float* p, float x, float y, float z, float w) { ptx::red_add(p, x, y, z, w); });
    __syncwarp();
    if (c.lane == 0) ptx::mbar_arrive(c.base + shared::at_out_full);
    c.outputs ^= 1;
}

/// Where the step is one launch: other warps' leave to look up what the end of a tile needs (row_terms.cuh), and that
/// end (finish_share.cuh).
template <class kind_>
__device__ __forceinline__ void begin_terms(consumer_t<kind_>& c);
template <class kind_, int size_>
__device__ __forceinline__ void finish_share(params_t const& a, item_t const& item, consumer_t<kind_>& c, uint32_t seen,
                                             float (&top)[size_], float (&bottom)[size_]);

template <class kind_, int size_>
__device__ __forceinline__ void gradient_item(params_t const& a, item_t const& item, consumer_t<kind_>& c) {
    sum_t const sum = sum_of<kind_>(a, item);
    uint32_t seen = 0;  // looked up early, so that the answer is here when it is needed
    if (c.lane == 0 && item.count)
        seen = *const_cast<uint32_t const volatile*>(a.turn + item.row * a.programs + item.at);
    bool unread = false;  // the stage before is not handed back yet
    stopwatch_t watch;
    bool const last = completes<kind_>(a, item, sum);
    if constexpr (kind_::one_launch)
        if (last) begin_terms(c);
    float top[size_], bottom[size_];
    ptx::zero(top);
    ptx::zero(bottom);
    sum_stages<kind_, 1>(c, top, bottom, 2 * sum.transposed, unread);
    sum_stages<kind_, 0>(c, top, bottom, 2 * sum.direct, unread);
    last_stage<kind_>(c);
    watch.lap(size_ == 64 ? wide_products_k : narrow_products_k, c.thread == 0);
    watch.count(size_ == 64 ? wide_items_k : narrow_items_k, c.thread == 0);
    if constexpr (kind_::one_launch)
        if (last) finish_share<kind_>(a, item, c, seen, top, bottom);
    if (!last) write_share<kind_>(a, item, c, seen, top, bottom);
    watch.lap(gradient_output_k, c.thread == 0);
}

}  // namespace scaling_contrasts::sm90
