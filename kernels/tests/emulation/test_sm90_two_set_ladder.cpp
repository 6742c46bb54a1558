// The losses over two sets by the sm90 engine's one-set kernels, the article's ladder and others, run by the emulator.
//   test_emulated_sm90_two_set_ladder [ROWS]   also so many rows with the article's ladder: from 1025 on, several superblocks; minutes
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;
using emulation::timing_t;
using enum gradient_type_t;

namespace {

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

emulated::make_step_t engine(std::optional<bool> fp16 = {}, std::string const& two_set = "auto") {
    return [=](bench::step_inputs_t const& in) {
        auto given = in;
        given.fp16 = fp16, given.two_set = two_set;
        return bench::make_sm90_step(given);
    };
}

problem_t make(std::int64_t rows, std::vector<std::int64_t> live, double scale, double bias,
               gradient_type_t type = float32_k, std::vector<int> prefixes = article_k, int dims = 1024) {
    auto problem = make_problem(loss_t::two_set_sigmoid_k, rows, std::move(live), std::move(prefixes), dims);
    problem.scale = scale, problem.bias = bias, problem.gradient_type = type;
    return problem;
}

/// fp16 weights leave a quarter of bf16's error; bf16 gradients are rounded, whatever the weights.
double limit(problem_t const& problem, bool fp16) {
    return !fp16 ? 4.5e-3 : problem.gradient_type == float32_k ? 5e-4 : 2.5e-3;
}
void check(problem_t const& problem, std::optional<bool> fp16 = {}, std::string const& two_set = "auto",
           std::vector<std::int64_t> const& zero_rows = {}) {
    emulated::check(limit(problem, fp16.value_or(true)), problem, engine(fp16, two_set), "sm90 " + two_set, 0,
                    zero_rows);
}

/// The same bits in whatever order threads run and copies land.
void check_bits(problem_t const& problem, std::string const& two_set = "auto") {
    auto const data = fixture::make_data(problem);
    emulation::options().timing = timing_t::eager_k;
    auto const want = emulated::run(problem, data, engine({}, two_set), 0);
    emulation::options().timing = timing_t::shuffled_k;
    auto const got = emulated::run(problem, data, engine({}, two_set), 0);
    testing::expect(got.gradients == want.gradients && got.scalars.loss == want.scalars.loss &&
                        got.scalars.scale_gradient == want.scalars.scale_gradient &&
                        got.scalars.bias_gradient == want.scalars.bias_gradient,
                    fixture::describe(problem, "sm90") + ": bits repeat");
}

void article() {
    check(make(1, {1}, 5, -1));
    for (auto type : {float32_k, bfloat16_k})
        for (auto [scale, bias] : {std::pair{10.0, -10.0}, {5.0, -1.0}, {100.0, -10.0}})
            check(make(65, {65}, scale, bias, type));
    check(make(63, {50}, 10, -10, bfloat16_k));            // dead rows
    check(make(300, {129}, 5, -1), {}, "auto", {0, 128});  // dead row blocks; a first prefix of zero
    check(make(300, {300}, 10, -10, bfloat16_k));
    check(make(140, {140}, 5, -1, bfloat16_k), false);  // bf16 rows and weights
    check(make(70, {0}, 5, -1, bfloat16_k));
    check_bits(make(140, {135}, 5, -1, bfloat16_k));
}

/// Columns past the ladder, narrow and wide pieces, weights apart; several superblocks, and more than the ring holds.
void ladders() {
    auto problem = make(300, {270}, 5, -1, float32_k, {64, 192}, 256);
    problem.prefix_weights = {1, 0.5};
    check(problem, {}, "ladder");
    problem.gradient_type = bfloat16_k;
    check(problem, {}, "ladder");
    check(make(1100, {1090}, 10, -10, bfloat16_k, {64}, 64), {}, "ladder");
    check(make(2060, {2060}, 10, -10, bfloat16_k, {64}, 64), {}, "ladder");
    check_bits(make(1100, {1100}, 10, -10, bfloat16_k, {64}, 64), "ladder");
}

/// What the option asks for is refused where those kernels cannot do it.
void options() {
    auto const runs = [](problem_t const& problem, std::string const& two_set) {
        return bench::sm90_unsupported(problem, two_set).empty();
    };
    auto const article = make(140, {140}, 5, -1), rounded = make(140, {140}, 5, -1, bfloat16_k),
               other = make(140, {140}, 5, -1, float32_k, {64, 192}, 256);
    auto uneven = make(140, {140}, 5, -1, bfloat16_k, {64, 192}, 256), alone = uneven;
    uneven.prefix_weights = {1, 1e-5}, alone.prefix_weights = {1, 1e-5}, alone.forward_only = true;
    testing::expect(runs(article, "auto") && runs(article, "ladder") && !runs(article, "grid"),
                    "fp32 gradients are not for the grid's weights, which are rounded twice");
    testing::expect(runs(rounded, "auto") && runs(rounded, "ladder") && runs(rounded, "grid"),
                    "bf16 gradients are for either");
    testing::expect(!runs(other, "auto") && runs(other, "ladder") && !runs(other, "grid"),
                    "any ladder, where asked for");
    testing::expect(runs(uneven, "auto") && !runs(uneven, "ladder") && runs(uneven, "grid") && runs(alone, "ladder"),
                    "not one that fp16 does not hold, but its forward pass");
    auto nce = article, nce_once = article, nce_other = other;
    nce.loss = nce_once.loss = nce_other.loss = loss_t::info_nce_k;
    nce_once.world_size = 2, nce_once.live = {140, 140}, nce_once.pairs_once = true;
    testing::expect(runs(nce, "auto") && runs(nce, "ladder") && !runs(nce, "grid"), "fp32 gradients of info_nce, too");
    testing::expect(!runs(nce_other, "ladder"), "of the article's ladder alone");
    for (auto const* two_set : {"auto", "grid", "ladder"})
        testing::expect(!runs(nce_once, two_set), "whose pairs are not scored once");
    auto once = make(140, {140, 140}, 5, -1, bfloat16_k, {64, 192}, 256);
    once.pairs_once = true;
    testing::expect(!runs(once, "auto") && runs(once, "ladder") && !runs(once, "grid"),
                    "pairs once, by the kernels of one set");
}

void devices() {
    for (bool once : {false, true}) {
        auto problem = make(140, {130, 77}, 10, -10, bfloat16_k);
        problem.pairs_once = once;
        check(problem);
        problem = make(70, {70, 0, 69}, 5, -1);
        problem.pairs_once = once;
        check(problem);
        problem = make(140, {5, 140, 0, 130}, 5, -1, bfloat16_k, {64, 128}, 192);
        problem.pairs_once = once;
        check(problem, {}, "ladder");
    }
    auto problem = make(1100, {1100, 1090}, 10, -10, bfloat16_k, {64}, 64);
    problem.pairs_once = true;
    check_bits(problem, "ladder");
}

problem_t make_nce(std::int64_t rows, std::vector<std::int64_t> live, double scale, gradient_type_t type = float32_k) {
    auto problem = make(rows, std::move(live), scale, 0, type);
    problem.loss = loss_t::info_nce_k;
    return problem;
}
/// What cancels where pairs are learnt is minded: docs/contracts.md, section 3.
void check_nce(problem_t const& problem, std::vector<std::int64_t> const& zero_rows = {}) {
    emulated::check(limit(problem, true), problem, engine(), "sm90", 0, zero_rows, true);
}

void info_nce() {
    check_nce(make_nce(1, {1}, 5));
    for (auto type : {float32_k, bfloat16_k})
        for (double scale : {1.0, 10.0, 100.0, -20.0, 0.0}) check_nce(make_nce(65, {65}, scale, type));
    check_nce(make_nce(63, {50}, 10, bfloat16_k));  // dead rows
    check_nce(make_nce(300, {129}, 5), {0, 128});   // dead row blocks; a first prefix of zero
    // these rows' log sums lie far from the others': their blocks' cells take two exp2
    check_nce(make_nce(300, {300}, 150, bfloat16_k), {3, 280});
    check_nce(make_nce(140, {130, 77}, 10, bfloat16_k));
    check_nce(make_nce(70, {70, 0, 69}, 5));
    check_nce(make_nce(140, {5, 140, 0, 130}, 150, bfloat16_k), {1, 200});
    check_bits(make_nce(140, {135}, 10, bfloat16_k));
    check_bits(make_nce(140, {130, 77}, 150, bfloat16_k));
}

}  // namespace

int main(int argc, char** argv) {
    emulation::options().major = 9;
    if (argc > 1) {
        std::int64_t const rows = std::atoll(argv[1]);
        check(make(rows, {rows}, 10, -10, bfloat16_k));
        check_nce(make_nce(rows, {rows}, 10, bfloat16_k));
        return testing::report();
    }
    article();
    ladders();
    options();
    devices();
    info_nce();
    return testing::report();
}
