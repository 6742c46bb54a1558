// What the emulator's cuTensorMapEncodeTiled() writes, and its copies read.
#pragma once
#include <cstdint>

namespace emulation {

struct tensor_map_t {
    std::uint64_t mark;
    std::uint8_t* base;
    std::uint64_t size[5], stride[5];  ///< elements; bytes from one to the next along each dimension
    std::uint16_t box[5];
    std::uint8_t rank, bytes, swizzle;  ///< dimensions, bytes of an element, bytes of a swizzled line or 0
    bool nan_outside;
};
inline constexpr std::uint64_t tensor_map_mark_k = 0x7e4504a971a9u;

}  // namespace emulation
