// Instructions of one thread's registers.
#include <cmath>

#include "frame.hpp"

namespace emulation {

std::uint32_t to_bf16(float value) {
    auto const word = std::bit_cast<std::uint32_t>(value);
    if (std::isnan(value)) return 0x7fff;  // what cvt gives
    return (word + 0x7fff + (word >> 16 & 1)) >> 16;
}

float from_fp16(std::uint32_t bits) {
    int const exponent = static_cast<int>(bits >> 10 & 31);
    float const mantissa = static_cast<float>(bits & 1023), sign = bits & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa ? std::nanf("") : sign * INFINITY;
    return sign * (exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24));
}

std::uint32_t to_fp16(float value) {
    std::uint32_t const sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return 0x7fff;
    float const size = std::fabs(value);
    if (size >= 65520) return sign | 0x7c00;
    if (size < 0x1p-14f) return sign | static_cast<std::uint32_t>(std::lrint(std::ldexp(size, 24)));  // even on ties
    int exponent;
    float const fraction = std::frexp(size, &exponent);                                      // 0.5 to 1
    auto const mantissa = static_cast<std::uint32_t>(std::lrint(std::ldexp(fraction, 11)));  // 1024 to 2048
    return sign | ((static_cast<std::uint32_t>(exponent + 13) << 10) + mantissa);
}

namespace {

float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

template <float (*from)(std::uint32_t), std::uint32_t (*to)(float), class combine_t>
void pairs(frame_t& f, combine_t combine) {
    std::uint32_t out = 0;
    for (int half = 0; half < 2; ++half) {
        auto part = [&](std::size_t i) { return from(f.u32(i) >> 16 * half & 0xffff); };
        out |= to(combine(part)) << 16 * half;
    }
    f.set(0, std::uint64_t(out));
}
template <float (*from)(std::uint32_t), std::uint32_t (*to)(float)>
void add_pairs(table_t& table, std::string const& type) {
    table["add.rn." + type] =
        table["add." + type] = [](frame_t& f) { pairs<from, to>(f, [](auto x) { return x(1) + x(2); }); };
    table["sub.rn." + type] =
        table["sub." + type] = [](frame_t& f) { pairs<from, to>(f, [](auto x) { return x(1) - x(2); }); };
    table["mul.rn." + type] =
        table["mul." + type] = [](frame_t& f) { pairs<from, to>(f, [](auto x) { return x(1) * x(2); }); };
    table["fma.rn." + type] = [](frame_t& f) { pairs<from, to>(f, [](auto x) { return std::fma(x(1), x(2), x(3)); }); };
    table["max." + type] = [](frame_t& f) { pairs<from, to>(f, [](auto x) { return std::fmax(x(1), x(2)); }); };
    table["min." + type] = [](frame_t& f) { pairs<from, to>(f, [](auto x) { return std::fmin(x(1), x(2)); }); };
    table["cvt.rn." + type + ".f32"] = [](frame_t& f) {  // the first source goes to the upper half
        f.set(0, std::uint64_t(to(f.f32(1)) << 16 | to(f.f32(2))));
    };
}

float from_bf16_bits(std::uint32_t bits) { return from_bf16(bits); }

}  // namespace

void add_scalars(table_t& table) {
    for (char const* name : {"mov.u32", "mov.b32", "mov.f32", "mov.u64", "mov.b64"})
        table[name] = [](frame_t& f) { f.set(0, f.u64(1)); };
    for (char const* name : {"selp.u32", "selp.b32", "selp.s32", "selp.f32"})
        table[name] = [](frame_t& f) { f.set(0, f.u64(3) ? f.u64(1) : f.u64(2)); };
    for (char const* name : {"setp.ne.b32", "setp.ne.u32", "setp.ne.s32"})
        table[name] = [](frame_t& f) { f.set(0, std::uint64_t(f.u32(1) != f.u32(2))); };
    for (char const* name : {"setp.eq.b32", "setp.eq.u32", "setp.eq.s32"})
        table[name] = [](frame_t& f) { f.set(0, std::uint64_t(f.u32(1) == f.u32(2))); };
    table["ex2.approx.ftz.f32"] = [](frame_t& f) { f.set(0, flushed(std::exp2(flushed(f.f32(1))))); };
    table["lg2.approx.ftz.f32"] = [](frame_t& f) { f.set(0, flushed(std::log2(flushed(f.f32(1))))); };
    table["rcp.approx.ftz.f32"] = [](frame_t& f) { f.set(0, flushed(1.0f / flushed(f.f32(1)))); };
    table["tanh.approx.f32"] = [](frame_t& f) { f.set(0, std::tanh(f.f32(1))); };
    add_pairs<from_bf16_bits, to_bf16>(table, "bf16x2");
    add_pairs<from_fp16, to_fp16>(table, "f16x2");
    table["cvt.rn.satfinite.f16x2.f32"] = [](frame_t& f) {
        auto const to = [](float value) { return to_fp16(std::fmin(std::fmax(value, -65504.0f), 65504.0f)); };
        f.set(0, std::uint64_t(to(f.f32(1)) << 16 | to(f.f32(2))));
    };
    table["cvt.f32.f16"] = [](frame_t& f) { f.set(0, from_fp16(f.u32(1) & 0xffff)); };
    // elect.sync d|p, mask: the same lane every time; d is its number
    table["elect.sync"] = [](frame_t& f) {
        auto const mask = f.u32(f.count() - 1);
        meet(mask, "elect.sync", nullptr, [](void* const*) {});
        int const leader = std::countr_zero(mask);
        if (f.count() == 3) f.set(0, std::uint64_t(leader));
        f.set(f.count() - 2, std::uint64_t(self().lane == leader));
    };
    table["setmaxnreg.dec.sync.aligned.u32"] = table["setmaxnreg.inc.sync.aligned.u32"] = [](frame_t& f) {
        auto const count = static_cast<int>(f.u32(0));
        if (count < 24 || count > 256 || count % 8) fail("setmaxnreg: " + std::to_string(count) + " registers");
        meet(~0u, f.name(), nullptr, [](void* const*) {});
    };
}

}  // namespace emulation
