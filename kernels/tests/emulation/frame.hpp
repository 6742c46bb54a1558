// What the handler of an instruction sees of its operands.
#pragma once
#include <bit>
#include <functional>
#include <map>

#include "machine.hpp"
#include "memory.hpp"
#include "ptx.hpp"

namespace emulation {

inline constexpr int registers_k = 8;  ///< that a program may declare

struct frame_t {
    operand_t const* operands;
    std::uint64_t registers[registers_k] = {};
    statement_t const* statement = nullptr;

    std::size_t count() const { return statement->references.size(); }
    std::uint64_t u64(std::size_t i) const;
    std::uint32_t u32(std::size_t i) const { return static_cast<std::uint32_t>(u64(i)); }
    float f32(std::size_t i) const { return std::bit_cast<float>(u32(i)); }
    template <class value_t = void>
    value_t* pointer(std::size_t i) const {
        return reinterpret_cast<value_t*>(static_cast<std::uintptr_t>(u64(i)));
    }
    /// The variable that an output is.
    template <class value_t>
    value_t* target(std::size_t i) const {
        return static_cast<value_t*>(target_of(i, sizeof(value_t)));
    }
    void set(std::size_t i, std::uint64_t value);
    void set(std::size_t i, float value) { set(i, std::uint64_t(std::bit_cast<std::uint32_t>(value))); }
    /// The first of `n` outputs or inputs that are one array of floats or words.
    std::uint32_t* array(std::size_t first, std::size_t n) const;
    char const* name() const { return statement->name.c_str(); }

  private:
    reference_t const& at(std::size_t i) const {
        if (i >= count()) fail(statement->name + ": fewer operands than the emulator knows");
        return statement->references[i];
    }
    void* target_of(std::size_t i, std::size_t bytes) const;
};

/// Instructions by name. Each file of a family adds its own.
using table_t = std::map<std::string, handler_t>;
void add_scalars(table_t& table);
void add_memory(table_t& table);
void add_barriers(table_t& table);
void add_copies(table_t& table);
void add_warp_products(table_t& table);
void add_warpgroup_products(table_t& table);
void add_tensor_memory(table_t& table);

/// Two bf16 or two fp16 in a word.
inline float from_bf16(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }
float from_fp16(std::uint32_t bits);
std::uint32_t to_bf16(float value);
std::uint32_t to_fp16(float value);

}  // namespace emulation
