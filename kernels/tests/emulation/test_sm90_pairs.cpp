// Blocks of two devices scored by one of them, by the sm90 engine's kernels, run by the emulator.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

emulated::make_step_t engine(bool fp16) {
    return [=](bench::step_inputs_t const& in) {
        auto given = in;
        given.fp16 = fp16;
        return bench::make_sm90_step(given);
    };
}

/// Limits as in test_sm90.cpp; what rounding takes off positives of other devices stays.
void check(problem_t const& problem, bool fp16 = false) {
    bool const wide = problem.gradient_type == gradient_type_t::float32_k || problem.prefixes == article_k;
    emulated::check(fp16 ? 5e-4 : wide ? 3e-3 : 4.5e-3, problem, engine(fp16), fp16 ? "sm90 fp16" : "sm90");
}

/// The same bits in whatever order threads run and copies land.
void check_bits(problem_t const& problem) {
    auto const data = fixture::make_data(problem);
    emulation::options().timing = emulation::timing_t::eager_k;
    auto const want = emulated::run(problem, data, engine(false), 0);
    emulation::options().timing = emulation::timing_t::shuffled_k;
    auto const got = emulated::run(problem, data, engine(false), 0);
    testing::expect(got.gradients == want.gradients && got.scalars.loss == want.scalars.loss &&
                        got.scalars.scale_gradient == want.scalars.scale_gradient &&
                        got.scalars.bias_gradient == want.scalars.bias_gradient,
                    fixture::describe(problem, "sm90") + ": bits repeat");
}

problem_t make(std::int64_t rows, std::vector<std::int64_t> live, std::vector<int> prefixes = {64, 128},
               int dims = 128) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, rows, std::move(live), std::move(prefixes), dims);
    problem.pairs_once = true, problem.labels = label_layout_t::mixed_k;
    return problem;
}

void worlds() {
    check(make(300, {300, 270}));                  // the two halves of a block, of whole row blocks and of ragged ones
    check(make(140, {130, 1, 77}));                // whole blocks
    check(make(140, {5, 140, 0, 130}));            // a device has no rows, another no half
    check(make(70, {70, 70, 1, 70, 69}));          // two rounds
    check(make(2060, {1030, 2060, 0}, {64}, 64));  // more superblocks than the ring holds
}

void ladders() {
    auto problem = make(140, {140, 140}, {64, 192}, 256);  // columns past the ladder, a narrow and a wide piece
    problem.gradient_type = gradient_type_t::float32_k, problem.prefix_weights = {1, 0.5};
    problem.labels = label_layout_t::pairs_k;
    check(problem);
    problem = make(140, {140, 133}, article_k, 1024);
    problem.labels = label_layout_t::pairs_k;
    check(problem);
    problem.gradient_type = gradient_type_t::float32_k, problem.labels = label_layout_t::mixed_k;
    problem.scale = 5, problem.bias = -1;
    check(problem);
    check(problem, true);
    check_bits(problem);
    problem.scale = 100, problem.labels = label_layout_t::distinct_k;
    check(problem);
}

}  // namespace

int main() {
    emulation::options().major = 9;
    worlds();
    ladders();
    check_bits(make(1100, {1100, 1090}, {64}, 64));  // several superblocks, whose shares have an order
    return testing::report();
}
