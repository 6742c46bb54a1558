// The sm90 engine's one_set_info_nce, run by the emulator.
#include "engines.hpp"

using namespace scaling_contrasts;

namespace {

problem_t make_problem(form_t form, label_layout_t labels, std::int64_t rows, std::vector<std::int64_t> live,
                       std::vector<int> prefixes, int dims) {
    auto problem = emulated::make_problem(loss_t::one_set_info_nce_k, rows, std::move(live), std::move(prefixes), dims);
    problem.form = form, problem.labels = labels;
    return problem;
}

/// With every timing: the oracle's answer, and the same bits. `zero_rows` get a zero first prefix.
void check(double limit, problem_t const& problem, int side_limit = 0,
           std::vector<std::int64_t> const& zero_rows = {}) {
    auto const data = fixture::make_data(problem, zero_rows);
    auto const want = fixture::oracle(problem, data);
    fixture::result_t first;
    for (auto timing : {emulation::timing_t::eager_k, emulation::timing_t::late_k, emulation::timing_t::shuffled_k}) {
        emulation::options().timing = timing;
        std::string const name = std::string("sm90, ") + emulated::name_of(timing);
        try {
            auto const got = emulated::run(problem, data, bench::make_sm90_step, side_limit);
            if (problem.forward_only)
                testing::expect_below(std::abs(got.scalars.loss - want.scalars.loss), 1e-5 * want.scalars.loss + 1e-9,
                                      fixture::describe(problem, name) + ": loss alone");
            else fixture::compare_within(limit, problem, got, want, name);
            if (timing == emulation::timing_t::eager_k) first = got;
            testing::expect(first.scalars.loss == got.scalars.loss &&
                                (problem.forward_only || first.gradients == got.gradients),
                            fixture::describe(problem, name) + ": the same bits");
        } catch (std::exception const& error) {
            testing::expect(false, fixture::describe(problem, name) + ": " + error.what());
        }
    }
}

}  // namespace

int main() {
    emulation::options().major = 9;
    using enum form_t;
    using enum label_layout_t;
    // where rows have one positive, what rounding takes off its weight is given back
    check(2.2e-3, make_problem(nt_xent_k, pairs_k, 300, {270}, {64}, 128));
    check(2.6e-3, make_problem(sup_con_k, pairs_k, 300, {300}, {64, 192}, 256));
    for (form_t const form : {nt_xent_k, sup_con_k}) {
        auto problem = make_problem(form, mixed_k, 150, {131}, {64, 128}, 128);
        problem.prefix_weights = {1, 0.5};
        problem.scale = form == nt_xent_k ? 100 : 5;
        check(4e-3, problem, 0, {3, 40});
        problem = make_problem(form, equal_k, 129, {129}, {128}, 128);
        problem.scale = 100;
        check(4e-3, problem);
        check(4e-3, make_problem(form, distinct_k, 65, {65}, {64}, 64));  // no positives: all is zero
        // superblocks of 256 x 256, on the diagonal and off it, more of them than the ring holds
        check(3e-3, make_problem(form, form == nt_xent_k ? fours_k : pairs_k, 520, {516}, {64}, 64), 256);
        check(3e-3, make_problem(form, mixed_k, 200, {200, 1, 0, 130}, {64}, 64));  // several devices
        problem = make_problem(form, mixed_k, 300, {300}, {64}, 64);
        problem.forward_only = true;
        check(0, problem);
    }
    check(4e-3, make_problem(nt_xent_k, pairs_k, 520, {520}, {64, 128}, 128), 256);
    // pairs learnt at t = 100: slopes of 1e-20, weights of which few make a row's gradient
    for (form_t const form : {nt_xent_k, sup_con_k}) {
        auto problem = make_problem(form, pairs_k, 63, {63}, {256, 1024}, 1024);
        problem.scale = 100;
        check(4.5e-3, problem);
    }
    check(2.2e-3, make_problem(sup_con_k, pairs_k, 2, {2}, {64}, 64));
    return testing::report();
}
