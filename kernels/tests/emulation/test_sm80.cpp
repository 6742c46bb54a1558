// The sm80 engine's kernels, run by the emulator. They run on GPUs, too; here they run where there is none, one set's
// softmax among them.
#include "cuda_sm80.cuh"
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

/// Limits as in cuda_checks.cu.
void check(problem_t const& problem, int side = 0) {
    bool const wide = problem.gradient_type == gradient_type_t::float32_k,
               signed_slopes = problem.loss == loss_t::one_set_info_nce_k && problem.form == form_t::sup_con_k;
    emulated::check(wide ? (signed_slopes ? 2e-3 : 1e-3) : 4.5e-3, problem, bench::make_tiles_step<sm80::engine_t>,
                    "sm80", side);
}

}  // namespace

int main() {
    emulation::options().major = 8;
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        check(make_problem(loss, 130, {129, 70}, {48, 112}, 128));
        auto problem = make_problem(loss, 270, {260}, {16, 144}, 144);
        problem.gradient_type = gradient_type_t::float32_k, problem.scale = 30;
        check(problem, 128);  // several superblocks
    }
    for (form_t form : {form_t::nt_xent_k, form_t::sup_con_k}) {
        auto problem = make_problem(loss_t::one_set_info_nce_k, 140, {140, 77}, {64, 96}, 96);
        problem.form = form, problem.labels = label_layout_t::mixed_k;
        problem.gradient_type = gradient_type_t::float32_k;
        check(problem);
    }
    return testing::report();
}
