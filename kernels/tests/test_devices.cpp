// N virtual devices compute what one does, ragged or not; threads do not change a bit.
#include "fixture.hpp"

using namespace fixture;

namespace {

void check_devices(loss_t loss, std::int64_t rows, std::vector<std::int64_t> live, bool self_pairs = false,
                   form_t form = form_t::nt_xent_k) {
    problem_t problem;
    problem.loss = loss, problem.form = form, problem.rows = rows, problem.dims = 96, problem.prefixes = {32, 80};
    problem.world_size = static_cast<int>(live.size()), problem.live = live;
    problem.scale = 5, problem.bias = -1, problem.gradient_type = gradient_type_t::float32_k;
    problem.labels = label_layout_t::mixed_k, problem.self_pairs = self_pairs;
    data_t const data = make_data(problem);
    result_t const want = oracle(problem, data);
    for (auto const& engine : usable_engines()) {
        result_t const got = run(problem, data, 2, engine);
        compare(problem, got, want, engine);
        result_t const alone = run(problem, data, 1, engine, 1);
        testing::expect(alone.gradients == got.gradients && alone.scalars.loss == got.scalars.loss,
                        "one thread or two, same bits");
    }
}

}  // namespace

int main() {
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        check_devices(loss, 37, {37});
        check_devices(loss, 33, {33, 33});
        check_devices(loss, 21, {21, 0, 13});
        check_devices(loss, 19, {19, 19, 1, 19, 18});
        check_devices(loss, 9, {9, 9, 9, 9, 9, 9, 9, 5});
    }
    check_devices(loss_t::one_set_sigmoid_k, 21, {21, 0, 13}, true);
    for (form_t form : {form_t::nt_xent_k, form_t::sup_con_k})
        for (std::vector<std::int64_t> const& live :
             {std::vector<std::int64_t>{37}, {33, 33}, {21, 0, 13}, {9, 9, 1, 8}})
            check_devices(loss_t::one_set_info_nce_k, live[0], live, false, form);
    return testing::report();
}
