// The sm90 engine run by clusters of CTAs that share operands, by the emulator: the same bits as without, with every
// timing. The last of an odd number of row blocks has none to share with, nor has every other tile of the diagonal.
//   test_emulated_sm90_clusters [LIVE [CLUSTER]]   also so many rows: from 1025 on, several superblocks; minutes
#include "engines.hpp"

using namespace scaling_contrasts;
using emulated::make_problem;
using emulation::timing_t;

namespace {

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

emulated::make_step_t by(std::string const& cluster) {
    return [cluster](bench::step_inputs_t const& in) {
        auto given = in;
        given.fp16 = false, given.cluster = cluster;
        return bench::make_sm90_step(given);
    };
}

void check(problem_t const& problem, std::vector<std::string> const& clusters, std::vector<timing_t> const& timings) {
    auto const data = fixture::make_data(problem);
    auto const want = fixture::oracle(problem, data);
    emulation::options().timing = timing_t::eager_k;
    auto const plain = emulated::run(problem, data, by("none"), 0);
    fixture::compare_within(3e-3, problem, plain, want, "sm90");
    for (auto const& cluster : clusters)
        for (auto timing : timings) {
            emulation::options().timing = timing;
            std::string const name = fixture::describe(problem, cluster + ", " + emulated::name_of(timing));
            try {
                auto const got = emulated::run(problem, data, by(cluster), 0);
                testing::expect(got.gradients == plain.gradients, name + ": gradients are those without clusters");
                testing::expect(got.scalars.loss == plain.scalars.loss &&
                                    got.scalars.scale_gradient == plain.scalars.scale_gradient &&
                                    got.scalars.bias_gradient == plain.scalars.bias_gradient,
                                name + ": so are loss, dt and db");
            } catch (std::exception const& error) {
                testing::expect(false, name + ": " + error.what());
            }
        }
}

}  // namespace

int main(int argc, char** argv) {
    emulation::options().major = 9;
    emulation::options().multiprocessors = 4;  // two clusters of four
    auto clusters = bench::sm90_clusters();
    std::erase(clusters, "none");
    std::vector<timing_t> const all = {timing_t::eager_k, timing_t::late_k, timing_t::shuffled_k};
    if (argc > 1) {
        auto const problem =
            make_problem(loss_t::one_set_sigmoid_k, std::atoi(argv[1]), {std::atoi(argv[1])}, article_k, 1024);
        check(problem, argc > 2 ? std::vector<std::string>{argv[2]} : clusters, all);
        return testing::report();
    }
    auto problem = make_problem(loss_t::one_set_sigmoid_k, 280, {270}, article_k, 1024);
    problem.gradient_type = gradient_type_t::float32_k;
    problem.scale = 5, problem.bias = -1;
    check(problem, clusters, all);
    problem.rows = 140, problem.live = {130, 135}, problem.world_size = 2;  // a block of another device
    check(problem, {"pairs", "gradient_squares"}, {timing_t::shuffled_k});
    return testing::report();
}
