// The sm90 engine of the losses over two sets, two_set_sigmoid and info_nce: checks the problem, lays out scratch,
// launches a step. Nothing here waits for the device, so that a step captures into a graph.
//
//   begin    norms, positives, cleared sums
//   sums     info_nce only, for every block of pairs, then close_sums
//   score    for every block of pairs: weights of a superblock, then their products, superblock by superblock
//   finish   norm corrections, positives, rounding, scalars
//
// A block is another GPU's pairs or this one's own, which comes first. Each GPU sums the gradients of its own images
// and captions, and counts the cells of its own images. Forward only, `score` and `finish` leave gradients alone;
// info_nce then gives the loss and no dL/dt.
#pragma once
#include "scaling_contrasts/sm90/grid.cuh"

namespace scaling_contrasts {

/// A block of pairs: this GPU's own or another's, in memory of this GPU.
struct two_set_block_t {
    void const* embeddings[2] = {};  ///< images, captions: [live][dims]
    float const* log_sums[2] = {};   ///< info_nce's scores: as log_sums() of the block's GPU gave them
    uint32_t live = 0;
    bool own = false;
};

class sm90_two_set_engine_t : sm90_grid_t {
  public:
    /// Bytes of device memory that construct() expects. 0: the problem is not one that this engine solves.
    static size_t scratch_bytes(gpu_problem_t const& problem, bool forward_only = false,
                                two_set_tuning_t const& tuning = {}) {
        sm90_two_set_engine_t probe;
        if (!probe.plan(problem, forward_only, tuning)) return 0;
        return probe.lay_out(nullptr);
    }

    /// `scratch`: scratch_bytes() of device memory, 256-byte aligned; stays the caller's.
    gpu_status_t construct(gpu_problem_t const& problem, void* scratch, bool forward_only = false,
                           two_set_tuning_t const& tuning = {}) {
        if (auto s = plan(problem, forward_only, tuning); !s) return s;
        lay_out(static_cast<uint8_t*>(scratch));
        return open<pass_t::sigmoid_k, pass_t::sums_k, pass_t::softmax_k>();
    }

    /// Starts a step on this GPU's pairs. `scale` and `bias` are read on the device, in every step.
    gpu_status_t begin(void const* images, void const* captions, float const* scale, float const* bias,
                       cudaStream_t stream) {
        pairs_.t = a_.t = scale;
        pairs_.b = a_.b = bias;
        pairs_.side[0].x = static_cast<__nv_bfloat16 const*>(images);
        pairs_.side[1].x = static_cast<__nv_bfloat16 const*>(captions);
        pairs_.side[0].accumulate = pairs_.side[1].accumulate = false;
        if (auto s = sm90::check(cudaMemsetAsync(cleared_, 0, cleared_bytes_, stream), "cudaMemsetAsync"); !s) return s;
        sm90::two_set::prepare_kernel<<<padded() / 8, sm90::two_set::rows_threads_k, 0, stream>>>(pairs_);
        return sm90::check(cudaGetLastError(), "prepare_kernel");
    }
    /// info_nce: sums over one block.
    gpu_status_t sums(two_set_block_t const& block, cudaStream_t stream) {
        return visit<pass_t::sums_k>(block, stream);
    }
    /// After the sums over all blocks; before any score.
    gpu_status_t close_sums(cudaStream_t stream) {
        sm90::two_set::log_sums_kernel<<<dim3(padded() / sm90::two_set::rows_threads_k, pairs_.prefixes, 2),
                                         sm90::two_set::rows_threads_k, 0, stream>>>(pairs_);
        return sm90::check(cudaGetLastError(), "log_sums_kernel");
    }
    /// What close_sums() leaves for other GPUs, of images (0) or captions (1): log_sum_count() floats.
    float const* log_sums(int set) const { return pairs_.log_sums[set]; }
    int64_t log_sum_count() const { return int64_t(padded()) * pairs_.prefixes; }
    /// For an engine that scores in the place of this one, which is forward only (two_set_ladder_engine.cuh): what
    /// finish() reads, sums over cells among it, and from where on scratch is free after close_sums().
    sm90::two_set::pairs_t const& pairs() const { return pairs_; }
    int64_t* cell_sums() const { return sums_; }
    static size_t kept_bytes(gpu_problem_t const& problem) {
        sm90_two_set_engine_t probe;
        if (!probe.plan(problem, true, {})) return 0;
        probe.lay_out(nullptr);
        return probe.kept_bytes_;
    }
    /// Scores one block and adds its part of the gradients.
    gpu_status_t score(two_set_block_t const& block, cudaStream_t stream) {
        if (pairs_.nce && forward_only_) return {};
        return pairs_.nce ? visit<pass_t::softmax_k>(block, stream) : visit<pass_t::sigmoid_k>(block, stream);
    }
    /// Writes the gradients ([rows][dims], bf16 or fp32) and {loss, dL/dt, dL/db}: this GPU's part of the global mean.
    /// `scalars_double`, where given, gets the same in double. Forward only, the gradients stay untouched.
    gpu_status_t finish(void* image_gradient, void* caption_gradient, float* scalars, cudaStream_t stream,
                        double* scalars_double = nullptr) {
        auto a = pairs_;
        a.gradient[0] = image_gradient;
        a.gradient[1] = caption_gradient;
        a.scalars = scalars;
        a.scalars_double = scalars_double;
        sm90::two_set::positives_kernel<<<a.partial_count, sm90::two_set::rows_threads_k, 0, stream>>>(a);
        if (auto s = sm90::check(cudaGetLastError(), "positives_kernel"); !s) return s;
        sm90::two_set::scalars_kernel<false><<<1, 1024, 0, stream>>>(a);
        if (auto s = sm90::check(cudaGetLastError(), "scalars_kernel"); !s) return s;
        if (forward_only_) return {};
        dim3 const grid((problem_.rows + sm90::two_set::slice_k - 1) / sm90::two_set::slice_k, 2);
        if (ladder_) sm90::two_set::finish_kernel<true><<<grid, sm90::two_set::finish_threads_k, 0, stream>>>(a);
        else sm90::two_set::finish_kernel<false><<<grid, sm90::two_set::finish_threads_k, 0, stream>>>(a);
        return sm90::check(cudaGetLastError(), "finish_kernel");
    }

  private:
    gpu_status_t plan(gpu_problem_t const& p, bool forward_only, two_set_tuning_t const& tuning) {
        if (sets_of(p.loss) != 2) return {status_t::unsupported_k, "sm90: a loss over two sets"};
        return sm90_grid_t::plan(p, forward_only, tuning);
    }

    template <pass_t pass_>
    gpu_status_t visit(two_set_block_t const& block, cudaStream_t stream) {
        auto const& mine = pairs_.side;
        if (block.own) return launch<pass_>(mine[0], mine[1], true, true, true, stream);
        if (block.live > problem_.candidate_rows)
            return {status_t::unsupported_k, "sm90: a block has more pairs than candidate_rows said"};
        side_t theirs[2] = {};
        for (int k = 0; k < 2; ++k) {
            auto& side = theirs[k];
            side.x = static_cast<__nv_bfloat16 const*>(block.embeddings[k]);
            side.inverse = candidate_inverse_[k];
            side.log_sums = block.log_sums[k];
            side.live = int(block.live);
            side.padded = candidate_padded();
            find_norms(side.x, side.live, side.padded, candidate_inverse_[k], stream);
        }
        if (auto s = launch<pass_>(mine[0], theirs[1], true, false, false, stream); !s) return s;
        return launch<pass_>(theirs[0], mine[1], false, true, false, stream);
    }
};

}  // namespace scaling_contrasts
