// Vectors of the CUDA dialect, and the shape of a launch.
#pragma once
#include <cstdint>

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
#define EMULATION_VECTOR(name, type, bytes)                                                                            \
    struct alignas(2 * bytes) name##2 { type x, y; };                                                                  \
    struct name##3 { type x, y, z; };                                                                                  \
    struct alignas(bytes == 8 ? 16 : 4 * bytes) name##4 { type x, y, z, w; };                                          \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                                   \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }                                        \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
EMULATION_VECTOR(float, float, 4)
EMULATION_VECTOR(int, int, 4)
EMULATION_VECTOR(double, double, 8)
#undef EMULATION_VECTOR
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
