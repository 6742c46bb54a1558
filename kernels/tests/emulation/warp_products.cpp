// Matrix products of one warp, and the loads and stores of their fragments.
#include <cstring>

#include "frame.hpp"

namespace emulation {
namespace {

/// Rows of 8 x 8 matrices of 16-bit numbers: lane 8 m + r gives the address of row r of matrix m; a thread holds
/// columns 2 (lane % 4) and the next of row lane / 4.
struct rows_t {
    std::uint32_t address;
    std::uint32_t words[4];
};
template <int count, bool transposed>
void load_matrices(frame_t& f) {
    rows_t mine = {f.u32(count), {}};
    meet(~0u, f.name(), &mine, [&](void* const* brought) {
        for (int m = 0; m < count; ++m) {
            std::uint16_t cell[8][8];
            for (int r = 0; r < 8; ++r)
                std::memcpy(cell[r], shared_at(static_cast<rows_t*>(brought[8 * m + r])->address, 16, 16), 16);
            for (int lane = 0; lane < 32; ++lane) {
                int const r = lane / 4, c = lane % 4 * 2;
                std::uint32_t const low = transposed ? cell[c][r] : cell[r][c],
                                    high = transposed ? cell[c + 1][r] : cell[r][c + 1];
                static_cast<rows_t*>(brought[lane])->words[m] = low | high << 16;
            }
        }
    });
    for (int m = 0; m < count; ++m) f.set(static_cast<std::size_t>(m), std::uint64_t(mine.words[m]));
}
template <int count, bool transposed>
void store_matrices(frame_t& f) {
    rows_t mine = {f.u32(0), {}};
    for (int m = 0; m < count; ++m) mine.words[m] = f.u32(1 + static_cast<std::size_t>(m));
    meet(~0u, f.name(), &mine, [&](void* const* brought) {
        for (int m = 0; m < count; ++m)
            for (int lane = 0; lane < 32; ++lane)
                for (int half = 0; half < 2; ++half) {
                    int const row = lane / 4, column = lane % 4 * 2 + half;
                    auto const number =
                        static_cast<std::uint16_t>(static_cast<rows_t*>(brought[lane])->words[m] >> 16 * half);
                    int const line = transposed ? column : row, place = transposed ? row : column;
                    std::memcpy(shared_at(static_cast<rows_t*>(brought[8 * m + line])->address, 16, 16) + place * 2,
                                &number, 2);
                }
    });
}

/// m16n8k16, fragments of PTX 9.7.14: A in four words, B in two, C and D in four floats.
struct fragments_t {
    std::uint32_t a[4], b[2];
    float c[4], d[4];
};
template <float (*from)(std::uint32_t)>
void multiply(frame_t& f) {
    fragments_t mine;
    for (std::size_t i = 0; i < 4; ++i) mine.a[i] = f.u32(4 + i), mine.c[i] = f.f32(10 + i);
    for (std::size_t i = 0; i < 2; ++i) mine.b[i] = f.u32(8 + i);
    meet(~0u, f.name(), &mine, [](void* const* brought) {
        float a[16][16], b[8][16];
        for (int lane = 0; lane < 32; ++lane) {
            auto const& part = *static_cast<fragments_t*>(brought[lane]);
            for (int half = 0; half < 2; ++half) {
                for (int r = 0; r < 4; ++r)
                    a[lane / 4 + 8 * (r & 1)][lane % 4 * 2 + half + 8 * (r >> 1)] =
                        from(part.a[r] >> 16 * half & 0xffff);
                for (int r = 0; r < 2; ++r)
                    b[lane / 4][lane % 4 * 2 + half + 8 * r] = from(part.b[r] >> 16 * half & 0xffff);
            }
        }
        for (int lane = 0; lane < 32; ++lane) {
            auto& part = *static_cast<fragments_t*>(brought[lane]);
            for (int i = 0; i < 4; ++i) {
                float sum = part.c[i];
                for (int k = 0; k < 16; ++k) sum += a[lane / 4 + 8 * (i >> 1)][k] * b[lane % 4 * 2 + (i & 1)][k];
                part.d[i] = sum;
            }
        }
    });
    for (std::size_t i = 0; i < 4; ++i) f.set(i, mine.d[i]);
}

float from_bf16_bits(std::uint32_t bits) { return from_bf16(bits); }

template <int count>
void add_matrices(table_t& table) {
    std::string const number = ".x" + std::to_string(count);
    for (std::string const space : {".shared.b16", ".shared::cta.b16"}) {
        table["ldmatrix.sync.aligned.m8n8" + number + space] = load_matrices<count, false>;
        table["ldmatrix.sync.aligned.m8n8" + number + ".trans" + space] = load_matrices<count, true>;
        table["stmatrix.sync.aligned.m8n8" + number + space] = store_matrices<count, false>;
        table["stmatrix.sync.aligned.m8n8" + number + ".trans" + space] = store_matrices<count, true>;
    }
    if constexpr (count < 4) add_matrices<count * 2>(table);
}

}  // namespace

void add_warp_products(table_t& table) {
    add_matrices<1>(table);
    table["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"] = multiply<from_bf16_bits>;
    table["mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"] = multiply<from_fp16>;
}

}  // namespace emulation
