// The sm90 engine with fp16 rows and weights, run by the emulator: fp32 gradients have a quarter of the error that bf16
// weights leave.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

int main() {
    emulation::options().major = 9;
    auto const make = [](bench::step_inputs_t const& in) {
        auto given = in;
        given.fp16 = true;
        return bench::make_sm90_step(given);
    };
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 280, {270}, {64, 128, 256, 512, 1024}, 1024);
    problem.gradient_type = gradient_type_t::float32_k;
    problem.scale = 5, problem.bias = -1;
    emulated::check(5e-4, problem, make, "sm90 fp16");
    problem.rows = 140, problem.live = {130, 135}, problem.world_size = 2;  // a block of another device
    emulated::check(5e-4, problem, make, "sm90 fp16");
    problem.labels = label_layout_t::distinct_k, problem.live = {140}, problem.world_size = 1;  // no positives
    for (auto [scale, bias] : {std::pair{10.0, -10.0}, {100.0, -10.0}, {0.01, -5.0}}) {
        problem.scale = scale, problem.bias = bias;
        emulated::check(5e-4, problem, make, "sm90 fp16", 0, {0, 77});
    }
    problem.rows = 384, problem.live = {384};  // whole tiles of negatives far below zero
    problem.scale = 10, problem.bias = -10;
    emulated::check(5e-4, problem, make, "sm90 fp16");
    return testing::report();
}
