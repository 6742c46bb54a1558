// Sums over ranks by peer pointers: every rank ends with the same bits, for all add in the order of ranks.
//
//   one_shot   small payloads: each rank writes its own into every inbox, waits once, adds up what it got
//   two_shot   large buffers in symmetric memory: each rank adds up its slice of all buffers (reduce-scatter) and writes the
//              sums into all of them (all-gather), between two barriers
#pragma once
#include "scaling_contrasts/domain/member.hpp"

#if defined(__CUDA_ARCH__)
#define SC_UNROLL _Pragma("unroll")
#else
#define SC_UNROLL
#endif

namespace scaling_contrasts::domain {

/// 16 bytes of floats, added one by one.
struct alignas(16) four_t {
    float x = 0, y = 0, z = 0, w = 0;
    SCALING_CONTRASTS_HD friend four_t operator+(four_t const& a, four_t const& b) {
        return {a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w};
    }
};

/// Where ranks cannot run at the same time (virtual devices of one GPU) the two halves of one_shot are calls of their
/// own, and whoever queues them orders all first halves before any second.
enum class half_t { both_k, write_k, add_k };

/// out[i] = sum over ranks of in[i]; `in` and `out` are the rank's own and may be the same. `count` values fit an
/// inbox. Inboxes alternate between rounds, so that no barrier is needed behind the additions: a rank that writes round
/// r + 2 has seen all others begin r + 1, that is, end r.
template <class value_t, class place_t>
SCALING_CONTRASTS_HD void one_shot(place_t const& at, member_t const& m, value_t const* in, value_t* out,
                                   std::size_t count, half_t half = half_t::both_k) {
    std::uint32_t const round = m.state->round;
    std::size_t const begin = std::size_t(at.channel()) * std::size_t(at.lanes()) + std::size_t(at.lane()),
                      step = std::size_t(at.channels()) * std::size_t(at.lanes());
    if (half != half_t::add_k)
        for (std::size_t i = begin; i < count; i += step) {
            value_t const value = in[i];
            for (int shift = 0; shift < m.world; ++shift) {
                int const peer = (m.rank + shift) % m.world;
                reinterpret_cast<value_t*>(m.inbox_of(peer, round, m.rank))[i] = value;
            }
        }
    if (half == half_t::both_k) barrier(at, m, round, 0, phase_t::small_k);
    if (half != half_t::write_k)
        for (std::size_t i = begin; i < count; i += step) {
            value_t sum = reinterpret_cast<value_t const*>(m.inbox_of(m.rank, round, 0))[i];
            for (int source = 1; source < m.world; ++source)
                sum = sum + reinterpret_cast<value_t const*>(m.inbox_of(m.rank, round, source))[i];
            out[i] = sum;
        }
    if (half == half_t::both_k) close(at, m, 1);
}

/// The part of `count` values that a rank adds up: [begin, end).
struct slice_t {
    std::size_t begin, end;
};
SCALING_CONTRASTS_HD constexpr slice_t slice_of(int rank, int world, std::size_t count) {
    std::size_t const share = (count + std::size_t(world) - 1) / std::size_t(world);
    std::size_t const begin = share * std::size_t(rank), end = begin + share;
    return {begin < count ? begin : count, end < count ? end : count};
}

/// data[r] is rank r's buffer, `count` values; afterwards all hold the sums. `world_`: the number of ranks where it is
/// known when compiling, which keeps more loads in flight; 0: m.world.
template <int world_, class value_t, class place_t>
SCALING_CONTRASTS_HD void two_shot(place_t const& at, member_t const& m, value_t* const* data, std::size_t count) {
    constexpr int most = world_ ? world_ : max_devices_k;
    int const world = world_ ? world_ : m.world;
    std::uint32_t const round = m.state->round;
    barrier(at, m, round, 0, phase_t::inputs_k);
    slice_t const mine = slice_of(m.rank, world, count);
    std::size_t const first = std::size_t(at.channel()) * std::size_t(at.lanes()) + std::size_t(at.lane()),
                      step = std::size_t(at.channels()) * std::size_t(at.lanes());
    constexpr int ahead = world_ ? (world_ >= 8 ? 1 : 8 / world_) : 1;
    for (std::size_t i = mine.begin + first; i < mine.end; i += step * ahead) {
        value_t parts[ahead][most];
        SC_UNROLL
        for (int a = 0; a < ahead; ++a) SC_UNROLL
        for (int p = 0; p < most; ++p)
            if (p < world && i + std::size_t(a) * step < mine.end) parts[a][p] = data[p][i + std::size_t(a) * step];
        SC_UNROLL
        for (int a = 0; a < ahead; ++a) {
            if (i + std::size_t(a) * step >= mine.end) break;
            value_t sum = parts[a][0];
            SC_UNROLL
            for (int p = 1; p < most; ++p)
                if (p < world) sum = sum + parts[a][p];
            SC_UNROLL
            for (int p = 0; p < most; ++p)
                if (p < world) data[p][i + std::size_t(a) * step] = sum;
        }
    }
    barrier(at, m, round, 1, phase_t::outputs_k);
    close(at, m, 2);
}

#undef SC_UNROLL

}  // namespace scaling_contrasts::domain
