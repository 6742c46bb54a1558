// Shared memory by address, and what lies there that instructions know: mbarriers.
#pragma once
#include "machine.hpp"

namespace emulation {

/// Where a block's dynamic shared memory begins: aligned no better than it must be, so that code which needs more has
/// to align.
inline constexpr std::uint32_t window_base_k = 1024 + 128;

/// The address of an object in shared memory. Fails where it is none.
std::uint32_t shared_address(void const* pointer);
/// What lies at an address: of the running block, or, as mapa gives them, of a block of the cluster. Fails outside of
/// it.
std::uint8_t* shared_at(std::uint32_t address, std::size_t bytes, std::size_t alignment);
/// The block that an address belongs to, and the address there.
block_t& block_at(std::uint32_t& address);
/// An address as other blocks of the cluster name it.
std::uint32_t cluster_address(std::uint32_t address, int rank);

void init_mbarrier(std::uint32_t address, std::uint32_t count);
void invalidate_mbarrier(std::uint32_t address);
mbarrier_t& mbarrier_at(std::uint32_t address);
/// Expects `bytes` more, then arrives `count` times.
void arrive(mbarrier_t& barrier, std::int64_t count, std::int64_t bytes);
/// Bytes that have come.
void complete(mbarrier_t& barrier, std::int64_t bytes);
std::string name_of(std::uint32_t address, mbarrier_t const& barrier);

}  // namespace emulation
