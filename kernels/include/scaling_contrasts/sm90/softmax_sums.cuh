// info_nce's first pass for the ladder engine: for every row and every column, the sum over its negatives of 2^x, x =
// logit times log2(e), added to the bins of info_nce_sums.cuh. A persistent kernel like that of the forward pass alone
// (forward.cuh): tiles of 128 x 128 cells, two CTAs an SM, so that one's products run under the other's exponentials.
#pragma once
#include "scaling_contrasts/sm90/forward.cuh"
#include "scaling_contrasts/sm90/info_nce_sums.cuh"

namespace scaling_contrasts::sm90 {

/// Where sums go; null bins: nobody wants these.
struct sums_t {
    two_set::side_t row, column;
};

/// What a warp has of a band: 32 rows, 16 of either half of the tile, x 128 columns.
struct sums_band_t {
    float const (&upper)[64], (&lower)[64];  // dot products
    float const (&u)[2][2];                  // [half]: inverse norms of a thread's rows times t log2(e)
    float4 const (&norm)[8];                 // of its columns
    int row, column, lane;                   // the thread's first row; the tile's first column

    __device__ __forceinline__ float dot(int half, int i) const { return half ? lower[i] : upper[i]; }
    /// What cell `i`'s dot product is multiplied by.
    __device__ __forceinline__ float factor(int half, int i) const {
        float4 const& v = norm[i / 8];
        return u[half][i >> 1 & 1] * (i & 4 ? (i & 1 ? v.w : v.z) : (i & 1 ? v.y : v.x));
    }
    __device__ __forceinline__ int row_of(int half, int i) const { return row + half * (tile_k / 2) + (i & 2) * 4; }
    __device__ __forceinline__ int column_of(int i) const { return column + i / 4 * 8 + (lane & 3) * 2 + (i & 1); }
};

constexpr int room_k = 220;  // octaves that one float sum has room for, half of them above 1

/// Adds 2^x over 2^middle of every cell. `special_`: there are positives, or rows or columns are not there. `window_`:
/// only cells with x in (middle - window_k, middle] count.
template <bool special_, bool window_>
__device__ __forceinline__ void add_shares(params_t const& a, sums_t const& to, sums_band_t const& band, int p,
                                           two_set::bin_scale_t const& bins, int middle) {
    float const minus = float(-middle);
    float rows[2][2] = {};
#pragma unroll
    for (int group = 0; group < 4; ++group) {  // 32 columns
        float columns[8] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half)
#pragma unroll
            for (int k = 0; k < 16; ++k) {
                int const i = group * 16 + k;
                float const x = fmaf(band.dot(half, i), band.factor(half, i), minus);
                float e = ptx::ex2(x);
                if constexpr (special_) {
                    int const row = band.row_of(half, i), column = band.column_of(i);
                    if (row >= a.row.live || column >= a.column.live || (a.paired && row == column)) e = 0.f;
                }
                if constexpr (window_)
                    if (!(x <= 0.f && x > -float(two_set::window_k))) e = 0.f;
                rows[half][i >> 1 & 1] += e;
                columns[k / 4 * 2 + (k & 1)] += e;
            }
        if (to.column.bins)
            two_set::add_share(to.column, bins, p, band.column + group * 32 + summed_column(band.lane),
                               sum_columns(columns, band.lane), middle);
    }
    if (to.row.bins) {  // each of the four lanes that hold four rows gets the sum of one
        bool const b0 = band.lane & 1, b1 = band.lane & 2;
        float sum[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
            sum[r] = (b1 ? rows[1][r] : rows[0][r]) + __shfl_xor_sync(~0u, b1 ? rows[0][r] : rows[1][r], 2);
        float const mine = (b0 ? sum[1] : sum[0]) + __shfl_xor_sync(~0u, b0 ? sum[0] : sum[1], 1);
        two_set::add_share(to.row, bins, p, band.row + (b1 ? tile_k / 2 : 0) + (b0 ? 8 : 0), mine, middle);
    }
}

__device__ __forceinline__ void add_band(params_t const& a, sums_t const& to, sums_band_t const& band, int p,
                                         two_set::bin_scale_t const& bins, bool special) {
    int top = bins.offset, low = -top;  // cosines lie in [-1, 1]
    if (top - low > room_k) {
        float most = -1e30f, least = 1e30f;
#pragma unroll
        for (int i = 0; i < 64; ++i)  // absent cells too: at worst they send a warp to the windows
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float const x = band.dot(half, i) * band.factor(half, i);
                most = fmaxf(most, x);
                least = fminf(least, x);
            }
        top = __reduce_max_sync(~0u, __float2int_ru(most));
        low = __reduce_min_sync(~0u, __float2int_rd(least));
    }
    if (top - low <= room_k) {
        if (special) add_shares<true, false>(a, to, band, p, bins, (top + low) / 2);
        else add_shares<false, false>(a, to, band, p, bins, (top + low) / 2);
        return;
    }
#pragma unroll 1
    for (; top > low - 1; top -= two_set::window_k) add_shares<true, true>(a, to, band, p, bins, top);
}

__device__ __forceinline__ void consume_sums(params_t const& a, sums_t const& to, uint32_t base, int tiles) {
    using shared = forward::shared_t<true>;
    int const warp = __shfl_sync(~0u, threadIdx.x / 32 & 3, 0), lane = threadIdx.x & 31;
    float const t2 = scales_of(a).t2;
    two_set::bin_scale_t const bins = two_set::bin_scale(t2);
    ring_t<shared::stages_k> ring;
    forward::walk_t walk;
    uint32_t parity = 0;
    for (int n = blockIdx.x; n < tiles; n += gridDim.x, parity ^= 1) {
        int2 const tile = walk.at(a, n);
        uint32_t const at_rows = base + shared::at_stats + parity * 2 * shared::stats_k * 4,
                       at_columns = at_rows + shared::stats_k * 4;
        int const in_tile = warp * 16 + (lane >> 2);
        bool const special = (tile.x + 1) * tile_k > a.row.live || (tile.y + 1) * tile_k > a.column.live ||
                             (a.paired && tile.x == tile.y);
        float upper[64] = {}, lower[64] = {};  // dot products of the tile's halves
#pragma unroll 1
        for (int p = 0; p < 5; ++p) {
            forward::multiply<true, true>(base, ring, upper, lower, p == 0 ? 1 : 1 << (p - 1), p > 0);
            float4 norm[8];
#pragma unroll
            for (int h = 0; h < 8; ++h)
                norm[h] = ptx::load_float4(at_columns + ((p + 1) * tile_k + (lane & 3) * 4) * 4 + h * 64);
            ptx::wgmma_wait<0>();
            forward::release<true>(base, ring.before());
            float u[2][2];
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int r = 0; r < 2; ++r)
                    u[half][r] =
                        t2 * ptx::load_float(at_rows + (p * tile_k + in_tile + half * (tile_k / 2) + r * 8) * 4);
            add_band(a, to, {upper, lower, u, norm, tile.x * tile_k + in_tile, tile.y * tile_k, lane}, p, bins,
                     special);
        }
    }
}

static __global__ void __launch_bounds__(threads_k, ctas_k)
    sums_kernel(forward::maps_t const __grid_constant__ maps, params_t const __grid_constant__ a,
                sums_t const __grid_constant__ to, int tiles) {
    using shared = forward::shared_t<true>;
    extern __shared__ uint8_t raw[];
    uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u;
    forward::open_barriers<true>(base);
    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        ptx::reg_free<32>();
        if (warp == 0) forward::produce<true>(a, maps, base, tiles);
    } else {
        ptx::reg_alloc<224>();
        consume_sums(a, to, base, tiles);
    }
}

}  // namespace scaling_contrasts::sm90
