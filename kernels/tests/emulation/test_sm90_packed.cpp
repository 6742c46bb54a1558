// The sm90 engine's choice for fp16=true and bf16 gradients, run by the emulator: rows lie where gradients go, and
// weights are summed over longer prefixes in fp16.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

problem_t make(std::int64_t rows, std::vector<std::int64_t> live, double scale, double bias,
               label_layout_t labels = label_layout_t::pairs_k, int dims = 1024) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, rows, std::move(live), {64, 128, 256, 512, 1024}, dims);
    problem.scale = scale, problem.bias = bias, problem.labels = labels;
    return problem;
}

/// Roundings of bf16 gradients alone are 1.65e-3.
void check(problem_t const& problem, std::vector<std::int64_t> const& zero_rows = {}) {
    auto const make = [](bench::step_inputs_t const& in) {
        auto given = in;
        given.fp16 = true;
        return bench::make_sm90_step(given);
    };
    emulated::check(2e-3, problem, make, "sm90 packed sums", 0, zero_rows);
}

}  // namespace

int main() {
    emulation::options().major = 9;
    check(make(280, {270}, 5, -1), {0, 77});
    check(make(384, {384}, 10, -10, label_layout_t::distinct_k));  // whole tiles of negatives far below zero
    check(make(270, {260}, 0.01, -10, label_layout_t::distinct_k, 1088));
    check(make(270, {270}, 1, -20));
    check(make(270, {270}, 100, -10, label_layout_t::mixed_k));
    check(make(140, {130, 135}, 10, -10, label_layout_t::mixed_k));  // a block of another device
    auto problem = make(140, {130, 135}, 10, -10);
    problem.pairs_once = true;
    check(problem);
    return testing::report();
}
