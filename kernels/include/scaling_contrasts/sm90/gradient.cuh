// Gradient items: 128 rows x 256 columns of dX += sum over the blocks of one superblock of W_b(row, k) X_k. Tiles of W serve twice:
// as they lie, and transposed (the wgmma A operand read M-major). The sums go to fp32 tiles in memory, in the order in which threads
// hold them, one superblock after the other: `turn` counts the shares added, so that the order, and every bit, repeats.
#pragma once
#include "scaling_contrasts/sm90/shared.cuh"

namespace scaling_contrasts::sm90 {

/// What a consumer thread carries from item to item.
struct consumer_t {
    uint32_t base;                 // of shared memory
    int wg, warp, lane, thread;    // warpgroup 0 or 1, warp and thread in it
    uint32_t used = 0;             // a bit a slot: parity of its uses
    uint32_t score_head = 0, narrow_head = 0, parity = 0;
    uint32_t outputs = 0;          // parity of the stagings so far
    uint32_t exact = 0;            // score: a bit a band, where the last tile's logits were not far below zero
};

template <class shared>
__device__ __forceinline__ void wait_full(consumer_t& c, uint32_t slot) {
    ptx::mbar_wait(c.base + shared::at_full + slot * 8, c.used >> slot & 1);
    c.used ^= 1u << slot;
}

template <class shared, int trans_a_>
__device__ __forceinline__ void wide_slabs(consumer_t& c, float (&acc)[128], uint32_t slabs, uint32_t& head, uint32_t& tail, bool& first) {
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s) {
        uint32_t const w = c.base + head * slot_bytes_k + c.wg * 8192, x = c.base + (head + 1) * slot_bytes_k;   // the right half follows
#pragma unroll
        for (uint32_t i = 0; i < 3; ++i) wait_full<shared>(c, head + i);
        if ((head += 3) == shared::wide_ring_k) head = 0;
        uint64_t const da = ptx::operand(w), db = ptx::operand(x, 8192);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k) ptx::wgmma_n256<trans_a_, 1>(acc, da + k * (trans_a_ ? 128 : 2), db + k * 128, 1);
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

template <class shared, int trans_a_>
__device__ __forceinline__ void narrow_slabs(consumer_t& c, float (&a2)[64], float (&a1)[32], float (&a0)[32], uint32_t slabs, uint32_t& head, uint32_t& tail, bool& first) {
    auto next = [](uint32_t& slot) { if (++slot == shared::slots_k) slot = 0; };
#pragma unroll 1
    for (uint32_t s = 0; s < slabs; ++s) {
        uint32_t at[5];   // rows left and right, weights of bands 2, 1 and 0: all here before the first product is issued
#pragma unroll
        for (int i = 0; i < 5; ++i, next(head)) {
            at[i] = c.base + head * slot_bytes_k;
            wait_full<shared>(c, head);
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k) {
            uint32_t const step = k * (trans_a_ ? 128 : 2), half = c.wg * 8192;
            ptx::wgmma_n128<trans_a_, 1>(a2, ptx::operand(at[2] + half) + step, ptx::operand(at[1], 8192) + k * 128, 1);
            ptx::wgmma_n64<trans_a_, 1>(a1, ptx::operand(at[3] + half) + step, ptx::operand(at[0] + 8192, 8192) + k * 128, 1);
            ptx::wgmma_n64<trans_a_, 1>(a0, ptx::operand(at[4] + half) + step, ptx::operand(at[0], 8192) + k * 128, 1);
        }
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
        if (!first)
#pragma unroll
            for (int i = 0; i < 5; ++i, next(tail))
                if (c.thread == 0) ptx::mbar_arrive(c.base + shared::at_empty + tail * 8);
        first = false;
    }
}

template <class shared>
__device__ __forceinline__ void write_share(params_t const& a, item_t const& item, consumer_t& c, uint32_t seen, float const (&v)[128]) {
    ptx::mbar_wait(c.base + shared::at_out_empty + c.wg * 8, c.outputs ^ 1);
    uint32_t const tile = item.row * a.programs + item.at;
    if (c.lane == 0 && seen < item.count) ptx::wait_count(a.turn + tile * 2 + c.wg, item.count);
    __syncwarp();
    float* out = a.dx + int64_t(tile) * gradient_tile_k + c.wg * (gradient_tile_k / 2) + c.thread * 4;
    if (item.count == 0 && !a.accumulate) {
#pragma unroll
        for (int j = 0; j < 32; ++j) ptx::store(out + j * 512, v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
    } else {
#pragma unroll
        for (int j = 0; j < 32; ++j) ptx::red_add(out + j * 512, v[4 * j], v[4 * j + 1], v[4 * j + 2], v[4 * j + 3]);
    }
    __syncwarp();
    if (c.lane == 0) ptx::mbar_arrive(c.base + shared::at_out_full + c.wg * 8);
    c.outputs ^= 1;
}

template <bool fast_>
__device__ __forceinline__ void gradient_item(params_t const& a, item_t const& item, consumer_t& c) {
    using shared = shared_t<fast_>;
    sum_t const sum = sum_of(a, item);
    uint32_t seen = 0;   // looked up early, so that the answer is here when it is needed
    if (c.lane == 0 && item.count) seen = *const_cast<uint32_t volatile const*>(a.turn + (item.row * a.programs + item.at) * 2 + c.wg);
    bool first = true;
    stopwatch_t watch;
    if (!fast_ || a.program[item.at].band >= 0) {
        uint32_t head = 0, tail = 0;
        float acc[128] = {};
        wide_slabs<shared, 1>(c, acc, 2 * sum.transposed, head, tail, first);
        wide_slabs<shared, 0>(c, acc, 2 * sum.direct, head, tail, first);
        ptx::wgmma_wait<0>();
        if (c.thread == 0)
            for (uint32_t i = 0; i < 3; ++i) ptx::mbar_arrive(c.base + shared::at_empty + (tail + i) * 8);
        watch.lap(wide_products_k, c.thread == 0);
        watch.count(wide_items_k, c.thread == 0);
        write_share<shared>(a, item, c, seen, acc);
        watch.lap(gradient_output_k, c.thread == 0);
    } else if constexpr (fast_) {
        uint32_t head = c.narrow_head, tail = head;
        float a2[64] = {}, a1[32] = {}, a0[32] = {};
        narrow_slabs<shared, 1>(c, a2, a1, a0, 2 * sum.transposed, head, tail, first);
        narrow_slabs<shared, 0>(c, a2, a1, a0, 2 * sum.direct, head, tail, first);
        ptx::wgmma_wait<0>();
        for (int i = 0; i < 5; ++i) {
            if (c.thread == 0) ptx::mbar_arrive(c.base + shared::at_empty + tail * 8);
            if (++tail == shared::slots_k) tail = 0;
        }
        c.narrow_head = head;
        watch.lap(narrow_products_k, c.thread == 0);
        watch.count(narrow_items_k, c.thread == 0);
        float v[128];
#pragma unroll
        for (int i = 0; i < 128; ++i) v[i] = i < 64 ? a2[i & 63] : i < 96 ? a1[i & 31] : a0[i & 31];
        write_share<shared>(a, item, c, seen, v);
        watch.lap(gradient_output_k, c.thread == 0);
    }
}

}  // namespace scaling_contrasts::sm90
