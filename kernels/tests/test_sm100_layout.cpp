// The sm100 engine's layouts against the canonical ones of the PTX manual (9.7.16.10): what the tensor cores would
// read, given the descriptors, is what was stored. The hardware's side is written out here from the manual, not from
// the code.
#include <numeric>
#include <string>
#include <vector>

#include "scaling_contrasts/sm100/layout.hpp"
#include "testing.hpp"

using namespace scaling_contrasts;
using namespace scaling_contrasts::sm100;
using testing::expect;

namespace {

/// Reads shared memory as a product's operand does.
struct reader_t {
    std::vector<int> const& bytes;  ///< what each byte pair holds, by byte address
    std::uint64_t descriptor;

    std::uint32_t field(int bit) const { return std::uint32_t(descriptor >> bit & 0x3fff) << 4; }
    /// Element `mn` (of M or N), `k` of 16.
    int at(int mn, int k, bool k_major) const {
        std::uint32_t const start = field(0), leading = field(16), stride = field(32);
        std::uint32_t const offset =
            k_major ? std::uint32_t(mn / 8) * stride + std::uint32_t(mn % 8) * 128 + std::uint32_t(k) * 2
                    : std::uint32_t(mn / 64) * leading + std::uint32_t(k / 8) * stride + std::uint32_t(k % 8) * 128 +
                          std::uint32_t(mn % 64) * 2;
        std::uint32_t address = start + offset;
        address ^= (address >> 7 & 7) << 4;  // 128-byte swizzle: address bits 4-6 with bits 7-9
        return bytes.at(address);
    }
};

void weights_serve_both_ways() {
    std::vector<int> plane(plane_bytes_k, -1);
    for (int row = 0; row < tile_k; ++row)
        for (int column = 0; column < tile_k; ++column) {
            int& cell = plane.at(static_cast<std::size_t>(plane_at(row, column)));
            expect(cell == -1, "two cells of a plane in one place");
            cell = row * 1000 + column;
        }
    for (int half = 0; half < 2; ++half) {
        // W X: half a plane as it lies, summed over its columns
        std::vector<int> direct(plane.begin() + half * slab_bytes_k, plane.begin() + (half + 1) * slab_bytes_k);
        // W^T X: 64 lines of both halves, summed over rows
        std::vector<int> transposed;
        for (int chunk = 0; chunk < 2; ++chunk) {
            auto const from = plane.begin() + chunk * slab_bytes_k + half * chunk_bytes_k;
            transposed.insert(transposed.end(), from, from + chunk_bytes_k);
        }
        for (int step = 0; step < 4; ++step) {
            reader_t const a{direct, operand(std::uint32_t(step) * step_bytes(major_t::k_k), chunk_bytes_k)};
            reader_t const b{transposed, operand(std::uint32_t(step) * step_bytes(major_t::mn_k), chunk_bytes_k)};
            bool right = true;
            for (int m = 0; m < tile_k; ++m)
                for (int k = 0; k < 16; ++k) {
                    int const summed = half * 64 + step * 16 + k;
                    right = right && a.at(m, k, true) == m * 1000 + summed && b.at(m, k, false) == summed * 1000 + m;
                }
            expect(right, "weights of half " + std::to_string(half) + ", step " + std::to_string(step));
        }
    }
}

/// The copy engine lays a box of 64 columns out in lines of 128 bytes, swizzled alike.
void embeddings_run_along_columns() {
    std::vector<int> stage(4 * chunk_bytes_k, -1);
    for (int candidate = 0; candidate < slab_k; ++candidate)
        for (int column = 0; column < widest_piece_k; ++column) {
            int const box = column / 64, within = candidate * 128 + column % 64 * 2;
            int const byte = box * 64 * 128 + (within ^ (within >> 7 & 7) << 4);
            stage.at(static_cast<std::size_t>(byte)) = candidate * 1000 + column;
        }
    for (int step = 0; step < 4; ++step) {
        reader_t const b{stage, operand(std::uint32_t(step) * step_bytes(major_t::mn_k), chunk_bytes_k)};
        bool right = true;
        for (int n = 0; n < widest_piece_k; ++n)
            for (int k = 0; k < 16; ++k) right = right && b.at(n, k, false) == (step * 16 + k) * 1000 + n;
        expect(right, "embeddings, step " + std::to_string(step));
    }
}

void descriptors_have_the_manuals_bits() {
    // tables of PTX 9.7.16.4: fp32 from bf16, N / 8 from bit 17, M / 16 from bit 24, MN-major in bits 15 and 16
    expect(instruction(256, major_t::k_k, major_t::k_k) == 0x08400490, "128 x 256, both along K");
    expect(instruction(128, major_t::k_k, major_t::k_k) == 0x08200490, "128 x 128, both along K");
    expect(instruction(256, major_t::k_k, major_t::mn_k) == 0x08410490, "W X");
    expect(instruction(64, major_t::mn_k, major_t::mn_k) == 0x08118490, "W^T X, 64 columns");
    expect(operand(0x12340) >> 32 == 0x40004040, "128-byte swizzle, groups of 1024 bytes, version 1");
    expect((operand(0x12340, 8192) & 0xffffffff) == (0x200u << 16 | 0x1234u), "start and leading offset");
}

void pieces_cover_the_ladder() {
    for (auto const& prefixes : {std::vector<int>{64, 128, 256, 512, 1024}, {768}, {64, 4096}, {192, 512, 832}}) {
        problem_t problem;
        problem.dims = 4096, problem.prefixes = prefixes;
        auto const ladder = make_ladder(problem);
        auto const pieces = make_pieces(ladder);
        std::vector<int> owner(4096, -1);
        for (int i = 0; i < pieces.count; ++i) {
            auto const piece = pieces.piece.at(static_cast<std::size_t>(i));
            expect(piece.width % 64 == 0 && piece.width <= 256, "a piece's width");
            for (int c = piece.column; c < piece.column + piece.width; ++c) {
                expect(owner.at(static_cast<std::size_t>(c)) == -1, "pieces overlap");
                owner.at(static_cast<std::size_t>(c)) = piece.prefix;
            }
        }
        for (int c = 0, band = 0; c < 4096; ++c) {
            while (band < ladder.count && c >= prefixes.at(static_cast<std::size_t>(band))) ++band;
            expect(owner.at(static_cast<std::size_t>(c)) == (band < ladder.count ? band : -1), "a column's band");
        }
    }
}

}  // namespace

int main() {
    weights_serve_both_ways();
    embeddings_run_along_columns();
    descriptors_have_the_manuals_bits();
    pieces_cover_the_ladder();
    return testing::report();
}
