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

class sm90_step_t final : public gpu_step_t {
  public:
    explicit sm90_step_t(step_inputs_t const& in) : in_(in), problem_(in.problem) {
        for (int device = 0; device < problem_.world_size; ++device) {
            auto const problem = gpu_problem(problem_, device);
            auto const bytes = static_cast<std::int64_t>(sm90_engine_t::scratch_bytes(problem));
            scratch_.emplace_back(in.ledgers[static_cast<std::size_t>(device)], bytes);
            engines_.emplace_back();
            require(engines_.back().construct(problem, scratch_.back().data()));
        }
    }
    void queue(cudaStream_t stream) override {
        for (std::size_t i = 0; i < engines_.size(); ++i)
            require(engines_[i].begin(set(i).embeddings, set(i).labels, first(i), in_.scale, in_.bias, stream));
        for (std::size_t i = 0; i < engines_.size(); ++i)
            for (std::size_t j = 0; j < engines_.size(); ++j)
                require(engines_[i].score(set(j).embeddings, set(j).labels, static_cast<std::uint32_t>(problem_.rows),
                                          static_cast<std::uint32_t>(problem_.live_of(static_cast<int>(j))), first(j),
                                          i == j, stream));
        for (std::size_t i = 0; i < engines_.size(); ++i)
            require(engines_[i].finish(set(i).gradient, nullptr, stream, in_.out + 3 * i));
    }
    std::int64_t launches() const override { return 4 * static_cast<std::int64_t>(engines_.size() * engines_.size()); }
    char const* name() const override { return "sm90"; }

  private:
    gpu_set_t const& set(std::size_t device) const { return in_.sets[device][0]; }
    std::int64_t first(std::size_t device) const { return static_cast<std::int64_t>(device) * problem_.rows; }

    step_inputs_t in_;
    problem_t problem_;
    std::vector<gpu::buffer_t<std::byte>> scratch_;
    std::vector<sm90_engine_t> engines_;
};

}  // namespace

bool sm90_built() { return true; }

std::string sm90_unsupported(problem_t const& problem) {
    if (sm90_engine_t::scratch_bytes(gpu_problem(problem, 0)) > 0) return "";
    return "the sm90 engine has one_set_sigmoid with dims and prefixes in multiples of 64 up to 4096, and at most "
           "4194304 rows";
}

std::unique_ptr<gpu_step_t> make_sm90_step(step_inputs_t const& in) { return std::make_unique<sm90_step_t>(in); }

}  // namespace scaling_contrasts::bench
