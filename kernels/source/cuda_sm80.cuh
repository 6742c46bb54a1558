// A step by the sm80 engine, or by one that shares its host side (sm100).
#pragma once
#include "cuda_steps.cuh"
#include "scaling_contrasts/sm80/kernels.cuh"

namespace scaling_contrasts::bench {

template <class engine_t>
class tiles_step_t final : public gpu_step_t {
  public:
    tiles_step_t(step_inputs_t const& in, char const* name)
        : name_(name), is_nce_(in.problem.loss == loss_t::info_nce_k) {
        for (int device = 0; device < in.problem.world_size; ++device) {
            auto const index = static_cast<std::size_t>(device);
            std::vector<sm80::input_t> sets;
            for (auto const& set : in.sets[index]) sets.push_back({set.embeddings, set.labels, set.gradient});
            engines_.push_back(std::make_unique<engine_t>(in.problem, device, sets, in.scale, in.bias,
                                                          in.out + 3 * device, in.ledgers[index], in.side_limit));
        }
    }
    void queue(cudaStream_t stream) override {
        for (auto& engine : engines_) engine->begin(stream);
        if (is_nce_) {
            for (auto& engine : engines_)
                for (auto& other : engines_) engine->maxima(*other, stream);
            for (auto& engine : engines_) engine->close_maxima(stream);
        }
        for (auto& engine : engines_)
            for (auto& other : engines_) engine->score(*other, stream);
        for (auto& engine : engines_) engine->finish(stream);
    }
    std::int64_t launches() const override {
        auto const blocks = static_cast<std::int64_t>(engines_.size() * engines_.size());
        return blocks * engines_[0]->launches();
    }
    char const* name() const override { return name_; }

  private:
    char const* name_;
    bool is_nce_;
    std::vector<std::unique_ptr<engine_t>> engines_;
};

}  // namespace scaling_contrasts::bench
