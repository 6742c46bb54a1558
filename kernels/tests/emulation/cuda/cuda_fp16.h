// fp16 as CUDA has it, for the emulator.
#pragma once
#include "../frame.hpp"

struct alignas(2) __half {
    std::uint16_t bits;

    __half() = default;
    __half(float value) : bits(static_cast<std::uint16_t>(emulation::to_fp16(value))) {}
    operator float() const { return emulation::from_fp16(bits); }
};
struct alignas(4) __half2 {
    __half x, y;
};
inline __half __float2half(float value) { return __half(value); }
inline __half __float2half_rn(float value) { return __half(value); }
inline float __half2float(__half value) { return value; }
