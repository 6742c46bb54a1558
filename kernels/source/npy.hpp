// Writes float32 matrices as NumPy's .npy, version 1.0.
#pragma once
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>

namespace scaling_contrasts::bench {

/// Throws std::runtime_error with the path and the cause when the file cannot be written whole.
inline void write_npy(std::string const& path, float const* data, std::int64_t rows, std::int64_t columns) {
    static_assert(std::endian::native == std::endian::little);
    std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                         std::to_string(columns) + "), }";
    header += std::string(63 - (10 + header.size()) % 64, ' ') + '\n';
    errno = 0;
    std::ofstream file(path, std::ios::binary);
    file.write("\x93NUMPY\x01\x00", 8);
    char const size[2] = {static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
    file.write(size, 2);
    file << header;
    file.write(reinterpret_cast<char const*>(data), rows * columns * static_cast<std::int64_t>(sizeof(float)));
    file.close();
    if (!file) throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

}  // namespace scaling_contrasts::bench
