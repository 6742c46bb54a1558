// How a device's peers are put together into blocks of candidates: peers of few rows come several at a time, for a
// kernel over few cells spends most of its time beginning and ending.
#pragma once
#include <algorithm>
#include <vector>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts {

/// Peers `first`, `first` + 1, ... (modulo the number of devices).
struct peer_block_t {
    int first, devices;
};

/// Peers in their order, in blocks of up to `most` that follow one another; after the last of `devices` comes the
/// first.
inline std::vector<peer_block_t> peer_blocks(std::vector<int> const& peers, int devices, int most) {
    std::vector<peer_block_t> blocks;
    for (int const peer : peers) {
        bool const next = !blocks.empty() && peer == (blocks.back().first + blocks.back().devices) % devices;
        if (next && blocks.back().devices < most) ++blocks.back().devices;
        else blocks.push_back({peer, 1});
    }
    return blocks;
}

/// All other devices, in the order in which one takes them.
inline std::vector<int> peers_behind(int devices, int device) {
    std::vector<int> peers;
    for (int k = 1; k < devices; ++k) peers.push_back((device + k) % devices);
    return peers;
}

/// Rows of a block of candidates that an engine which takes groups must expect: problem.group_rows, but whole peers,
/// and one at least. Where a device has dead rows, peers come one by one: a block has no gaps.
inline std::int64_t candidate_rows(problem_t const& problem) {
    for (int device = 0; device < problem.world_size; ++device)
        if (problem.live_of(device) != problem.rows) return problem.rows;
    auto const peers = std::max<std::int64_t>(1, problem.world_size - 1);
    return problem.rows * std::clamp<std::int64_t>(problem.group_rows / problem.rows, 1, peers);
}

}  // namespace scaling_contrasts
