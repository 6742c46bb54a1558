// A step of one_set_info_nce by the sm90 engine. Compiled for sm_90a alone.
#include "cuda_sm90.cuh"
#include "scaling_contrasts/sm90/groups_engine.cuh"

namespace scaling_contrasts::bench {
namespace {

class groups_step_t final : public gpu::device_step_t {
  public:
    explicit groups_step_t(step_inputs_t const& in)
        : device_(in.device),
          problem_(in.problem),
          set_(in.sets[0]),
          scale_(in.scale),
          bias_(in.bias),
          out_(in.out),
          scratch_(in.ledger, static_cast<std::int64_t>(sm90_groups_engine_t::scratch_bytes(
                                  gpu_problem(problem_, device_), problem_.forward_only, tuning_of(in.side_limit)))) {
        require(engine_.construct(gpu_problem(problem_, device_), scratch_.data(), problem_.forward_only,
                                  tuning_of(in.side_limit)));
    }
    void begin(cudaStream_t stream) override {
        require(engine_.begin(set_.embeddings, set_.labels, device_ * problem_.rows, scale_, bias_, stream));
    }
    bool gathers() const override { return true; }
    void gather(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.gather(rows_of(block), stream));
    }
    void close_gather(cudaStream_t stream) override { require(engine_.close_gather(stream)); }
    bool gathers_positives() const override { return true; }
    void gather_positives(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.gather_positives(rows_of(block), stream));
    }
    void close_positives(cudaStream_t stream) override { require(engine_.close_positives(stream)); }
    float const* log_sums(int set) const override { return set == 0 ? engine_.sums() : nullptr; }
    std::int64_t log_sum_count(int) const override { return engine_.sum_count(); }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        require(engine_.score(rows_of(block), stream));
    }
    void finish(cudaStream_t stream) override { require(engine_.finish(set_.gradient, nullptr, stream, out_)); }
    std::int64_t launches() const override { return 8; }

  private:
    static two_set_tuning_t tuning_of(int side_limit) {
        two_set_tuning_t tuning;
        if (side_limit) tuning.wide = std::max(1, side_limit / sm90::two_set::column_tile_k);
        return tuning;
    }
    group_block_t rows_of(gpu::candidates_t const& block) const {
        return {block.embeddings[0],
                block.labels,
                block.log_sums[0],
                static_cast<std::uint32_t>(problem_.live_of(block.device)),
                block.device * problem_.rows,
                block.device == device_};
    }

    int device_;
    problem_t problem_;
    gpu::set_t set_;
    float const *scale_, *bias_;
    double* out_;
    gpu::buffer_t<std::byte> scratch_;
    sm90_groups_engine_t engine_;
};

}  // namespace

std::size_t sm90_groups_bytes(gpu_problem_t const& problem, bool forward_only) {
    return sm90_groups_engine_t::scratch_bytes(problem, forward_only);
}

std::unique_ptr<gpu::device_step_t> make_sm90_groups_step(step_inputs_t const& in) {
    return std::make_unique<groups_step_t>(in);
}

}  // namespace scaling_contrasts::bench
