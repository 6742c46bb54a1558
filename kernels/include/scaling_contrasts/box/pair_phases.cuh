// A device's step where each block of two devices is scored by one of them (pairs.hpp): phases with a meeting between any
// two. Scored, taken, scored, taken, ...: what a device finds for another one's gradients lies in symmetric memory until
// that one has added it to its own, so every device adds in the order of rounds.
#pragma once
#include <cstddef>

#include "scaling_contrasts/box/staging.cuh"
#include "scaling_contrasts/domain/domain.cuh"
#include "scaling_contrasts/pairs.hpp"

namespace scaling_contrasts::gpu {

class pair_phases_t {
  public:
    /// Both outlive it.
    pair_phases_t(problem_t const& problem, domain::domain_t const& domain) : problem_(problem), domain_(domain) {}

    static int count(problem_t const& problem) { return 2 * pair_rounds(problem); }
    static domain::phase_t meeting_before(int phase) {
        return is_scored(phase) ? domain::phase_t::pair_taken_k : domain::phase_t::pair_scored_k;
    }

    /// Queues a device's phase, the first with the step's begin and the own block, all without its finish. `rows_of(device)`
    /// is that device's block, in its own memory.
    template <class rows_of_t>
    void queue(int device, int phase, device_step_t& step, staging_t& staging, cudaStream_t stream,
               rows_of_t&& rows_of) const {
        int const round = phase / 2 + 1;
        auto const block_of = [&](int of_round) { return rows_of((device + of_round) % problem_.world_size); };
        auto const fetch = [&](int of_round) {
            if (of_round > pair_rounds(problem_)) return;
            staging.fetch(block_of(of_round), [&](int peer, cudaStream_t) { return rows_of(peer); });
        };
        if (phase == 0) {
            staging.open(stream);
            step.begin(stream);
            for (int ahead = 1; ahead <= staging_t::buffers_k; ++ahead) fetch(ahead);
            step.score(rows_of(device), stream);
        }
        if (is_scored(phase)) {
            staging.use(block_of(round), 0, stream, [&](candidates_t const& block) {
                step.score_pair(block, pair(device, round), partial(device), stream);
            });
            fetch(round + staging_t::buffers_k);
        } else {
            int const source = source_of(problem_, device, round);
            step.take_pair(partial(source), pair(source, round).candidates, stream);
        }
    }

  private:
    static bool is_scored(int phase) { return phase % 2 == 0; }
    pair_t pair(int device, int round) const { return pair_of(problem_, device, round, device_step_t::pair_unit_k); }
    std::byte* partial(int of) const { return reinterpret_cast<std::byte*>(domain_.data(of)); }

    problem_t const& problem_;
    domain::domain_t const& domain_;
};

}  // namespace scaling_contrasts::gpu
