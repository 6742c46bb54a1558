// A step of the loss on one GPU, whatever engine computes it. Several devices of a problem are virtual ones here: they
// take turns on the one GPU, each with its own buffers.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "scaling_contrasts/gpu/memory.cuh"

namespace scaling_contrasts::bench {

/// One set of rows of one device, on the GPU.
struct gpu_set_t {
    bf16_t const* embeddings = nullptr;    ///< [rows][dims]
    std::int32_t const* labels = nullptr;  ///< [rows], one set only; null: every row is its own group
    void* gradient = nullptr;              ///< [rows][dims], of the problem's gradient type
};

/// What every engine is given.
struct step_inputs_t {
    problem_t const& problem;
    std::vector<std::vector<gpu_set_t>> sets;  ///< [device][set]
    float const *scale, *bias;
    double* out;                          ///< [device][3]: each device's part of loss, dL/dt, dL/db
    std::vector<gpu::ledger_t>& ledgers;  ///< of each device
    int side_limit;                       ///< of sm80's superblocks; 0: the engine's choice
};

class gpu_step_t {
  public:
    virtual ~gpu_step_t() = default;
    /// Queues one step.
    virtual void queue(cudaStream_t stream) = 0;
    /// Kernels in a step, about: more than graph_limit_k do not go into a graph.
    virtual std::int64_t launches() const = 0;
    virtual char const* name() const = 0;
    static constexpr std::int64_t graph_limit_k = 20000;
};

/// The sm90 and sm100 engines have sources of their own, for their instructions exist on few architectures. Where those are
/// not built, cuda_sm90_missing.cu and cuda_sm100_missing.cu stand in.
bool sm90_built();
/// Why it cannot run a problem, as one clause; empty: it can, on a GPU of compute capability 9.0.
std::string sm90_unsupported(problem_t const& problem);
std::unique_ptr<gpu_step_t> make_sm90_step(step_inputs_t const& in);

bool sm100_built();
/// The same of the sm100 engine, on a GPU of compute capability 10.0 or 10.3.
std::string sm100_unsupported(problem_t const& problem);
std::unique_ptr<gpu_step_t> make_sm100_step(step_inputs_t const& in);

}  // namespace scaling_contrasts::bench
