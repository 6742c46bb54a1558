// The emulated GPU as its instructions see it: threads in warps in warpgroups in blocks, what each waits for, and
// memory. All CUDA threads run on one OS thread, one at a time; a thread runs until it has to wait, then another is
// chosen.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fiber.hpp"
#include "shapes.hpp"

namespace emulation {

/// What the emulator found wrong: an instruction it refuses, a broken rule of the programming model, a deadlock.
struct failure_t : std::runtime_error {
    using std::runtime_error::runtime_error;
};

/// When asynchronous operations (bulk and tensor copies, cp.async, wgmma, tcgen05) take effect.
enum class timing_t {
    eager_k,    ///< as soon as they are issued
    late_k,     ///< when no thread can go on without them, the newest first; what they write is NaN until then
    shuffled_k  ///< at random moments, threads in random order; NaN until then
};

/// The GPU that is asked for, and how it behaves. Set by tests before a launch.
struct options_t {
    timing_t timing = timing_t::late_k;
    std::uint32_t seed = 1;   ///< of shuffled_k
    int multiprocessors = 1;  ///< of the device, as the runtime tells
    int major = 9;            ///< compute capability, likewise
    int resident = 2;         ///< blocks of one launch that run at a time on a multiprocessor
};
options_t& options();

struct warp_t;
struct block_t;

/// Operations of one commit group that have not read, and not written, all they must.
struct group_t {
    int unread = 0, unwritten = 0;
    std::vector<std::function<void()>> at_wait;  ///< what the wait itself does

    bool done() const { return !unread && !unwritten && at_wait.empty(); }
};

struct thread_t {
    fiber_t fiber;
    block_t* block = nullptr;
    warp_t* warp = nullptr;
    int lane = 0;
    uint3 place = {};
    void* stack = nullptr;
    bool finished = false;
    char const* meets = nullptr;        ///< the collective that it waits in
    std::function<bool()> goes_on;      ///< or what must become true
    std::function<std::string()> what;  ///< its name, for the report of a deadlock
    // what single instructions remember
    void const* polled = nullptr;  ///< by an acquiring load: the address, and what was there
    std::uint64_t polled_value = 0;
    int polls = 0;
    std::deque<std::shared_ptr<group_t>> copies, bulks;  ///< groups of cp.async and bulk stores, the open one last
    bool cluster_arrived = false;
    std::uint64_t cluster_generation = 0;
    bool tensor_ordered = true;                       ///< tcgen05.fence::after_thread_sync since the last barrier
    std::vector<std::function<void()>> tensor_loads;  ///< tcgen05.ld on their way
};

/// Lanes of a warp that have come to a collective instruction, and what each brought.
struct meeting_t {
    char const* what = nullptr;
    std::uint32_t mask = 0, arrived = 0;
    void* brought[32];
};

struct warp_t {
    block_t* block = nullptr;
    int index = 0;
    std::vector<thread_t*> lanes;
    meeting_t meeting;
    int registers = 0;  ///< a thread, as setmaxnreg left them; 0: as launched
};

struct mbarrier_t {
    std::int64_t count = 0, pending = 0, bytes = 0;
    std::uint64_t phase = 0;
};

/// bar.sync: threads that wait, and how many must come.
struct named_barrier_t {
    int arrived = 0, expected = 0;
    std::uint64_t generation = 0;
};

struct alignas(1024) line_t {
    std::uint8_t bytes[1024];
};
struct warpgroup_t;
struct cluster_t;

/// Of one multiprocessor: blocks that run on it share the columns.
struct tensor_memory_t {
    std::uint32_t cell[128][512];
    block_t* owner[512] = {};
    int blocks = 0;
};

struct block_t {
    uint3 place = {};
    std::vector<std::unique_ptr<thread_t>> threads;
    std::vector<std::unique_ptr<warp_t>> warps;
    std::vector<std::shared_ptr<warpgroup_t>> warpgroups;
    std::vector<line_t> shared;  ///< the whole window, from address 0 on
    std::size_t shared_bytes = 0;
    std::map<std::uint32_t, mbarrier_t> mbarriers;
    named_barrier_t barriers[16];
    cluster_t* cluster = nullptr;
    int rank = 0;  ///< in the cluster
    int finished = 0;
    tensor_memory_t* tensor = nullptr;
    int tensor_columns = 0;  ///< allocated
    int tensor_least = 512;  ///< of the allocations so far: later ones must not be larger
    bool tensor_relinquished = false;
};

struct cluster_t {
    std::vector<block_t*> blocks;
    int arrived = 0;
    std::uint64_t generation = 0;
};

/// The thread that runs. Outside of kernels there is none: fails.
thread_t& self();
/// Ends the launch; run from a thread or from an operation on its way.
[[noreturn]] void fail(std::string const& why);
/// Where a thread is, in words.
std::string name_of(thread_t const& thread);

/// Lets others run until `goes_on` holds; `what` names the wait in the report of a deadlock.
void wait_until(std::function<bool()> goes_on, std::function<std::string()> what);
/// Lets others run until wake().
void park(char const* what);
void wake(thread_t& thread);
/// With random timing: perhaps lets others run.
void perhaps_yield();

/// Operations on their way in the running thread's block, which take effect in order: those here, and others of the
/// same chain. Those of several chains, or of none, in any order.
void start(void const* chain, std::initializer_list<std::function<void()>> effects);
inline void start(void const* chain, std::function<void()> effect) { start(chain, {std::move(effect)}); }
/// Whether what operations on their way will write shall be NaN meanwhile.
inline bool poisons() { return options().timing != timing_t::eager_k; }

/// Lanes of the mask come with what they bring. True in the last one, which then works on what `brought` tells, and
/// ends the meeting.
bool come(std::uint32_t mask, char const* what, void* brought);
void* const* brought();
void end_meeting();

/// Lanes of the mask meet; the last one runs `work` on what they brought, [lane] of which others are null.
template <class work_t>
void meet(std::uint32_t mask, char const* what, void* mine, work_t const& work) {
    if (!come(mask, what, mine)) return;
    work(brought());
    end_meeting();
}

}  // namespace emulation
