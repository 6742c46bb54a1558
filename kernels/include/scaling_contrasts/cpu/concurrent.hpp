// The step of step.hpp with a thread per virtual device: the schedule of real GPUs, with their barriers (domain/), on
// the CPU.
#pragma once
#include "scaling_contrasts/domain/threads.hpp"
#include "scaling_contrasts/step.hpp"

namespace scaling_contrasts {

class concurrent_step_t {
  public:
    /// As step_t's; `threads` of all devices together, each of which gets an equal part, at least one. Nobody waits for
    /// another longer than `deadline_seconds`.
    concurrent_step_t(problem_t const& problem, std::vector<set_t> sets, int threads = 1,
                      std::string const& engine = "auto", double deadline_seconds = 60)
        : problem_(problem),
          step_(problem, std::move(sets), 1, engine),
          domain_(problem.world_size, 64, deadline_seconds),
          totals_(static_cast<std::size_t>(problem.world_size)) {
        step_.separate(std::max(1, threads / problem.world_size));
    }

    /// The whole step. Every device ends with the same bits of the sums; device 0's are returned.
    /// Throws what a device threw, or failure_t timeout_k, naming who was missing.
    scalars_t run() {
        domain_.run([this](int device) { run_device(device); });
        return totals_[0];
    }

  private:
    void run_device(int device) {
        auto meet = [&](domain::phase_t phase) { domain_.meet(device, phase); };
        step_.begin(device);
        meet(domain::phase_t::embeddings_k);
        if (is_softmax(problem_.loss)) {
            for_each_peer(device, [&](int peer) { step_.gather(device, peer); });
            step_.close_gather(device);
            meet(domain::phase_t::log_sums_k);
        }
        if (problem_.loss == loss_t::one_set_info_nce_k) {
            for_each_peer(device, [&](int peer) { step_.gather_positives(device, peer); });
            step_.close_positives(device);
            meet(domain::phase_t::log_sums_k);
        }
        if (problem_.pairs_once) {
            step_.score(device, device);
            for (int round = 1; round <= pair_rounds(problem_); ++round) {
                if (round > 1) meet(domain::phase_t::pair_taken_k);
                step_.score_pair(device, round);
                meet(domain::phase_t::pair_scored_k);
                step_.take_pair(device, round);
            }
        } else {
            for_each_peer(device, [&](int peer) { step_.score(device, peer); });
        }
        step_.finish(device);
        double sums[3] = {step_.part(device).loss, step_.part(device).scale_gradient, step_.part(device).bias_gradient};
        domain_.one_shot(device, sums, sums, 3);
        totals_[static_cast<std::size_t>(device)] = {sums[0], sums[1], sums[2]};
    }

    /// Its own block first, then the peers behind it: no two devices visit one at the same time.
    template <class visit_t>
    void for_each_peer(int device, visit_t&& visit) const {
        for (int shift = 0; shift < problem_.world_size; ++shift) visit((device + shift) % problem_.world_size);
    }

    problem_t problem_;
    step_t step_;
    domain::thread_domain_t domain_;
    std::vector<scalars_t> totals_;
};

}  // namespace scaling_contrasts
