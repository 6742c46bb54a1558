// What the worker protocol needs of a device: one class per kind, made by one factory per kind.
// The protocol (protocol.cpp) owns actions, events, clocks and files; a backend owns inputs, steps and memory.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cache_flush.hpp"
#include "scaling_contrasts/rails/options.hpp"
#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::rails {
class mesh_t;
}

namespace scaling_contrasts::bench {

/// How to run a problem, beside the problem itself.
struct run_options_t {
    int threads = 1;                             ///< CPU threads of all virtual devices together
    std::string engine = "auto";                 ///< `cpu-avx2`, `sm90`, ...; auto: the best one usable here
    std::string fabric = "auto";                 ///< auto, multicast, peer: how sums over GPUs are made
    std::map<std::string, std::string> options;  ///< the variant's own settings, `--options key=value,...`
    rails::options_t rails;
    rails::mesh_t* mesh = nullptr;  ///< to the other boxes; null: there is one
    int boxes = 1, box = 0;

    std::string option(char const* name, char const* otherwise) const {
        auto const found = options.find(name);
        return found == options.end() ? otherwise : found->second;
    }
};

/// What the rails of a backend have carried since it was built.
struct rails_report_t {
    std::string transport;
    std::uint64_t steps = 0, bytes_sent = 0, bytes_received = 0;
    std::uint64_t embedding_bytes = 0;  ///< of a step, to one counterpart
};

template <class boxes_step_t>
rails_report_t report_of(boxes_step_t const& step) {
    auto const traffic = step.rails().traffic();
    return {step.rails().transport(), step.steps(), traffic.bytes_sent, traffic.bytes_received, step.embedding_bytes()};
}

/// Figures of the `memory` event, per device; empty where they cannot be known.
struct memory_t {
    std::optional<std::int64_t>
        allocated_peak_bytes;  ///< everything allocated by us since memory_reset(), inputs included
    std::optional<std::int64_t> input_bytes;
    std::optional<std::int64_t> gradient_bytes;
    std::optional<std::int64_t> device_used_bytes;  ///< what the system reports, minus the empty process or context
};

/// One problem on the devices of one kind, driven by one host thread: this box's share of `problem.world_size`.
/// Every member may throw failure_t (with its status), std::bad_alloc counts as out_of_memory.
class backend_t {
  public:
    virtual ~backend_t() = default;

    /// Creates the synthetic inputs (inputs.hpp), the parameters t and b and all workspaces. Called once.
    virtual void build() = 0;
    /// Forward and backward to all outputs. May return before the devices are done.
    virtual void step() = 0;
    /// Seconds of each stage of a step, in order, on average over `steps` steps that are not replayed from a graph;
    /// empty where a step has no stages.
    using stage_seconds_t = std::pair<std::string, double>;
    virtual std::vector<stage_seconds_t> stages([[maybe_unused]] int steps) { return {}; }
    /// Returns when the devices are done.
    virtual void synchronize() = 0;
    /// Results of the last step, of the global mean loss; synchronizes first.
    virtual scalars_t scalars() = 0;
    /// Writes the gradients of the given global rows (device r's row i is r * rows + i, dead rows included; of this
    /// box's devices alone) of set 0 or 1 as floats, `out[rows.size()][dims]`; synchronizes first.
    virtual void gradient_rows(int set, std::span<std::int64_t const> rows, float* out) = 0;
    /// Forgets the peaks measured so far.
    virtual void memory_reset() = 0;
    virtual memory_t memory() = 0;
    /// Empties the devices' caches, and returns when that is done; the buffers for it count in no figure.
    virtual void flush_caches() { flush_(); }
    /// What a backend knows of the steps since watch(), by name: `..._seconds` per step, other numbers. Empty: nothing.
    /// May leave other numbers in the buffers that steps work on.
    virtual std::map<std::string, double> figures() { return {}; }
    virtual void watch() {}
    /// The engine that runs, such as `cpu-avx512bf16` or `sm90`.
    virtual std::string engine() const = 0;
    /// What a record should say of how the problem was cut here; empty: nothing.
    virtual std::string note() const { return ""; }
    /// Empty where there is one box.
    virtual std::optional<rails_report_t> rails() const { return {}; }

  private:
    cache_flush_t flush_;
};

/// One kind of device: what is built in, what is usable here, and how to make a backend.
struct backend_factory_t {
    std::string device;                           ///< `cpu` or `cuda`: the value of --device
    std::vector<std::string> engines_built;       ///< empty: this binary was built without the device
    std::vector<std::string> engines_usable;      ///< on this machine
    std::vector<std::string> device_names;        ///< one per device present
    std::vector<std::string> bus_ids;             ///< PCI addresses of GPUs, one per device present
    std::map<std::string, std::string> versions;  ///< driver, runtime, compiler
    /// Why the problem cannot run here, as one clause; empty: it can.
    std::string (*unsupported)(problem_t const&, run_options_t const&) = nullptr;
    std::unique_ptr<backend_t> (*make)(problem_t const&, run_options_t const&) = nullptr;
};

/// An all-reduce in the place of a loss (--loss one_set_all_reduce): each device's `rows` x `dims` floats become the
/// sums over devices. Defined beside cuda_factory().
backend_factory_t const& collectives_factory();
backend_factory_t const& cpu_factory();
/// Defined by cuda_backend.cu when CMake found a CUDA compiler, else by cuda_missing.cpp.
backend_factory_t const& cuda_factory();

}  // namespace scaling_contrasts::bench
