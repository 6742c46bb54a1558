// Who scores which block of two devices' rows, where each such block is scored once: the device that does so adds to
// the gradients of its own rows, and leaves the other's part of the gradients for that one to fetch.
//
// In round k = 1, 2, ... device g scores its rows against those of g + k, so it is also the one that g - k scores
// against.
//   one set    A block holds both mirrored cells of a pair of rows, so rounds 1 to N / 2 meet everybody. Where N is even the last
//              round meets its two devices from both sides: each scores one half of the block, which is cut between rows of the
//              device with the higher number.
//   two sets   g's images meet the captions of g + k, in N - 1 rounds: all blocks are different ones, and nothing is cut.
// Every device scores as many cells as every other (up to the unit that a block is cut in), whatever N.
#pragma once
#include <algorithm>
#include <string>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts {

/// What one device scores in one round: its rows from `first_row` on, against the first `candidates` rows of `peer`.
struct pair_t {
    int peer;
    std::int64_t first_row, candidates;
};

inline int pair_rounds(problem_t const& problem) {
    return sets_of(problem.loss) == 2 ? problem.world_size - 1 : problem.world_size / 2;
}

/// `unit`: halves begin at multiples of it, as the engine's tiles want them.
inline pair_t pair_of(problem_t const& problem, int device, int round, std::int64_t unit) {
    int const peer = (device + round) % problem.world_size;
    pair_t pair = {peer, 0, problem.live_of(peer)};
    if (sets_of(problem.loss) == 2 || 2 * round != problem.world_size) return pair;
    std::int64_t const live = problem.live_of(std::max(device, peer));
    std::int64_t const cut = std::min(live, (live / 2 + unit - 1) / unit * unit);
    (device < peer ? pair.candidates : pair.first_row) = cut;
    return pair;
}

/// Who scores against the device in a round.
inline int source_of(problem_t const& problem, int device, int round) {
    return (device + problem.world_size - round) % problem.world_size;
}

/// Why a problem's pairs cannot be scored once, as one clause; empty: they can.
inline std::string pairs_unsupported(problem_t const& problem) {
    if (is_softmax(problem.loss))
        return "pairs=once is for the sigmoid losses: a softmax loss needs the sums of both devices' rows first";
    if (problem.forward_only) return "pairs=once sends gradients, of which a forward pass alone has none";
    return "";
}

}  // namespace scaling_contrasts
