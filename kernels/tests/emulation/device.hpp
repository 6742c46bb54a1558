// The functions that CUDA's dialect has without a header.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "machine.hpp"
#include "memory.hpp"

namespace emulation {

/// Lanes of a warp give a value each; every one gets `pick(lane, values)`, values of absent lanes being null.
template <class value_t, class pick_t>
auto exchange(char const* what, std::uint32_t mask, value_t value, pick_t pick) {
    using result_t = decltype(pick(0, static_cast<value_t const* const*>(nullptr)));
    struct part_t {
        value_t value;
        result_t result;
    } part = {value, {}};
    meet(mask, what, &part, [&](void* const* brought) {
        value_t const* values[32];
        for (int lane = 0; lane < 32; ++lane)
            values[lane] = brought[lane] ? &static_cast<part_t*>(brought[lane])->value : nullptr;
        for (int lane = 0; lane < 32; ++lane)
            if (brought[lane]) static_cast<part_t*>(brought[lane])->result = pick(lane, values);
    });
    return part.result;
}
template <class value_t, class combine_t>
value_t reduce(char const* what, std::uint32_t mask, value_t value, combine_t combine) {
    return exchange(what, mask, value, [&](int, value_t const* const* values) {
        bool any = false;
        value_t sum = {};
        for (int lane = 0; lane < 32; ++lane)
            if (values[lane]) sum = any ? combine(sum, *values[lane]) : *values[lane], any = true;
        return sum;
    });
}
/// What a shuffle brings from `from`, a lane of the same part of `width` lanes; out of it, the lane's own.
template <class value_t>
value_t shuffled(char const* what, value_t const* const* values, int lane, int from, int width) {
    if (from < 0 || from / width != lane / width) return *values[lane];
    if (!values[from]) fail(std::string(what) + " reads a lane that is not in the mask");
    return *values[from];
}

void block_barrier(int id, int threads);
int block_barrier_or(int predicate);

}  // namespace emulation

template <class value_t>
value_t __shfl_sync(unsigned mask, value_t value, int from, int width = 32) {
    struct asked_t {
        value_t value;
        int from;
    };
    return emulation::exchange("__shfl_sync", mask, asked_t{value, from}, [&](int lane, asked_t const* const* asked) {
        value_t const* values[32];
        for (int i = 0; i < 32; ++i) values[i] = asked[i] ? &asked[i]->value : nullptr;
        int const source = lane / width * width + asked[lane]->from % width;
        return emulation::shuffled("__shfl_sync", values, lane, source, width);
    });
}
template <class value_t>
value_t __shfl_xor_sync(unsigned mask, value_t value, int bits, int width = 32) {
    return emulation::exchange("__shfl_xor_sync", mask, value, [&](int lane, value_t const* const* values) {
        return emulation::shuffled("__shfl_xor_sync", values, lane, lane ^ bits, width);
    });
}
template <class value_t>
value_t __shfl_down_sync(unsigned mask, value_t value, int distance, int width = 32) {
    return emulation::exchange("__shfl_down_sync", mask, value, [&](int lane, value_t const* const* values) {
        return emulation::shuffled("__shfl_down_sync", values, lane, lane + distance, width);
    });
}
template <class value_t>
value_t __shfl_up_sync(unsigned mask, value_t value, int distance, int width = 32) {
    return emulation::exchange("__shfl_up_sync", mask, value, [&](int lane, value_t const* const* values) {
        return emulation::shuffled("__shfl_up_sync", values, lane, lane - distance, width);
    });
}
inline void __syncwarp(unsigned mask = ~0u) {
    emulation::meet(mask, "__syncwarp", nullptr, [](void* const*) {});
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emulation::exchange("__ballot_sync", mask, predicate, [](int, int const* const* values) {
        unsigned bits = 0;
        for (int lane = 0; lane < 32; ++lane) bits |= unsigned(values[lane] && *values[lane]) << lane;
        return bits;
    });
}
inline int __any_sync(unsigned mask, int predicate) {
    return emulation::reduce("__any_sync", mask, int(predicate != 0), [](int a, int b) { return a | b; });
}
inline int __all_sync(unsigned mask, int predicate) {
    return emulation::reduce("__all_sync", mask, int(predicate != 0), [](int a, int b) { return a & b; });
}
template <class value_t>
value_t __reduce_or_sync(unsigned mask, value_t value) {
    return emulation::reduce("__reduce_or_sync", mask, value, [](value_t a, value_t b) { return a | b; });
}
template <class value_t>
value_t __reduce_and_sync(unsigned mask, value_t value) {
    return emulation::reduce("__reduce_and_sync", mask, value, [](value_t a, value_t b) { return a & b; });
}
template <class value_t>
value_t __reduce_add_sync(unsigned mask, value_t value) {
    return emulation::reduce("__reduce_add_sync", mask, value, [](value_t a, value_t b) { return a + b; });
}
template <class value_t>
value_t __reduce_min_sync(unsigned mask, value_t value) {
    return emulation::reduce("__reduce_min_sync", mask, value, [](value_t a, value_t b) { return a < b ? a : b; });
}
template <class value_t>
value_t __reduce_max_sync(unsigned mask, value_t value) {
    return emulation::reduce("__reduce_max_sync", mask, value, [](value_t a, value_t b) { return a < b ? b : a; });
}
inline void __syncthreads() { emulation::block_barrier(0, 0); }
inline int __syncthreads_or(int predicate) { return emulation::block_barrier_or(predicate); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { emulation::perhaps_yield(); }

inline std::size_t __cvta_generic_to_shared(void const* pointer) { return emulation::shared_address(pointer); }

template <class value_t>
value_t __ldg(value_t const* from) {
    return *from;
}
template <class value_t>
value_t __ldcs(value_t const* from) {
    return *from;
}
template <class value_t>
value_t __ldcg(value_t const* from) {
    return *from;
}
template <class value_t>
void __stcs(value_t* to, value_t value) {
    *to = value;
}
template <class value_t, class other_t>
value_t atomicAdd(value_t* to, other_t value) {
    emulation::perhaps_yield();
    value_t const before = *to;
    *to = static_cast<value_t>(before + static_cast<value_t>(value));
    return before;
}
template <class value_t, class other_t>
value_t atomicMax(value_t* to, other_t value) {
    emulation::perhaps_yield();
    value_t const before = *to;
    if (static_cast<value_t>(value) > before) *to = static_cast<value_t>(value);
    return before;
}
template <class value_t, class other_t>
value_t atomicMin(value_t* to, other_t value) {
    emulation::perhaps_yield();
    value_t const before = *to;
    if (static_cast<value_t>(value) < before) *to = static_cast<value_t>(value);
    return before;
}
template <class value_t, class other_t>
value_t atomicOr(value_t* to, other_t value) {
    emulation::perhaps_yield();
    value_t const before = *to;
    *to = before | static_cast<value_t>(value);
    return before;
}
template <class value_t, class other_t>
value_t atomicExch(value_t* to, other_t value) {
    emulation::perhaps_yield();
    value_t const before = *to;
    *to = static_cast<value_t>(value);
    return before;
}
template <class value_t, class other_t>
value_t atomicCAS(value_t* to, other_t expected, other_t value) {
    emulation::perhaps_yield();
    value_t const before = *to;
    if (before == static_cast<value_t>(expected)) *to = static_cast<value_t>(value);
    return before;
}

inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline long long __float2ll_rn(float value) { return std::llrint(value); }
inline int __float2int_rn(float value) { return static_cast<int>(std::lrint(value)); }
inline int __float2int_rd(float value) { return static_cast<int>(std::floor(value)); }
inline int __float2int_ru(float value) { return static_cast<int>(std::ceil(value)); }
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return bits ? std::countr_zero(static_cast<unsigned>(bits)) + 1 : 0; }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
    std::uint64_t const bytes = std::uint64_t(high) << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned const which = selector >> 4 * i & 15, byte = bytes >> 8 * (which & 7) & 255;
        out |= (which & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return out;
}
template <class a_t, class b_t>
    requires(std::is_arithmetic_v<a_t> && std::is_arithmetic_v<b_t>)
constexpr auto min(a_t a, b_t b) {
    using value_t = std::common_type_t<a_t, b_t>;
    return value_t(b) < value_t(a) ? value_t(b) : value_t(a);
}
template <class a_t, class b_t>
    requires(std::is_arithmetic_v<a_t> && std::is_arithmetic_v<b_t>)
constexpr auto max(a_t a, b_t b) {
    using value_t = std::common_type_t<a_t, b_t>;
    return value_t(a) < value_t(b) ? value_t(b) : value_t(a);
}
