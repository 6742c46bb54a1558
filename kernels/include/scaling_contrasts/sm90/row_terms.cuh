// What rows themselves add to their gradients in a step of one launch: the share of their own norms, T_b(i) X_i
// (finish.cuh), and what rounding took off positives' weights. When the first products of a tile's last share begin, S is
// whole, and two warps that have nothing else to do look up T and the residuals of the tile's rows, while the others
// multiply. These then finish the tile (finish_share.cuh), and look up nothing any more but the positives' rows.
#pragma once
#include "scaling_contrasts/sm90/gradient.cuh"
#include "scaling_contrasts/sm90/one_launch.cuh"

namespace scaling_contrasts::sm90 {

/// A tile's terms, in the place of statistics, which only score items use.
struct terms_t {
    float own[tile_k];                    // T
    int count[tile_k];                    // residuals
    uint32_t other[residuals_k][tile_k];  // where the other row begins in X; of those that there are not, the row
    float weight[residuals_k][tile_k];    // and 0
};
static_assert(sizeof(terms_t) <= 4 * sizeof(float) * article_shared_t::stats_k &&
              sizeof(terms_t) <= 4 * sizeof(float) * small_shared_t::stats_k);

/// A consumer's leave: the scores that the item waited for are there, and everything before is read.
template <class kind_>
__device__ __forceinline__ void begin_terms(consumer_t<kind_>& c) {
    using shared = shared_t<kind_>;
    ptx::mbar_wait(c.base + shared::at_full + (shared::score_stages_k + c.gradient.at()) * 8, c.gradient.phase());
    __syncwarp();
    if (c.lane == 0) ptx::mbar_arrive(c.base + shared::at_terms_begun);
}

/// Warps 2 and 3. They also see to it that score items wait for rows that somebody has taken.
template <class kind_>
__device__ __forceinline__ void find_terms(one_launch_params_t const& a, uint32_t base, int warp, int lane) {
    using shared = shared_t<kind_>;
    uint32_t const at = base + shared::at_stats(0, 0);
    float const unit = 1.f / scales_of(a).s;
    queue_t queue;
    uint32_t tiles = 0;
    while (true) {
        item_t const item = read_item<kind_>(base, queue);
        if (item.kind == stop_k) return;
        if (item.kind == score_k) find_left_rows(a, int(warp == 2 ? item.row : item.at), lane);
        if (item.kind != gradient_k || !completes<kind_>(a, item, sum_of<kind_>(a, item))) continue;
        ptx::mbar_wait(base + shared::at_terms_begun, tiles & 1);
        ++tiles;
        if (item.count > 0) {  // S is whole when the shares before are
            if (lane == 0) ptx::wait_count(a.turn + item.row * a.programs + item.at, item.count);
            __syncwarp();
        }
        int const band = a.program[item.at].band;
        double dt = 0.0;
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
            int const r = (warp - 2) * 64 + half * 32 + lane, row = int(item.row) * tile_k + r;
            bool const live = row < a.row.live;
            int count = live ? int(min(__ldcg(a.residual_count + row), 255u)) : 0;
            float const* const inverse = a.row.records + int64_t(item.row) * record_floats(5) + r;
            auto const* const s = reinterpret_cast<long long const*>(a.s) + int64_t(item.row) * 5 * tile_k + r;
            float inv[5];
            long long sum[5];
#pragma unroll
            for (int p = 0; p < 5; ++p) inv[p] = __ldcg(inverse + p * tile_k), sum[p] = __ldcg(s + p * tile_k);
            float own = 0.f;
#pragma unroll
            for (int p = 4; p >= 0; --p) {
                float const t = inv[p] * inv[p] * (float(sum[p]) * unit);
                own += p >= band ? t : 0.f;
                dt += double(sum[p]);
            }
            if (count > residuals_k) count = 0;
            uint32_t x[residuals_k];
            float weight[residuals_k];
            residual_t const* const from = a.residuals + int64_t(row) * residuals_k;
#pragma unroll
            for (int e = 0; e < residuals_k; ++e) {
                x[e] = ~0u;
                weight[e] = 0.f;
                if (e < count) {
                    x[e] = uint32_t(reinterpret_cast<__nv_bfloat16 const*>(
                                        __ldcg(reinterpret_cast<unsigned long long const*>(&from[e].x))) -
                                    a.x);
                    weight[e] = __ldcg(from[e].band + band);
                }
            }
            auto const order = [&](int i, int j) {  // so that bits repeat
                bool const swap = x[i] > x[j];
                uint32_t const other = swap ? x[i] : x[j];
                float const other_weight = swap ? weight[i] : weight[j];
                x[i] = swap ? x[j] : x[i], weight[i] = swap ? weight[j] : weight[i];
                x[j] = other, weight[j] = other_weight;
            };
            order(0, 1), order(2, 3), order(0, 2), order(1, 3), order(1, 2);
            ptx::store_int(at + offsetof(terms_t, own) + r * 4, __float_as_int(own));
            ptx::store_int(at + offsetof(terms_t, count) + r * 4, count);
#pragma unroll
            for (int e = 0; e < residuals_k; ++e) {
                ptx::store_int(at + offsetof(terms_t, other) + (e * tile_k + r) * 4,
                               e < count ? int(x[e])
                               : live    ? int(uint32_t(row) * uint32_t(a.dims))
                                         : 0);
                ptx::store_int(at + offsetof(terms_t, weight) + (e * tile_k + r) * 4, __float_as_int(weight[e]));
            }
        }
        // All lanes: one's arrival after __syncwarp orders the others' writes as well, but racecheck does not know.
        ptx::mbar_arrive(base + shared::at_terms_full);
        if (item.at == 0) {  // the rows' part of dL/dt
            dt = sum_over_warp(dt * double(unit));
            if (lane == 0) a.partials[2 * item.row + warp - 2] = dt;
        }
    }
}

}  // namespace scaling_contrasts::sm90
