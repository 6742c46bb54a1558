// A step of the loss on one GPU, by the engine that the device calls for. Several devices of a problem are virtual ones
// here: they take turns on the one GPU, each with its own buffers.
#pragma once
#include <memory>
#include <vector>

#include "scaling_contrasts/sm80/engine.cuh"

namespace scaling_contrasts::bench {

/// What every engine is given, on the GPU.
struct step_inputs_t {
    problem_t const& problem;
    std::vector<std::vector<sm80::input_t>> sets;  ///< [device][set]
    float const *scale, *bias;
    double* out;                          ///< [device][3]: each device's part of loss, dL/dt, dL/db
    std::vector<gpu::ledger_t>& ledgers;  ///< of each device
    int side_limit;                       ///< of superblocks; 0: the engine's choice
};

class gpu_step_t {
  public:
    virtual ~gpu_step_t() = default;
    /// Queues one step.
    virtual void queue(cudaStream_t stream) = 0;
    /// Kernels in a step, about: more than graph_limit_k do not go into a graph.
    virtual std::int64_t launches() const = 0;
    static constexpr std::int64_t graph_limit_k = 20000;
};

class sm80_step_t final : public gpu_step_t {
  public:
    explicit sm80_step_t(step_inputs_t const& in) : is_nce_(in.problem.loss == loss_t::info_nce_k) {
        for (int device = 0; device < in.problem.world_size; ++device)
            engines_.push_back(std::make_unique<sm80::engine_t>(in.problem, device, in.sets[device], in.scale, in.bias,
                                                                in.out + 3 * device, in.ledgers[device],
                                                                in.side_limit));
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

  private:
    bool is_nce_;
    std::vector<std::unique_ptr<sm80::engine_t>> engines_;
};

}  // namespace scaling_contrasts::bench
