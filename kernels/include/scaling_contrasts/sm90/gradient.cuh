// Gradient items: 128 rows x 256 columns of dX += sum over the blocks of one superblock of W_b(row, k) X_k. Tiles of W serve twice:
// as they lie, and transposed (the wgmma A operand read M-major). The sums go to fp32 tiles in memory, in the order in which threads
// hold them, one superblock after the other: `turn` counts the shares added, so that the order, and every bit, repeats.
#pragma once
#include "scaling_contrasts/sm90/shared.cuh"

namespace scaling_contrasts::sm90 {

/// What a consumer thread carries from item to item.
struct consumer_t {
    uint32_t base;               // of shared memory
    int wg, warp, lane, thread;  // warpgroup 0 or 1, warp and thread in it
    uint32_t used = 0;           // a bit a slot: parity of its uses
    uint32_t score_head = 0, parity = 0;
    uint32_t outputs = 0;  // parity of the stagings so far
    uint32_t exact = 0;    // score: a bit a band, where the last tile's logits were not far below zero
};

template <class shared>
__device__ __forceinline__ void wait_full(consumer_t& c, uint32_t slot) {
    ptx::mbar_wait(c.base + shared::at_full + slot * 8, c.used >> slot & 1);
    c.used ^= 1u << slot;
}

template <class shared, int trans_a_>
__device__ __forceinline__ void wide_slabs(consumer_t& c, float (&acc)[128], uint32_t slabs, uint32_t& head,
                                           uint32_t& tail, bool& first) {
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s) {
        uint32_t const w = c.base + head * slot_bytes_k + c.wg * 8192,
                       x = c.base + (head + 1) * slot_bytes_k;  // the right half follows
#pragma unroll
        for (uint32_t i = 0; i < 3; ++i) wait_full<shared>(c, head + i);
        if ((head += 3) == shared::wide_ring_k) head = 0;
        uint64_t const da = ptx::operand(w), db = ptx::operand(x, 8192);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k)
            ptx::wgmma_n256<trans_a_, 1>(acc, da + k * (trans_a_ ? 128 : 2), db + k * 128, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (!first) {
            if (c.thread == 0)
#pragma unroll
                for (uint32_t i = 0; i < 3; ++i) ptx::mbar_arrive(c.base + shared::at_empty + (tail + i) * 8);
            if ((tail += 3) == shared::wide_ring_k) tail = 0;
        }
        first = false;
    }
}

/// Columns 128-255 of the article's ladder: two slots a slab, rows and plane 2.
template <class shared, int trans_a_>
__device__ __forceinline__ void right_slabs(consumer_t& c, float (&acc)[64], uint32_t slabs, uint32_t& head,
                                            uint32_t& tail, bool& first) {
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s) {
        uint64_t const da = ptx::operand(c.base + (head + 1) * slot_bytes_k + c.wg * 8192),
                       db = ptx::operand(c.base + head * slot_bytes_k, 8192);
        wait_full<shared>(c, head);
        wait_full<shared>(c, head + 1);
        if ((head += 2) == shared::wide_ring_k) head = 0;
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k)
            ptx::wgmma_n128<trans_a_, 1>(acc, da + k * (trans_a_ ? 128 : 2), db + k * 128, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (!first) {
            if (c.thread == 0) {
                ptx::mbar_arrive(c.base + shared::at_empty + tail * 8);
                ptx::mbar_arrive(c.base + shared::at_empty + (tail + 1) * 8);
            }
            if ((tail += 2) == shared::wide_ring_k) tail = 0;
        }
        first = false;
    }
}

/// Columns 0-127: three slots a slab, rows, plane 1 for the right 64 columns and plane 0 for the left.
template <class shared, int trans_a_>
__device__ __forceinline__ void left_slabs(consumer_t& c, float (&a1)[32], float (&a0)[32], uint32_t slabs,
                                           uint32_t& head, uint32_t& tail, bool& first) {
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s) {
        uint32_t const x = c.base + head * slot_bytes_k, w = x + slot_bytes_k + c.wg * 8192;
        uint64_t const d1 = ptx::operand(w), d0 = ptx::operand(w + slot_bytes_k), x1 = ptx::operand(x + 8192, 8192),
                       x0 = ptx::operand(x, 8192);
#pragma unroll
        for (uint32_t i = 0; i < 3; ++i) wait_full<shared>(c, head + i);
        if ((head += 3) == shared::wide_ring_k) head = 0;
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k) {
            ptx::wgmma_n64<trans_a_, 1>(a1, d1 + k * (trans_a_ ? 128 : 2), x1 + k * 128, 1);
            ptx::wgmma_n64<trans_a_, 1>(a0, d0 + k * (trans_a_ ? 128 : 2), x0 + k * 128, 1);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (!first) {
            if (c.thread == 0)
#pragma unroll
                for (uint32_t i = 0; i < 3; ++i) ptx::mbar_arrive(c.base + shared::at_empty + (tail + i) * 8);
            if ((tail += 3) == shared::wide_ring_k) tail = 0;
        }
        first = false;
    }
}

/// Adds `value(0)` .. `value(count_ - 1)` of every thread to the gradient tile, from its chunk `chunk_` on, after the shares that come before.
template <class shared, int count_, int chunk_, class value_at>
__device__ __forceinline__ void write_share(params_t const& a, item_t const& item, consumer_t& c, uint32_t seen,
                                            value_at const& value) {
    ptx::mbar_wait(c.base + shared::at_out_empty + c.wg * 8, c.outputs ^ 1);
    if (c.lane == 0 && seen < item.count)
        ptx::wait_count(a.turn + (item.row * a.programs + item.at) * 2 + c.wg, item.count);
    __syncwarp();
    int64_t const tile = int64_t(item.row) * a.tiles + a.program[item.at].tile;
    float* out = a.dx + tile * gradient_tile_k + c.wg * (gradient_tile_k / 2) + chunk_ * 512 + c.thread * 4;
    if (item.count == 0 && !a.accumulate) {
#pragma unroll
        for (int j = 0; j < count_ / 4; ++j)
            ptx::store(out + j * 512, value(4 * j), value(4 * j + 1), value(4 * j + 2), value(4 * j + 3));
    } else {
#pragma unroll
        for (int j = 0; j < count_ / 4; ++j)
            ptx::red_add(out + j * 512, value(4 * j), value(4 * j + 1), value(4 * j + 2), value(4 * j + 3));
    }
    __syncwarp();
    if (c.lane == 0) ptx::mbar_arrive(c.base + shared::at_out_full + c.wg * 8);
    c.outputs ^= 1;
}

template <bool fast_>
__device__ __forceinline__ void gradient_item(params_t const& a, item_t const& item, consumer_t& c) {
    using shared = shared_t<fast_>;
    sum_t const sum = sum_of(a, item);
    uint32_t seen = 0;  // looked up early, so that the answer is here when it is needed
    if (c.lane == 0 && item.count)
        seen = *const_cast<uint32_t const volatile*>(a.turn + (item.row * a.programs + item.at) * 2 + c.wg);
    bool first = true;
    stopwatch_t watch;
    uint32_t head = 0, tail = 0;
    int const band = a.program[item.at].band;
    auto done = [&](uint32_t slots, bool wide) {
        ptx::wgmma_wait<0>();
        if (c.thread == 0)
            for (uint32_t i = 0; i < slots; ++i) ptx::mbar_arrive(c.base + shared::at_empty + (tail + i) * 8);
        watch.lap(wide ? wide_products_k : narrow_products_k, c.thread == 0);
        watch.count(wide ? wide_items_k : narrow_items_k, c.thread == 0);
    };
    if (!fast_ || band >= 0) {
        float acc[128] = {};
        wide_slabs<shared, 1>(c, acc, 2 * sum.transposed, head, tail, first);
        wide_slabs<shared, 0>(c, acc, 2 * sum.direct, head, tail, first);
        done(3, true);
        write_share<shared, 128, 0>(a, item, c, seen, [&](int i) { return acc[i]; });
    } else if constexpr (fast_) {
        if (band == right_k) {
            float acc[64] = {};
            right_slabs<shared, 1>(c, acc, 2 * sum.transposed, head, tail, first);
            right_slabs<shared, 0>(c, acc, 2 * sum.direct, head, tail, first);
            done(2, false);
            write_share<shared, 64, 0>(a, item, c, seen, [&](int i) { return acc[i]; });
        } else {
            float a1[32] = {}, a0[32] = {};
            left_slabs<shared, 1>(c, a1, a0, 2 * sum.transposed, head, tail, first);
            left_slabs<shared, 0>(c, a1, a0, 2 * sum.direct, head, tail, first);
            done(3, false);
            write_share<shared, 64, 16>(a, item, c, seen, [&](int i) { return i < 32 ? a1[i & 31] : a0[i & 31]; });
        }
    }
    watch.lap(gradient_output_k, c.thread == 0);
}

}  // namespace scaling_contrasts::sm90
