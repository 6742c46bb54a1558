// Tunings of the sm90 engine as text, for the checks and the timings: `KEY=VALUE,...`, or `default`.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <sstream>
#include <string>

#include "scaling_contrasts/sm90/engine.cuh"

namespace scaling_contrasts {

/// Nothing, and a line on stderr, where the text names no tuning. What is chosen by size stays so unless `wide` is
/// given.
inline std::optional<sm90_tuning_t> tuning_of(std::string const& text) {
    sm90_tuning_t tuning;
    if (text == "default") return tuning;
    std::istringstream parts(text);
    for (std::string part; std::getline(parts, part, ',');) {
        auto const equals = part.find('=');
        std::string const key = part.substr(0, equals), value = equals < part.size() ? part.substr(equals + 1) : "";
        int const number = std::atoi(value.c_str());
        if (key == "wide") tuning.wide = number;
        else if (key == "ring") tuning.ring = number;
        else if (key == "lag") tuning.lag = number;
        else if (key == "interleave") tuning.interleave = number != 0;
        else if (key == "general") tuning.general = number != 0;
        else if (key == "fp16") tuning.fp16 = number != 0;
        else if (key == "packed_sums") tuning.packed_sums = number != 0;
        else if (key == "one_launch") tuning.one_launch = number != 0;
        else if (key == "small_items") tuning.small_items = number != 0;
        else if (key == "narrow_tiles") tuning.narrow_tiles = number != 0;
        else {
            std::fprintf(stderr, "no tuning: '%s' in '%s'\n", part.c_str(), text.c_str());
            return {};
        }
    }
    return tuning;
}

}  // namespace scaling_contrasts
