// The ladder of Matryoshka prefixes as bands of columns. Prefix p is the bands 0 .. p together, so that one ascending
// pass over the columns passes every prefix's dot product, and the gradient of a band sums the weights of all prefixes
// from its own up ("suffix sums").
#pragma once
#include <array>
#include <stdexcept>
#include <string>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts {

struct band_t {
    int begin = 0;  ///< first column
    int end = 0;    ///< one past the last: the prefix's length
};

/// An ascending ladder with its weights. Plain data: it can be copied to a device.
struct ladder_t {
    int count = 0;
    int dims = 0;
    std::array<band_t, max_prefixes_k> bands = {};
    std::array<float, max_prefixes_k> weights = {};

    int columns() const { return bands[static_cast<std::size_t>(count - 1)].end; }  ///< columns past it get no gradient
};

/// Throws std::invalid_argument, with one line that says what is wrong and what to do.
inline ladder_t make_ladder(problem_t const& problem) {
    auto const& prefixes = problem.prefixes;
    if (prefixes.empty() || prefixes.size() > static_cast<std::size_t>(max_prefixes_k))
        throw std::invalid_argument(std::to_string(prefixes.size()) + " prefixes; give 1 to " +
                                    std::to_string(max_prefixes_k));
    if (!problem.prefix_weights.empty() && problem.prefix_weights.size() != prefixes.size())
        throw std::invalid_argument(std::to_string(problem.prefix_weights.size()) + " prefix weights for " +
                                    std::to_string(prefixes.size()) + " prefixes; give one each");
    ladder_t ladder;
    ladder.dims = problem.dims;
    for (std::size_t i = 0; i < prefixes.size(); ++i) {
        int const begin = i == 0 ? 0 : prefixes[i - 1];
        if (prefixes[i] <= begin)
            throw std::invalid_argument("prefix " + std::to_string(prefixes[i]) + " follows " + std::to_string(begin) +
                                        "; prefixes must ascend, each once, from 1 up");
        if (prefixes[i] > problem.dims)
            throw std::invalid_argument("prefix " + std::to_string(prefixes[i]) + " exceeds dims " +
                                        std::to_string(problem.dims) + "; drop it or raise dims");
        ladder.bands[i] = {begin, prefixes[i]};
        ladder.weights[i] = static_cast<float>(problem.weight_of(i));
    }
    ladder.count = static_cast<int>(prefixes.size());
    return ladder;
}

}  // namespace scaling_contrasts
