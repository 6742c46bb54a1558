// Inline assembly, interpreted: a program is the text of one asm statement, its operands are the host's variables.
// Instructions are known by their whole name, modifiers included; one that is not known is refused.
#pragma once
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

namespace emulation {

struct operand_t {
    std::uint64_t bits = 0;  ///< of inputs: the value
    void* target = nullptr;  ///< of outputs: the variable
    std::uint8_t size = 0;   ///< bytes
};

template <class value_t>
operand_t input(char const*, value_t value) {
    if constexpr (std::is_pointer_v<value_t>) return {reinterpret_cast<std::uintptr_t>(value), nullptr, 8};
    else if constexpr (std::is_integral_v<value_t>)
        return {static_cast<std::uint64_t>(value), nullptr, sizeof(value_t)};
    else if constexpr (sizeof(value_t) == 8) return {std::bit_cast<std::uint64_t>(value), nullptr, 8};
    else if constexpr (sizeof(value_t) == 4) return {std::bit_cast<std::uint32_t>(value), nullptr, 4};
    else return {std::bit_cast<std::uint16_t>(value), nullptr, 2};
}
template <class value_t>
operand_t output(char const*, value_t& value) {
    return {0, &value, sizeof(value_t)};
}

struct frame_t;
struct statement_t;
using handler_t = void (*)(frame_t&);

/// One operand as the text names it.
struct reference_t {
    enum kind_t { operand_k, register_k, immediate_k, special_k, sink_k } kind;
    std::uint64_t value;   ///< which operand or register, or the immediate itself
    std::string name;      ///< of a special register
    bool address = false;  ///< in square brackets
};
struct statement_t {
    std::string name;
    handler_t handler = nullptr;
    std::vector<reference_t> references;  ///< in the order of the text, brackets and braces left out
    int predicate = -1;                   ///< the register that guards it
    bool negated = false;
    bool acquires = false;  ///< a load that may be looked at again and again
};
struct program_t {
    explicit program_t(char const* text);
    std::vector<statement_t> statements;
};

void run_ptx(program_t const& program, std::initializer_list<operand_t> operands);

}  // namespace emulation
