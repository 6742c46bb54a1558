// The mathematics of one cell (row, candidate), shared by host and device, scalars and vectors.
// Logits come in units of ln 2, that is x = logit * log2(e): callers fold the factor into scale and bias, so that one
// exp2 per cell serves both the softplus and its slope, the sigmoid. `number_t` is float or a GNU vector of floats.
#pragma once
#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts {

inline constexpr float log2e_k = 1.4426950408889634f;
inline constexpr float ln2_k = 0.6931471805599453f;

/// At or below this x (logit -6) the far path holds: e^4 / e stays under 2e-8, below what a float resolves.
inline constexpr float far_below_k = -6.0f * log2e_k;

/// softplus and sigmoid of a logit far below zero, from e = exp2(x) alone: three terms of their series.
template <class number_t>
SCALING_CONTRASTS_HD inline __attribute__((always_inline)) void far_cell(number_t const& e, number_t& loss,
                                                                         number_t& slope) {
    slope = e - e * e * (1.0f - e);
    loss = e - e * e * (0.5f - e * (1.0f / 3.0f));
}

/// softplus and sigmoid of any logit, from e = exp2(-|x|), which never overflows. With s = e / (2 + e) <= 1/3,
/// log(1 + e) = 2 atanh(s) = 2 s (1 + s^2/3 + s^4/5 + ...): relative error below 2e-7 after the term s^12.
template <class number_t>
SCALING_CONTRASTS_HD inline __attribute__((always_inline)) void near_cell(number_t const& x, number_t const& e,
                                                                          number_t& loss, number_t& slope) {
    number_t const s = e / (2.0f + e);
    number_t const q = s * s;
    number_t series = q * (1.0f / 13.0f) + (1.0f / 11.0f);
    series = q * series + (1.0f / 9.0f);
    series = q * series + (1.0f / 7.0f);
    series = q * series + 0.2f;
    series = q * series + (1.0f / 3.0f);
    number_t const log1p = 2.0f * s * (q * series + 1.0f);
    number_t const zero = x - x;
    loss = (x > zero ? x * ln2_k : zero) + log1p;
    slope = (x > zero ? zero + 1.0f : e) / (1.0f + e);
}

}  // namespace scaling_contrasts
