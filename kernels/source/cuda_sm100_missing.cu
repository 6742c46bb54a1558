// Stands in for cuda_sm100.cu where neither sm_100a nor sm_103a is among the architectures.
#include "cuda_steps.cuh"

namespace scaling_contrasts::bench {

bool sm100_built() { return false; }
std::string sm100_unsupported(problem_t const&) { return "this binary was built without the sm100 engine"; }
std::unique_ptr<gpu::device_step_t> make_sm100_step(step_inputs_t const&) { return nullptr; }

}  // namespace scaling_contrasts::bench
