// Stands in for cuda_sm90.cu where sm_90a is not among the architectures.
#include "cuda_steps.cuh"

namespace scaling_contrasts::bench {

bool sm90_built() { return false; }
std::string sm90_unsupported(problem_t const&, std::string const&) {
    return "this binary was built without the sm90 engine";
}
bool sm90_two_set_ladder(problem_t const&, std::string const&) { return false; }
std::unique_ptr<gpu::device_step_t> make_sm90_step(step_inputs_t const&) { return nullptr; }

}  // namespace scaling_contrasts::bench
