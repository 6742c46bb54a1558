// Instructions that C++ has no name for, one wrapper each. Compute capability 8.0 and up.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace scaling_contrasts::sm80::ptx {

/// Address of a shared-memory object in the shared window.
__device__ __forceinline__ std::uint32_t shared_address(void const* pointer) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// The same number, which the compiler shall keep rather than form again.
__device__ __forceinline__ std::uint32_t kept(std::uint32_t x) {
    asm volatile("mov.u32 %0, %0;" : "+r"(x));
    return x;
}

/// Copies 16 bytes from global to shared memory asynchronously; writes zeros, and reads nothing, where `valid` is
/// false.
__device__ __forceinline__ void copy_16(std::uint32_t to, void const* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

/// The same, always valid.
__device__ __forceinline__ void copy_16(std::uint32_t to, void const* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/// Closes the group of copies issued so far.
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `kPending` groups are on their way.
template <int kPending>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Four 8 x 8 matrices of 16-bit numbers; lane 8 m + r gives the address of row r of matrix m.
__device__ __forceinline__ void load_matrices(std::uint32_t (&to)[4], std::uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&to)[4], std::uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

/// acc[0 .. 3] += A (16 x 16) B (16 x 8), bf16 in, fp32 out.
__device__ __forceinline__ void multiply_add(float* acc, std::uint32_t const (&a)[4], std::uint32_t b0,
                                             std::uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float log2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// Two floats as packed bf16, `low` in the lower half.
__device__ __forceinline__ std::uint32_t pack_bf16(float low, float high) {
    std::uint32_t packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}
__device__ __forceinline__ float low_bf16(std::uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ __forceinline__ float high_bf16(std::uint32_t packed) { return __uint_as_float(packed & 0xffff0000u); }

/// Two numbers of at most 1 as 16 bits each, without their signs: 7 of exponent, 9 of mantissa, rounded. Finer than
/// bf16, and as small.
__device__ __forceinline__ std::uint32_t pack_fractions(float low, float high) {
    return __byte_perm(__float_as_uint(low) * 4 + 0x8000, __float_as_uint(high) * 4 + 0x8000, 0x7632);
}
__device__ __forceinline__ float low_fraction(std::uint32_t packed) {
    return __uint_as_float(packed << 14 & 0x3fffc000);
}
__device__ __forceinline__ float high_fraction(std::uint32_t packed) {
    return __uint_as_float(packed >> 2 & 0x3fffc000);
}

/// The same with signs: 1 of sign, 7 of exponent, 8 of mantissa.
__device__ __forceinline__ std::uint32_t pack_signed_fractions(float low, float high) {
    auto pack = [](float value) {
        std::uint32_t const bits = __float_as_uint(value);
        return (bits * 4 + 0x10000) >> 17 | (bits >> 31 << 15);
    };
    return pack(low) | pack(high) << 16;
}
__device__ __forceinline__ float low_signed_fraction(std::uint32_t packed) {
    return __uint_as_float((packed & 0x7fff) << 15 | (packed & 0x8000) << 16);
}
__device__ __forceinline__ float high_signed_fraction(std::uint32_t packed) {
    return low_signed_fraction(packed >> 16);
}

/// Adds to memory without waiting for what was there.
__device__ __forceinline__ void add_to(float* to, float value) {
    asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

}  // namespace scaling_contrasts::sm80::ptx
