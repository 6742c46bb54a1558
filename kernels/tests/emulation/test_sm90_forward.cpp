// The sm90 engine's forward pass alone of one_set_sigmoid, run by the emulator.
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;

namespace {

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

problem_t make(std::int64_t rows, std::vector<std::int64_t> live, std::vector<int> prefixes, int dims) {
    auto problem = make_problem(loss_t::one_set_sigmoid_k, rows, std::move(live), std::move(prefixes), dims);
    problem.forward_only = true;
    return problem;
}

/// With every timing: the oracle's loss, and the same bits.
void check(problem_t const& problem, std::vector<std::int64_t> const& zero_rows = {}) {
    auto const data = fixture::make_data(problem, zero_rows);
    double const want = fixture::oracle(problem, data).scalars.loss;
    double first = 0;
    for (auto timing : {emulation::timing_t::eager_k, emulation::timing_t::late_k, emulation::timing_t::shuffled_k}) {
        emulation::options().timing = timing;
        std::string const name = fixture::describe(problem, std::string("sm90 forward, ") + emulated::name_of(timing));
        try {
            auto const got = emulated::run(problem, data, bench::make_sm90_step, 0).scalars;
            testing::expect_below(std::abs(got.loss - want), 2e-6 * want + 1e-9, name + ": loss");
            testing::expect(got.scale_gradient == 0 && got.bias_gradient == 0, name + ": no dt, no db");
            if (timing == emulation::timing_t::eager_k) first = got.loss;
            testing::expect(got.loss == first, name + ": the same bits");
        } catch (std::exception const& error) {
            testing::expect(false, name + ": " + error.what());
        }
    }
}

void states() {
    auto problem = make(300, {270}, article_k, 1024);
    for (auto labels :
         {label_layout_t::pairs_k, label_layout_t::equal_k, label_layout_t::distinct_k, label_layout_t::mixed_k})
        for (auto [scale, bias] : {std::pair{10.0, -10.0}, {5.0, -1.0}, {100.0, -10.0}}) {
            problem.labels = labels, problem.scale = scale, problem.bias = bias;
            check(problem, {0, 77});
        }
    problem.self_pairs = true;
    check(problem);
}

void shapes() {
    for (std::int64_t rows : {1, 2, 63, 65, 129}) check(make(rows, {rows}, {64, 128}, 128));
    auto problem = make(200, {200}, {64, 192}, 256);  // columns past the ladder
    problem.prefix_weights = {1, 0.5};
    check(problem);
    problem = make(200, {190}, {64, 128, 192, 256, 320, 384}, 384);  // more prefixes than the kernel for few takes
    problem.labels = label_layout_t::mixed_k;
    check(problem);
    check(make(2300, {2222}, {64}, 64));  // strips, tiles of one slab
    check(make(1100, {1100}, {64, 128, 256}, 256));
}

void devices() {
    check(make(140, {140, 3}, {64, 128}, 128));
    auto problem = make(70, {70, 70, 70, 70}, {64, 128}, 128);  // peers two at a time
    problem.group_rows = 140, problem.labels = label_layout_t::mixed_k;
    check(problem);
    problem = make(1300, {1300, 0, 1200}, {64}, 64);  // strips of rows and of candidates
    problem.labels = label_layout_t::mixed_k;
    check(problem);
}

}  // namespace

int main() {
    emulation::options().major = 9;
    emulation::options().multiprocessors = 2;  // several tiles a CTA
    states();
    shapes();
    devices();
    return testing::report();
}
