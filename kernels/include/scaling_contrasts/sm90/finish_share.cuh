// The end of a gradient tile in a step of one launch: to its last share, in registers, come the earlier ones, the share
// of the rows' own norms and what rounding took off positives, and the tile is written as finish.cuh writes it. The sums
// S are whole then: whatever adds to them has been waited for.
#pragma once
#include "scaling_contrasts/sm90/gradient.cuh"

namespace scaling_contrasts::sm90 {

/// A row's residuals in one band, in the order of the other rows' addresses, so that bits repeat.
struct row_residuals_t {
    unsigned long long x[residuals_k];  // addresses
    float weight[residuals_k];
    int count;

    __device__ __forceinline__ row_residuals_t(params_t const& a, int64_t row, int band) {
        uint32_t const found = row < a.row.live ? __ldcg(a.residual_count + row) : 0u;
        count = found <= residuals_k ? int(found) : 0;
        residual_t const* const from = a.residuals + row * residuals_k;
#pragma unroll
        for (int e = 0; e < residuals_k; ++e) {
            x[e] = ~0ull;
            weight[e] = 0.f;
            if (e < count) {
                x[e] = __ldcg(reinterpret_cast<unsigned long long const*>(&from[e].x));
                weight[e] = __ldcg(from[e].band + band);
            }
        }
        order(0, 1), order(2, 3), order(0, 2), order(1, 3), order(1, 2);
    }
    __device__ __forceinline__ void order(int i, int j) {
        bool const swap = x[i] > x[j];
        unsigned long long const other = swap ? x[i] : x[j];
        float const other_weight = swap ? weight[i] : weight[j];
        x[i] = swap ? x[j] : x[i], weight[i] = swap ? weight[j] : weight[i];
        x[j] = other, weight[j] = other_weight;
    }
};

template <class kind_, int size_>
__device__ __forceinline__ void finish_share(params_t const& a, item_t const& item, consumer_t<kind_>& c, uint32_t seen,
                                             scales_t const& scale, float (&top)[size_], float (&bottom)[size_]) {
    using shared = shared_t<kind_>;
    using pair = typename kind_::pair;
    program_t const program = a.program[item.at];
    int const quad = c.lane & 3, row0 = c.warp * 16 + (c.lane >> 2);
    float const unit = 1.f / scale.s;
    int64_t const* const s = a.s + int64_t(item.row) * 5 * tile_k;
    auto const row_of = [&](int k) { return (k >> 1) * 64 + row0 + (k & 1) * 8; };  // the four that four lanes hold
    auto const value = [&](int k, int i) -> float& { return (k < 2 ? top : bottom)[i + (k & 1) * 2]; };

    ptx::mbar_wait(c.base + shared::at_out_empty, c.outputs ^ 1);
    if (c.lane == 0 && seen < item.count) ptx::wait_count(a.turn + item.row * a.programs + item.at, item.count);
    __syncwarp();
    // each lane looks up one of the rows
    float own = 0.f;
#pragma unroll
    for (int p = 4; p >= 0; --p)
        if (p >= program.band) {
            float const inv = __ldcg(a.row.records + int64_t(item.row) * record_floats(5) + p * tile_k + row_of(quad));
            long long const sum = __ldcg(reinterpret_cast<long long const*>(s) + p * tile_k + row_of(quad));
            own += inv * inv * (float(sum) * unit);
        }
    row_residuals_t const residuals(a, int64_t(item.row) * tile_k + row_of(quad), program.band);
    if (item.at == 0) {  // a row block's part of dL/dt
        double dt = 0.0;
        for (int i = c.thread; i < 5 * tile_k; i += 128)
            dt += double(__ldcg(reinterpret_cast<long long const*>(s) + i)) * double(unit);
        dt = sum_over_warp(dt);
        if (c.lane == 0) a.partials[4 * item.row + c.warp] = dt;
    }
    if (item.count > 0) {  // the shares before
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
    ptx::mbar_wait(c.base + shared::at_full + (shared::score_stages_k + c.gradient.at()) * 8, c.gradient.phase());
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        float const t = __shfl_sync(~0u, own, (c.lane & 28) + k);
        int const r = row_of(k) % 64;
#pragma unroll
        for (int j = 0; j < size_ / 4; ++j) {
            uint32_t const x = ptx::load_int(stage + (k >> 1) * (gradient_stage_bytes_k / 2) + j / 8 * 8192 + r * 128 +
                                             ((j % 8 ^ r % 8) << 4) + quad * 4);
            value(k, 4 * j) -= t * pair::lo(x);
            value(k, 4 * j + 1) -= t * pair::hi(x);
        }
    }
    ptx::named_sync(1, 128);
    c.release(shared::at_empty + (shared::score_stages_k + c.gradient.at()) * 8);
    c.gradient.next();

    int const most = __reduce_max_sync(~0u, residuals.count), column = program.column + quad * 2;
#pragma unroll 1
    for (int e = 0; e < most; ++e) {
        unsigned long long const x =
            e & 2 ? (e & 1 ? residuals.x[3] : residuals.x[2]) : (e & 1 ? residuals.x[1] : residuals.x[0]);
        float const weight = e & 2 ? (e & 1 ? residuals.weight[3] : residuals.weight[2])
                                   : (e & 1 ? residuals.weight[1] : residuals.weight[0]);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            int const from = (c.lane & 28) + k;
            auto const* const other = reinterpret_cast<uint32_t const*>(__shfl_sync(~0u, x, from)) + column / 2;
            float const w = __shfl_sync(~0u, weight, from);
            if (e >= __shfl_sync(~0u, residuals.count, from)) continue;
#pragma unroll
            for (int j = 0; j < size_ / 4; ++j) {
                uint32_t const y = __ldg(other + 4 * j);
                value(k, 4 * j) = fmaf(w, pair::lo(y), value(k, 4 * j));
                value(k, 4 * j + 1) = fmaf(w, pair::hi(y), value(k, 4 * j + 1));
            }
        }
    }

    float const factor = 2.f * ln2_k * a.weight / float(a.rows_everywhere);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        int const row = int(item.row) * tile_k + row_of(k);
        bool const there = row < a.rows;
        float const by = row < a.row.live ? factor : 0.f;
        int64_t const at = int64_t(row) * a.dims + program.column;
        if (a.fp32_gradients) {
            auto* const out = static_cast<float*>(a.gradient) + at + quad * 2;
#pragma unroll
            for (int j = 0; j < size_ / 4; ++j)
                if (there)
                    *reinterpret_cast<float2*>(out + 8 * j) =
                        make_float2(by * value(k, 4 * j), by * value(k, 4 * j + 1));
        } else {  // the four lanes of a row swap, so that each has four columns and together a whole sector
            auto* const out = static_cast<__nv_bfloat16*>(a.gradient) + at + quad / 2 * 8 + (quad & 1) * 4;
            uint32_t const from = (c.lane & 28) + (quad & 1) * 2;
#pragma unroll
            for (int j = 0; j < size_ / 4; j += 2) {
                uint32_t const one = ptx::pack_bf16(by * value(k, 4 * j), by * value(k, 4 * j + 1)),
                               two = ptx::pack_bf16(by * value(k, 4 * j + 4), by * value(k, 4 * j + 5));
                uint32_t const one0 = __shfl_sync(~0u, one, from), one1 = __shfl_sync(~0u, one, from + 1),
                               two0 = __shfl_sync(~0u, two, from), two1 = __shfl_sync(~0u, two, from + 1);
                if (there)
                    *reinterpret_cast<uint2*>(out + 8 * j) = make_uint2(quad & 2 ? two0 : one0, quad & 2 ? two1 : one1);
            }
        }
    }
    __syncwarp();
    if (c.lane == 0) ptx::mbar_arrive(c.base + shared::at_out_full);
    c.outputs ^= 1;
}

}  // namespace scaling_contrasts::sm90
