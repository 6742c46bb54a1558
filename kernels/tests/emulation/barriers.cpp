// mbarriers, named barriers, clusters and fences. A fence has nothing to order here: what a thread has written is seen
// by all, and operations on their way take effect when the timing says so.
#include "device.hpp"
#include "frame.hpp"

namespace emulation {
namespace {

void wait_phase(frame_t& f) {
    std::uint32_t const address = f.u32(1);
    std::uint64_t const parity = f.u64(2);
    mbarrier_t const& barrier = mbarrier_at(address);
    wait_until([&barrier, parity] { return (barrier.phase & 1) != parity; },
               [&barrier, address, parity] {
                   return "the end of a phase of parity " + std::to_string(parity) + " of the " +
                          name_of(address, barrier);
               });
    self().tensor_ordered = false;
    f.set(0, std::uint64_t(1));
}
void test_phase(frame_t& f) {
    mbarrier_t const& barrier = mbarrier_at(f.u32(1));
    perhaps_yield();
    bool const over = (barrier.phase & 1) != f.u64(2);
    if (over) self().tensor_ordered = false;
    f.set(0, std::uint64_t(over));
}

void block_barrier_by(int id, int threads, char const* what) {
    if (id < 0 || id > 15) fail("named barrier " + std::to_string(id) + " does not exist");
    if (threads % 32) fail("a named barrier of " + std::to_string(threads) + " threads: no multiple of a warp");
    block_t& block = *self().block;
    named_barrier_t& barrier = block.barriers[id];
    auto const expected = [&block, threads] {  // threads that have ended do not come
        return threads ? threads : static_cast<int>(block.threads.size()) - block.finished;
    };
    if (barrier.arrived && barrier.expected != threads)
        fail("named barrier " + std::to_string(id) + " is used by " + std::to_string(barrier.expected) + " and by " +
             std::to_string(threads) + " threads");
    barrier.expected = threads;
    ++barrier.arrived;
    std::uint64_t const generation = barrier.generation;
    auto over = [&barrier, generation, expected] {
        if (barrier.generation != generation) return true;
        if (barrier.arrived < expected()) return false;
        barrier.arrived = 0, ++barrier.generation;
        return true;
    };
    wait_until(over, [&barrier, id, expected, what] {
        return std::string(what) + " " + std::to_string(id) + ": " + std::to_string(barrier.arrived) + " of " +
               std::to_string(expected()) + " threads are there";
    });
    self().tensor_ordered = false;
}

void nothing(frame_t&) {}

/// Every thread of every block arrives once, then waits; a phase ends when all have arrived.
void arrive_at_cluster() {
    thread_t& thread = self();
    cluster_t& cluster = *thread.block->cluster;
    if (thread.cluster_arrived) fail("barrier.cluster.arrive twice without a wait");
    thread.cluster_arrived = true, thread.cluster_generation = cluster.generation;
    std::size_t const all = cluster.blocks.size() * thread.block->threads.size();
    if (++cluster.arrived == static_cast<int>(all)) cluster.arrived = 0, ++cluster.generation;
}
void wait_for_cluster() {
    thread_t& thread = self();
    cluster_t& cluster = *thread.block->cluster;
    if (!thread.cluster_arrived) fail("barrier.cluster.wait without an arrive");
    wait_until([&cluster, mine = thread.cluster_generation] { return cluster.generation != mine; },
               [&cluster] { return "barrier.cluster: " + std::to_string(cluster.arrived) + " threads are there"; });
    thread.cluster_arrived = false;
    thread.tensor_ordered = false;
}

}  // namespace

void block_barrier(int id, int threads) { block_barrier_by(id, threads, threads ? "bar.sync" : "__syncthreads"); }

int block_barrier_or(int predicate) {
    static std::map<block_t*, int> any;  // blocks whose threads are all between these two barriers
    block_barrier(0, 0);
    any[self().block] |= predicate != 0;
    block_barrier(0, 0);
    int const result = any[self().block];
    block_barrier(0, 0);
    any.erase(self().block);
    return result;
}

void add_barriers(table_t& table) {
    for (std::string const space : {"shared", "shared::cta"}) {
        table["mbarrier.init." + space + ".b64"] = [](frame_t& f) { init_mbarrier(f.u32(0), f.u32(1)); };
        table["mbarrier.inval." + space + ".b64"] = [](frame_t& f) { invalidate_mbarrier(f.u32(0)); };
        for (std::string const order : {"", ".release.cta", ".release.cluster"}) {
            table["mbarrier.arrive" + order + "." + space + ".b64"] = [](frame_t& f) {
                perhaps_yield();
                arrive(mbarrier_at(f.u32(1)), f.count() > 2 ? f.u32(2) : 1, 0);
            };
            table["mbarrier.arrive.expect_tx" + order + "." + space + ".b64"] = [](frame_t& f) {
                perhaps_yield();
                arrive(mbarrier_at(f.u32(1)), 1, f.u32(2));
            };
        }
        table["mbarrier.expect_tx.relaxed.cta." + space + ".b64"] = [](frame_t& f) {
            arrive(mbarrier_at(f.u32(0)), 0, f.u32(1));
        };
        for (std::string const order : {"", ".acquire.cta", ".acquire.cluster"}) {
            table["mbarrier.try_wait.parity" + order + "." + space + ".b64"] = wait_phase;
            table["mbarrier.test_wait.parity" + order + "." + space + ".b64"] = test_phase;
        }
    }
    // of another block of the cluster
    for (std::string const order : {"", ".release.cluster"})
        table["mbarrier.arrive" + order + ".shared::cluster.b64"] = [](frame_t& f) {
            perhaps_yield();
            arrive(mbarrier_at(f.u32(1)), f.count() > 2 ? f.u32(2) : 1, 0);
        };
    table["mapa.shared::cluster.u32"] = [](frame_t& f) {
        if (f.u32(2) >= self().block->cluster->blocks.size()) fail("mapa: no such block in the cluster");
        f.set(0, std::uint64_t(cluster_address(f.u32(1), static_cast<int>(f.u32(2)))));
    };
    for (std::string const order : {"", ".release", ".relaxed"})
        for (std::string const aligned : {"", ".aligned"})
            table["barrier.cluster.arrive" + order + aligned] = [](frame_t&) { arrive_at_cluster(); };
    for (std::string const order : {"", ".acquire"})
        for (std::string const aligned : {"", ".aligned"})
            table["barrier.cluster.wait" + order + aligned] = [](frame_t&) { wait_for_cluster(); };
    for (char const* name : {"bar.sync", "barrier.sync", "barrier.cta.sync", "barrier.sync.aligned"})
        table[name] = [](frame_t& f) {
            block_barrier(static_cast<int>(f.u32(0)), f.count() > 1 ? static_cast<int>(f.u32(1)) : 0);
        };
    for (char const* name : {"fence.mbarrier_init.release.cluster", "fence.proxy.async",
                             "fence.proxy.async.shared::cta", "fence.proxy.async.global", "fence.acq_rel.gpu",
                             "fence.acq_rel.cta", "fence.acq_rel.cluster", "fence.acq_rel.sys", "fence.sc.gpu"})
        table[name] = nothing;
}

}  // namespace emulation
