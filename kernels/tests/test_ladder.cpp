// Bands, padded layouts, weights, and what an impossible ladder is told.
#include "scaling_contrasts/cpu/layout.hpp"
#include "testing.hpp"

using namespace scaling_contrasts;
using testing::expect;

int main() {
    problem_t problem;
    ladder_t const ladder = make_ladder(problem);
    expect(ladder.count == 5 && ladder.columns() == 1024, "the default ladder");
    expect(ladder.bands[0].begin == 0 && ladder.bands[0].end == 64, "band 0");
    expect(ladder.bands[4].begin == 512 && ladder.bands[4].end == 1024, "band 4");
    expect(ladder.weights[3] == 0.2f, "default weights");

    problem.dims = 100, problem.prefixes = {5, 17, 90}, problem.prefix_weights = {1, 0, 2};
    cpu::packed_ladder_t const packed(make_ladder(problem));
    expect(packed.pairs() == 3 + 6 + 37, "odd bands are padded to pairs");
    expect(packed.panels() == 1 + 1 + 3 && packed.chunks() == 1, "bands are padded to panels");
    expect(packed.band_of_panel(0) == 0 && packed.band_of_panel(1) == 1 && packed.band_of_panel(4) == 2,
           "bands of panels");
    expect(packed.columns_of_panel(1).begin == 5 && packed.columns_of_panel(1).end == 17, "columns of a narrow panel");
    expect(packed.columns_of_panel(4).begin == 81 && packed.columns_of_panel(4).end == 90, "columns of a last panel");
    expect(!packed.panels_are_columns(), "padding shows");
    expect(packed.weights[2] == 2.0f, "given weights");

    auto refuse = [](std::vector<int> prefixes, std::vector<double> weights, char const* part) {
        problem_t wrong;
        wrong.prefixes = prefixes, wrong.prefix_weights = weights;
        testing::expect_invalid([&] { make_ladder(wrong); }, part);
    };
    refuse({}, {}, "0 prefixes");
    refuse({64, 64}, {}, "must ascend");
    refuse({0, 64}, {}, "must ascend");
    refuse({64, 2048}, {}, "exceeds dims 1024");
    refuse({64, 128}, {1}, "1 prefix weights for 2");
    refuse(std::vector<int>(17, 1), {}, "17 prefixes");
    return testing::report();
}
