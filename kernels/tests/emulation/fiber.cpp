#include "fiber.hpp"

#include <cstdint>

namespace emulation {

#if defined(__x86_64__) && !defined(EMULATION_PORTABLE_FIBERS)

// The registers that a call keeps go onto the stack that is left; swapcontext() would also ask the kernel for signal
// masks.
extern "C" void emulation_switch(void** left, void* next);
extern "C" void emulation_begin();
asm(R"(
    .text
    .globl emulation_switch
    .type emulation_switch, @function
emulation_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
    .size emulation_switch, . - emulation_switch
    .globl emulation_begin
    .type emulation_begin, @function
emulation_begin:
    movq %r12, %rdi
    callq *%r13
    ud2
    .size emulation_begin, . - emulation_begin
    .section .note.GNU-stack, "", @progbits
    .text
)");

void fiber_t::prepare(void* stack, void (*entry)(void*), void* argument) {
    auto** top = reinterpret_cast<void**>(static_cast<char*>(stack) + stack_bytes_k);
    *--top = nullptr;  // keeps the stack aligned to 16 bytes at the call
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(&emulation_begin);
    *--top = nullptr;                         // rbp
    *--top = nullptr;                         // rbx
    *--top = argument;                        // r12
    *--top = reinterpret_cast<void*>(entry);  // r13
    *--top = nullptr;                         // r14
    *--top = nullptr;                         // r15
    top_ = top;
}

void fiber_t::switch_from(fiber_t& from) { emulation_switch(&from.top_, top_); }

#else

namespace {
void begin(unsigned entry_high, unsigned entry_low, unsigned argument_high, unsigned argument_low) {
    auto join = [](unsigned high, unsigned low) {
        return static_cast<std::uintptr_t>(static_cast<std::uint64_t>(high) << 32 | low);
    };
    reinterpret_cast<void (*)(void*)>(join(entry_high, entry_low))(
        reinterpret_cast<void*>(join(argument_high, argument_low)));
}
}  // namespace

void fiber_t::prepare(void* stack, void (*entry)(void*), void* argument) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = stack_bytes_k;
    context_.uc_link = nullptr;
    auto const entry_bits = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(entry)),
               argument_bits = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(argument));
    makecontext(&context_, reinterpret_cast<void (*)()>(&begin), 4, static_cast<unsigned>(entry_bits >> 32),
                static_cast<unsigned>(entry_bits), static_cast<unsigned>(argument_bits >> 32),
                static_cast<unsigned>(argument_bits));
}

void fiber_t::switch_from(fiber_t& from) { swapcontext(&from.context_, &context_); }

#endif

}  // namespace emulation
