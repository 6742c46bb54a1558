// Sums made by a switch (domain/in_switch.hpp): the code that GPUs run, by ranks that run at the same time, a thread a
// channel each, with a switch of the host's. Sums are compared with float64 ones. Built twice, as test_domain.cpp is.
#include <cmath>
#include <limits>
#include <thread>

#include "scaling_contrasts/domain/schedule.hpp"
#include "scaling_contrasts/domain/threads.hpp"
#include "scaling_contrasts/inputs.hpp"
#include "software_switch.hpp"
#include "testing.hpp"

using namespace scaling_contrasts;
using namespace scaling_contrasts::domain;

namespace {

constexpr std::size_t most_k = 1008, capacity_k = 16;  // floats of a large buffer; fours of a slot
constexpr float guard_k = 12345;
constexpr int rounds_k = 12;  // slots, small_slots_k of them, come round

/// One of several thread blocks, of a thread each.
struct block_place_t : thread_place_t {
    int number, count;
    block_place_t(int number, int count) : number(number), count(count) {}
    int channel() const { return number; }
    int channels() const { return count; }
};

/// A kernel of some blocks, which is over when this returns.
template <class work_t>
void launch(int blocks, work_t const& work) {
    std::vector<std::jthread> threads;
    for (int block = 1; block < blocks; ++block)
        threads.emplace_back([&, block] { work(block_place_t(block, blocks)); });
    work(block_place_t(0, blocks));
}

float value(int rank, std::size_t i, int round) {
    auto const word =
        static_cast<std::uint32_t>(i * 2654435761u) + static_cast<std::uint32_t>(rank * 40503 + round * 977);
    return (static_cast<float>(mix(word) >> 8) / 8388608.0f - 1.0f) * (word & 1 ? 1.0f : 1e-3f);
}

/// Whether `got` is the sum over ranks, in float64, to what additions in fp32 in any order lose, and `rounding` of it.
bool is_sum(float got, int world, double rounding, auto const& part) {
    double sum = 0, terms = 0;
    for (int rank = 0; rank < world; ++rank) {
        double const each = static_cast<double>(part(rank));
        sum += each, terms += std::abs(each);
    }
    return std::abs(static_cast<double>(got) - sum) <= world * std::ldexp(terms, -24) + rounding * std::abs(sum);
}

/// Memory of all ranks: slots, then a large buffer with a guard behind it.
struct memory_t {
    static constexpr std::size_t slot_bytes = small_slots_k * capacity_k * sizeof(four_t), guards = 16;
    software::switched_t all;

    explicit memory_t(int world) : all(world, slot_bytes + (most_k + guards) * sizeof(float)) {}
    four_t* slots() { return reinterpret_cast<four_t*>(all.everywhere()); }
    four_t* slots_of(int rank) { return reinterpret_cast<four_t*>(all.of(rank)); }
    template <class value_t>
    value_t* data() {
        return reinterpret_cast<value_t*>(all.everywhere() + slot_bytes);
    }
    template <class value_t>
    value_t* data_of(int rank) {
        return reinterpret_cast<value_t*>(all.of(rank) + slot_bytes);
    }
};

/// Numbers of a rank, whose last 16 bytes are filled up with NaN, then the guard.
template <class number_t>
void fill(number_t* data, std::size_t count, int rank, int round) {
    std::size_t const each = 16 / sizeof(number_t), end = (count + each - 1) / each * each;
    for (std::size_t i = 0; i < end; ++i)
        data[i] = number_t(i < count ? value(rank, i, round) : std::numeric_limits<float>::quiet_NaN());
    for (std::size_t i = end; i < end + each; ++i) data[i] = number_t(guard_k);
}
template <class number_t>
bool guarded(number_t const* data, std::size_t count) {
    std::size_t const each = 16 / sizeof(number_t), end = (count + each - 1) / each * each;
    for (std::size_t i = end; i < end + each; ++i)
        if (static_cast<float>(data[i]) != static_cast<float>(number_t(guard_k))) return false;
    return true;
}

/// The first `round` and `call`: numbers that come to an end at 2^32.
void check_sums(int world, int blocks, std::uint32_t first) {
    thread_domain_t domain(world, 64, 120);
    memory_t memory(world);
    for (int rank = 0; rank < world; ++rank) {
        domain.member(rank).state->round = domain.member(rank).state->small_calls = first;
        for (int channel = 0; channel < blocks; ++channel)
            for (int peer = 0; peer < world; ++peer)
                domain.member(rank).flags[rank][channel * max_devices_k + peer] = first;
    }
    software::adder_t const adder(memory.all);
    std::vector<std::string> wrong(static_cast<std::size_t>(world));
    domain.run([&](int rank) {
        auto const& m = domain.member(rank);
        auto const hold = [&](bool right, std::string const& what) {
            if (!right) wrong[static_cast<std::size_t>(rank)] = what;
        };
        std::vector<float> own(capacity_k * 4 + 4);
        for (int round = 0; round < rounds_k; ++round) {
            // of different lengths and numbers of blocks, so that a slot's values pass from block to block
            for (std::size_t const count : {0u, 1u, 3u, 4u, 21u, 64u}) {
                fill(own.data(), count, rank, round);
                auto* const fours = reinterpret_cast<four_t*>(own.data());
                launch(count % 2 ? 1 : blocks, [&](block_place_t const& at) {
                    in_switch_small(at, adder, m, fours, memory.slots(), memory.slots_of(rank), fours, (count + 3) / 4,
                                    capacity_k);
                });
                bool right = guarded(own.data(), count);
                for (std::size_t i = 0; i < count; ++i)
                    right = right && is_sum(own[i], world, 0, [&](int from) { return value(from, i, round); });
                hold(right, "small, " + std::to_string(count) + " in round " + std::to_string(round));
            }
            for (std::size_t const count : {std::size_t(0), std::size_t(1), std::size_t(4 * world - 1), most_k - 5}) {
                auto* const data = memory.data_of<float>(rank);
                fill(data, count, rank, round);
                launch(blocks, [&](block_place_t const& at) {
                    in_switch(at, adder, m, memory.data<four_t>(), (count + 3) / 4);
                });
                bool right = guarded(data, count);
                for (std::size_t i = 0; i < count; ++i)
                    right = right && is_sum(data[i], world, 0, [&](int from) { return value(from, i, round); });
                hold(right, std::to_string(count) + " floats in round " + std::to_string(round));
            }
            for (std::size_t const count : {std::size_t(0), std::size_t(9), std::size_t(8 * world + 1), most_k}) {
                auto* const data = memory.data_of<bf16_t>(rank);
                fill(data, count, rank, round);
                launch(blocks, [&](block_place_t const& at) {
                    in_switch(at, adder, m, memory.data<eight_bf16_t>(), (count + 7) / 8);
                });
                bool right = guarded(data, count);
                for (std::size_t i = 0; i < count; ++i)
                    right = right && is_sum(static_cast<float>(data[i]), world, std::ldexp(1.0, -8), [&](int from) {
                                return static_cast<float>(bf16_t(value(from, i, round)));
                            });
                hold(right, std::to_string(count) + " bf16 in round " + std::to_string(round));
            }
        }
    });
    std::string const what = std::to_string(world) + " ranks of " + std::to_string(blocks) + " blocks, rank ";
    for (int rank = 0; rank < world; ++rank) {
        std::string const& mine = wrong[static_cast<std::size_t>(rank)];
        testing::expect(mine.empty(), what + std::to_string(rank) + ": " + mine);
    }
    testing::expect(memory.all.untouched(), what + "all: the switch's address is no memory");
}

/// Writes down what a lane of a block does: w, a flag written; r, a flag read; f, a fence; l, s and +, the switch.
struct noted_place_t : thread_place_t {
    int number, count;
    std::string* notes;
    int lane() const { return number; }
    int lanes() const { return count; }
    std::uint32_t load_acquire(std::uint32_t const* p) const { return *notes += 'r', *p; }
    void store_release(std::uint32_t* p, std::uint32_t v) const { *notes += 'w', *p = v; }
};
struct noted_switch_t : software::adder_t {
    std::string* notes;
    four_t load(four_t const* at) const { return *notes += 'l', adder_t::load(at); }
    void store(four_t* at, four_t const& value) const { *notes += 's', adder_t::store(at, value); }
    void add(four_t* at, four_t const& value) const { *notes += '+', adder_t::add(at, value); }
    void fence() const { *notes += 'f'; }
};

/// The switch's address and a rank's own: every barrier has a fence between them, in every lane that writes a flag,
/// behind what the switch did and before the flag. The peers have written their flags already.
void check_fences() {
    constexpr int world = 3, rank = 1;
    for (int const lanes : {1, 2, 5})
        for (int lane = 0; lane < lanes; ++lane) {
            thread_domain_t domain(world, 64, 120);
            memory_t memory(world);
            auto const& m = domain.member(rank);
            for (int peer = 0; peer < world; ++peer) m.flags[rank][peer] = 1000;
            std::string notes;
            noted_place_t const at = {{}, lane, lanes, &notes};
            noted_switch_t const adder = {software::adder_t(memory.all), &notes};
            std::size_t const flags = lane < world ? std::size_t((world - 1 - lane) / lanes + 1) : 0;
            std::string const meeting = flags ? 'f' + std::string(flags, 'w') + std::string(flags, 'r') : "";
            auto const is = [&](std::string const& want, char const* what) {
                testing::expect(notes == want, std::string(what) + ", lane " + std::to_string(lane) + " of " +
                                                   std::to_string(lanes) + ": " + notes + " for " + want);
                notes.clear();
            };
            in_switch(at, adder, m, memory.data<four_t>(), std::size_t(lanes * world));
            is(meeting + "ls" + meeting, "in_switch");
            std::vector<four_t> own(static_cast<std::size_t>(lanes));
            in_switch_small(at, adder, m, own.data(), memory.slots(), memory.slots_of(rank), own.data(), own.size(),
                            capacity_k);
            is('+' + meeting, "in_switch_small");
            one_shot(at, m, own.data(), own.data(), 0);
            is(flags ? meeting.substr(1) : "", "one_shot: one address, no fence");
        }
}

/// What `auto` takes: the numbers are DESIGN's and the log's, not the code's.
void check_choice() {
    using enum schedule_t;
    constexpr std::size_t inbox = 1 << 20;
    auto const is = [](schedule_t want, std::size_t bytes, int world, std::size_t inbox, bool multicast) {
        schedule_t const found = schedule_for(bytes, world, inbox, multicast);
        testing::expect(found == want, std::to_string(bytes) + " bytes over " + std::to_string(world) + " ranks, " +
                                           (multicast ? "multicast: " : "peer: ") + name_of(found));
    };
    for (int const world : {2, 8}) {
        is(in_switch_small_k, 16, world, inbox, true);
        is(in_switch_small_k, 4096, world, inbox, true);
        is(one_shot_k, 16, world, inbox, false);
        is(one_shot_k, 4096, world, inbox, false);
        is(one_shot_k, 4112, world, inbox, true);
        is(in_switch_k, std::size_t(1) << 30, world, inbox, true);
        is(two_shot_k, std::size_t(1) << 30, world, inbox, false);
    }
    is(one_shot_k, 1 << 20, 2, inbox, false);     // 8.63 us, two_shot 9.56
    is(two_shot_k, 4 << 20, 2, 16 << 20, false);  // 22.4 us, two_shot 19.3
    is(two_shot_k, 8192, 2, 4096, false);         // what no inbox holds
}

}  // namespace

int main() {
    check_choice();
    check_fences();
    for (int const world : {1, 2, 3, 5, 8}) {
        check_sums(world, 1, 0);
        check_sums(world, 3, 0);
        check_sums(world, 2, 0xfffffff0u);
    }
    return testing::report();
}
