// The kinds of step kernel, as types that its parts are templates of.
#pragma once
#include <type_traits>

#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

/// `fp16_`: rows and weights are fp16, rows scaled by powers of two (prepare.cuh).
template <bool fp16_>
using pair_of = std::conditional_t<fp16_, ptx::fp16_pair_t, ptx::bf16_pair_t>;

/// Any ladder: weights wait in memory, band by band.
template <bool fp16_>
struct general_t {
    using pair = pair_of<fp16_>;
    static constexpr bool fast = false, fp16 = fp16_, gives_back = false, both = false, small_items = false,
                          one_launch = false, packed_sums = false, softmax = false;
};

/// The article's ladder. `gives_back`: what rounding takes off positives' weights is kept for the end of the step.
template <bool fp16_>
struct article_t {
    using pair = pair_of<fp16_>;
    static constexpr bool fast = true, fp16 = fp16_, gives_back = true, both = false, small_items = false,
                          one_launch = false, packed_sums = false, softmax = false;
};

/// That in fp16 with the planes' sums over longer prefixes in fp16, too, two cells an instruction, for bf16 gradients.
/// Nothing is given back: rows lie where gradients go.
struct packed_sums_t : article_t<true> {
    static constexpr bool gives_back = false, packed_sums = true;
};

/// The same with both softmaxes of every cell in the place of its sigmoid, from log sums found beforehand: info_nce.
/// Every cell is a negative, or left out.
struct softmax_t : article_t<true> {
    static constexpr bool gives_back = false, softmax = true;
};

/// That for few rows: score items of 64 x 64 cells, so that there are some for more CTAs. And since a tile of the
/// diagonal is what all others wait for, straight code is corrected there for positives, self pairs and absent cells
/// among cells far below zero.
struct small_items_t : article_t<false> {
    static constexpr bool small_items = true;
};

/// The step is this kernel alone: see one_launch.cuh.
struct one_launch_t : small_items_t {
    static constexpr bool one_launch = true;
};

template <class kind_>
using params_of = std::conditional_t<kind_::one_launch, one_launch_params_t, params_t>;

/// The same for a block of another device's rows that is scored for both devices: the candidates get gradients, too.
template <class kind_>
struct both_sides_t : kind_ {
    static constexpr bool gives_back = false, both = true;
};

}  // namespace scaling_contrasts::sm90
