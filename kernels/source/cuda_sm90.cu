// A step by the sm90 engine. Compiled for sm_90a alone.
#include "cuda_steps.cuh"
#include "scaling_contrasts/ladder.hpp"
#include "scaling_contrasts/sm90/engine.cuh"

namespace scaling_contrasts::bench {
namespace {

gpu_problem_t gpu_problem(problem_t const& problem, int device) {
    auto const ladder = make_ladder(problem);
    gpu_problem_t out;
    out.loss = problem.loss;
    out.rows = static_cast<std::uint32_t>(problem.rows);
    out.live = static_cast<std::uint32_t>(problem.live_of(device));
    out.dims = static_cast<std::uint32_t>(problem.dims);
    out.prefix_count = static_cast<std::uint32_t>(ladder.count);
    for (std::size_t i = 0; i < problem.prefixes.size(); ++i) {
        out.prefixes[i] = static_cast<std::uint32_t>(problem.prefixes[i]);
        out.prefix_weights[i] = ladder.weights[i];
    }
    out.self_pairs = problem.self_pairs;
    out.fp32_gradients = problem.gradient_type == gradient_type_t::float32_k;
    out.total_live = static_cast<std::uint64_t>(problem.live_rows());
    out.candidate_rows = problem.world_size > 1 ? out.rows : 0;
    return out;
}

void require(gpu_status_t const& status) {
    if (!status) throw failure_t(status.status, status.message);
}

class sm90_step_t final : public gpu::device_step_t {
  public:
    explicit sm90_step_t(step_inputs_t const& in)
        : device_(in.device),
          problem_(in.problem),
          set_(in.sets[0]),
          scale_(in.scale),
          bias_(in.bias),
          out_(in.out),
          scratch_(in.ledger, static_cast<std::int64_t>(sm90_engine_t::scratch_bytes(gpu_problem(problem_, device_)))) {
        require(engine_.construct(gpu_problem(problem_, device_), scratch_.data()));
    }
    void begin(cudaStream_t stream) override {
        require(engine_.begin(set_.embeddings, set_.labels, device_ * problem_.rows, scale_, bias_, stream));
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.score(block.embeddings[0], block.labels, static_cast<std::uint32_t>(problem_.rows),
                              static_cast<std::uint32_t>(problem_.live_of(block.device)), block.device * problem_.rows,
                              block.device == device_, stream));
    }
    void finish(cudaStream_t stream) override { require(engine_.finish(set_.gradient, nullptr, stream, out_)); }
    std::int64_t launches() const override { return 4; }

  private:
    int device_;
    problem_t problem_;
    gpu::set_t set_;
    float const *scale_, *bias_;
    double* out_;
    gpu::buffer_t<std::byte> scratch_;
    sm90_engine_t engine_;
};

}  // namespace

bool sm90_built() { return true; }

std::string sm90_unsupported(problem_t const& problem) {
    if (sm90_engine_t::scratch_bytes(gpu_problem(problem, 0)) > 0) return "";
    return "the sm90 engine has one_set_sigmoid with dims and prefixes in multiples of 64 up to 4096, and at most "
           "4194304 rows";
}

std::unique_ptr<gpu::device_step_t> make_sm90_step(step_inputs_t const& in) {
    return std::make_unique<sm90_step_t>(in);
}

}  // namespace scaling_contrasts::bench
