// The engines of the benchmark's CUDA backend: one device's share of a step, whatever computes it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scaling_contrasts/box/device_step.cuh"
#include "scaling_contrasts/gpu/memory.cuh"

namespace scaling_contrasts::bench {

/// What every engine is given. Everything lies on the current device.
struct step_inputs_t {
    problem_t const& problem;
    int device;                    ///< which of the problem's
    std::vector<gpu::set_t> sets;  ///< one or two
    float const *scale, *bias;
    double* out;            ///< [3]: the device's part of loss, dL/dt, dL/db
    gpu::ledger_t& ledger;  ///< of the device
    int side_limit;  ///< of superblocks, where the engine has a choice (sm80; sm90's one_set_info_nce); 0: its own
    std::optional<bool> fp16 = {};         ///< sm90's sigmoids: rows and weights as fp16; empty: its own choice
    std::optional<bool> small_items = {};  ///< its one set's kernels for few rows (tests); empty: its own choice
    std::string two_set = "auto";  ///< its losses over two sets: grid, or ladder, in two_set_sigmoid for any; auto:
                                   ///< ladder for the article's
};

/// The sm90 and sm100 engines have sources of their own, for their instructions exist on few architectures. Where those
/// are not built, cuda_sm90_missing.cu and cuda_sm100_missing.cu stand in.
bool sm90_built();
/// Why it cannot run a problem, as one clause; empty: it can, on a GPU of compute capability 9.0. `two_set`: see
/// step_inputs_t.
std::string sm90_unsupported(problem_t const& problem, std::string const& two_set = "auto");
/// Whether a loss over two sets runs by the kernels of one set: with the article's ladder, or where `two_set` says so.
bool sm90_two_set_ladder(problem_t const& problem, std::string const& two_set = "auto");
std::unique_ptr<gpu::device_step_t> make_sm90_step(step_inputs_t const& in);

bool sm100_built();
/// The same of the sm100 engine, on a GPU of compute capability 10.0 or 10.3.
std::string sm100_unsupported(problem_t const& problem);
std::unique_ptr<gpu::device_step_t> make_sm100_step(step_inputs_t const& in);

}  // namespace scaling_contrasts::bench
