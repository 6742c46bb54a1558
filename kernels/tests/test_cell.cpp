// The mathematics of a cell against long double, and bf16 rounding against the definition.
#include <limits>

#include "scaling_contrasts/cell.hpp"
#include "testing.hpp"

using namespace scaling_contrasts;

namespace {

long double relative(long double value, long double truth) { return std::abs((value - truth) / truth); }

void check_cells() {
    long double worst_loss = 0, worst_slope = 0, worst_far_loss = 0, worst_far_slope = 0;
    for (double logit = -80; logit <= 80; logit += 0.0137) {
        float const x = static_cast<float>(logit * static_cast<double>(log2e_k));
        long double const l = static_cast<long double>(x) * std::log(2.0L);
        long double const softplus = l > 0 ? l + std::log1p(std::exp(-l)) : std::log1p(std::exp(l));
        long double const sigmoid = l > 0 ? 1 / (1 + std::exp(-l)) : std::exp(l) / (1 + std::exp(l));
        float loss, slope;
        near_cell(x, std::exp2(-std::abs(x)), loss, slope);
        worst_loss = std::max(worst_loss, relative(static_cast<long double>(loss), softplus));
        worst_slope = std::max(worst_slope, relative(static_cast<long double>(slope), sigmoid));
        if (x > far_below_k) continue;
        far_cell(std::exp2(x), loss, slope);
        worst_far_loss = std::max(worst_far_loss, relative(static_cast<long double>(loss), softplus));
        worst_far_slope = std::max(worst_far_slope, relative(static_cast<long double>(slope), sigmoid));
    }
    // ln2_k itself, and the rounding of x * ln 2 in the host's exp2, take about 1e-7 each.
    testing::expect_below(static_cast<double>(worst_loss), 4e-7, "softplus");
    testing::expect_below(static_cast<double>(worst_slope), 4e-7, "sigmoid");
    testing::expect_below(static_cast<double>(worst_far_loss), 4e-7, "softplus far below zero");
    testing::expect_below(static_cast<double>(worst_far_slope), 4e-7, "sigmoid far below zero");
}

void check_bf16() {
    for (std::uint32_t high = 0; high < 0x7f80; ++high) {  // every finite positive bf16 and the ties above it
        float const exact = __builtin_bit_cast(float, high << 16);
        testing::expect(bf16_t(exact).bits == high, "bf16 holds itself");
        std::uint32_t const tie = bf16_t(__builtin_bit_cast(float, high << 16 | 0x8000u)).bits;
        testing::expect(tie == (high & 1 ? high + 1 : high), "ties go to even");
        std::uint32_t const above = bf16_t(__builtin_bit_cast(float, high << 16 | 0x8001u)).bits;
        testing::expect(above == high + 1, "above a tie rounds up");
    }
    testing::expect(std::isnan(static_cast<float>(bf16_t(std::numeric_limits<float>::quiet_NaN()))), "NaN stays NaN");
    testing::expect(std::isnan(static_cast<float>(bf16_t(__builtin_bit_cast(float, 0x7f800001u)))),
                    "a NaN of low bits too");
}

}  // namespace

int main() {
    check_cells();
    check_bf16();
    return testing::report();
}
