// Every way in which the sm90 engine runs the article's ladder, run by the emulator. Clusters share operands, and the
// last of an odd number of row blocks has none to share them with. fp16 weights leave fp32 gradients a quarter of the
// error.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

int main() {
    emulation::options().major = 9;
    emulation::options().multiprocessors = 4;  // two clusters of four
    for (auto const& name : bench::sm90_schedules()) {
        bool const fp16 = name.starts_with("fp16");
        auto const make = [&](bench::step_inputs_t const& in) {
            auto scheduled = in;
            scheduled.schedule = name;
            return bench::make_sm90_step(scheduled);
        };
        auto problem = make_problem(loss_t::one_set_sigmoid_k, 280, {270}, {64, 128, 256, 512, 1024}, 1024);
        problem.gradient_type = gradient_type_t::float32_k;
        problem.scale = 5, problem.bias = -1;
        emulated::check(fp16 ? 5e-4 : 3e-3, problem, make, "sm90 " + name);
        problem.rows = 140;
        if (name == "pairs" || name == "squares") {
            problem.live = {130, 135};  // a block of another device
            problem.world_size = 2;
            emulated::check(3e-3, problem, make, "sm90 " + name);
        }
        if (name != "fp16") continue;
        problem.labels = label_layout_t::distinct_k, problem.live = {140};  // no positives
        for (auto [scale, bias] : {std::pair{10.0, -10.0}, {100.0, -10.0}, {0.01, -5.0}}) {
            problem.scale = scale, problem.bias = bias;
            emulated::check(5e-4, problem, make, "sm90 " + name, 0, {0, 77});
        }
    }
    return testing::report();
}
