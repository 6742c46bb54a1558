// The sm90 engine with fp16 rows and weights, its choice for fp32 gradients, run by the emulator: these have a quarter
// of the error that bf16 weights leave.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

problem_t make(std::int64_t rows, std::vector<std::int64_t> live, std::vector<int> prefixes = article_k,
               int dims = 1024) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, rows, std::move(live), std::move(prefixes), dims);
    problem.gradient_type = gradient_type_t::float32_k;
    problem.scale = 5, problem.bias = -1;
    return problem;
}

void check(problem_t const& problem, std::vector<std::int64_t> const& zero_rows = {}) {
    emulated::check(5e-4, problem, bench::make_sm90_step, "sm90 fp16", 0, zero_rows);
}

void article() {
    check(make(280, {270}));
    check(make(140, {130, 135}));  // a block of another device
    auto problem = make(140, {140});
    problem.labels = label_layout_t::distinct_k;  // no positives
    for (auto [scale, bias] : {std::pair{10.0, -10.0}, {100.0, -10.0}, {0.01, -5.0}}) {
        problem.scale = scale, problem.bias = bias;
        check(problem, {0, 77});
    }
    problem = make(384, {384});  // whole tiles of negatives far below zero
    problem.labels = label_layout_t::distinct_k, problem.scale = 10, problem.bias = -10;
    check(problem);
}

void ladders() {
    auto problem = make(300, {270}, {64, 192}, 256);  // columns past the ladder, a narrow and a wide piece
    problem.labels = label_layout_t::distinct_k;
    problem.prefix_weights = {1, 0.5};
    check(problem);
    problem.prefix_weights = {0.01, 1}, problem.scale = 20, problem.bias = 5;  // weights far above the first prefix's
    check(problem);
    problem.prefix_weights = {0.125, 1}, problem.scale = 100, problem.bias = -10;
    problem.labels = label_layout_t::mixed_k;
    check(problem, {3});
    problem = make(140, {140, 77}, {64, 128, 192, 256, 320, 384}, 384);
    problem.scale = 10, problem.bias = -10;
    check(problem);
    problem = make(130, {130}, {64}, 64);
    problem.self_pairs = true;
    check(problem);
}

/// What the engine chooses, by what a record says of it.
void choice() {
    auto const note = [](problem_t const& problem, std::optional<bool> fp16 = {}) {
        auto const data = fixture::make_data(problem);
        auto const make = [=](bench::step_inputs_t const& in) {
            auto given = in;
            given.fp16 = fp16;
            return bench::make_sm90_step(given);
        };
        return emulated::device_t(problem, data, 0, make, 0).step->note();
    };
    std::string const yes = "rows and weights as fp16";
    auto problem = make(2, {2});
    testing::expect(note(problem) == yes, "fp32 gradients take fp16");
    testing::expect(note(problem, false).empty(), "fp16=false is heard");
    problem.prefix_weights = {1, 1, 1, 1, 1e-3};
    testing::expect(note(problem).empty(), "a band with small weights takes bf16");
    problem.prefix_weights = {1e-3, 1, 1, 1, 1};
    testing::expect(note(problem) == yes, "large weights behind a small one take fp16");
    problem = make(2, {2}, {64, 192}, 256);
    testing::expect(note(problem) == yes, "other ladders take fp16, too");
    problem.gradient_type = gradient_type_t::bfloat16_k;
    testing::expect(note(problem).empty(), "bf16 gradients take bf16");
    testing::expect(note(problem, true) == yes, "fp16=true is heard");
}

}  // namespace

int main() {
    emulation::options().major = 9;
    article();
    ladders();
    choice();
    return testing::report();
}
