// Multiplies the weights of a scored superblock with embeddings, as sm80/gradient.cuh does, on the tensor cores of
// Blackwell: 128 rows times up to 256 columns of one band a thread block, accumulated in tensor memory.
#pragma once
#include "scaling_contrasts/sm100/score.cuh"
#include "scaling_contrasts/sm80/products.cuh"

namespace scaling_contrasts::sm100 {

using sm80::product_t;

inline constexpr int gradient_stages_k = 2, weights_bytes_k = slab_bytes_k,
                     embeddings_bytes_k = widest_piece_k / slab_k * chunk_bytes_k,
                     gradient_stage_bytes_k = weights_bytes_k + embeddings_bytes_k;

struct gradient_shared_t {
    std::uint64_t full[gradient_stages_k], empty[gradient_stages_k], done;
    std::uint32_t tensor;
};
inline constexpr int gradient_bytes_k =
    1024 + gradient_stages_k * gradient_stage_bytes_k + int(sizeof(gradient_shared_t));

/// Whether tile `k` of a product's candidates is read transposed.
__host__ __device__ constexpr bool transposed(product_t const& job, int k) {
    return job.of_columns || (job.triangle && k < job.tile);
}

/// Slabs of 64 candidates of one part of a product; those past the live candidates are left out.
__device__ __forceinline__ int slabs_of(superblock_t const& a, product_t const& job) {
    int const live = job.of_columns ? a.rows.rows - a.first_row : a.columns.rows - a.first_column;
    return min(job.depth * (tile_k / slab_k), (live + slab_k - 1) / slab_k);
}

/// Copies stages of 64 candidates: their weights, contiguous halves of planes or 64 lines of two halves, and their
/// embeddings in chunks of 64 columns. One thread.
__device__ __forceinline__ void copy_stages(superblock_t const& a, product_t const& job, CUtensorMap const* map,
                                            int column, int width, int prefix, int prefixes, std::uint32_t ring,
                                            std::uint32_t full, std::uint32_t empty) {
    int const slabs = slabs_of(a, job), first = job.of_columns ? a.first_row : a.first_column;
    auto const* weights = reinterpret_cast<unsigned char const*>(a.weights);
    for (int number = 0; number < slabs * a.parts; ++number) {
        int const stage = number % gradient_stages_k, part = number / slabs, slab = number % slabs;
        int const tile = slab / 2, half = slab % 2;
        ptx::mbar_wait(empty + stage * 8, (number / gradient_stages_k & 1) ^ 1);
        ptx::mbar_expect(full + stage * 8, weights_bytes_k + width / slab_k * chunk_bytes_k);
        std::uint32_t const to = ring + stage * gradient_stage_bytes_k, arrive = full + stage * 8;
        std::int64_t const plane = part * sm80::tile_words(a.side, prefixes, 0, 0);
        if (transposed(job, tile)) {
            auto const* from = weights + (plane + sm80::tile_words(a.side, prefix, tile, job.tile)) * 4;
            for (int chunk = 0; chunk < 2; ++chunk)
                ptx::bulk_load(to + chunk * chunk_bytes_k, from + chunk * slab_bytes_k + half * chunk_bytes_k,
                               chunk_bytes_k, arrive);
        } else {
            auto const* from = weights + (plane + sm80::tile_words(a.side, prefix, job.tile, tile)) * 4;
            ptx::bulk_load(to, from + half * slab_bytes_k, weights_bytes_k, arrive);
        }
        for (int chunk = 0; chunk < width / slab_k; ++chunk)
            ptx::tma_load(to + weights_bytes_k + chunk * chunk_bytes_k, map, column + chunk * slab_k,
                          first + slab * slab_k, arrive);
    }
}

/// Issues the products of all stages. One thread.
__device__ __forceinline__ void issue_stages(superblock_t const& a, product_t const& job, int width, std::uint32_t ring,
                                             std::uint32_t full, std::uint32_t empty, std::uint32_t done,
                                             std::uint32_t tensor) {
    int const slabs = slabs_of(a, job);
    for (int number = 0; number < slabs * a.parts; ++number) {
        int const stage = number % gradient_stages_k;
        major_t const along = transposed(job, number % slabs / 2) ? major_t::mn_k : major_t::k_k;
        std::uint32_t const product = instruction(width, along, major_t::mn_k);
        ptx::mbar_wait(full + stage * 8, number / gradient_stages_k & 1);
        ptx::tensor_fence_after();
        std::uint32_t const from = ring + stage * gradient_stage_bytes_k;
        for (int step = 0; step < slab_k / 16; ++step)
            ptx::tensor_multiply(tensor, operand(from + step * step_bytes(along), chunk_bytes_k),
                                 operand(from + weights_bytes_k + step * step_bytes(major_t::mn_k), chunk_bytes_k),
                                 product, number > 0 || step > 0);
        ptx::tensor_commit(empty + stage * 8);
    }
    ptx::tensor_commit(done);
}

/// Adds the thread's row of the accumulator to the gradient. One thread of a launch adds to an element, and launches
/// follow one another: the order never changes.
__device__ __forceinline__ void add_outputs(rows_t const& set, int row, int end, int dims, int column, int width,
                                            int warp, std::uint32_t tensor) {
    float* const to = set.gradient + std::int64_t(row) * dims + column;
    for (int chunk = 0; chunk < width / 32; ++chunk) {
        float sum[32];
        ptx::tensor_load(sum, tensor + (std::uint32_t(warp) << 21) + chunk * 32);
        ptx::tensor_wait_load(sum);
        if (row < end)
#pragma unroll
            for (int i = 0; i < 32; i += 4)
                ptx::red_add(to + chunk * 32 + i, sum[i], sum[i + 1], sum[i + 2], sum[i + 3]);
    }
}

static __global__ void __launch_bounds__(threads_k, 2)
    gradient_kernel(__grid_constant__ superblock_t const a, __grid_constant__ pieces_t const pieces, int prefixes,
                    int dims, __grid_constant__ CUtensorMap const rows, __grid_constant__ CUtensorMap const columns) {
    extern __shared__ unsigned char raw[];
    std::uint32_t const base = ptx::smem(raw), ring = (base + 1023) & ~1023u;
    auto& shared =
        *reinterpret_cast<gradient_shared_t*>(raw + (ring - base) + gradient_stages_k * gradient_stage_bytes_k);
    std::uint32_t const full = ptx::smem(shared.full), empty = ptx::smem(shared.empty), done = ptx::smem(&shared.done);
    int const warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x & 31;

    int index = blockIdx.x;
    product_t job = {};
    job.of_columns = index >= pieces.count * a.tile_rows;
    if (job.of_columns) index -= pieces.count * a.tile_rows;
    job.triangle = a.triangle;
    job.tiles = job.of_columns ? a.tile_columns : a.tile_rows;
    job.depth = job.of_columns ? a.tile_rows : a.tile_columns;
    job.tile = index % job.tiles;
    int const number = index / job.tiles;
    auto const piece = pieces.piece.data()[number];

    if (threadIdx.x == 0) {
        for (int i = 0; i < gradient_stages_k; ++i) ptx::mbar_init(full + i * 8, 1), ptx::mbar_init(empty + i * 8, 1);
        ptx::mbar_init(done, 1);
        ptx::fence_mbar_init();
    }
    if (warp == issue_warp_k) {
        ptx::tensor_alloc<widest_piece_k>(ptx::smem(&shared.tensor));
        ptx::tensor_relinquish();
    }
    ptx::tensor_fence_before();
    __syncthreads();
    ptx::tensor_fence_after();
    std::uint32_t const tensor = shared.tensor;

    if (warp == copy_warp_k) {
        if (lane == 0)
            copy_stages(a, job, job.of_columns ? &rows : &columns, piece.column, piece.width, piece.prefix, prefixes,
                        ring, full, empty);
    } else if (warp == issue_warp_k) {
        if (lane == 0) issue_stages(a, job, piece.width, ring, full, empty, done, tensor);
    } else {
        // the pieces of a row tile share the prefixes among them
        for (int prefix = number; prefix < prefixes; prefix += pieces.count)
            sm80::add_products<row_warps_k * 32>(a, job, prefix, prefixes, tile_k);
        rows_t const& set = job.of_columns ? a.columns : a.rows;
        int const first =
            job.of_columns ? a.first_column : a.first_row;  // rows past the superblock are another launch's
        ptx::mbar_wait(done, 0);
        ptx::tensor_fence_after();
        add_outputs(set, first + job.tile * tile_k + int(threadIdx.x), min(set.rows, first + job.tiles * tile_k), dims,
                    piece.column, piece.width, warp, tensor);
    }
    ptx::tensor_fence_before();
    __syncthreads();
    ptx::tensor_fence_after();
    if (warp == issue_warp_k) ptx::tensor_free<widest_piece_k>(tensor);
}

}  // namespace scaling_contrasts::sm100
