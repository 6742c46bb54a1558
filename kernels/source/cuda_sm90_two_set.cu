// A step of two_set_sigmoid or info_nce by the sm90 engine. Compiled for sm_90a alone.
#include "cuda_sm90.cuh"
#include "scaling_contrasts/sm90/two_set_engine.cuh"

namespace scaling_contrasts::bench {
namespace {

class two_set_step_t final : public gpu::device_step_t {
  public:
    explicit two_set_step_t(step_inputs_t const& in)
        : device_(in.device),
          problem_(in.problem),
          sets_(in.sets),
          scale_(in.scale),
          bias_(in.bias),
          out_(in.out),
          scratch_(in.ledger, static_cast<std::int64_t>(
                                  sm90_two_set_bytes(gpu_problem(problem_, device_), problem_.forward_only))) {
        require(engine_.construct(gpu_problem(problem_, device_), scratch_.data(), problem_.forward_only));
    }
    void begin(cudaStream_t stream) override {
        require(engine_.begin(sets_[0].embeddings, sets_[1].embeddings, scale_, bias_, stream));
    }
    bool gathers() const override { return problem_.loss == loss_t::info_nce_k; }
    void gather(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.sums(pairs_of(block), stream));
    }
    void close_gather(cudaStream_t stream) override { require(engine_.close_sums(stream)); }
    float const* log_sums(int set) const override { return engine_.log_sums(set); }
    std::int64_t log_sum_count(int) const override { return gathers() ? engine_.log_sum_count() : 0; }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.score(pairs_of(block), stream));
    }
    void finish(cudaStream_t stream) override {
        require(engine_.finish(sets_[0].gradient, sets_[1].gradient, nullptr, stream, out_));
    }
    std::int64_t launches() const override { return 8; }

  private:
    two_set_block_t pairs_of(gpu::candidates_t const& block) const {
        return {{block.embeddings[0], block.embeddings[1]},
                {block.log_sums[0], block.log_sums[1]},
                static_cast<std::uint32_t>(problem_.live_of(block.device)),
                block.device == device_};
    }

    int device_;
    problem_t problem_;
    std::vector<gpu::set_t> sets_;
    float const *scale_, *bias_;
    double* out_;
    gpu::buffer_t<std::byte> scratch_;
    sm90_two_set_engine_t engine_;
};

}  // namespace

std::size_t sm90_two_set_bytes(gpu_problem_t const& problem, bool forward_only) {
    return sm90_two_set_engine_t::scratch_bytes(problem, forward_only);
}

std::unique_ptr<gpu::device_step_t> make_sm90_two_set_step(step_inputs_t const& in) {
    return std::make_unique<two_set_step_t>(in);
}

}  // namespace scaling_contrasts::bench
