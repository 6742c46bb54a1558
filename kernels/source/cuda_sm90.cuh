// What the sources of the sm90 engine's steps share. Compiled for sm_90a alone.
#pragma once
#include "cuda_steps.cuh"
#include "scaling_contrasts/ladder.hpp"
#include "scaling_contrasts/sm90/problem.cuh"

namespace scaling_contrasts::bench {

inline gpu_problem_t gpu_problem(problem_t const& problem, int device) {
    auto const ladder = make_ladder(problem);
    gpu_problem_t out;
    out.loss = problem.loss;
    out.form = problem.form;
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
    out.pairs_once = problem.pairs_once && problem.world_size > 1;
    // that engine takes several peers at a time
    bool const groups = problem.loss == loss_t::one_set_sigmoid_k && !out.pairs_once;
    if (problem.world_size > 1)
        out.candidate_rows = groups ? static_cast<std::uint32_t>(candidate_rows(problem)) : out.rows;
    return out;
}

inline void require(gpu_status_t const& status) {
    if (!status) throw failure_t(status.status, status.message);
}

/// Scratch of one_set_sigmoid's forward pass alone; 0: it cannot run the problem.
std::size_t sm90_forward_bytes(gpu_problem_t const& problem);
std::unique_ptr<gpu::device_step_t> make_sm90_forward_step(step_inputs_t const& in);
/// Scratch of the engine of the losses over two sets; 0: it cannot run the problem.
std::size_t sm90_two_set_bytes(gpu_problem_t const& problem, bool forward_only);
std::unique_ptr<gpu::device_step_t> make_sm90_two_set_step(step_inputs_t const& in);
/// The same of one_set_info_nce's.
std::size_t sm90_groups_bytes(gpu_problem_t const& problem, bool forward_only);
std::unique_ptr<gpu::device_step_t> make_sm90_groups_step(step_inputs_t const& in);

}  // namespace scaling_contrasts::bench
