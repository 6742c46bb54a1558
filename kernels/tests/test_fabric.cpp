// `--fabric auto` reaches cuMulticastCreate only where it may; where the driver refuses, there or later, it is one line,
// what was made is given back, and `auto` goes on with peer pointers. No GPU, no driver: planted_driver.cuh.
#include <map>

#include "planted_driver.cuh"
#include "scaling_contrasts/domain/symmetric.cuh"
#include "testing.hpp"

using namespace scaling_contrasts;
using namespace scaling_contrasts::domain;

namespace {

using variables_t = std::map<std::string, std::string>;
using calls_t = std::vector<std::string>;

struct outcome_t {
    std::string fabric;   ///< "multicast" or "peer"; or the failure's one line
    std::string refusal;  ///< why not multicast
    calls_t calls;        ///< of the multicast object, up to the end of its life
    int creates = 0;      ///< calls of cuMulticastCreate
};

/// Symmetric memory that lives for a moment, by a driver in which call number `after` of `fails` fails. Nothing may be
/// left, and nothing done that a driver would refuse.
outcome_t make(fabric_t fabric, std::vector<int> const& ordinals, variables_t const& variables = {},
               std::string const& fails = "", int after = 0) {
    bool const supported = planted::state().multicast_supported;
    planted::state() = {};
    planted::state().multicast_supported = supported;
    planted::state().fails = fails, planted::state().after = after;
    auto const driver = planted::table();
    auto const variable = [&](char const* name) {
        auto const found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    };
    outcome_t out;
    try {
        symmetric_t const memory(driver, ordinals, 1 << 20, fabric, variable);
        out.fabric = memory.everywhere() ? "multicast" : "peer", out.refusal = memory.refusal();
        std::set<CUdeviceptr> wanted;
        for (int rank = 0; rank < static_cast<int>(ordinals.size()); ++rank)
            wanted.insert(reinterpret_cast<CUdeviceptr>(memory.of(rank)));
        if (memory.everywhere()) wanted.insert(reinterpret_cast<CUdeviceptr>(memory.everywhere()));
        testing::expect(planted::state().opened == wanted, "all that is handed out is mapped and open to all GPUs");
        testing::expect(memory.everywhere() || planted::state().objects.empty(),
                        "no multicast object is kept for nothing");
    } catch (failure_t const& problem) {
        out.fabric = problem.what();
    }
    std::string const what = fails + " " + std::to_string(after);
    testing::expect(planted::state().nothing_left(), what + ": everything is given back");
    testing::expect(planted::state().misuses.empty(),
                    what + ": no driver takes " +
                        (planted::state().misuses.empty() ? "" : planted::state().misuses[0]));
    out.calls = planted::state().calls, out.creates = planted::state().multicast_creates;
    return out;
}

void never(fabric_t fabric, std::vector<int> const& ordinals, variables_t const& variables, std::string const& what) {
    auto const out = make(fabric, ordinals, variables);
    testing::expect(out.fabric == "peer" && out.refusal.empty(), what + ": falls back to peer pointers");
    testing::expect(out.creates == 0, what + ": cuMulticastCreate is not reached");
}

void refused(std::vector<int> const& ordinals, std::string const& line) {
    auto const out = make(fabric_t::multicast_k, ordinals);
    testing::expect(out.fabric == line && out.creates == 0, "multicast asked for: " + line);
}

void check_where_it_may() {
    // Without a reason to keep away, auto does reach it.
    testing::expect(make(fabric_t::auto_k, {0, 1}).fabric == "multicast", "auto, two GPUs, nothing forbids");
    testing::expect(make(fabric_t::auto_k, {0, 1}, {{"NCCL_NVLS_ENABLE", "1"}}).fabric == "multicast",
                    "other values of the variables forbid nothing");
    never(fabric_t::auto_k, {0}, {}, "one GPU");
    never(fabric_t::auto_k, {0, 0, 0}, {}, "three ranks of one GPU");
    never(fabric_t::auto_k, {0, 1, 0}, {}, "three ranks of two GPUs");
    never(fabric_t::auto_k, {0, 1}, {{"NCCL_NVLS_ENABLE", "0"}}, "NCCL_NVLS_ENABLE=0");
    never(fabric_t::auto_k, {0, 1}, {{"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"}}, "TORCH_SYMM_MEM_DISABLE_MULTICAST=1");
    never(fabric_t::auto_k, {0, 1, 2}, {{"NVSHMEM_DISABLE_NVLS", "1"}}, "NVSHMEM_DISABLE_NVLS=1");
    never(fabric_t::peer_k, {0, 1}, {}, "fabric peer");
    refused({0}, "fabric multicast: there is one GPU; use --fabric peer");
    refused({0, 1, 0}, "fabric multicast: ranks share a GPU; use --fabric peer");
    planted::state().multicast_supported = false;
    never(fabric_t::auto_k, {0, 1}, {}, "GPUs without multicast");
    refused({0, 1}, "fabric multicast: GPU 0 has no multicast; use --fabric peer");
    planted::state().multicast_supported = true;
}

/// All GPUs are added before any memory is bound; what was made goes in the order that the driver asks for.
void check_order() {
    auto const out = make(fabric_t::auto_k, {0, 1, 2});
    testing::expect(out.calls == calls_t{"create", "add 0", "add 1", "add 2", "bind 0", "bind 1", "bind 2", "map",
                                         "set_access", "unmap", "unbind 0", "unbind 1", "unbind 2", "release"},
                    "a multicast object's calls, in order");
}

struct failure_case_t {
    char const *call, *line;
    int times = 1;  ///< the call that fails is each of so many
};

void check_failures() {
    for (auto const& [call, line, times] : {
             failure_case_t{"multicast_create", "creating a multicast object"},
             failure_case_t{"multicast_add_device", "adding a GPU to a multicast object", 3},
             failure_case_t{"multicast_bind", "binding memory to a multicast object", 3},
             failure_case_t{"reserve", "reserving addresses"},  // the first is the object's
             failure_case_t{"multicast_map", "mapping a multicast object"},
             failure_case_t{"multicast_set_access", "opening a multicast object"},
         })
        for (int after = 0; after < times; ++after) {
            std::string const reason = std::string(line) + ": planted failure", what = std::string(call) + " fails";
            auto const found = make(fabric_t::auto_k, {0, 1, 2}, {}, call, after);
            testing::expect(found.fabric == "peer", what + ": auto goes on with peer pointers: " + found.fabric);
            testing::expect(found.refusal == reason, what + ": and says why: " + found.refusal);
            testing::expect(make(fabric_t::multicast_k, {0, 1, 2}, {}, call, after).fabric == reason,
                            what + ": multicast asked for is one line");
        }
    // Nobody hears of what fails at the end; the rest is given back all the same.
    for (char const* call : {"multicast_unmap", "multicast_unbind"})
        testing::expect(make(fabric_t::auto_k, {0, 1, 2}, {}, call).fabric == "multicast",
                        std::string(call) + " fails at the end");
    // Memory itself, with which there is nothing to go on.
    for (auto const& [call, line, times] : {
             failure_case_t{"create", "allocating symmetric memory", 3},
             failure_case_t{"map", "mapping symmetric memory", 3},
             failure_case_t{"set_access", "opening symmetric memory to all GPUs", 3},
         })
        for (int after = 0; after < times; ++after)
            for (fabric_t const fabric : {fabric_t::auto_k, fabric_t::peer_k})
                testing::expect(make(fabric, {0, 1, 2}, {}, call, after).fabric ==
                                    std::string(line) + ": planted failure",
                                std::string(call) + " fails: one line");
}

}  // namespace

int main() {
    check_where_it_may();
    check_order();
    check_failures();
    return testing::report();
}
