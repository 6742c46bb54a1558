// Sums over ranks made by a switch: one address stands for the same place in every rank's memory. A `switch_t` is what
// adds there: load(p) is the sum over all ranks of what lies at p, store(p, v) writes to all, add(p, v) adds to all.
// GPUs have the NVSwitch (multimem.cuh), tests the host's threads. In what order it adds is the switch's own. A rank
// reads and writes its own memory by that memory's own address too: fence() stands between the two, in every barrier.
#pragma once
#include "scaling_contrasts/domain/all_reduce.hpp"

namespace scaling_contrasts::domain {

/// Eight bf16 numbers in pairs: summed in fp32, rounded once.
struct alignas(16) eight_bf16_t {
    std::uint32_t pairs[4];
};

/// two_shot's schedule with the switch in the place of the loops over ranks. `data`: the address of all ranks' buffers.
template <class value_t, class place_t, class switch_t>
SCALING_CONTRASTS_HD void in_switch(place_t const& at, switch_t const& adder, member_t const& m, value_t* data,
                                    std::size_t count) {
    std::uint32_t const round = m.state->round;
    barrier(at, m, round, 0, phase_t::inputs_k, adder);
    slice_t const mine = slice_of(m.rank, m.world, count);
    std::size_t const first = std::size_t(at.channel()) * std::size_t(at.lanes()) + std::size_t(at.lane()),
                      step = std::size_t(at.channels()) * std::size_t(at.lanes());
    for (std::size_t i = mine.begin + first; i < mine.end; i += step) adder.store(data + i, adder.load(data + i));
    barrier(at, m, round, 1, phase_t::outputs_k, adder);
    close(at, m, 2);
}

inline constexpr std::uint32_t small_slots_k = 4;

/// Small payloads: every rank adds its own to all replicas of a slot, waits once and reads its own replica. `slots` is
/// the address, in all ranks' memory, of small_slots_k slots of `capacity` values, zero at first, and `own` the rank's
/// replica of them; `in` and `out` are the rank's own and may be the same. The slot of the call before the last is
/// cleared meanwhile: nobody touches it before all have passed the next call's barrier.
template <class place_t, class switch_t>
SCALING_CONTRASTS_HD void in_switch_small(place_t const& at, switch_t const& adder, member_t const& m, four_t const* in,
                                          four_t* slots, four_t* own, four_t* out, std::size_t count,
                                          std::size_t capacity) {
    std::uint32_t const round = m.state->round, call = m.state->small_calls;
    std::size_t const slot = call % small_slots_k * capacity, old = (call + 2) % small_slots_k * capacity;
    std::size_t const first = std::size_t(at.channel()) * std::size_t(at.lanes()) + std::size_t(at.lane()),
                      step = std::size_t(at.channels()) * std::size_t(at.lanes());
    for (std::size_t i = first; i < count; i += step) adder.add(slots + slot + i, in[i]);
    for (std::size_t i = first; i < capacity; i += step) own[old + i] = {};
    barrier(at, m, round, 0, phase_t::small_k, adder);
    for (std::size_t i = first; i < count; i += step) out[i] = own[slot + i];
    close(at, m, 1, 1);
}

}  // namespace scaling_contrasts::domain
