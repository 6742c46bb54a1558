// The ways of an all-reduce, and which one `auto` takes.
#pragma once
#include <algorithm>
#include <cstddef>

namespace scaling_contrasts::domain {

enum class schedule_t { auto_k, one_shot_k, two_shot_k, in_switch_k, in_switch_small_k };

constexpr char const* name_of(schedule_t schedule) {
    switch (schedule) {
    case schedule_t::auto_k: return "auto";
    case schedule_t::one_shot_k: return "one_shot";
    case schedule_t::two_shot_k: return "two_shot";
    case schedule_t::in_switch_k: return "in_switch";
    case schedule_t::in_switch_small_k: return "in_switch_small";
    }
    return "?";
}

inline constexpr std::size_t small_bytes_k = 4096;  ///< most of in_switch_small: one slot

/// `multicast`: whether the switch adds. one_shot's traffic grows with ranks: it goes to 2 MiB over ranks, on two GPUs the
/// last size at which it was the faster one. From where on the switch is faster was never measured.
inline schedule_t schedule_for(std::size_t bytes, int world, std::size_t inbox_bytes, bool multicast) {
    if (multicast && bytes <= small_bytes_k) return schedule_t::in_switch_small_k;
    std::size_t const one_shot_limit = std::min(inbox_bytes, (std::size_t(2) << 20) / std::size_t(world));
    if (bytes <= one_shot_limit) return schedule_t::one_shot_k;
    return multicast ? schedule_t::in_switch_k : schedule_t::two_shot_k;
}

}  // namespace scaling_contrasts::domain
