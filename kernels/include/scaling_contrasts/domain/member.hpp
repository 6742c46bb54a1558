// What one rank of a domain holds, and how ranks wait for each other: the same code for the threads of a GPU's kernel
// and for a CPU thread. A domain is a set of ranks that write each other's memory.
//
// Every rank has, in memory that all may write, a flag for each (channel, source) and an inbox for small payloads.
// Flags carry the number of a round and only grow, so nothing is ever reset; the count of rounds lives beside them, so
// that a replayed CUDA graph needs no write by the host. A channel is one thread block (on the CPU: the one thread) of
// every rank.
//
// Nothing waits for ever: the deadline is read from memory, whoever misses a peer leaves a record of it and goes on
// without waiting again, so that the step ends (with wrong numbers, which the record keeps from being used).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::domain {

inline constexpr int channels_k = 128;  ///< most thread blocks of a collective

/// What is being waited for.
enum class phase_t : std::uint32_t {
    embeddings_k,
    log_sums_k,
    pair_scored_k,
    pair_taken_k,
    small_k,
    inputs_k,
    outputs_k,
    count_k
};

constexpr char const* name_of(phase_t phase) {
    switch (phase) {
    case phase_t::embeddings_k: return "start of the step";
    case phase_t::log_sums_k: return "log-sums of the first pass";
    case phase_t::pair_scored_k: return "gradients of a round of pairs";
    case phase_t::pair_taken_k: return "room for the next round of pairs";
    case phase_t::small_k: return "one-shot all-reduce";
    case phase_t::inputs_k: return "inputs of a two-shot all-reduce";
    case phase_t::outputs_k: return "outputs of a two-shot all-reduce";
    case phase_t::count_k: break;
    }
    return "?";
}

/// Who waited for whom, in vain. Written once, by the rank that waited; the host reads it.
struct missing_t {
    std::uint32_t set = 0;
    std::int32_t rank = 0, peer = 0;
    phase_t phase = phase_t::embeddings_k;
    std::uint32_t round = 0;
    std::uint64_t waited_ns = 0;
};

inline std::string describe(missing_t const& m) {
    return "rank " + std::to_string(m.rank) + " waited " + std::to_string(m.waited_ns / 1000000) + " ms for rank " +
           std::to_string(m.peer) + ", which did not arrive (" + name_of(m.phase) + ", round " +
           std::to_string(m.round) + ")";
}

/// A rank's own counters, in memory of its own.
struct state_t {
    std::uint32_t round = 0;        ///< rounds that are over
    std::uint32_t done = 0;         ///< channels that are through with the current call
    std::uint32_t small_calls = 0;  ///< of in_switch_small
    std::uint32_t failed = 0;       ///< a peer was missed: no more waiting
    std::uint64_t deadline_ns = 0;
    std::uint64_t waited_ns[int(phase_t::count_k)] = {};  ///< sums over calls, of channel 0
    std::uint64_t waits[int(phase_t::count_k)] = {};
};

struct member_t {
    int rank = 0, world = 1;
    std::uint32_t* flags[max_devices_k] = {};  ///< of every rank: [channel][source]
    std::byte* inbox[max_devices_k] = {};      ///< of every rank: [parity][source][inbox_bytes]
    std::size_t inbox_bytes = 0;               ///< of one source, a multiple of 16
    state_t* state = nullptr;
    missing_t* missing = nullptr;  ///< visible to the host

    SCALING_CONTRASTS_HD std::byte* inbox_of(int owner, std::uint32_t round, int source) const {
        return inbox[owner] + (std::size_t(round & 1) * std::size_t(world) + std::size_t(source)) * inbox_bytes;
    }
};
inline constexpr std::size_t flag_bytes_k = sizeof(std::uint32_t) * channels_k * max_devices_k;

// A `place_t` is where the code below runs: lane() of lanes() that share channel() of channels(), and sync() among
// them; load_acquire, store_release and add between all ranks; now() in nanoseconds.

/// Waits until `peer`'s flag reaches `target`; false: it did not before the deadline, or an earlier wait was in vain.
template <class place_t>
SCALING_CONTRASTS_HD bool wait_for(place_t const& at, member_t const& m, int peer, std::uint32_t target,
                                   phase_t phase) {
    std::uint32_t const* flag = m.flags[m.rank] + at.channel() * max_devices_k + peer;
    auto const arrived = [&] { return static_cast<std::int32_t>(at.load_acquire(flag) - target) >= 0; };
    if (arrived()) return true;
    std::uint64_t const begin = at.now(), patience = m.state->deadline_ns;
    while (!arrived()) {
        if (at.load_acquire(&m.state->failed)) return false;
        std::uint64_t const waited = at.now() - begin;
        if (waited <= patience) continue;
        if (at.add(&m.state->failed, 1) == 0) {  // the first to notice tells
            m.missing->rank = m.rank, m.missing->peer = peer, m.missing->phase = phase;
            m.missing->round = target, m.missing->waited_ns = waited;
            at.store_release(&m.missing->set, 1);
        }
        return false;
    }
    return true;
}

/// Memory that is accessed by one address alone.
struct one_address_t {
    SCALING_CONTRASTS_HD void fence() const {}
};

/// Barrier number `index` of a call that began at round `base`: every lane of this channel, on every rank. What any
/// lane wrote before, to any rank's memory, all lanes may read after. `memory.fence()` stands between accesses before
/// and after by different addresses of the same memory. The lanes that write flags fence: what any lane did is before
/// them, by sync(), and every way from there to a lane of this or another rank, by sync() and by flags, leads past one.
template <class place_t, class memory_t = one_address_t>
SCALING_CONTRASTS_HD void barrier(place_t const& at, member_t const& m, std::uint32_t base, std::uint32_t index,
                                  phase_t phase, memory_t const& memory = {}) {
    at.sync();
    std::uint32_t const target = base + index + 1;
    std::uint64_t const begin = at.now();
    if (at.lane() < m.world) memory.fence();
    for (int peer = at.lane(); peer < m.world; peer += at.lanes())
        at.store_release(m.flags[peer] + at.channel() * max_devices_k + m.rank, target);
    for (int peer = at.lane(); peer < m.world; peer += at.lanes()) wait_for(at, m, peer, target, phase);
    at.sync();
    if (at.lane() == 0 && at.channel() == 0) {
        m.state->waited_ns[int(phase)] += at.now() - begin;
        m.state->waits[int(phase)] += 1;
    }
}

/// Ends a call of `rounds` barriers: the last channel counts them.
template <class place_t>
SCALING_CONTRASTS_HD void close(place_t const& at, member_t const& m, std::uint32_t rounds,
                                std::uint32_t small_calls = 0) {
    at.sync();
    if (at.lane() != 0) return;
    if (at.add(&m.state->done, 1) + 1 < static_cast<std::uint32_t>(at.channels())) return;
    m.state->done = 0;
    m.state->round += rounds;
    m.state->small_calls += small_calls;
}

/// A call that is a barrier and no more.
template <class place_t>
SCALING_CONTRASTS_HD void meet(place_t const& at, member_t const& m, phase_t phase) {
    barrier(at, m, m.state->round, 0, phase);
    close(at, m, 1);
}

}  // namespace scaling_contrasts::domain
