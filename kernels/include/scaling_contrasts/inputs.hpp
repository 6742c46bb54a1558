// Synthetic embeddings, bit-identical in C++, NumPy, PyTorch and JAX: a counter-based hash of (seed, row, column)
// summed over four lanes of seven bits. Values are integers within +-254, which bf16 holds exactly.
// The definition is docs/contracts.md, section 2; all arithmetic wraps at 32 bits.
#pragma once
#include <cstdint>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts {

inline constexpr std::uint32_t group_stream_k = 2;  ///< streams 0 and 1 are the sets

SCALING_CONTRASTS_HD constexpr std::uint32_t mix(std::uint32_t h) {
    h ^= h >> 16;
    h *= 0x85ebca6bu;
    h ^= h >> 13;
    h *= 0xc2b2ae35u;
    return h ^ (h >> 16);
}

/// The part of a key that all columns of a row share.
SCALING_CONTRASTS_HD constexpr std::uint32_t row_key(std::uint32_t seed, std::uint32_t stream, std::uint32_t row) {
    return mix(mix(seed + stream * 0x9e3779b9u) ^ row);
}

/// Group number of a global row: rows of equal number are each other's positives.
SCALING_CONTRASTS_HD constexpr std::int32_t label_of(label_layout_t layout, std::int64_t row) {
    switch (layout) {
    case label_layout_t::pairs_k: return static_cast<std::int32_t>(row / 2);
    case label_layout_t::distinct_k: return static_cast<std::int32_t>(row);
    case label_layout_t::equal_k: return 0;
    case label_layout_t::fours_k: return static_cast<std::int32_t>(row / 4);
    case label_layout_t::sixteens_k: return static_cast<std::int32_t>(row / 16);
    case label_layout_t::mixed_k: {  // blocks of 19 rows hold groups of 1, 2, 3, 5 and 8 rows
        auto const place = row % 19;
        auto const group = (place >= 1) + (place >= 3) + (place >= 6) + (place >= 11);
        return static_cast<std::int32_t>(5 * (row / 19) + group);
    }
    }
    return 0;
}

/// The embedding at `column`, from the row's two keys: its group's and its own.
SCALING_CONTRASTS_HD constexpr float input_value(std::uint32_t group_key, std::uint32_t own_key, std::uint32_t column) {
    std::uint32_t const g = mix(group_key ^ column);
    std::uint32_t const k = mix(own_key ^ column);
    std::uint32_t const sum = (g & 127u) + ((g >> 8) & 127u) + ((k >> 16) & 127u) + ((k >> 24) & 127u);
    return static_cast<float>(static_cast<std::int32_t>(sum) - 254);
}

/// Fills one row of set 0 (the one set, or images) or 1 (captions). For two sets `group` is the pair's global number.
inline void fill_row(std::uint32_t seed, int set, std::int64_t row, std::int32_t group, int dims, bf16_t* out) {
    auto const group_key = row_key(seed, group_stream_k, static_cast<std::uint32_t>(group));
    auto const own_key = row_key(seed, static_cast<std::uint32_t>(set), static_cast<std::uint32_t>(row));
    for (int column = 0; column < dims; ++column)
        out[column] = bf16_t(input_value(group_key, own_key, static_cast<std::uint32_t>(column)));
}

}  // namespace scaling_contrasts
