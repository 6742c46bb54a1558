// A step by the sm80 engine, or by one that shares its host side (sm100).
#pragma once
#include "cuda_steps.cuh"
#include "scaling_contrasts/sm80/kernels.cuh"

namespace scaling_contrasts::bench {

template <class engine_t>
std::unique_ptr<gpu::device_step_t> make_tiles_step(step_inputs_t const& in) {
    return std::make_unique<engine_t>(in.problem, in.device, in.sets, in.scale, in.bias, in.out, in.ledger,
                                      in.side_limit);
}

}  // namespace scaling_contrasts::bench
