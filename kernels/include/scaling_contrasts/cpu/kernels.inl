// The functions of one instruction set: compiled once per set by targets.hpp, each time inside its namespace.
#include "scaling_contrasts/cpu/vectors.inl"
#include "scaling_contrasts/cpu/products.inl"
#include "scaling_contrasts/cpu/score.inl"
#include "scaling_contrasts/cpu/gradient.inl"

inline kernels_t const& kernels() {
    static kernels_t const table = {name_k,     usable,     sizeof(pair_t), pack_left,    pack_right,
                                    pack_panel, square_sum, score,          add_gradient, write_row};
    return table;
}
