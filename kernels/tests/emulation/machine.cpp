#include "machine.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "launch.hpp"
#include "memory.hpp"

namespace emulation {
namespace {

/// Operations on their way that take effect in order.
struct chain_t {
    block_t* block;
    void const* key;
    std::deque<std::function<void()>> effects;
};

struct machine_t {
    fiber_t host;
    thread_t* running = nullptr;
    std::function<void()> const* kernel = nullptr;
    std::deque<thread_t*> ready;
    std::vector<thread_t*> waiting;
    std::vector<chain_t> on_their_way;
    std::vector<void*> stacks;  ///< free ones
    std::string failure;
    std::mt19937 random;
};
machine_t machine;

bool shuffled() { return options().timing == timing_t::shuffled_k; }
std::size_t chosen(std::size_t count) { return machine.random() % count; }

void leave() {
    thread_t& thread = *machine.running;
    machine.host.switch_from(thread.fiber);
}

void enter(void* argument) {
    auto& thread = *static_cast<thread_t*>(argument);
    (*machine.kernel)();
    thread.finished = true;
    leave();
}

void run_thread(thread_t& thread) {
    machine.running = &thread;
    block_t const& block = *thread.block;
    threadIdx = thread.place, blockIdx = block.place;
    thread.fiber.switch_from(machine.host);
    machine.running = nullptr;
    if (!machine.failure.empty()) throw failure_t(machine.failure);
}

void take_effect(std::size_t number) {
    auto& chains = machine.on_their_way;
    auto const effect = std::move(chains[number].effects.front());
    chains[number].effects.pop_front();
    if (chains[number].effects.empty()) {
        std::swap(chains[number], chains.back());  // late timing takes the last one anyway
        chains.pop_back();
    }
    effect();
}

bool look_at_waiting() {
    std::size_t const before = machine.waiting.size();
    std::erase_if(machine.waiting, [](thread_t* thread) {
        if (!thread->goes_on()) return false;
        machine.ready.push_back(thread);
        return true;
    });
    return machine.waiting.size() != before;
}

/// What every thread that is not finished waits for, lanes of a warp that wait alike on one line.
std::string report_of(std::vector<block_t*> const& blocks) {
    std::string report = "deadlock: no thread can go on";
    for (block_t* block : blocks)
        for (auto const& warp : block->warps) {
            std::map<std::string, std::vector<int>> lanes;
            for (thread_t* thread : warp->lanes)
                if (!thread->finished) lanes[thread->meets ? thread->meets : thread->what()].push_back(thread->lane);
            for (auto const& [what, which] : lanes) {
                std::string numbers;
                for (std::size_t i = 0; i < which.size(); ++i)
                    if (i == 0 || which[i] != which[i - 1] + 1)
                        numbers += (numbers.empty() ? "" : ", ") + std::to_string(which[i]);
                    else if (i + 1 == which.size() || which[i + 1] != which[i] + 1)
                        numbers += "-" + std::to_string(which[i]);
                report += "\n  " + name_of(*warp->lanes[static_cast<std::size_t>(which[0])]) + ", lanes " + numbers +
                          ": " + what;
            }
        }
    return report;
}

std::unique_ptr<block_t> make_block(launch_shape_t const& shape, unsigned number) {
    auto block = std::make_unique<block_t>();
    block->place = {number % shape.grid.x, number / shape.grid.x % shape.grid.y, number / shape.grid.x / shape.grid.y};
    block->shared_bytes = shape.shared;
    block->shared.resize((window_base_k + shape.shared) / sizeof(line_t) + 2);
    std::fill_n(reinterpret_cast<std::uint8_t*>(block->shared.data()), block->shared.size() * sizeof(line_t),
                std::uint8_t(0xff));  // NaN, until written
    unsigned const count = shape.block.x * shape.block.y * shape.block.z;
    for (unsigned i = 0; i < count; ++i) {
        auto thread = std::make_unique<thread_t>();
        thread->block = block.get();
        thread->place = {i % shape.block.x, i / shape.block.x % shape.block.y, i / shape.block.x / shape.block.y};
        thread->lane = static_cast<int>(i % 32);
        if (i % 32 == 0) {
            block->warps.push_back(std::make_unique<warp_t>());
            block->warps.back()->block = block.get();
            block->warps.back()->index = static_cast<int>(i / 32);
        }
        thread->warp = block->warps.back().get();
        thread->warp->lanes.push_back(thread.get());
        if (machine.stacks.empty()) {
            void* stack = mmap(nullptr, stack_bytes_k, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED) throw failure_t("no memory for the stacks of threads");
            machine.stacks.push_back(stack);
        }
        thread->stack = machine.stacks.back();
        machine.stacks.pop_back();
        thread->fiber.prepare(thread->stack, enter, thread.get());
        machine.ready.push_back(thread.get());
        block->threads.push_back(std::move(thread));
    }
    return block;
}

void check_end(block_t const& block) {
    for (auto const& chain : machine.on_their_way)
        if (chain.block == &block)
            throw failure_t(name_of(*block.threads[0]) +
                            ": the block ended while copies or products were on their way");
    if (block.tensor_columns)
        throw failure_t(name_of(*block.threads[0]) + ": the block ended with columns of tensor memory allocated");
    auto const* bytes = reinterpret_cast<std::uint8_t const*>(block.shared.data());
    for (std::size_t i = 0; i < block.shared.size() * sizeof(line_t); ++i)
        if ((i < window_base_k || i >= window_base_k + block.shared_bytes) && bytes[i] != 0xff)
            throw failure_t(name_of(*block.threads[0]) +
                            ": something was written beside the block's shared memory, at address " +
                            std::to_string(i));
}

}  // namespace

options_t& options() {
    static options_t all;
    return all;
}

thread_t& self() {
    if (!machine.running) throw failure_t("device code was called outside of a kernel");
    return *machine.running;
}

void fail(std::string const& why) {
    if (!machine.running) throw failure_t(why);
    machine.failure = name_of(*machine.running) + ", lane " + std::to_string(machine.running->lane) + ": " + why;
    leave();
    std::abort();  // a thread that failed is never run again
}

std::string name_of(thread_t const& thread) {
    auto const& place = thread.block->place;
    return "block (" + std::to_string(place.x) + ", " + std::to_string(place.y) + ", " + std::to_string(place.z) +
           ") warp " + std::to_string(thread.warp->index);
}

void wait_until(std::function<bool()> goes_on, std::function<std::string()> what) {
    if (goes_on()) return perhaps_yield();
    thread_t& thread = self();
    thread.goes_on = std::move(goes_on), thread.what = std::move(what);
    machine.waiting.push_back(&thread);
    leave();
    thread.goes_on = {}, thread.what = {};
}

void park(char const* what) {
    self().meets = what;
    leave();
}

void wake(thread_t& thread) {
    thread.meets = nullptr;
    machine.ready.push_back(&thread);
}

void perhaps_yield() {
    if (!shuffled() || chosen(4)) return;
    machine.ready.push_back(&self());
    leave();
}

void start(void const* chain, std::initializer_list<std::function<void()>> effects) {
    if (options().timing == timing_t::eager_k) {
        for (auto const& effect : effects) effect();
        return;
    }
    auto& chains = machine.on_their_way;
    auto found = chains.rbegin();
    if (chain) found = std::find_if(found, chains.rend(), [chain](chain_t const& one) { return one.key == chain; });
    if (!chain || found == chains.rend()) chains.push_back({self().block, chain, {}}), found = chains.rbegin();
    found->effects.insert(found->effects.end(), effects);
}

bool come(std::uint32_t mask, char const* what, void* brought) {
    thread_t& thread = self();
    meeting_t& meeting = thread.warp->meeting;
    if (thread.warp->lanes.size() < 32) mask &= (1u << thread.warp->lanes.size()) - 1;
    if (!(mask >> thread.lane & 1)) fail(std::string(what) + ": the lane is not in its own mask");
    if (!meeting.arrived) meeting.what = what, meeting.mask = mask, std::fill_n(meeting.brought, 32, nullptr);
    if (meeting.what != what && std::strcmp(meeting.what, what) != 0)
        fail(std::string("lanes of a warp meet in ") + meeting.what + " and in " + what);
    if (meeting.mask != mask) fail(std::string(what) + ": lanes of a warp give different masks");
    meeting.brought[thread.lane] = brought;
    meeting.arrived |= 1u << thread.lane;
    if (meeting.arrived == mask) return true;
    park(what);
    return false;
}

void* const* brought() { return self().warp->meeting.brought; }

void end_meeting() {
    thread_t& thread = self();
    meeting_t& meeting = thread.warp->meeting;
    meeting.arrived = 0;
    for (thread_t* other : thread.warp->lanes)
        if ((meeting.mask >> other->lane & 1) && other != &thread) wake(*other);
}

void run_grid(launch_shape_t const& shape, std::function<void()> const& kernel) {
    if (machine.kernel) throw failure_t("a launch within a launch");
    if (shape.shared > 227 * 1024)
        throw failure_t("a launch asks for " + std::to_string(shape.shared) +
                        " bytes of shared memory; a block can have 232448");
    if (shape.block.x * shape.block.y * shape.block.z > 1024)
        throw failure_t("a launch of more than 1024 threads a block");
    if (!shape.grid.x || !shape.grid.y || !shape.grid.z || shape.grid.y > 65535 || shape.grid.z > 65535)
        throw failure_t("a launch of no blocks, or of more than 65535 along y or z");
    unsigned const total = shape.grid.x * shape.grid.y * shape.grid.z;
    unsigned const per_cluster = shape.cluster.x * shape.cluster.y * shape.cluster.z;
    // variables declared __shared__ are static, so that blocks that have them run one after the other
    std::size_t const resident =
        shape.shared ? std::max(1u, unsigned(options().multiprocessors * options().resident)) : 1;
    gridDim = shape.grid, blockDim = shape.block;
    machine.kernel = &kernel;
    machine.random.seed(options().seed);
    std::vector<std::unique_ptr<tensor_memory_t>> tensors;
    for (int i = 0; i < options().multiprocessors; ++i) tensors.push_back(std::make_unique<tensor_memory_t>());
    std::vector<std::unique_ptr<block_t>> blocks;
    std::vector<std::unique_ptr<cluster_t>> clusters;
    auto clean_up = [&] {
        for (auto const& block : blocks)
            for (auto const& thread : block->threads) machine.stacks.push_back(thread->stack);
        blocks.clear();
        machine.ready.clear(), machine.waiting.clear(), machine.on_their_way.clear(), machine.failure.clear();
        machine.running = nullptr, machine.kernel = nullptr;
    };
    try {
        for (unsigned next = 0; next < total || !blocks.empty();) {
            while (next < total &&
                   (blocks.empty() || blocks.size() + per_cluster <= std::max<std::size_t>(resident, per_cluster))) {
                clusters.push_back(std::make_unique<cluster_t>());
                for (unsigned i = 0; i < per_cluster; ++i) {
                    blocks.push_back(make_block(shape, next++));
                    blocks.back()->cluster = clusters.back().get(), blocks.back()->rank = static_cast<int>(i);
                    clusters.back()->blocks.push_back(blocks.back().get());
                    auto const emptiest =
                        std::min_element(tensors.begin(), tensors.end(),
                                         [](auto const& a, auto const& b) { return a->blocks < b->blocks; });
                    blocks.back()->tensor = emptiest->get();
                    ++(*emptiest)->blocks;
                }
            }
            if (!machine.ready.empty()) {
                if (shuffled() && chosen(8) == 0) {
                    look_at_waiting();
                    if (auto const many = machine.on_their_way.size()) take_effect(chosen(many));
                }
                std::size_t const which = shuffled() ? chosen(machine.ready.size()) : 0;
                std::swap(machine.ready[0], machine.ready[which]);
                thread_t& thread = *machine.ready.front();
                machine.ready.pop_front();
                run_thread(thread);
                if (thread.finished && ++thread.block->finished == static_cast<int>(thread.block->threads.size())) {
                    cluster_t const& cluster = *thread.block->cluster;
                    if (std::all_of(cluster.blocks.begin(), cluster.blocks.end(),
                                    [](block_t* b) { return b->finished == static_cast<int>(b->threads.size()); }))
                        std::erase_if(blocks, [&](auto const& block) {
                            if (block->cluster != &cluster) return false;
                            check_end(*block);
                            --block->tensor->blocks;
                            for (auto const& each : block->threads) machine.stacks.push_back(each->stack);
                            return true;
                        });
                }
            } else if (!look_at_waiting()) {
                std::size_t const many = machine.on_their_way.size();
                if (!many) {
                    std::vector<block_t*> stuck;
                    for (auto const& block : blocks) stuck.push_back(block.get());
                    throw failure_t(report_of(stuck));
                }
                take_effect(shuffled() ? chosen(many) : many - 1);
            }
        }
    } catch (...) {
        clean_up();
        throw;
    }
    clean_up();
}

}  // namespace emulation
