// The sm100 engine: sm80's host side (what is queued for a step, and in which order) with Blackwell's tile kernels.
#pragma once
#include "scaling_contrasts/gpu/tensor_map.cuh"
#include "scaling_contrasts/sm100/gradient.cuh"
#include "scaling_contrasts/sm80/engine.cuh"

namespace scaling_contrasts::sm100 {

class tile_kernels_t {
  public:
    static constexpr int score_warps_k = row_warps_k;  ///< of a tile: each leaves its own scalars

    explicit tile_kernels_t(ladder_t const& ladder) : ladder_(ladder), pieces_(make_pieces(ladder)) {
        auto allow = [](auto* kernel, int bytes) {
            gpu::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                       "asking for shared memory");
        };
        allow(score_kernel<pass_t::sigmoid_k>, score_bytes_k);
        allow(score_kernel<pass_t::maxima_k>, score_bytes_k);
        allow(score_kernel<pass_t::softmax_k>, score_bytes_k);
        allow(gradient_kernel, gradient_bytes_k);
    }

    /// Thread blocks of multiply() for one side of `tiles` tile rows.
    int products_of_side(int tiles) const { return pieces_.count * tiles; }

    void score(superblock_t const& a, pass_t pass, cudaStream_t stream) const {
        auto* kernel = pass == pass_t::maxima_k    ? score_kernel<pass_t::maxima_k>
                       : pass == pass_t::softmax_k ? score_kernel<pass_t::softmax_k>
                                                   : score_kernel<pass_t::sigmoid_k>;
        kernel<<<sm80::tiles_of(a), threads_k, score_bytes_k, stream>>>(a, ladder_, map(a.rows, tile_k),
                                                                        map(a.columns, tile_k));
        gpu::check_launch("score_kernel");
    }

    /// `both_sides`: the columns' gradients, too.
    void multiply(superblock_t const& a, bool both_sides, cudaStream_t stream) const {
        int const products = products_of_side(a.tile_rows) + (both_sides ? products_of_side(a.tile_columns) : 0);
        gradient_kernel<<<products, threads_k, gradient_bytes_k, stream>>>(a, pieces_, ladder_.count, ladder_.dims,
                                                                           map(a.rows, slab_k), map(a.columns, slab_k));
        gpu::check_launch("gradient_kernel");
    }

  private:
    CUtensorMap map(rows_t const& set, int lines) const {
        return gpu::tensor_map(set.embeddings, set.rows, ladder_.dims, lines);
    }

    ladder_t ladder_;
    pieces_t pieces_;
};

using engine_t = sm80::basic_engine_t<tile_kernels_t>;

}  // namespace scaling_contrasts::sm100
