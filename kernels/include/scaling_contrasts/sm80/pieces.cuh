// How the products of the gradient kernel are cut: the columns of the embeddings into pieces that lie in one band each,
// so that a thread block needs one plane of weights. Pieces of 128 columns go with 128 rows, narrower ones (64 or less)
// with 256 rows: four warps of 64 x 64 outputs either way.
#pragma once
#include <array>
#include <cstdint>

#include "scaling_contrasts/ladder.hpp"

namespace scaling_contrasts::sm80 {

inline constexpr int max_pieces_k = 96;

/// The pieces that the ladder's columns are cut into, narrow ones first.
struct pieces_t {
    struct piece_t {
        std::int16_t column, width, prefix;
    };
    int count = 0, narrow = 0;
    std::array<piece_t, max_pieces_k> piece = {};
};

inline pieces_t make_pieces(ladder_t const& ladder) {
    pieces_t pieces;
    for (bool narrow : {true, false})
        for (int p = 0; p < ladder.count; ++p)
            for (int column = ladder.bands[p].begin; column < ladder.bands[p].end;) {
                int const left = ladder.bands[p].end - column, width = left >= 128 ? 128 : left < 64 ? left : 64;
                if ((width <= 64) == narrow)
                    pieces.piece[pieces.count++] = {std::int16_t(column), std::int16_t(width), std::int16_t(p)};
                column += width;
            }
    for (auto const& piece : pieces.piece) pieces.narrow += piece.width > 0 && piece.width <= 64;
    return pieces;
}

/// Thread blocks for one side of `tiles` tile rows.
__host__ __device__ constexpr int products_of_side(int pieces, int narrow, int tiles) {
    return narrow * ((tiles + 1) / 2) + (pieces - narrow) * tiles;
}

}  // namespace scaling_contrasts::sm80
