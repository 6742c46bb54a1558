// The input generator against values written down from the NumPy implementation (harness/inputs.py).
#include <array>

#include "scaling_contrasts/inputs.hpp"
#include "testing.hpp"

using namespace scaling_contrasts;

namespace {

template <std::size_t count>
void expect_row(std::uint32_t seed, int set, std::int64_t row, std::int32_t group,
                std::array<int, count> const& values) {
    std::array<bf16_t, count> got;
    fill_row(seed, set, row, group, count, got.data());
    for (std::size_t i = 0; i < count; ++i)
        testing::expect(static_cast<float>(got[i]) == static_cast<float>(values[i]),
                        "row " + std::to_string(row) + ", column " + std::to_string(i));
}

void expect_labels(label_layout_t layout, std::array<int, 24> const& labels) {  // of rows 17 .. 40
    for (int i = 0; i < 24; ++i)
        testing::expect(label_of(layout, 17 + i) == labels[static_cast<std::size_t>(i)],
                        "label of row " + std::to_string(17 + i));
}

}  // namespace

int main() {
    expect_row<6>(42, 0, 0, 0, {-74, 120, 104, 94, -194, 88});
    expect_row<6>(42, 1, 5, 5, {43, -143, -18, -98, -211, -100});
    expect_row<6>(42, 0, 1000003, 500001, {-116, -103, 38, 16, 9, 1});
    expect_row<4>(4294967295u, 0, 3, 1, {-50, -29, -13, -121});
    expect_labels(label_layout_t::pairs_k,
                  {8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15, 16, 16, 17, 17, 18, 18, 19, 19, 20});
    expect_labels(label_layout_t::distinct_k,
                  {17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40});
    expect_labels(label_layout_t::equal_k, {});
    expect_labels(label_layout_t::fours_k, {4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 10});
    expect_labels(label_layout_t::sixteens_k, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2});
    expect_labels(label_layout_t::mixed_k, {4, 4, 5, 6, 6, 7, 7, 7, 8, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9, 10, 11, 11});
    return testing::report();
}
