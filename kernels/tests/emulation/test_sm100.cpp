// The sm100 engine's kernels, run by the emulator: no GPU at hand has their instructions.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

/// `side`: of the superblocks. Weights of bf16 gradients are rounded to bf16, as these are, 1.1e-3 to 2.6e-3 and
/// 1.6e-3; one set's positives, whose rounding is not given back, weigh more where a row has few. fp32 gradients have
/// weights of two parts, but slopes of 10 digits, 1e-3.
void check(problem_t const& problem, int side = 0, std::vector<std::int64_t> const& zero_rows = {}) {
    bool const wide = problem.gradient_type == gradient_type_t::float32_k, one = sets_of(problem.loss) == 1;
    emulated::check(wide ? 1e-3 : one ? 4.5e-3 : 3.2e-3, problem, bench::make_sm100_step, "sm100", side, zero_rows);
}

void every_loss() {
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        check(make_problem(loss, 130, {129}, {64, 192}, 256));
        auto problem = make_problem(loss, 300, {270}, {64, 128, 448}, 448);  // a piece of 256 columns and one of 64
        problem.gradient_type = gradient_type_t::float32_k;
        problem.prefix_weights = {0.5, 0.25, 2};
        check(problem, 128);  // nine superblocks
        problem.scale = 100;
        check(problem, 256, {0, 7, 269});
        check(make_problem(loss, 130, {130, 1, 77}, {64, 128}, 128));  // blocks of other devices
    }
}

void labels() {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 140, {140}, {64}, 64);
    problem.scale = 5, problem.bias = -1;
    for (auto layout : {label_layout_t::equal_k, label_layout_t::mixed_k, label_layout_t::distinct_k}) {
        problem.labels = layout, problem.self_pairs = layout == label_layout_t::distinct_k;
        check(problem);
    }
}

/// Peers that are scored two at a time, and that lie on both sides of the last device.
void groups() {
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k}) {
        auto problem = make_problem(loss, 70, {70, 70, 70, 70}, {64, 128}, 128);
        problem.group_rows = 140, problem.labels = label_layout_t::mixed_k;
        check(problem);
    }
}

/// Blocks of two devices scored by one of them: whole, in halves, of few rows and of none.
void pairs() {
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k})
        for (auto const& live : {std::vector<std::int64_t>{300, 270}, {130, 1, 77}, {5, 140, 0, 130}}) {
            auto problem = make_problem(loss, std::max<std::int64_t>(140, live[0]), live, {64, 128}, 128);
            problem.pairs_once = true;
            problem.labels = label_layout_t::mixed_k;
            check(problem, 128);
        }
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 130, {130, 130}, {64, 192}, 256);
    problem.pairs_once = true, problem.gradient_type = gradient_type_t::float32_k;
    check(problem);
}

void article() {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 256, {256}, {64, 128, 256, 512, 1024}, 1024);
    check(problem);
}

}  // namespace

int main() {
    emulation::options().major = 10;
    every_loss();
    labels();
    groups();
    pairs();
    article();
    return testing::report();
}
