// Steps of one device against the float64 oracle: shapes, ladders, label layouts, states, gradient types, every engine.
#include "fixture.hpp"

using namespace fixture;

namespace {

struct state_t {
    double scale, bias;
};
constexpr state_t states_k[] = {{10, -10}, {5, -1}, {100, -10}};
constexpr loss_t losses_k[] = {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k};

problem_t make_problem(loss_t loss, std::int64_t rows, std::vector<int> prefixes, int dims, state_t state) {
    problem_t problem;
    problem.loss = loss, problem.rows = rows, problem.prefixes = prefixes, problem.dims = dims;
    problem.scale = state.scale, problem.bias = state.bias, problem.gradient_type = gradient_type_t::float32_k;
    return problem;
}

void check(problem_t const& problem, std::vector<std::int64_t> const& zero_rows = {}, double cancel = 1) {
    data_t const data = make_data(problem, zero_rows);
    result_t const want = oracle(problem, data);
    for (auto const& engine : usable_engines()) compare(problem, run(problem, data, 2, engine), want, engine, cancel);
}

void check_shapes() {
    for (loss_t loss : losses_k)
        for (std::int64_t rows : {1, 2, 63, 64, 65, 127, 129})
            check(make_problem(loss, rows, {32, 64, 96, 128, 160}, 160, states_k[rows % 2]));
    check(make_problem(loss_t::one_set_sigmoid_k, 300, {64}, 64, states_k[0]));  // crosses superblocks
    check(make_problem(loss_t::two_set_sigmoid_k, 260, {64, 96}, 96, states_k[2]));
    check(make_problem(loss_t::info_nce_k, 260, {64, 96}, 96, states_k[0]));
}

void check_ladders() {
    for (loss_t loss : losses_k) {
        check(make_problem(loss, 65, {96}, 96, states_k[0]));
        check(make_problem(loss, 65, {64, 100}, 120, states_k[1]));
        auto problem = make_problem(loss, 65, {33, 47, 81}, 85, states_k[1]);  // odd bands, columns past the ladder
        problem.prefix_weights = {0.5, 0, 2};
        check(problem);
    }
    check(make_problem(loss_t::one_set_sigmoid_k, 20, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}, 16,
                       states_k[1]),
          {}, 3);
}

void check_labels_and_states() {
    for (auto labels :
         {label_layout_t::pairs_k, label_layout_t::distinct_k, label_layout_t::equal_k, label_layout_t::mixed_k})
        for (state_t state : states_k)
            for (bool self : {false, true}) {
                auto problem = make_problem(loss_t::one_set_sigmoid_k, 77, {64, 128}, 128, state);
                problem.labels = labels, problem.self_pairs = self;
                check(problem);
            }
    for (loss_t loss : losses_k)
        for (state_t state : states_k) {
            auto problem = make_problem(loss, 77, {64, 128}, 128, state);
            problem.gradient_type = gradient_type_t::bfloat16_k;
            check(problem);
        }
}

/// one_set_info_nce: both forms, every layout of labels and size, ladders of 1, 2 and 5 prefixes.
void check_groups() {
    std::vector<int> const ladders[] = {{64}, {64, 100}, {32, 64, 96, 128, 160}};
    for (form_t form : {form_t::nt_xent_k, form_t::sup_con_k})
        for (auto labels :
             {label_layout_t::pairs_k, label_layout_t::distinct_k, label_layout_t::equal_k, label_layout_t::mixed_k}) {
            int number = 0;
            for (std::int64_t rows : {1, 2, 63, 64, 65, 127, 129, 300}) {
                auto const& ladder = ladders[number % 3];
                for (state_t state : {states_k[number % 2], states_k[2]}) {
                    auto problem = make_problem(loss_t::one_set_info_nce_k, rows, ladder, 160, state);
                    problem.form = form, problem.labels = labels;
                    if (number % 2) problem.gradient_type = gradient_type_t::bfloat16_k;
                    // At t = 100 one negative can carry a row's gradient, with all of its weight's 2^-9; the
                    // projection off the row takes more of the weight than of its rounding, most where all rows lie
                    // close together.
                    bool const saturated = state.scale > 50, close = labels == label_layout_t::equal_k;
                    check(problem, {}, !saturated ? 1 : close ? 1.5 : 1.05);
                }
                ++number;
            }
            auto problem = make_problem(loss_t::one_set_info_nce_k, 40, {32, 64}, 64, states_k[0]);
            problem.form = form, problem.labels = labels;
            check(problem, {0, 7, 39});  // zero prefixes
        }
}

void check_extremes() {
    for (loss_t loss : losses_k) check(make_problem(loss, 40, {32, 64}, 64, states_k[0]), {0, 7, 39});  // zero prefixes
    check(make_problem(loss_t::one_set_sigmoid_k, 40, {64}, 64, {0, 0}));
    auto problem = make_problem(loss_t::two_set_sigmoid_k, 40, {64}, 64, {10, -10});
    problem.scale = 1000, problem.bias = 500;  // logits of either sign beyond exp's range
    check(problem);
}

void check_refusals() {
    problem_t const good = make_problem(loss_t::one_set_sigmoid_k, 4, {8}, 8, states_k[0]);
    auto refuse = [&](auto change, char const* part) {
        problem_t problem = good;
        change(problem);
        testing::expect_invalid([&] { step_t(problem, {set_t{}}); }, part);
    };
    refuse([](problem_t& p) { p.rows = 0; }, "rows is 0");
    refuse([](problem_t& p) { p.live = {5}; }, "must be 0 to 4");
    refuse([](problem_t& p) { p.live = {0}; }, "live is 0 on every device");
    refuse([](problem_t& p) { p.live = {1, 1}; }, "2 live counts for 1");
    refuse([](problem_t& p) { p.world_size = 17; }, "give 1 to 16");
    refuse(
        [](problem_t& p) {
            p.loss = loss_t::info_nce_k;
            p.self_pairs = true;
        },
        "self_pairs");
    refuse(
        [](problem_t& p) {
            p.loss = loss_t::one_set_info_nce_k;
            p.self_pairs = true;
        },
        "self_pairs");
    refuse([](problem_t& p) { p.loss = loss_t::info_nce_k; }, "1 sets for 1 devices");
    try {
        step_t(good, {set_t{}}, 1, "cpu-z80");
        testing::expect(false, "an unknown engine is refused");
    } catch (failure_t const& problem) {
        testing::expect(problem.status == status_t::unsupported_k, "an unknown engine is unsupported");
    }
}

}  // namespace

int main() {
    check_shapes();
    check_ladders();
    check_labels_and_states();
    check_groups();
    check_extremes();
    check_refusals();
    return testing::report();
}
