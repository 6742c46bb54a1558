#include "memory.hpp"

#include <cstdio>
#include <cstring>

#include "launch.hpp"

namespace emulation {
namespace {

// Variables declared __shared__ are static: their addresses are distances from this one, marked by the top bit.
std::uint8_t anchor;
constexpr std::uint32_t static_k = 1u << 31, static_middle_k = 1u << 30;
constexpr std::uint64_t mark_k = 0xb0b0b0b000000000u;  // what the memory of an mbarrier holds, plus its address

std::string hexadecimal(std::uint32_t value) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%x", value);
    return text;
}

std::uint8_t* bytes_of(block_t& block) { return reinterpret_cast<std::uint8_t*>(block.shared.data()); }

}  // namespace

void* dynamic_shared_memory() { return bytes_of(*self().block) + window_base_k; }

std::uint32_t shared_address(void const* pointer) {
    block_t& block = *self().block;
    auto const* at = static_cast<std::uint8_t const*>(pointer);
    if (at >= bytes_of(block) && at < bytes_of(block) + block.shared.size() * sizeof(line_t))
        return static_cast<std::uint32_t>(at - bytes_of(block));
    auto const distance = at - &anchor + std::ptrdiff_t(static_middle_k);
    if (distance < 0 || distance >= std::ptrdiff_t(static_k))
        fail("the shared address of an object that is not in shared memory");
    return static_cast<std::uint32_t>(distance) | static_k;
}

block_t& block_at(std::uint32_t& address) {
    block_t& own = *self().block;
    std::uint32_t const rank = address >> 24;
    if (rank == 0) return own;
    address &= 0xffffff;
    if (rank > own.cluster->blocks.size()) fail("a shared address of no block of the cluster");
    return *own.cluster->blocks[rank - 1];
}

std::uint32_t cluster_address(std::uint32_t address, int rank) {
    return (address & 0xffffff) | std::uint32_t(rank + 1) << 24;
}

std::uint8_t* shared_at(std::uint32_t address, std::size_t bytes, std::size_t alignment) {
    if (address & static_k) return &anchor + (std::ptrdiff_t(address & ~static_k) - std::ptrdiff_t(static_middle_k));
    std::uint32_t local = address;
    block_t& block = block_at(local);
    if (local < window_base_k || local + bytes > window_base_k + block.shared_bytes)
        fail("shared address " + hexadecimal(address) + " and " + std::to_string(bytes) +
             " bytes: the block's dynamic shared memory is " + hexadecimal(window_base_k) + " to " +
             hexadecimal(static_cast<std::uint32_t>(window_base_k + block.shared_bytes)));
    if (local % alignment)
        fail("shared address " + hexadecimal(address) + " is no multiple of " + std::to_string(alignment));
    return bytes_of(block) + local;
}

void init_mbarrier(std::uint32_t address, std::uint32_t count) {
    if (count < 1 || count >= 1u << 20) fail("mbarrier.init: a count of " + std::to_string(count));
    std::uint64_t const mark = mark_k | (address & 0xffffff);
    std::memcpy(shared_at(address, 8, 8), &mark, 8);
    std::uint32_t local = address;
    block_t& block = block_at(local);
    block.mbarriers[local] = {count, count, 0, 0};
}

void invalidate_mbarrier(std::uint32_t address) {
    mbarrier_at(address);
    std::uint32_t local = address;
    block_at(local).mbarriers.erase(local);
}

mbarrier_t& mbarrier_at(std::uint32_t address) {
    std::uint64_t mark;
    std::memcpy(&mark, shared_at(address, 8, 8), 8);
    std::uint32_t local = address;
    block_t& block = block_at(local);
    auto const found = block.mbarriers.find(local);
    if (found == block.mbarriers.end()) fail("no mbarrier was initialised at " + hexadecimal(address));
    if (mark != (mark_k | (local & 0xffffff))) fail("the mbarrier at " + hexadecimal(address) + " was overwritten");
    return found->second;
}

void complete(mbarrier_t& barrier, std::int64_t bytes) {
    barrier.bytes -= bytes;
    if (barrier.bytes <= -(1 << 20)) fail("an mbarrier's byte count is out of range");
    arrive(barrier, 0, 0);
}

void arrive(mbarrier_t& barrier, std::int64_t count, std::int64_t bytes) {
    barrier.bytes += bytes;
    if (barrier.bytes >= 1 << 20) fail("an mbarrier's byte count is out of range");
    if (count > barrier.pending)
        fail("more arrivals at an mbarrier than its phase expects (" + std::to_string(barrier.count) + ")");
    barrier.pending -= count;
    if (barrier.pending == 0 && barrier.bytes == 0) ++barrier.phase, barrier.pending = barrier.count;
}

std::string name_of(std::uint32_t address, mbarrier_t const& barrier) {
    return "mbarrier at " + hexadecimal(address) + " (dynamic shared memory + " +
           std::to_string(std::int64_t(address & 0xffffff) - window_base_k) + "), which is in phase " +
           std::to_string(barrier.phase) + " with " + std::to_string(barrier.pending) + " of " +
           std::to_string(barrier.count) + " arrivals and " + std::to_string(barrier.bytes) + " bytes missing";
}

}  // namespace emulation
