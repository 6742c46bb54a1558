// The sm80 engine's tile kernels as its host side sees them: score a superblock, multiply its weights.
#pragma once
#include "scaling_contrasts/sm80/engine.cuh"
#include "scaling_contrasts/sm80/gradient.cuh"
#include "scaling_contrasts/sm80/score.cuh"

namespace scaling_contrasts::sm80 {

class tile_kernels_t {
  public:
    static constexpr int score_warps_k = score_threads_k / 32;  ///< of a tile: each leaves its own scalars

    explicit tile_kernels_t(ladder_t const& ladder)
        : ladder_(ladder), pieces_(make_pieces(ladder)), slabs_(make_slabs(ladder)) {
        auto allow = [](auto* kernel, std::size_t bytes) {
            gpu::check(
                cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
                "asking for shared memory");
        };
        allow(score_kernel<pass_t::sigmoid_k>, sizeof(score_shared_t));
        allow(score_kernel<pass_t::maxima_k>, sizeof(score_shared_t));
        allow(score_kernel<pass_t::positives_k>, sizeof(score_shared_t));
        allow(score_kernel<pass_t::softmax_k>, sizeof(score_shared_t));
        allow(score_kernel<pass_t::groups_k>, sizeof(score_shared_t));
        allow(gradient_kernel, sizeof(gradient_stage_t) * gradient_stages_k);
    }

    /// Thread blocks of multiply() for one side of `tiles` tile rows.
    int products_of_side(int tiles) const { return sm80::products_of_side(pieces_.count, pieces_.narrow, tiles); }

    void score(superblock_t const& a, pass_t pass, cudaStream_t stream) const {
        auto* kernel = pass == pass_t::maxima_k      ? score_kernel<pass_t::maxima_k>
                       : pass == pass_t::positives_k ? score_kernel<pass_t::positives_k>
                       : pass == pass_t::softmax_k   ? score_kernel<pass_t::softmax_k>
                       : pass == pass_t::groups_k    ? score_kernel<pass_t::groups_k>
                                                     : score_kernel<pass_t::sigmoid_k>;
        kernel<<<tiles_of(a), score_threads_k, sizeof(score_shared_t), stream>>>(a, ladder_, slabs_);
        gpu::check_launch("score_kernel");
    }

    /// `both_sides`: the columns' gradients, too.
    void multiply(superblock_t const& a, bool both_sides, cudaStream_t stream) const {
        int const products = products_of_side(a.tile_rows) + (both_sides ? products_of_side(a.tile_columns) : 0);
        gradient_kernel<<<products, gradient_threads_k, sizeof(gradient_stage_t) * gradient_stages_k, stream>>>(
            a, pieces_, ladder_.count, ladder_.dims);
        gpu::check_launch("gradient_kernel");
    }

  private:
    ladder_t ladder_;
    pieces_t pieces_;
    slabs_t slabs_;
};

using engine_t = basic_engine_t<tile_kernels_t>;

}  // namespace scaling_contrasts::sm80
