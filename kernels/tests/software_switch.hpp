// A switch of the host's own threads: an address that stands for the same place in every rank's memory, and what adds
// there. Nothing lies at the address itself.
#pragma once
#include <atomic>
#include <cstring>
#include <vector>

#include "scaling_contrasts/domain/in_switch.hpp"

namespace software {

using namespace scaling_contrasts;
using domain::eight_bf16_t;
using domain::four_t;

/// As many bytes of every rank, and as many that stand for all; all of them zero.
class switched_t {
  public:
    switched_t(int world, std::size_t bytes) : everywhere_(bytes / sizeof(four_t)) {
        for (int rank = 0; rank < world; ++rank) ranks_.emplace_back(everywhere_.size());
    }
    int world() const { return static_cast<int>(ranks_.size()); }
    std::byte* of(int rank) { return bytes_of(ranks_[static_cast<std::size_t>(rank)]); }
    std::byte* everywhere() { return bytes_of(everywhere_); }
    /// Whether nobody took the address for memory.
    bool untouched() const {
        auto const* const words = reinterpret_cast<std::uint32_t const*>(everywhere_.data());
        return std::all_of(words, words + everywhere_.size() * 4, [](std::uint32_t word) { return word == 0; });
    }

  private:
    static std::byte* bytes_of(std::vector<four_t>& memory) { return reinterpret_cast<std::byte*>(memory.data()); }
    std::vector<four_t> everywhere_;
    std::vector<std::vector<four_t>> ranks_;
};

/// What a rank's kernel adds with. Sums are of fp32 numbers, in an order that differs from address to address. Memory
/// is read and written plainly, so that a race detector sees what barriers leave out; what many add to at once, alone,
/// is atomic.
class adder_t {
  public:
    explicit adder_t(switched_t& memory) : memory_(&memory) {}

    void fence() const {}  // a host has one way to its memory
    four_t load(four_t const* at) const {
        four_t sum;
        for_ranks(at, [&](four_t const& part) { sum = sum + part; });
        return sum;
    }
    eight_bf16_t load(eight_bf16_t const* at) const {
        float sums[8] = {};
        for_ranks(at, [&](eight_bf16_t const& part) {
            bf16_t parts[8];
            std::memcpy(parts, part.pairs, sizeof parts);
            for (std::size_t i = 0; i < 8; ++i) sums[i] += static_cast<float>(parts[i]);
        });
        bf16_t rounded[8];
        for (std::size_t i = 0; i < 8; ++i) rounded[i] = bf16_t(sums[i]);
        eight_bf16_t sum;
        std::memcpy(sum.pairs, rounded, sizeof rounded);
        return sum;
    }
    template <class value_t>
    void store(value_t* at, value_t const& value) const {
        for (int rank = 0; rank < memory_->world(); ++rank) *replica(at, rank) = value;
    }
    void add(four_t* at, four_t const& value) const {
        for (int rank = 0; rank < memory_->world(); ++rank) {
            four_t& to = *replica(at, rank);
            add(to.x, value.x), add(to.y, value.y), add(to.z, value.z), add(to.w, value.w);
        }
    }

  private:
    static void add(float& to, float value) { std::atomic_ref<float>(to).fetch_add(value, std::memory_order_relaxed); }
    std::size_t offset_of(void const* at) const {
        return static_cast<std::size_t>(static_cast<std::byte const*>(at) - memory_->everywhere());
    }
    template <class value_t>
    value_t* replica(value_t const* at, int rank) const {
        return reinterpret_cast<value_t*>(memory_->of(rank) + offset_of(at));
    }
    template <class value_t, class use_t>
    void for_ranks(value_t const* at, use_t&& use) const {
        int const world = memory_->world(), first = static_cast<int>(offset_of(at) / sizeof(value_t)) % world;
        for (int k = 0; k < world; ++k) use(*replica(at, (first + k) % world));
    }

    switched_t* memory_;
};

}  // namespace software
