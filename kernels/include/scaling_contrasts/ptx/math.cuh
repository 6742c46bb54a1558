// Special functions and packed arithmetic, one instruction each.
#pragma once
#include <cstdint>

namespace scaling_contrasts::ptx {

__device__ __forceinline__ float ex2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float lg2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float rcp(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Zeroes that the compiler cannot take for integers: it would move accumulators between products, which are then
/// serialised.
template <int size_>
__device__ __forceinline__ void zero(float (&v)[size_]) {
#pragma unroll
    for (int i = 0; i < size_; ++i) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(v[i]));
}

/// Two floats to one register of two bf16, `lo` in the low half.
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
__device__ __forceinline__ float lo_bf16(uint32_t v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float hi_bf16(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }
__device__ __forceinline__ uint32_t add_bf16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

/// The same of fp16; what is too large becomes the largest number.
__device__ __forceinline__ uint32_t pack_fp16(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
__device__ __forceinline__ uint32_t add_fp16x2(uint32_t a, uint32_t b) {
    uint32_t r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
__device__ __forceinline__ float from_fp16(uint16_t v) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(v));
    return r;
}

/// The two 16-bit types that products take, two in a register.
struct bf16_pair_t {
    static __device__ __forceinline__ uint32_t pack(float lo, float hi) { return pack_bf16(lo, hi); }
    static __device__ __forceinline__ float lo(uint32_t v) { return lo_bf16(v); }
    static __device__ __forceinline__ float hi(uint32_t v) { return hi_bf16(v); }
};
struct fp16_pair_t {
    static __device__ __forceinline__ uint32_t pack(float lo, float hi) { return pack_fp16(lo, hi); }
    static __device__ __forceinline__ float lo(uint32_t v) { return from_fp16(uint16_t(v)); }
    static __device__ __forceinline__ float hi(uint32_t v) { return from_fp16(uint16_t(v >> 16)); }
};

}  // namespace scaling_contrasts::ptx
