// What the box asks of an engine: one device's share of a step, block of candidates by block of candidates.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "scaling_contrasts/box/blocks.hpp"
#include "scaling_contrasts/gpu/check.cuh"
#include "scaling_contrasts/pairs.hpp"

namespace scaling_contrasts::gpu {

/// One set of rows of one device, on its GPU.
struct set_t {
    bf16_t const* embeddings = nullptr;    ///< [rows][dims]
    std::int32_t const* labels = nullptr;  ///< [rows], one set only; null: every row is its own group
    void* gradient = nullptr;              ///< [rows][dims], of the problem's gradient type
};

/// A block of candidates: the live rows of one device, in memory of the GPU that scores them. Or of several, one behind
/// the other, where all their rows are live.
struct candidates_t {
    int device = 0;                        ///< whose rows; its first row's global number is device * problem.rows, and
                                           ///< they run on, where `devices` go past the last one, too
    bf16_t const* embeddings[2] = {};      ///< of each set, [live][dims]
    std::int32_t const* labels = nullptr;  ///< [live], one set only
    int devices = 1;                ///< from `device` on, modulo all; several for engines that takes_groups() alone
    bool stays = false;             ///< whether the embeddings are still there in finish()
    float const* log_sums[2] = {};  ///< passes after the first: as log_sums() of that device gave them
};

/// Live rows of a block.
inline std::int64_t live_of(problem_t const& problem, candidates_t const& block) {
    return block.devices > 1 ? block.devices * problem.rows : problem.live_of(block.device);
}

/// A device's share of a step. The device is current in every call, everything is queued on the stream given:
///   begin, [gather for every block, close_gather, [gather_positives for every block, close_positives,]]
///   score for every block, finish
/// or, with problem.pairs_once: begin, score of the own block, score_pair and take_pair for every round, finish
class device_step_t {
  public:
    virtual ~device_step_t() = default;

    virtual void begin(cudaStream_t stream) = 0;
    /// Scores the device's rows against a block, its own or another's, and adds to the gradients of its own rows alone.
    virtual void score(candidates_t const& block, cudaStream_t stream) = 0;
    /// Writes the gradients, and this device's part of {loss, dL/dt, dL/db}.
    virtual void finish(cudaStream_t stream) = 0;

    /// Whether the loss needs a first pass over all blocks (softmax losses), with a barrier of all devices behind it.
    virtual bool gathers() const { return false; }
    virtual void gather(candidates_t const&, cudaStream_t) {}
    virtual void close_gather(cudaStream_t) {}
    /// Whether it needs a second one, with a barrier behind it: one_set_info_nce.
    virtual bool gathers_positives() const { return false; }
    virtual void gather_positives(candidates_t const&, cudaStream_t) {}
    virtual void close_positives(cudaStream_t) {}
    /// What these leave for the other devices: log2 of the sums over candidates, [log_sum_count(device)] of a set.
    virtual float const* log_sums(int) const { return nullptr; }
    virtual std::int64_t log_sum_count(int) const { return 0; }

    /// Whether score() takes blocks of several devices, up to candidate_rows().
    virtual bool takes_groups() const { return false; }

    /// problem.pairs_once, for engines whose sm*_unsupported() lets it through. The pair's share of a foreign block,
    /// from which the candidates' part of the gradients goes to `partial`, partial_bytes() that all devices may read.
    virtual void score_pair(candidates_t const&, pair_t const&, std::byte* /*partial*/, cudaStream_t) {}
    /// Adds what another device has left for this one's first `rows` rows.
    virtual void take_pair(std::byte const* /*partial*/, std::int64_t /*rows*/, cudaStream_t) {}
    virtual std::int64_t partial_bytes() const { return 0; }
    /// Pairs are cut at multiples of it.
    static constexpr int pair_unit_k = 128;

    /// What a record should say of how it computes; empty: nothing.
    virtual std::string note() const { return ""; }

    /// Whether all of a step is one kernel, which finish() launches.
    virtual bool one_launch() const { return false; }

    /// Kernels in a score of one block, about: more than graph_limit_k in a step do not go into a graph.
    virtual std::int64_t launches() const = 0;
    static constexpr std::int64_t graph_limit_k = 20000;
};

}  // namespace scaling_contrasts::gpu
