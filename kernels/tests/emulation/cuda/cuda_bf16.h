// bf16 as CUDA has it, for the emulator.
#pragma once
#include "../frame.hpp"

struct alignas(2) __nv_bfloat16 {
    std::uint16_t bits;

    __nv_bfloat16() = default;
    __nv_bfloat16(float value) : bits(static_cast<std::uint16_t>(emulation::to_bf16(value))) {}
    operator float() const { return emulation::from_bf16(bits); }
};
struct alignas(4) __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat16 __float2bfloat16(float value) { return __nv_bfloat16(value); }
inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __nv_bfloat16(value); }
inline float __bfloat162float(__nv_bfloat16 value) { return value; }
