// The instruction sets: the same code (kernels.inl) compiled for each, in one translation unit, so that a user of the
// header needs no special flags. `pick` chooses at run time. AVX-512 BF16 multiplies bf16 pairs; the others widen to
// fp32.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "scaling_contrasts/cell.hpp"
#include "scaling_contrasts/cpu/layout.hpp"

#define SC_INLINE inline __attribute__((always_inline))

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"

namespace scaling_contrasts::cpu::portable {
#define SC_TARGET
#define SC_BF16_PRODUCTS 0
#define SC_AVX512 0
inline constexpr int lanes_k = 4;
inline constexpr char const* name_k = "cpu-portable";
inline bool usable() { return true; }
#include "scaling_contrasts/cpu/kernels.inl"
#undef SC_TARGET
}  // namespace scaling_contrasts::cpu::portable

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace scaling_contrasts::cpu::avx2 {
#define SC_TARGET __attribute__((target("avx2,fma")))
inline constexpr int lanes_k = 8;
inline constexpr char const* name_k = "cpu-avx2";
inline bool usable() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
#include "scaling_contrasts/cpu/kernels.inl"
#undef SC_TARGET
}  // namespace scaling_contrasts::cpu::avx2
#pragma GCC pop_options

#undef SC_AVX512
#define SC_AVX512 1
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
namespace scaling_contrasts::cpu::avx512 {
#define SC_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
inline constexpr int lanes_k = 16;
inline constexpr char const* name_k = "cpu-avx512";
inline bool usable() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#include "scaling_contrasts/cpu/kernels.inl"
#undef SC_TARGET
}  // namespace scaling_contrasts::cpu::avx512
#pragma GCC pop_options

#undef SC_BF16_PRODUCTS
#define SC_BF16_PRODUCTS 1
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")
namespace scaling_contrasts::cpu::avx512bf16 {
#define SC_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma")))
inline constexpr int lanes_k = 16;
inline constexpr char const* name_k = "cpu-avx512bf16";
inline bool usable() { return avx512::usable() && __builtin_cpu_supports("avx512bf16"); }
#include "scaling_contrasts/cpu/kernels.inl"
#undef SC_TARGET
}  // namespace scaling_contrasts::cpu::avx512bf16
#pragma GCC pop_options
#endif

#pragma GCC diagnostic pop
#undef SC_BF16_PRODUCTS
#undef SC_AVX512
#undef SC_INLINE

namespace scaling_contrasts::cpu {

/// All engines of this build, best first.
inline std::vector<kernels_t const*> engines() {
    return {
#if defined(__x86_64__)
        &avx512bf16::kernels(), &avx512::kernels(), &avx2::kernels(),
#endif
        &portable::kernels()};
}

/// The engine of that name, or for `auto` the best one this machine runs. Throws failure_t (unsupported).
inline kernels_t const& pick(std::string const& name) {
    std::string known;
    for (auto const* engine : engines()) {
        if (name == "auto" && engine->usable()) return *engine;
        if (name == engine->name) {
            if (engine->usable()) return *engine;
            throw failure_t(status_t::unsupported_k, "this processor cannot run engine " + name);
        }
        known += std::string(known.empty() ? "" : ", ") + engine->name;
    }
    throw failure_t(status_t::unsupported_k, "unknown engine " + name + "; built: auto, " + known);
}

}  // namespace scaling_contrasts::cpu
