#include "operand.hpp"

#include <cstring>

namespace emulation {
namespace {

std::uint64_t bits(std::uint64_t value, int from, int count) {
    return value >> from & ((std::uint64_t(1) << count) - 1);
}

matrix_t common(std::uint64_t descriptor, std::uint64_t reserved, char const* what) {
    if (descriptor & reserved) fail(std::string(what) + ": bits of the descriptor that must be 0 are not");
    if (bits(descriptor, 49, 3)) fail(std::string(what) + ": the emulator knows base offset 0 alone");
    return {static_cast<std::uint32_t>(bits(descriptor, 0, 14) << 4),
            static_cast<std::uint32_t>(bits(descriptor, 16, 14) << 4),
            static_cast<std::uint32_t>(bits(descriptor, 32, 14) << 4), 0};
}

}  // namespace

matrix_t decode_warpgroup_descriptor(std::uint64_t descriptor) {
    std::uint64_t const reserved = 3ull << 14 | 3ull << 30 | 7ull << 46 | 0x3ffull << 52;
    matrix_t matrix = common(descriptor, reserved, "wgmma");
    constexpr int swizzles[] = {0, 128, 64, 32};
    matrix.swizzle = swizzles[bits(descriptor, 62, 2)];
    return matrix;
}

matrix_t decode_tensor_descriptor(std::uint64_t descriptor) {
    std::uint64_t const reserved = 3ull << 14 | 3ull << 30 | 0xffull << 53;
    matrix_t matrix = common(descriptor, reserved, "tcgen05.mma");
    if (bits(descriptor, 46, 3) != 1) fail("tcgen05.mma: bits 46 to 48 of the descriptor must be 001");
    if (bits(descriptor, 52, 1)) fail("tcgen05.mma: the emulator knows relative leading offsets alone");
    switch (bits(descriptor, 61, 3)) {
    case 0: matrix.swizzle = 0; break;
    case 2: matrix.swizzle = 128; break;
    case 4: matrix.swizzle = 64; break;
    case 6: matrix.swizzle = 32; break;
    default:
        fail("tcgen05.mma: swizzle " + std::to_string(bits(descriptor, 61, 3)) + " is invalid, or has 32-byte atoms");
    }
    return matrix;
}

std::uint32_t address_of(matrix_t const& m, std::uint32_t along, std::uint32_t k, bool k_major) {
    std::uint32_t offset;
    if (m.swizzle) {
        auto const line = static_cast<std::uint32_t>(m.swizzle), numbers = line / 2;
        offset = k_major ? along / 8 * m.stride + along % 8 * line + k * 2
                         : along / numbers * m.leading + along % numbers * 2 + k % 8 * line + k / 8 * m.stride;
    } else {
        offset = k_major ? along / 8 * m.stride + along % 8 * 16 + k / 8 * m.leading + k % 8 * 2
                         : along / 8 * m.stride + along % 8 * 2 + k / 8 * m.leading + k % 8 * 16;
    }
    return swizzled(m.start + offset, m.swizzle);
}

std::vector<float> read_operand(block_t& block, matrix_t const& matrix, int along, bool k_major, number_t type,
                                float sign) {
    std::vector<float> out(static_cast<std::size_t>(along) * 16);
    auto const* const bytes = reinterpret_cast<std::uint8_t const*>(block.shared.data());
    std::size_t const end = window_base_k + block.shared_bytes;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(along); ++i)
        for (std::uint32_t k = 0; k < 16; ++k) {
            std::uint32_t const address = address_of(matrix, i, k, k_major);
            if (address < window_base_k || address + 2 > end)
                fail("a matrix product reads outside of the block's shared memory");
            std::uint16_t number;
            std::memcpy(&number, bytes + address, 2);
            out[i * 16 + k] = sign * (type == number_t::bf16_k ? from_bf16(number) : from_fp16(number));
        }
    return out;
}

void multiply_add(float* d, float const* a, float const* b, int rows, int columns) {
    std::vector<float> across(static_cast<std::size_t>(columns) *
                              16);  // [16][columns]: the inner loop runs along columns
    for (int j = 0; j < columns; ++j)
        for (int k = 0; k < 16; ++k) across[static_cast<std::size_t>(k * columns + j)] = b[j * 16 + k];
    for (int i = 0; i < rows; ++i)
        for (int k = 0; k < 16; ++k) {
            float const factor = a[i * 16 + k];
            float const* const from = across.data() + k * columns;
            float* const to = d + i * columns;
            for (int j = 0; j < columns; ++j) to[j] += factor * from[j];
        }
}

}  // namespace emulation
