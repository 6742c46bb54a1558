// A forward pass alone of one_set_sigmoid by the sm90 engine. Compiled for sm_90a alone.
#include "cuda_sm90.cuh"
#include "scaling_contrasts/sm90/forward_engine.cuh"

namespace scaling_contrasts::bench {
namespace {

class forward_step_t final : public gpu::device_step_t {
  public:
    explicit forward_step_t(step_inputs_t const& in)
        : device_(in.device),
          problem_(in.problem),
          set_(in.sets[0]),
          scale_(in.scale),
          bias_(in.bias),
          out_(in.out),
          scratch_(in.ledger, static_cast<std::int64_t>(sm90_forward_bytes(gpu_problem(problem_, device_)))) {
        require(engine_.construct(gpu_problem(problem_, device_), scratch_.data()));
    }
    void begin(cudaStream_t stream) override {
        require(engine_.begin(set_.embeddings, set_.labels, device_ * problem_.rows, scale_, bias_, stream));
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.score(block.embeddings[0], block.labels,
                              static_cast<std::uint32_t>(gpu::live_of(problem_, block)), block.device * problem_.rows,
                              block.device == device_, stream));
    }
    void finish(cudaStream_t stream) override { require(engine_.finish(nullptr, stream, out_)); }
    std::int64_t launches() const override { return 2; }
    bool takes_groups() const override { return true; }

  private:
    int device_;
    problem_t problem_;
    gpu::set_t set_;
    float const *scale_, *bias_;
    double* out_;
    gpu::buffer_t<std::byte> scratch_;
    sm90_forward_engine_t engine_;
};

}  // namespace

std::size_t sm90_forward_bytes(gpu_problem_t const& problem) { return sm90_forward_engine_t::scratch_bytes(problem); }

std::unique_ptr<gpu::device_step_t> make_sm90_forward_step(step_inputs_t const& in) {
    return std::make_unique<forward_step_t>(in);
}

}  // namespace scaling_contrasts::bench
