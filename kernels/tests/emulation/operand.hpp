// How matrix products read an operand of 16-bit numbers from shared memory: its descriptor, decoded from the tables of
// the PTX manual (9.7.15.5.1.2 for wgmma, 9.7.16.4.1 for tcgen05), not from what the project's code puts in.
#pragma once
#include <vector>

#include "frame.hpp"

namespace emulation {

enum class number_t { bf16_k, fp16_k };

struct matrix_t {
    std::uint32_t start = 0, leading = 0, stride = 0;  ///< bytes
    int swizzle = 0;                                   ///< bytes of a line: 128, 64, 32; 0: none
};
matrix_t decode_warpgroup_descriptor(std::uint64_t descriptor);
matrix_t decode_tensor_descriptor(std::uint64_t descriptor);

/// Address of element (`along` M or N, `k`), swizzled. `k_major`: lines run along K.
std::uint32_t address_of(matrix_t const& matrix, std::uint32_t along, std::uint32_t k, bool k_major);

/// [along][16] numbers, times `sign`.
std::vector<float> read_operand(block_t& block, matrix_t const& matrix, int along, bool k_major, number_t type,
                                float sign);

/// d[rows][columns] += a[rows][16] b[columns][16]^T, in fp32.
void multiply_add(float* d, float const* a, float const* b, int rows, int columns);

/// What the swizzle of `bytes` makes of an address in shared memory.
constexpr std::uint32_t swizzled(std::uint32_t address, int bytes) {
    std::uint32_t const mask = bytes == 128 ? 7 : bytes == 64 ? 3 : bytes == 32 ? 1 : 0;
    return address ^ (address >> 7 & mask) << 4;
}

}  // namespace emulation
