// Where things lie for the sm100 engine's matrix products, and the two descriptors that tell the hardware so: plain
// arithmetic, which the host's tests check against the canonical layouts of the PTX manual, 9.7.16.
#pragma once
#include <array>
#include <cstdint>

#include "scaling_contrasts/ladder.hpp"

namespace scaling_contrasts::sm100 {

inline constexpr int tile_k = 128;                     ///< rows of a product; cells are scored in tiles of 128 x 128
inline constexpr int slab_k = 64;                      ///< columns (score) or candidates (gradient) of a pipeline stage
inline constexpr int line_k = 128;                     ///< bytes: 64 bf16, one line of the 128-byte swizzle
inline constexpr int slab_bytes_k = tile_k * line_k;   ///< 128 lines
inline constexpr int chunk_bytes_k = slab_k * line_k;  ///< 64 lines
inline constexpr int plane_bytes_k = tile_k * tile_k * 2;  ///< weights of one tile and prefix
inline constexpr int widest_piece_k = 256;                 ///< columns of a gradient product

/// Byte of column `column` (of 64) in line `line`: 16-byte pieces are permuted within groups of eight lines.
constexpr int swizzled(int line, int column) { return line * line_k + ((column / 8 ^ line % 8) << 4) + column % 8 * 2; }

/// Byte of cell (row, column) in a tile's plane of weights: two halves of 64 columns, 128 lines each. A half is the
/// first operand of W X as it lies; 64 lines of both halves are the first operand of W^T X.
constexpr int plane_at(int row, int column) { return column / 64 * slab_bytes_k + swizzled(row, column % 64); }

/// How an operand lies: lines run along K (the summed dimension), or along M or N.
enum class major_t : std::uint32_t { k_k = 0, mn_k = 1 };

/// Descriptor of an operand at shared address `at`, 128-byte swizzle, groups of eight lines 1024 bytes apart.
/// `chunk_bytes`: from one 64-wide chunk along M or N to the next; of operands that run along M or N only.
constexpr std::uint64_t operand(std::uint32_t at, std::uint32_t chunk_bytes = 16) {
    return std::uint64_t((at & 0x3ffff) >> 4) | std::uint64_t(chunk_bytes >> 4) << 16 | std::uint64_t(1024 >> 4) << 32 |
           std::uint64_t(1) << 46 | std::uint64_t(2) << 61;
}
/// Bytes from one step of 16 along K to the next.
constexpr std::uint32_t step_bytes(major_t major) { return major == major_t::k_k ? 32 : 16 * line_k; }

/// Descriptor of the product of bf16 operands into fp32: 128 rows, `columns` columns (a multiple of 16 up to 256).
constexpr std::uint32_t instruction(int columns, major_t a, major_t b) {
    return 1u << 4 | 1u << 7 | 1u << 10 | std::uint32_t(a) << 15 | std::uint32_t(b) << 16 |
           std::uint32_t(columns >> 3) << 17 | std::uint32_t(tile_k >> 4) << 24;
}

/// The ladder's columns cut into gradient products: pieces of one band each, at most 256 columns.
struct pieces_t {
    struct piece_t {
        std::int16_t column, width, prefix;
    };
    int count = 0;
    std::array<piece_t, 4096 / widest_piece_k + max_prefixes_k> piece = {};
};

/// Bands must be multiples of 64 columns.
inline pieces_t make_pieces(ladder_t const& ladder) {
    pieces_t pieces;
    for (int p = 0; p < ladder.count; ++p) {
        auto const band = ladder.bands[static_cast<std::size_t>(p)];
        for (int column = band.begin; column < band.end; column += widest_piece_k) {
            int const left = band.end - column, width = left < widest_piece_k ? left : widest_piece_k;
            pieces.piece[static_cast<std::size_t>(pieces.count++)] = {std::int16_t(column), std::int16_t(width),
                                                                      std::int16_t(p)};
        }
    }
    return pieces;
}

}  // namespace scaling_contrasts::sm100
