// The linear parts of the losses over two sets: norms and positives before the grid of cells, log sums between
// info_nce's passes, and after it gradient tiles to rows of the output, with the share that comes from the rows' own
// norms
//   dI_b(i) = ln2 w / n (sum_j W_b(i, j) C_j + P_b(i) C_i - T_b(i) I_i),   T_b(i) = sum_{p >= b} inv_p(i)^2 S_p(i),
// where P are the weights of the positive cell (i, i), in fp32, and S sums weight times dot product over all cells of
// the row. With one prefix S is the dot product of I_i with the two sums before it, so that no cell has to add to it.
#pragma once
#include "scaling_contrasts/sm90/info_nce_sums.cuh"

namespace scaling_contrasts::sm90::two_set {

/// What these kernels see of one GPU's pairs.
struct pairs_t {
    side_t side[2];      // images, captions
    float* inverse[2];   // [prefix][padded]
    float* cosine;       // [prefix][padded]: of pair i
    float* log_sums[2];  // [prefix][padded]: log2 of the sum of 2^x over the row, its positive included
    float* excess[2];    // [prefix][padded]: log_sums less x of the positive
    bool nce;
    int prefixes, dims, columns, rows;
    int end[max_prefixes_k];  // prefixes
    float omega[max_prefixes_k], weight;
    double rows_everywhere;
    float const *t, *b;
    int64_t const* sums;  // [row tile][6], as the kernel adds to them
    double* partials;     // [blocks of the positives' kernel][3]
    int partial_count;
    int pieces;
    piece_t piece[max_programs_k];
    void* gradient[2];  // [rows][dims]
    bool fp32_gradients;
    float* scalars;          // loss, dL/dt, dL/db; or null
    double* scalars_double;  // the same; or null
    // one_set_info_nce alone
    groups_t groups;
    float const* residual;  // as in params_t
    int const* partner;
    double const* mean_over;  // positive pairs (NT-Xent) or rows that have positives (SupCon), of all GPUs
    bool sup_con;
};

constexpr int rows_threads_k = 256;

/// One warp a pair. Grid: padded / 8.
static __global__ void __launch_bounds__(rows_threads_k) prepare_kernel(pairs_t const __grid_constant__ a) {
    int const lane = threadIdx.x & 31, row = blockIdx.x * (rows_threads_k / 32) + threadIdx.x / 32;
    bool const live = row < a.side[0].live;
    float total[3] = {};  // images, captions, both
    for (int p = 0; p < a.prefixes; ++p) {
        float sum[3] = {};
        if (live)
            for (int c = (p ? a.end[p - 1] : 0) + lane * 8; c < a.end[p]; c += 256) {
                uint4 const x = __ldg(reinterpret_cast<uint4 const*>(a.side[0].x + int64_t(row) * a.dims + c)),
                            y = __ldg(reinterpret_cast<uint4 const*>(a.side[1].x + int64_t(row) * a.dims + c));
                uint32_t const u[4] = {x.x, x.y, x.z, x.w}, v[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    float const ul = ptx::lo_bf16(u[i]), uh = ptx::hi_bf16(u[i]), vl = ptx::lo_bf16(v[i]),
                                vh = ptx::hi_bf16(v[i]);
                    sum[0] = fmaf(ul, ul, fmaf(uh, uh, sum[0]));
                    sum[1] = fmaf(vl, vl, fmaf(vh, vh, sum[1]));
                    sum[2] = fmaf(ul, vl, fmaf(uh, vh, sum[2]));
                }
            }
        float inverse[2];
#pragma unroll
        for (int k = 0; k < 3; ++k) {
            total[k] += sum_over_warp(sum[k]);
            if (k == 2) break;
            float const norm = sqrtf(total[k]);
            inverse[k] = live && !(norm < least_norm_k) ? 1.f / norm : 0.f;
        }
        if (lane == 0) {
            int64_t const at = int64_t(p) * a.side[0].padded + row;
            a.inverse[0][at] = inverse[0];
            a.inverse[1][at] = inverse[1];
            a.cosine[at] = total[2] * inverse[0] * inverse[1];
        }
    }
}

/// info_nce, after the first pass over all blocks: sums of both sides, one thread a row. Grid: (padded / 256, prefixes,
/// 2).
static __global__ void __launch_bounds__(rows_threads_k) log_sums_kernel(pairs_t const __grid_constant__ a) {
    int const row = blockIdx.x * rows_threads_k + threadIdx.x, p = blockIdx.y, which = blockIdx.z;
    float const t2 = scales_of(a).t2;
    bin_scale_t const bins = bin_scale(t2);
    int64_t const at = int64_t(p) * a.side[0].padded + row;
    double const x = double(a.cosine[at]) * double(t2);
    double sum = 0.0;  // over the positive's 2^x
    for (int k = 0; k < bins_k; ++k) {
        int64_t const share = a.side[which].bins[(int64_t(p) * bins_k + k) * a.side[which].padded + row];
        if (share) sum += double(share) * exp2(double(k * bins.width - bins.offset - bins.fraction) - x);
    }
    double const excess = log1p(sum) * 1.4426950408889634;
    a.excess[which][at] = float(excess);
    a.log_sums[which][at] = float(x + excess);
}

/// A positive cell: slope of its logit, and its part of the loss.
struct positive_t {
    float slope, loss;
};
__device__ __forceinline__ positive_t positive(pairs_t const& a, int p, int row) {
    int64_t const at = int64_t(p) * a.side[0].padded + row;
    if (a.nce) {
        float const r = ln2_k * a.excess[0][at], c = ln2_k * a.excess[1][at];
        return {expm1f(-r) + expm1f(-c), r + c};
    }
    float const y = -(*a.t * a.cosine[at] + *a.b), e = expf(-fabsf(y));  // softplus(y)
    return {-(y > 0.f ? 1.f : e) / (1.f + e), fmaxf(y, 0.f) + log1pf(e)};
}

__device__ __forceinline__ double sum_over_warp(double v) {
#pragma unroll
    for (int m = 16; m; m /= 2) v += __shfl_xor_sync(~0u, v, m);
    return v;
}

/// The positives' part of the scalars. Grid: partial_count.
static __global__ void __launch_bounds__(rows_threads_k) positives_kernel(pairs_t const __grid_constant__ a) {
    __shared__ double part[rows_threads_k / 32][3];
    int const row = blockIdx.x * rows_threads_k + threadIdx.x;
    double sum[3] = {};  // loss, slope times cosine, slope
    if (row < a.side[0].live)
        for (int p = 0; p < a.prefixes; ++p) {
            positive_t const cell = positive(a, p, row);
            double const omega = a.omega[p], slope = omega * cell.slope;
            sum[0] += omega * cell.loss;
            sum[1] += slope * a.cosine[int64_t(p) * a.side[0].padded + row];
            sum[2] += slope;
        }
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        sum[k] = sum_over_warp(sum[k]);
        if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32][k] = sum[k];
    }
    __syncthreads();
    if (threadIdx.x < 3) {
        double all = 0.0;
        for (auto const& warp : part) all += warp[threadIdx.x];
        a.partials[3 * int64_t(blockIdx.x) + threadIdx.x] = all;
    }
}

/// What the sums over cells are multiplied by.
template <bool grouped_>
__device__ __forceinline__ double mean_factor(pairs_t const& a) {
    if constexpr (grouped_) return double(a.weight) / fmax(*a.mean_over, 1.0);
    return double(a.weight) / a.rows_everywhere * (a.nce ? 0.5 : 1.0);
}

/// Loss, dL/dt and dL/db: this GPU's part of the global mean. One block.
template <bool grouped_>
__global__ void __launch_bounds__(1024) scalars_kernel(pairs_t const __grid_constant__ a) {
    __shared__ double part[32];
    constexpr int place[3] = {0, 2, 1};  // in `sums`
    double const unit = 1.0 / double(scales_of<grouped_>(a).sum), remainder = unit / double(remainder_k);
    for (int k = 0; k < 3; ++k) {
        double sum = 0.0;
        for (int i = threadIdx.x; i < a.side[0].blocks(); i += 1024) {
            int64_t const* tile = a.sums + 6 * int64_t(i) + place[k];
            sum += double(tile[0]) * unit + double(tile[3]) * remainder;
        }
        for (int i = threadIdx.x; i < a.partial_count; i += 1024) sum += a.partials[3 * int64_t(i) + k];
        sum = sum_over_warp(sum);
        __syncthreads();
        if ((threadIdx.x & 31) == 0) part[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x != 0) continue;
        double all = 0.0;
        for (double v : part) all += v;
        all *= mean_factor<grouped_>(a);
        if ((grouped_ || a.nce) && k == 2) all = 0.0;
        if (a.scalars) a.scalars[k] = float(all);
        if (a.scalars_double) a.scalars_double[k] = all;
    }
}

/// S of one row, in units of its first word.
__device__ __forceinline__ double sum_of_s(side_t const& side, int words, int p, int row) {
    double sum = 0.0;
    for (int k = words - 1; k >= 0; --k)
        sum = sum / double(1 << s_octaves_k) + double(side.s[(int64_t(p) * words + k) * side.padded + row]);
    return sum;
}

constexpr int finish_threads_k = 128, slice_k = 16;  // a slice: rows that one warp held of a gradient tile

/// Grid: (rows / 16 rounded up, sides).
template <bool ladder_, bool grouped_ = false>
__global__ void __launch_bounds__(finish_threads_k) finish_kernel(pairs_t const __grid_constant__ a) {
    __shared__ float own[max_prefixes_k][slice_k], partner[max_prefixes_k][slice_k], dot[4][slice_k];
    int const which = blockIdx.y, block = blockIdx.x / 8, slice = blockIdx.x % 8;
    side_t const &side = a.side[which], &other = a.side[1 - which];
    int const thread = threadIdx.x, warp = thread / 32, lane = thread & 31, quad = lane & 3;
    int const first = block * row_tile_k + slice * slice_k, row = first + lane / 4;
    float const* tile =
        side.dx + int64_t(block) * a.pieces * share_k + slice / 4 * (share_k / 2) + (slice % 4 * 32 + lane) * 4;
    auto load = [&](int piece, int j) {
        return *reinterpret_cast<float4 const*>(tile + int64_t(piece) * share_k + j * 512);
    };
    auto pair_of = [&](__nv_bfloat16 const* x, int r, int column) {
        return r >= 0 && r < side.live ? *reinterpret_cast<uint32_t const*>(x + int64_t(r) * a.dims + column) : 0u;
    };
    // the row that a row's positive is: of one set, where there is one alone
    auto const partner_of = [&](int r) { return !grouped_ ? r : r < side.live ? a.partner[r] : -1; };
    int const partners[2] = {partner_of(row), partner_of(row + 8)};

    scales_t const scale = scales_of<grouped_>(a);
    for (int i = thread; i < a.prefixes * slice_k; i += finish_threads_k) {
        int const p = i / slice_k, r = i % slice_k;
        float mine = 0.f, theirs = 0.f;
        if (first + r < side.live) {
            int64_t const at = int64_t(p) * side.padded + first + r;
            float const inverse = side.inverse[at];
            if constexpr (grouped_) {
                theirs = a.partner[first + r] < 0 ? 0.f : a.residual[at];
            } else {
                float const weight = positive(a, p, first + r).slope * a.omega[p] * scale.t2;
                theirs = weight * inverse * other.inverse[at];
                mine = weight * a.cosine[at];
            }
            if constexpr (ladder_) mine += float(sum_of_s(side, s_words(grouped_ || a.nce), p, first + r) / scale.s);
            mine *= inverse * inverse;
        }
        own[p][r] = mine;
        partner[p][r] = theirs;
    }
    if constexpr (!ladder_) {
        float sum[2] = {};
        if (first < side.live)
            for (int i = warp; i < a.pieces * 32; i += 4) {
                int const piece = i / 32, j = i % 32, column = a.piece[piece].column + 8 * j + quad * 2;
                if (8 * j >= a.piece[piece].width) continue;
                float4 const v = load(piece, j);
                uint32_t const x0 = pair_of(side.x, row, column), x1 = pair_of(side.x, row + 8, column);
                sum[0] += v.x * ptx::lo_bf16(x0) + v.y * ptx::hi_bf16(x0);
                sum[1] += v.z * ptx::lo_bf16(x1) + v.w * ptx::hi_bf16(x1);
                if constexpr (grouped_)  // with what rounding took off
#pragma unroll
                    for (int h = 0; h < 2; ++h) {
                        uint32_t const x = h ? x1 : x0, y = pair_of(side.x, partners[h], column);
                        if (partners[h] >= 0)
                            sum[h] += a.residual[row + 8 * h] *
                                      (ptx::lo_bf16(x) * ptx::lo_bf16(y) + ptx::hi_bf16(x) * ptx::hi_bf16(y));
                    }
            }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            sum[h] += __shfl_xor_sync(~0u, sum[h], 1);
            sum[h] += __shfl_xor_sync(~0u, sum[h], 2);
            if (quad == 0) dot[warp][lane / 4 + 8 * h] = sum[h];
        }
    }
    __syncthreads();
    if (thread < slice_k) {
        if constexpr (ladder_) {
            for (int p = a.prefixes - 2; p >= 0; --p) {
                own[p][thread] += own[p + 1][thread];
                if constexpr (!grouped_) partner[p][thread] += partner[p + 1][thread];
            }
        } else if (first + thread < side.live) {
            float const inverse = side.inverse[first + thread];
            own[0][thread] +=
                inverse * inverse * ((dot[0][thread] + dot[1][thread]) + (dot[2][thread] + dot[3][thread]));
        }
    }
    __syncthreads();

    float factor = ln2_k * a.weight / float(a.rows_everywhere) * (a.nce ? 0.5f : 1.f);
    if constexpr (grouped_) factor = ln2_k * float(mean_factor<true>(a));
    if (*a.t == 0.f) factor = 0.f;
    auto write = [&](int r, int column, float lo, float hi) {
        if (r >= a.rows) return;
        int64_t const at = int64_t(r) * a.dims + column;
        if (a.fp32_gradients)
            *reinterpret_cast<float2*>(static_cast<float*>(a.gradient[which]) + at) = make_float2(lo, hi);
        else *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(a.gradient[which]) + at) = ptx::pack_bf16(lo, hi);
    };
    for (int i = warp; i < a.pieces * 32; i += 4) {
        piece_t const piece = a.piece[i / 32];
        int const j = i % 32, column = piece.column + 8 * j + quad * 2;
        if (8 * j >= piece.width) continue;
        float4 const v = first < side.live ? load(i / 32, j) : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            int const r = row + 8 * h;
            uint32_t const x = pair_of(side.x, r, column),
                           y = pair_of(grouped_ ? side.x : other.x, partners[h], column);
            float const mine = own[piece.band][lane / 4 + 8 * h], theirs = partner[piece.band][lane / 4 + 8 * h];
            float const lo = (h ? v.z : v.x) + theirs * ptx::lo_bf16(y) - mine * ptx::lo_bf16(x),
                        hi = (h ? v.w : v.y) + theirs * ptx::hi_bf16(y) - mine * ptx::hi_bf16(x);
            bool const live = r < side.live;
            write(r, column, live ? factor * lo : 0.f, live ? factor * hi : 0.f);
        }
    }
    for (int i = thread; i < slice_k * (a.dims - a.columns) / 2;
         i += finish_threads_k) {  // columns past the last prefix
        int const width = (a.dims - a.columns) / 2;
        write(first + i / width, a.columns + i % width * 2, 0.f, 0.f);
    }
}

}  // namespace scaling_contrasts::sm90::two_set
