// A step by the sm100 engine. Compiled for sm_100a and sm_103a alone. Compiles, never run on hardware.
#include "cuda_sm80.cuh"
#include "scaling_contrasts/sm100/kernels.cuh"

namespace scaling_contrasts::bench {

bool sm100_built() { return true; }

std::string sm100_unsupported(problem_t const& problem) {
    if (problem.loss == loss_t::one_set_info_nce_k) return "the sm100 engine has no one_set_info_nce; use engine sm80";
    return sm80::unsupported(problem, sm100::slab_k);
}

std::unique_ptr<gpu::device_step_t> make_sm100_step(step_inputs_t const& in) {
    return make_tiles_step<sm100::engine_t>(in);
}

}  // namespace scaling_contrasts::bench
