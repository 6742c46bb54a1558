// The forward pass alone of one_set_sigmoid: whole tiles of 128 x 128 cells, the loss of each in fixed point, and nothing
// that gradients need. Two persistent CTAs an SM, so that one's products run under the other's cells; each takes every
// n-th tile. Warp 0 loads, warpgroup 1 multiplies.
#pragma once
#include "scaling_contrasts/sm90/score.cuh"

namespace scaling_contrasts::sm90::forward {

constexpr int stage_bytes_k = 2 * tile_k * slab_k * 2;  // 128 rows, 128 candidates, 64 columns

/// `few_`: at most five prefixes, whose statistics leave room for another stage.
template <bool few_>
struct alignas(1024) shared_t {
    static constexpr int stages_k = few_ ? 3 : 2, stats_k = ((few_ ? 5 : max_prefixes_k) + 1) * tile_k;
    uint8_t operands[stages_k][stage_bytes_k];
    float stats[2][2][stats_k];  // [parity of the tile count][row or column side]
    uint64_t full[stages_k], empty[stages_k];

    static constexpr uint32_t at_stats = stages_k * stage_bytes_k;
    static constexpr uint32_t at_full = at_stats + 4 * stats_k * 4;
    static constexpr uint32_t at_empty = at_full + stages_k * 8;
};
static_assert(offsetof(shared_t<true>, empty) == shared_t<true>::at_empty &&
              offsetof(shared_t<false>, empty) == shared_t<false>::at_empty);
static_assert(sizeof(shared_t<true>) + 1024 <= 115712 && sizeof(shared_t<false>) + 1024 <= 115712);

struct maps_t {
    CUtensorMap row, column;  // boxes of 128 rows x 64 columns
};

/// Walks the tiles: strips of row blocks, a strip's columns one after the other, so that those in work share rows and
/// candidates. Of the rows against themselves, tiles on and above the diagonal alone.
struct walk_t {
    int first = 0, before = 0;  // of a strip: its first row block; tiles in front of it

    __host__ __device__ int high(params_t const& a) const {
        int const left = a.row.blocks - first;
        return left < strip_k ? left : strip_k;
    }
    __host__ __device__ int tiles(params_t const& a) const {
        int const h = high(a);
        return a.own ? h * (h + 1) / 2 + (a.column.blocks - first - h) * h : a.column.blocks * h;
    }
    __host__ __device__ void next(params_t const& a) {
        before += tiles(a);
        first += strip_k;
    }
    /// Tile `n`, at least the last one asked for: its row block and column block.
    __device__ int2 at(params_t const& a, int n) {
        while (n - before >= tiles(a)) next(a);
        int const h = high(a), triangle = a.own ? h * (h + 1) / 2 : 0;
        int k = n - before, column = 0;
        if (k >= triangle) {
            k -= triangle;
            return {first + k % h, (a.own ? first + h : 0) + k / h};
        }
        while (k > column) k -= ++column;  // column c of the triangle has c + 1 tiles
        return {first + k, first + column};
    }
};
/// Of all strips.
inline int64_t count_tiles(params_t const& a) {
    int64_t sum = 0;
    for (walk_t walk; walk.first < a.row.blocks; walk.first += strip_k) sum += walk.tiles(a);
    return sum;
}

template <bool few_>
__device__ __forceinline__ void produce(params_t const& a, maps_t const& maps, uint32_t base, int tiles) {
    using shared = shared_t<few_>;
    ring_t<shared::stages_k> ring;
    walk_t walk;
    int const slabs = a.columns / slab_k;
    uint32_t const stats_bytes = (a.prefixes + 1) * tile_k * 4;
    uint32_t parity = 0;
    for (int n = blockIdx.x; n < tiles; n += gridDim.x, parity ^= 1) {
        int2 const tile = walk.at(a, n);
        if (slabs < shared::stages_k)  // or tile n + 2 follows tile n's slabs, whose statistics are in use
            for (uint32_t i = 0; i < shared::stages_k; ++i)
                ptx::mbar_wait(base + shared::at_empty + i * 8, (i >= ring.at() ? ring.phase() : ring.phase() ^ 1) ^ 1);
#pragma unroll 1
        for (int s = 0; s < slabs; ++s) {
            uint32_t const at = base + ring.at() * stage_bytes_k, full = base + shared::at_full + ring.at() * 8;
            ptx::mbar_wait(base + shared::at_empty + ring.at() * 8, ring.phase() ^ 1);
            if (ptx::elect()) {
                ptx::mbar_expect(full, stage_bytes_k + (s ? 0 : 2 * stats_bytes));
                ptx::tma_load(at, &maps.row, s * slab_k, tile.x * tile_k, full);
                ptx::tma_load(at + stage_bytes_k / 2, &maps.column, s * slab_k, tile.y * tile_k, full);
                if (s == 0) {
                    int const record = record_floats(a.prefixes);
                    uint32_t const stats = base + shared::at_stats + parity * 2 * shared::stats_k * 4;
                    ptx::bulk_load(stats, a.row.records + int64_t(tile.x) * record, stats_bytes, full);
                    ptx::bulk_load(stats + shared::stats_k * 4,
                                   a.column.records + int64_t(tile.y) * record + a.prefixes * tile_k, stats_bytes,
                                   full);
                }
            }
            ring.next();
        }
    }
}

template <bool few_>
__device__ __forceinline__ void release(uint32_t base, uint32_t stage) {
    if (threadIdx.x == 128) ptx::mbar_arrive(base + shared_t<few_>::at_empty + stage * 8);
}
/// Dot products of a tile's halves: (+)= those of a band's columns. The last stage is not handed back, and its products
/// not waited for.
template <bool fp16_, bool few_>
__device__ __forceinline__ void multiply(uint32_t base, ring_t<shared_t<few_>::stages_k>& ring, float (&upper)[64],
                                         float (&lower)[64], int slabs, bool add) {
    using shared = shared_t<few_>;
#pragma unroll 1
    for (int s = 0; s < slabs; ++s) {
        uint32_t const at = base + ring.at() * stage_bytes_k, full = base + shared::at_full + ring.at() * 8;
        uint64_t const rows = ptx::operand(at), columns = ptx::operand(at + stage_bytes_k / 2);
        bool unread = s > 0;  // the stage before is not handed back yet
        if (!__all_sync(~0u, ptx::mbar_try_once(full, ring.phase()))) {
            if (unread) {
                ptx::wgmma_wait<0>();
                release<few_>(base, ring.before());
                unread = false;
            }
            ptx::mbar_wait(full, ring.phase());
        }
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k) {
            uint64_t const row = ptx::further(rows, 32 * k), column = ptx::further(columns, 32 * k);
            auto const one = [&](float (&d)[64], uint64_t of) {
                if constexpr (fp16_) ptx::wgmma_fp16_n128<0, 0>(d, of, column, k > 0 ? 1 : add | (s > 0));
                else ptx::wgmma_n128<0, 0>(d, of, column, k > 0 ? 1 : add | (s > 0));
            };
            one(upper, row);
            one(lower, ptx::further(row, 8192));
        }
        ptx::wgmma_commit();
        if (unread) {
            ptx::wgmma_wait<1>();
            release<few_>(base, ring.before());
        }
        ring.next();
    }
}

/// What a warp's 16 rows x 128 columns of a tile are: negatives, unless there are positives, self pairs or rows that are
/// not there among them.
struct cells_t {
    params_t const& a;
    int row, column;  // global in the block: this thread's first row, the tile's first column
    int lane;
    uint32_t at_rows, at_columns;  // statistics in shared memory: of that row; of the tile's columns

    /// Of a band: `d`, dot products, [chunk of 8 columns][row r: 2 columns, row r + 8: 2 columns].
    template <bool marked_>
    __device__ __forceinline__ float exact(float const (&d)[64], float u0, float u1, float4 const (&norm)[8],
                                           float b2) const {
        float loss = 0.f;
        int label0 = 0, label1 = 0;
        if constexpr (marked_) {
            label0 = ptx::load_int(at_rows + a.prefixes * tile_k * 4);
            label1 = ptx::load_int(at_rows + a.prefixes * tile_k * 4 + 32);
        }
#pragma unroll
        for (int group = 0; group < 4; ++group) {  // one logarithm for sixteen cells
            float prod = 1.f, relu = 0.f, sum = 0.f, squares = 0.f;
#pragma unroll
            for (int i = 0; i < 16; ++i) {
                float4 const v = norm[group * 2 + i / 8];
                float const q = (i & 2 ? u1 : u0) * (i & 4 ? (i & 1 ? v.w : v.z) : (i & 1 ? v.y : v.x));
                float s2 = fmaf(d[group * 16 + i], q, b2);
                if constexpr (marked_) {
                    int const in_tile = group * 32 + i / 4 * 8 + (lane & 3) * 2 + (i & 1), c = column + in_tile,
                              r = row + (i & 2 ? 8 : 0);
                    if (ptx::load_int(at_columns + in_tile * 4) == (i & 2 ? label1 : label0)) s2 = -s2;
                    if (r >= a.row.live || c >= a.column.live || (a.own && !a.self_pairs && r == c)) s2 = -1e30f;
                }
                float const e = ptx::ex2(-fabsf(s2));
                prod = fmaf(prod, e, prod);
                relu += fmaxf(s2, 0.f);
                sum += e;
                squares = fmaf(e, e, squares);
            }
            // the logarithm of the product is good to 2e-7 absolute, so small sums take the series
            loss += relu == 0.f && sum < 4e-3f ? fmaf(-0.5f, squares, sum) : ln2_k * (relu + ptx::lg2(prod));
        }
        return loss;
    }
    /// Of a band of negatives alone.
    __device__ __forceinline__ float negatives(float const (&d)[64], float u0, float u1, float4 const (&norm)[8],
                                               float b2) const {
        float e4[4] = {}, squares[4] = {};
        bool near = false;
#pragma unroll
        for (int h = 0; h < 8; ++h) {
            if (near) break;
            float4 const v = norm[h];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float const q = (i & 2 ? u1 : u0) * (i & 4 ? (i & 1 ? v.w : v.z) : (i & 1 ? v.y : v.x));
                float const e = ptx::ex2(fmaf(d[h * 8 + i], q, b2));
                e4[i & 3] += e;
                squares[i & 3] = fmaf(e, e, squares[i & 3]);
            }
            if (h == 1 || h == 7)  // most bands that are not far below zero show it early
                near = __any_sync(~0u, !(fmaxf(fmaxf(e4[0], e4[1]), fmaxf(e4[2], e4[3])) < far_k));
        }
        if (near) return exact<false>(d, u0, u1, norm, b2);
        // sixteen like cells stand in for the sum of e^3
        float const cubes =
            (e4[0] * e4[0] * e4[0] + e4[1] * e4[1] * e4[1] + e4[2] * e4[2] * e4[2] + e4[3] * e4[3] * e4[3]) *
            (1.f / 256);
        return fmaf(-0.5f, (squares[0] + squares[1]) + (squares[2] + squares[3]),
                    (e4[0] + e4[1]) + (e4[2] + e4[3]) + cubes * (1.f / 3));
    }
    __device__ __forceinline__ bool special() const {
        int const first_row = row - (lane >> 2);
        if (first_row + 16 > a.row.live || column + tile_k > a.column.live ||
            (a.own && first_row / tile_k * tile_k == column))
            return true;
        int const mine = ptx::load_int(at_rows + (a.prefixes * tile_k - (lane >> 2) + (lane & 15)) * 4);
        int label[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) label[i] = ptx::load_int(at_columns + (lane + 32 * i) * 4);
        int const least = __reduce_min_sync(~0u, min(min(label[0], label[1]), min(label[2], label[3]))),
                  most = __reduce_max_sync(~0u, max(max(label[0], label[1]), max(label[2], label[3])));
        if (__reduce_max_sync(~0u, mine) < least || __reduce_min_sync(~0u, mine) > most) return false;
        bool any = false;
        for (int r = 0; r < 16; ++r) {
            int const one = __shfl_sync(~0u, mine, r);
            any |= one == label[0] | one == label[1] | one == label[2] | one == label[3];
        }
        return __any_sync(~0u, any);
    }
};

template <bool few_>
__device__ __forceinline__ void consume(params_t const& a, uint32_t base, int tiles) {
    using shared = shared_t<few_>;
    int const warp = __shfl_sync(~0u, threadIdx.x / 32 & 3, 0), lane = threadIdx.x & 31;
    scales_t const scale = scales_of(a);
    ring_t<shared::stages_k> ring;
    walk_t walk;
    uint32_t parity = 0;
    for (int n = blockIdx.x; n < tiles; n += gridDim.x, parity ^= 1) {
        int2 const tile = walk.at(a, n);
        uint32_t const at_rows = base + shared::at_stats + parity * 2 * shared::stats_k * 4,
                       at_columns = at_rows + shared::stats_k * 4;
        float upper[64] = {}, lower[64] = {};  // dot products of the tile's halves
        float loss = 0.f;
        bool special[2];
#pragma unroll 1
        for (int p = 0; p < a.prefixes; ++p) {
            multiply<false, few_>(base, ring, upper, lower, a.slabs[p], p > 0);
            float4 norm[8];
#pragma unroll
            for (int h = 0; h < 8; ++h)
                norm[h] = ptx::load_float4(at_columns + ((p + 1) * tile_k + (lane & 3) * 4) * 4 + h * 64);
            ptx::wgmma_wait<0>();
            release<few_>(base, ring.before());
            float band = 0.f;
            auto const add = [&](int half, float const(&d)[64]) {
                int const in_tile = half * 64 + warp * 16 + (lane >> 2);
                cells_t const cells = {a,    tile.x * tile_k + in_tile, tile.y * tile_k,
                                       lane, at_rows + in_tile * 4,     at_columns};
                if (p == 0) special[half] = cells.special();
                float const u0 = ptx::load_float(at_rows + (p * tile_k + in_tile) * 4) * scale.t2,
                            u1 = ptx::load_float(at_rows + (p * tile_k + in_tile + 8) * 4) * scale.t2;
                band += special[half] ? cells.template exact<true>(d, u0, u1, norm, scale.b2)
                                      : cells.negatives(d, u0, u1, norm, scale.b2);
            };
            add(0, upper);
            add(1, lower);
            loss = fmaf(a.omega[p], band, loss);
        }
        loss = sum_over_warp(loss) * (a.own && tile.x < tile.y ? 2.f : 1.f);
        if (lane == 0) ptx::red_add(a.sums + 2 * tile.x, __float2ll_rn(loss * scale.sum));
    }
}

template <bool few_>
__device__ __forceinline__ void open_barriers(uint32_t base) {
    using shared = shared_t<few_>;
    if (threadIdx.x == 0) {
        for (int i = 0; i < shared::stages_k; ++i) {
            ptx::mbar_init(base + shared::at_full + i * 8, 1);
            ptx::mbar_init(base + shared::at_empty + i * 8, 1);
        }
        ptx::fence_mbar_init();
    }
    __syncthreads();
}

template <bool few_>
__global__ void __launch_bounds__(threads_k, ctas_k)
    score_kernel(maps_t const __grid_constant__ maps, params_t const __grid_constant__ a, int tiles) {
    using shared = shared_t<few_>;
    extern __shared__ uint8_t raw[];
    uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u;
    open_barriers<few_>(base);
    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    if (warp < 4) {
        ptx::reg_free<32>();
        if (warp == 0) produce<few_>(a, maps, base, tiles);
    } else {
        ptx::reg_alloc<224>();
        consume<few_>(a, base, tiles);
    }
}

constexpr int scalars_threads_k = 256;

/// {loss, 0, 0}, from the row blocks' sums in a fixed order.
static __global__ void __launch_bounds__(scalars_threads_k) scalars_kernel(params_t const __grid_constant__ a) {
    __shared__ double part[scalars_threads_k / 32];
    double sum = 0.0;
    for (int i = threadIdx.x; i < a.row.blocks; i += scalars_threads_k) sum += double(a.sums[2 * i]);
    sum = sm90::sum_over_warp(sum);
    if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x) return;
    double all = 0.0;
    for (double v : part) all += v;
    all *= double(a.weight) / a.rows_everywhere / double(scales_of(a).sum);
    for (int k = 0; k < 3; ++k) {
        if (a.scalars) a.scalars[k] = k ? 0.f : float(all);
        if (a.scalars_double) a.scalars_double[k] = k ? 0.0 : all;
    }
}

}  // namespace scaling_contrasts::sm90::forward
