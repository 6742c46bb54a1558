// The sm90 engine's kernels with bf16 weights, run by the emulator; those for few rows have test_sm90_small.cpp.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

/// Weights are rounded to bf16, 2^-9 at worst, and so are bf16 gradients. The article's ladder gives back what that
/// takes off positives; on others it stays, where a row has few.
void check(problem_t const& problem) {
    bool const wide = problem.gradient_type == gradient_type_t::float32_k;
    auto const make = [](bench::step_inputs_t const& in) {
        auto given = in;
        given.two_set = "grid", given.fp16 = false, given.small_items = false;
        return bench::make_sm90_step(given);
    };
    emulated::check(wide || problem.prefixes == article_k ? 3e-3 : 4.5e-3, problem, make, "sm90");
}

void one_set_sigmoid() {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 256, {200}, article_k, 1024);
    check(problem);
    problem = make_problem(loss_t::one_set_sigmoid_k, 300, {270}, {64, 192},
                           256);  // columns past the ladder, a narrow and a wide piece
    problem.prefix_weights = {1, 0.5};
    check(problem);
    problem.labels = label_layout_t::mixed_k, problem.scale = 100;
    problem.gradient_type = gradient_type_t::float32_k;
    check(problem);
    problem.self_pairs = true, problem.labels = label_layout_t::distinct_k, problem.scale = 5, problem.bias = -1;
    check(problem);
    check(make_problem(loss_t::one_set_sigmoid_k, 140, {140, 3}, {64, 128}, 128));  // a block of another device
    problem = make_problem(loss_t::one_set_sigmoid_k, 70, {70, 70, 70, 70}, {64, 128}, 128);
    problem.group_rows = 140, problem.labels = label_layout_t::mixed_k;
    check(problem);  // peers two at a time, on both sides of the last one
    problem = make_problem(loss_t::one_set_sigmoid_k, 40, {40, 40, 40}, article_k, 1024);
    problem.group_rows = 40, problem.labels = label_layout_t::mixed_k;
    check(problem);  // positives on other devices, whose rows do not stay
    check(make_problem(loss_t::one_set_sigmoid_k, 1100, {1090}, {64}, 64));  // several superblocks
}

/// What lies between two sets' positives and negatives cancels where the softmax is near 1: see docs/contracts.md,
/// section 3.
void two_sets() {
    for (loss_t loss : {loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        check(make_problem(loss, 256, {200}, article_k, 1024));
        auto problem = make_problem(loss, 300, {270}, {128}, 192);
        problem.gradient_type = gradient_type_t::float32_k;
        check(problem);
        problem = make_problem(loss, 130, {130, 77}, {64, 192}, 192);  // a block of another device
        problem.scale = 30;
        check(problem);
    }
    auto learnt = make_problem(loss_t::info_nce_k, 63, {63}, {256, 1024}, 1024);  // slopes of 1e-20
    learnt.scale = 100;
    check(learnt);
}

/// What the engine takes on two devices; tests/kernels/box_cases.py says so, too.
void refusals() {
    auto const takes = [](loss_t loss, std::vector<int> prefixes, gradient_type_t type, bool once = false) {
        auto problem = make_problem(loss, 70, {70, 70}, std::move(prefixes), 1024);
        problem.gradient_type = type, problem.pairs_once = once;
        return bench::sm90_unsupported(problem).empty();
    };
    using enum gradient_type_t;
    for (bool once : {false, true})
        testing::expect(takes(loss_t::one_set_sigmoid_k, {64, 128}, float32_k, once), "one set takes all");
    for (loss_t loss : {loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        testing::expect(!takes(loss, {64, 128}, float32_k), "two sets refuse fp32 gradients of a ladder");
        testing::expect(takes(loss, {128}, float32_k), "two sets take fp32 gradients of one prefix");
        testing::expect(takes(loss, {64, 128}, bfloat16_k), "two sets take bf16 gradients of a ladder");
        for (bool once : {false, true})
            testing::expect(takes(loss, article_k, float32_k, once) == (!once || loss == loss_t::two_set_sigmoid_k),
                            "the article's ladder has an engine, which scores pairs once in two_set_sigmoid");
        testing::expect(!takes(loss, {128}, bfloat16_k, true), "two sets refuse pairs scored once");
    }
}

}  // namespace

int main() {
    emulation::options().major = 9;
    refusals();
    one_set_sigmoid();
    two_sets();
    return testing::report();
}
