// The end of a gradient tile in a step of one launch: to its last share, in registers, come the earlier ones and what the
// rows add themselves (row_terms.cuh), and the tile is written as finish.cuh writes it.
#pragma once
#include "scaling_contrasts/sm90/row_terms.cuh"

namespace scaling_contrasts::sm90 {

template <class kind_, int size_>
__device__ __forceinline__ void finish_share(params_t const& a, item_t const& item, consumer_t<kind_>& c, uint32_t seen,
                                             float (&top)[size_], float (&bottom)[size_]) {
    using shared = shared_t<kind_>;
    using pair = typename kind_::pair;
    program_t const program = a.program[item.at];
    int const quad = c.lane & 3, row0 = c.warp * 16 + (c.lane >> 2);
    uint32_t const terms = c.base + shared::at_stats(0, 0);
    auto const row_of = [&](int k) { return (k >> 1) * 64 + row0 + (k & 1) * 8; };  // the four that four lanes hold
    auto const value = [&](int k, int i) -> float& { return (k < 2 ? top : bottom)[i + (k & 1) * 2]; };

    bool const no_scale = *a.t == 0.f;  // looked up early, so that the answer is here when it is needed
    ptx::mbar_wait(c.base + shared::at_out_empty, c.outputs ^ 1);
    if (item.count > 0) {
        if (c.lane == 0 && seen < item.count) ptx::wait_count(a.turn + item.row * a.programs + item.at, item.count);
        __syncwarp();
        float4 const* const dx =
            reinterpret_cast<float4 const*>(a.dx + (int64_t(item.row) * a.columns + program.column) * tile_k) +
            c.thread;
        auto const add = [&](float* to, float4 const& v) { to[0] += v.x, to[1] += v.y, to[2] += v.z, to[3] += v.w; };
#pragma unroll
        for (int j = 0; j < size_ / 4; ++j) {
            add(top + 4 * j, __ldcg(dx + j * 128));
            add(bottom + 4 * j, __ldcg(dx + (size_ / 4 + j) * 128));
        }
    }

    // the rows themselves are in the next stage
    uint32_t const stage = c.base + c.gradient.at() * gradient_stage_bytes_k;
    ptx::mbar_wait(c.base + shared::at_terms_full, c.terms);
    c.terms ^= 1;
    int most = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) most = max(most, ptx::load_int(terms + offsetof(terms_t, count) + row_of(k) * 4));
    most = __reduce_max_sync(~0u, most);
    ptx::mbar_wait(c.base + shared::at_full + (shared::score_stages_k + c.gradient.at()) * 8, c.gradient.phase());
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        float const t = ptx::load_float(terms + offsetof(terms_t, own) + row_of(k) * 4);
        int const r = row_of(k) % 64;
#pragma unroll
        for (int j = 0; j < size_ / 4; ++j) {
            uint32_t const x = ptx::load_int(stage + (k >> 1) * (gradient_stage_bytes_k / 2) + j / 8 * 8192 + r * 128 +
                                             ((j % 8 ^ r % 8) << 4) + quad * 4);
            value(k, 4 * j) -= t * pair::lo(x);
            value(k, 4 * j + 1) -= t * pair::hi(x);
        }
    }
    auto const* const columns = reinterpret_cast<uint32_t const*>(a.x + program.column) + quad;
#pragma unroll 1
    for (int e = 0; e < most; ++e) {
        uint32_t const at = terms + e * tile_k * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            uint32_t y[2][size_ / 4];  // on their way together
            float w[2];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                int const r = row_of(2 * half + k) * 4;
                auto const* const other = columns + uint32_t(ptx::load_int(at + offsetof(terms_t, other) + r)) / 2;
                w[k] = ptx::load_float(at + offsetof(terms_t, weight) + r);
#pragma unroll
                for (int j = 0; j < size_ / 4; ++j) y[k][j] = __ldg(other + 4 * j);
            }
#pragma unroll
            for (int k = 0; k < 2; ++k)
#pragma unroll
                for (int j = 0; j < size_ / 4; ++j) {
                    float &lo = value(2 * half + k, 4 * j), &hi = value(2 * half + k, 4 * j + 1);
                    lo = fmaf(w[k], pair::lo(y[k][j]), lo);
                    hi = fmaf(w[k], pair::hi(y[k][j]), hi);
                }
        }
    }

    // weights carry a scale that is never 0
    float const factor = no_scale ? 0.f : 2.f * ln2_k * a.weight / float(a.rows_everywhere);
    int const first_row = int(item.row) * tile_k;
    float by[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) by[k] = first_row + row_of(k) < a.row.live ? factor : 0.f;
    if (a.fp32_gradients) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            if (first_row + row_of(k) >= a.rows) continue;
            auto* const out =
                static_cast<float*>(a.gradient) + int64_t(first_row + row_of(k)) * a.dims + program.column + quad * 2;
#pragma unroll
            for (int j = 0; j < size_ / 4; ++j)
                *reinterpret_cast<float2*>(out + 8 * j) =
                    make_float2(by[k] * value(k, 4 * j), by[k] * value(k, 4 * j + 1));
        }
    } else {  // through the place of the rows, of which a warp has read its own 32 alone
        __syncwarp();
        int const st_row = c.warp * 16 + (c.lane & 15), st_chunk = c.lane >> 4;
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int j = 0; j < size_ / 4; j += 2) {
                auto const word = [&](int k, int i) {
                    return ptx::pack_bf16(by[2 * half + k] * value(2 * half + k, i),
                                          by[2 * half + k] * value(2 * half + k, i + 1));
                };
                ptx::stmatrix_x4(stage + half * (gradient_stage_bytes_k / 2) + j / 8 * 8192 + st_row * 128 +
                                     ((j % 8 + st_chunk ^ st_row % 8) << 4),
                                 word(0, 4 * j), word(1, 4 * j), word(0, 4 * j + 4), word(1, 4 * j + 4));
            }
        __syncwarp();
        constexpr int chunks = size_ / 4, rows = 32 / chunks;  // of 16 bytes in a row; a warp stores `rows` at a time
        int const chunk = c.lane % chunks;
#pragma unroll
        for (int i = 0; i < 32 / rows; ++i) {
            int const in_half = c.warp * 16 + i % (16 / rows) * rows + c.lane / chunks, half = i / (16 / rows);
            uint4 const v = ptx::load_b128(stage + half * (gradient_stage_bytes_k / 2) + chunk / 8 * 8192 +
                                           in_half * 128 + ((chunk % 8 ^ in_half % 8) << 4));
            int const row = first_row + half * 64 + in_half;
            if (row < a.rows)
                *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(a.gradient) + int64_t(row) * a.dims +
                                          program.column + chunk * 8) = v;
        }
    }
    ptx::fence_async_shared();  // copies fill the place of the rows and that of the terms again
    ptx::named_sync(1, 128);
    c.release(shared::at_empty + (shared::score_stages_k + c.gradient.at()) * 8);
    c.gradient.next();
    if (c.lane == 0) ptx::mbar_arrive(c.base + shared::at_out_full);
    c.outputs ^= 1;
}

}  // namespace scaling_contrasts::sm90
