// The smallest test framework that names what failed: expectations count, `report` ends main.
#pragma once
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

namespace testing {

inline int failures = 0;
inline int expectations = 0;

inline void expect(bool holds, std::string const& what) {
    ++expectations;
    if (holds) return;
    if (++failures <= 40) std::printf("FAILED: %s\n", what.c_str());
}

inline void expect_below(double value, double limit, std::string const& what) {
    expect(value <= limit,
           what + ": " + std::to_string(value * 1e6) + "e-6, limit " + std::to_string(limit * 1e6) + "e-6");
}

template <class call_t>
void expect_invalid(call_t&& call, std::string const& part) {
    try {
        call();
    } catch (std::invalid_argument const& problem) {
        return expect(std::string(problem.what()).find(part) != std::string::npos,
                      "message lacks '" + part + "': " + problem.what());
    }
    expect(false, "nothing thrown, expected: " + part);
}

inline int report() {
    std::printf("%d expectations, %d failed\n", expectations, failures);
    return failures == 0 && expectations > 0 ? 0 : 1;
}

}  // namespace testing
