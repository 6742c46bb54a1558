// The kinds of step kernel, as types that its parts are templates of.
#pragma once
#include <type_traits>

#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/sm90/params.cuh"

namespace scaling_contrasts::sm90 {

/// Any ladder: weights wait in memory, band by band.
struct general_t {
    using pair = ptx::bf16_pair_t;
    static constexpr bool fast = false, fp16 = false;
};

/// The article's ladder. `fp16_`: rows and weights are fp16, rows scaled by powers of two (prepare.cuh).
template <bool fp16_>
struct article_t {
    using pair = std::conditional_t<fp16_, ptx::fp16_pair_t, ptx::bf16_pair_t>;
    static constexpr bool fast = true, fp16 = fp16_;
};

}  // namespace scaling_contrasts::sm90
