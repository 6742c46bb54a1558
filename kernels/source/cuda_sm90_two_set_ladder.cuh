// A step of a loss over two sets with a ladder by the kernels of one set. A part of cuda_sm90.cu, which has those.
#pragma once
#include "cuda_sm90.cuh"
#include "scaling_contrasts/sm90/two_set_ladder_engine.cuh"

namespace scaling_contrasts::bench {

class two_set_ladder_step_t final : public gpu::device_step_t {
  public:
    explicit two_set_ladder_step_t(step_inputs_t const& in)
        : device_(in.device),
          problem_(in.problem),
          sets_(in.sets),
          gradients_{in.sets[0].gradient, in.sets[1].gradient},
          scale_(in.scale),
          bias_(in.bias),
          out_(in.out),
          scratch_(in.ledger, static_cast<std::int64_t>(sm90_two_set_ladder_engine_t::scratch_bytes(
                                  gpu_problem(problem_, device_), tuning_of(in)))) {
        require(engine_.construct(gpu_problem(problem_, device_), scratch_.data(), tuning_of(in)));
    }
    /// Whether it is to run the problem: the article's ladder; of two_set_sigmoid any, where the option
    /// says `ladder`.
    static bool takes(problem_t const& problem, std::string const& option = "auto") {
        if (option == "grid" || sets_of(problem.loss) != 2 || problem.forward_only) return false;
        sm90_tuning_t tuning;
        tuning.any_ladder = option == "ladder";
        return sm90_two_set_ladder_engine_t::scratch_bytes(gpu_problem(problem, 0), tuning) > 0;
    }

    bool gathers() const override { return engine_.needs_sums(); }
    void gather(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.sums(block.embeddings[0], block.embeddings[1], live_of(block), block.device * problem_.rows,
                             block.device == device_, stream));
    }
    void close_gather(cudaStream_t stream) override { require(engine_.close_sums(stream)); }
    float const* log_sums(int set) const override { return engine_.log_sums(set); }
    std::int64_t log_sum_count(int) const override { return engine_.log_sum_count(); }

    void begin(cudaStream_t stream) override {
        require(engine_.begin(sets_[0].embeddings, sets_[1].embeddings, device_ * problem_.rows, scale_, bias_,
                              gradients_, stream));
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.score(block.embeddings[0], block.embeddings[1], live_of(block), block.device * problem_.rows,
                              block.device == device_, stream, block.log_sums));
    }
    void finish(cudaStream_t stream) override { require(engine_.finish(gradients_, nullptr, stream, out_)); }
    std::int64_t launches() const override { return 8; }
    std::string note() const override { return engine_.fp16() ? "rows and weights as fp16" : ""; }

    void score_pair(gpu::candidates_t const& block, pair_t const& pair, std::byte* partial,
                    cudaStream_t stream) override {
        require(engine_.score_pair(block.embeddings[1], static_cast<std::uint32_t>(pair.candidates),
                                   block.device * problem_.rows, partial, stream));
    }
    void take_pair(std::byte const* partial, std::int64_t rows, cudaStream_t stream) override {
        require(engine_.take_pair(partial, rows, stream));
    }
    std::int64_t partial_bytes() const override { return static_cast<std::int64_t>(engine_.partial_bytes()); }

  private:
    static sm90_tuning_t tuning_of(step_inputs_t const& in) {
        sm90_tuning_t tuning;
        tuning.any_ladder = in.two_set == "ladder";
        tuning.fp16 = in.fp16;
        return tuning;
    }
    std::uint32_t live_of(gpu::candidates_t const& block) const {
        return static_cast<std::uint32_t>(problem_.live_of(block.device));
    }

    int device_;
    problem_t problem_;
    std::vector<gpu::set_t> sets_;
    void* gradients_[2];
    float const *scale_, *bias_;
    double* out_;
    gpu::buffer_t<std::byte> scratch_;
    sm90_two_set_ladder_engine_t engine_;
};

}  // namespace scaling_contrasts::bench
