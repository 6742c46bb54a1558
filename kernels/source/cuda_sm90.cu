// A step by the sm90 engine. Compiled for sm_90a alone.
#include "cuda_sm90_two_set_ladder.cuh"

namespace scaling_contrasts::bench {
namespace {

sm90_tuning_t tuning_of(step_inputs_t const& in) {
    sm90_tuning_t tuning;
    tuning.fp16 = in.fp16;
    tuning.small_items = in.small_items;
    return tuning;
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
          tuning_(tuning_of(in)),
          scratch_(in.ledger,
                   static_cast<std::int64_t>(sm90_engine_t::scratch_bytes(gpu_problem(problem_, device_), tuning_))) {
        require(engine_.construct(gpu_problem(problem_, device_), scratch_.data(), tuning_));
    }
    void begin(cudaStream_t stream) override {
        require(
            engine_.begin(set_.embeddings, set_.labels, device_ * problem_.rows, scale_, bias_, stream, set_.gradient));
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        auto const live = static_cast<std::uint32_t>(gpu::live_of(problem_, block));
        require(engine_.score(block.embeddings[0], block.labels, live, live, block.device * problem_.rows,
                              block.device == device_, stream, block.stays));
    }
    void finish(cudaStream_t stream) override { require(engine_.finish(set_.gradient, nullptr, stream, out_)); }
    std::int64_t launches() const override { return 4; }
    bool one_launch() const override { return engine_.one_launch(); }
    bool takes_groups() const override { return !problem_.pairs_once; }
    std::string note() const override { return engine_.fp16() ? "rows and weights as fp16" : ""; }

    void score_pair(gpu::candidates_t const& block, pair_t const& pair, std::byte* partial,
                    cudaStream_t stream) override {
        require(engine_.score_pair(block.embeddings[0], block.labels, static_cast<std::uint32_t>(pair.candidates),
                                   block.device * problem_.rows, pair.first_row, partial, stream));
    }
    void take_pair(std::byte const* partial, std::int64_t rows, cudaStream_t stream) override {
        require(engine_.take_pair(partial, rows, stream));
    }
    std::int64_t partial_bytes() const override { return static_cast<std::int64_t>(engine_.partial_bytes()); }

  private:
    int device_;
    problem_t problem_;
    gpu::set_t set_;
    float const *scale_, *bias_;
    double* out_;
    sm90_tuning_t tuning_;
    gpu::buffer_t<std::byte> scratch_;
    sm90_engine_t engine_;
};

}  // namespace

bool sm90_built() { return true; }

bool sm90_two_set_ladder(problem_t const& problem, std::string const& two_set) {
    return two_set_ladder_step_t::takes(problem, two_set);
}

std::string sm90_unsupported(problem_t const& problem, std::string const& two_set) {
    if (sm90_two_set_ladder(problem, two_set)) return "";
    if (problem.pairs_once && problem.world_size > 1 && problem.loss != loss_t::one_set_sigmoid_k)
        return "the sm90 engine finds gradients of another GPU's rows in one_set_sigmoid, and in two_set_sigmoid with "
               "the article's ladder, alone; leave out pairs=once, or use engine sm80";
    auto const given = gpu_problem(problem, 0);
    if (sets_of(problem.loss) == 2 && problem.prefixes.size() > 1 && given.fp32_gradients)
        return "the sm90 engine rounds a ladder's weights twice over two sets, too coarse for fp32 gradients";
    if (problem.loss == loss_t::one_set_info_nce_k && given.fp32_gradients)
        return "the sm90 engine rounds one_set_info_nce's positives to bf16, too coarse for fp32 gradients";
    auto const one_set_bytes = [&] {
        return problem.forward_only ? sm90_forward_bytes(given) : sm90_engine_t::scratch_bytes(given);
    };
    bool const runs = problem.loss == loss_t::one_set_sigmoid_k ? one_set_bytes() > 0
                      : problem.loss == loss_t::one_set_info_nce_k
                          ? sm90_groups_bytes(given, problem.forward_only) > 0
                          : sm90_two_set_bytes(given, problem.forward_only) > 0;
    if (runs && two_set == "ladder" && !problem.forward_only)
        return "option two_set=ladder is for two_set_sigmoid with weights that fp16 holds, and for info_nce with the "
               "article's ladder";
    if (runs) return "";
    return "the sm90 engine takes dims and prefixes in multiples of 64 up to 4096, and at most 4194304 rows";
}

std::unique_ptr<gpu::device_step_t> make_sm90_step(step_inputs_t const& in) {
    if (two_set_ladder_step_t::takes(in.problem, in.two_set)) return std::make_unique<two_set_ladder_step_t>(in);
    if (sets_of(in.problem.loss) == 2) return make_sm90_two_set_step(in);
    if (in.problem.loss == loss_t::one_set_info_nce_k) return make_sm90_groups_step(in);
    if (in.problem.forward_only) return make_sm90_forward_step(in);
    return std::make_unique<sm90_step_t>(in);
}

}  // namespace scaling_contrasts::bench
