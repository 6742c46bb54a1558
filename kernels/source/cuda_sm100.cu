// A step by the sm100 engine. Compiled for sm_100a and sm_103a alone. Compiles, never run on hardware.
#include "cuda_sm80.cuh"
#include "scaling_contrasts/sm100/kernels.cuh"

namespace scaling_contrasts::bench {

bool sm100_built() { return true; }

std::string sm100_unsupported(problem_t const& problem) { return sm80::unsupported(problem, sm100::slab_k); }

std::unique_ptr<gpu_step_t> make_sm100_step(step_inputs_t const& in) {
    return std::make_unique<tiles_step_t<sm100::engine_t>>(in, "sm100");
}

}  // namespace scaling_contrasts::bench
