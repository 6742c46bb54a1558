// The benchmark's backend for --device cuda: inputs made on the GPUs, the engine their architecture calls for, the step
// replayed as CUDA graphs. Devices are the visible GPUs in order, or virtual ones that share the first.
#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>

#include "backend.hpp"
#include "cuda_offload.cuh"
#include "cuda_sm80.cuh"
#include "scaling_contrasts/box/boxes.cuh"
#include "scaling_contrasts/box/peers.cuh"
#include "scaling_contrasts/gpu/inputs.cuh"
#include "scaling_contrasts/rails/step.hpp"

namespace scaling_contrasts::bench {
namespace {

constexpr char const* option_names_k[] = {
    "graph",      "superblock", "virtual_devices", "meeting", "deadline_ms", "offload", "device_memory_mib",
    "block_rows", "row_blocks", "several_boxes",   "fp16",    "two_set"};

bool flag(run_options_t const& options, char const* name, bool otherwise) {
    return options.option(name, otherwise ? "true" : "false") == "true";
}

/// Empty: the engine's choice.
std::optional<bool> fp16_of(run_options_t const& options) {
    auto const given = options.option("fp16", "auto");
    return given == "auto" ? std::nullopt : std::optional(given == "true");
}

/// Of the current device.
std::int64_t free_bytes() {
    std::size_t free = 0, total = 0;
    gpu::check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return static_cast<std::int64_t>(free);
}

domain::fabric_t fabric_of(std::string const& name) {
    return name == "peer"        ? domain::fabric_t::peer_k
           : name == "multicast" ? domain::fabric_t::multicast_k
                                 : domain::fabric_t::auto_k;
}

/// What is known of device 0 without creating a context; `problem` says why there is none to use.
struct device_t {
    std::string problem;
    int capability = 0;  ///< 90 for 9.0
    int count = 0;       ///< devices like it
};

device_t const& device() {
    static device_t const found = [] {
        device_t d;
        int count = 0;
        if (auto const error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
            cudaGetLastError();
            int driver = 0;
            cudaDriverGetVersion(&driver);
            if (error == cudaErrorInsufficientDriver && driver > 0)
                d.problem = "the driver supports CUDA " + std::to_string(driver / 1000) + "." +
                            std::to_string(driver % 1000 / 10) + ", this binary needs " +
                            std::to_string(CUDART_VERSION / 1000) + ".0 or newer; update the driver";
            else if (driver == 0) d.problem = "no CUDA driver here";
            else
                d.problem = std::string("no CUDA device here (") +
                            cudaGetErrorString(error == cudaSuccess ? cudaErrorNoDevice : error) + ")";
            return d;
        }
        int major = 0, minor = 0;
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
        d.capability = major * 10 + minor;
        d.count = count;
        if (d.capability < 80)
            d.problem = "compute capability " + std::to_string(major) + "." + std::to_string(minor) +
                        " is below 8.0, which bf16 needs";
        return d;
    }();
    return found;
}

/// The engines that run on device 0, best first.
std::vector<std::string> usable_engines() {
    if (!device().problem.empty()) return {};
    if (device().capability == 90 && sm90_built()) return {"sm90", "sm80"};
    if ((device().capability == 100 || device().capability == 103) && sm100_built()) return {"sm100", "sm80"};
    return {"sm80"};
}

/// Why an engine cannot run a problem, as one clause; empty: it can. `two_set`: the option, which sm90 heeds.
std::string unsupported_by(std::string const& engine, problem_t const& problem, std::string const& two_set = "auto") {
    return engine == "sm90"    ? sm90_unsupported(problem, two_set)
           : engine == "sm100" ? sm100_unsupported(problem)
                               : sm80::unsupported(problem);
}

/// What the sm90 engine runs only where it is asked for, being slower there: ladders of two_set_sigmoid other than the
/// article's (docs/performance_two_set.md), and one_set_info_nce of few rows (docs/one_set_info_nce.md), which has not
/// run on several GPUs yet.
bool leaves_to_sm80(problem_t const& problem) {
    return (problem.loss == loss_t::two_set_sigmoid_k && problem.prefixes.size() > 1 &&
            !sm90_two_set_ladder(problem)) ||
           (problem.loss == loss_t::one_set_info_nce_k && (problem.rows < 16384 || problem.world_size > 1));
}

/// The engine that runs a problem: the one asked for, or the best one here that can.
std::string engine_of(problem_t const& problem, run_options_t const& options) {
    if (options.engine != "auto") return options.engine;
    for (auto const& engine : usable_engines())
        if (unsupported_by(engine, problem).empty() && !(engine == "sm90" && leaves_to_sm80(problem))) return engine;
    return "sm80";
}

class cuda_backend_t final : public backend_t {
  public:
    cuda_backend_t(problem_t const& problem, run_options_t const& options)
        : problem_(problem),
          options_(options),
          own_(devices_of(options.box, options.boxes, problem.world_size)),
          ledgers_(static_cast<std::size_t>(own_.count)) {
        for (int device = 0; device < own_.count; ++device)
            ordinals_.push_back(flag(options, "virtual_devices", false) ? 0 : device);
        for (int const ordinal : gpus()) {
            gpu::use_device(ordinal);
            gpu::check(cudaFree(nullptr), "creating a context");
            baseline_free_.push_back(free_bytes());
        }
        least_free_ = baseline_free_;
        if (own_.count > 1) gpu::open_peers(gpus());
        gpu::use_device(0);
    }

    void build() override {
        int const sets = sets_of(problem_.loss);
        std::int64_t const cells = problem_.rows * problem_.dims;
        float const parameters[2] = {static_cast<float>(problem_.scale), static_cast<float>(problem_.bias)};
        int const side_limit = std::atoi(options_.option("superblock", "0").c_str());
        auto const engine = engine_of(problem_, options_);
        std::vector<gpu::box_t::device_t> devices(ledgers_.size());
        for (int lane = 0; lane < own_.count; ++lane) {
            auto const index = static_cast<std::size_t>(lane);
            int const device = own_.first + lane;
            auto& ledger = ledgers_[index];
            gpu::use_device(ordinals_[index]);
            devices[index].ordinal = ordinals_[index];
            devices[index].ledger = &ledger;
            for (int set = 0; set < sets; ++set) {
                auto& slot = slots_.emplace_back();
                slot.embeddings = gpu::buffer_t<bf16_t>(ledger, cells);
                if (sets == 1) slot.labels = gpu::buffer_t<std::int32_t>(ledger, problem_.rows);
                slot.gradient = gpu::buffer_t<std::byte>(ledger, problem_.forward_only ? 0 : cells * gradient_size());
                gpu::fill_rows(problem_, set, device * problem_.rows, problem_.rows, slot.embeddings.data(),
                               slot.labels.data(), nullptr);
                devices[index].sets.push_back({slot.embeddings.data(), slot.labels.data(), slot.gradient.data()});
            }
            parameters_.emplace_back(ledger, 2);
            out_.emplace_back(ledger, 6);
            gpu::check(cudaMemcpy(parameters_.back().data(), parameters, sizeof parameters, cudaMemcpyHostToDevice),
                       "copying scale and bias");
            devices[index].part = out_.back().data();
            devices[index].total = own_.count > 1 ? out_.back().data() + 3 : out_.back().data();
            step_inputs_t const in = {problem_,
                                      device,
                                      devices[index].sets,
                                      parameters_.back().data(),
                                      parameters_.back().data() + 1,
                                      out_.back().data(),
                                      ledger,
                                      side_limit,
                                      fp16_of(options_),
                                      {},
                                      options_.option("two_set", "auto")};
            devices[index].step = engine == "sm90"    ? make_sm90_step(in)
                                  : engine == "sm100" ? make_sm100_step(in)
                                                      : make_tiles_step<sm80::engine_t>(in);
            if (lane == 0) first_ = devices[index].step.get();
            gpu::check(cudaDeviceSynchronize(), "making inputs");
        }
        if (own_.count > 1) {
            domain::domain_settings_t settings;
            settings.fabric = fabric_of(options_.fabric);
            settings.inbox_bytes = 4096;
            if (problem_.pairs_once) settings.data_bytes = static_cast<std::size_t>(first_->partial_bytes());
            settings.deadline_seconds = std::atof(options_.option("deadline_ms", "10000").c_str()) / 1e3;
            domain_ = std::make_unique<domain::domain_t>(ordinals_, settings);
            for (auto& ledger : ledgers_) ledger.add(static_cast<std::int64_t>(domain_->bytes_per_rank()));
        }
        bool const flags = gpus().size() == ordinals_.size() && options_.option("meeting", "flags") == "flags";
        box_ = std::make_unique<gpu::box_t>(problem_, std::move(devices), domain_.get(),
                                            flags ? gpu::meeting_t::flags_k : gpu::meeting_t::events_k, own_);
        bool const fits = box_->launches() <= gpu::device_step_t::graph_limit_k;
        use_graph_ = flag(options_, "graph", true) && fits && options_.boxes == 1;
        // Loads every kernel on every GPU, before one waits for another.
        if (own_.count > 1) box_->queue_by_events();
        box_->synchronize();
        if (!options_.mesh) return;
        local_ = std::make_unique<gpu::boxes_t>(problem_, *box_, own_, ledgers_, options_.rails.gpu_memory);
        boxes_step_ = std::make_unique<rails::boxes_step_t>(*options_.mesh, options_.rails, problem_, *local_);
    }

    /// One device's first step is queued kernel by kernel, which loads them; later ones replay the graph.
    void step() override {
        if (boxes_step_) return boxes_step_->run();
        if (use_graph_ && steps_ == (problem_.world_size > 1 ? 0 : 1)) box_->capture();
        if (box_->captured()) box_->replay();
        else box_->queue();
        ++steps_;
    }
    /// Of one device: the box's stages are its engine's calls, one after the other.
    std::vector<stage_seconds_t> stages(int steps) override {
        if (problem_.world_size > 1) return {};
        auto const stream = box_->stream(0);
        gpu::candidates_t own;
        for (std::size_t set = 0; set < slots_.size(); ++set) own.embeddings[set] = slots_[set].embeddings.data();
        own.labels = slots_[0].labels.data();
        std::vector<std::pair<char const*, std::function<void()>>> work;
        auto const all = [&] { first_->begin(stream), first_->score(own, stream), first_->finish(stream); };
        if (first_->one_launch()) work.emplace_back("the one kernel", all);
        else work.emplace_back("norms", [&] { first_->begin(stream); });
        if (first_->gathers()) {
            for (int set = 0; set < 2; ++set) own.log_sums[set] = first_->log_sums(set);
            work.emplace_back("sums of the softmaxes",
                              [&] { first_->gather(own, stream), first_->close_gather(stream); });
        }
        if (!first_->one_launch()) {
            work.emplace_back("scores and gradients", [&] { first_->score(own, stream); });
            work.emplace_back("rounding and scalars", [&] { first_->finish(stream); });
        }
        std::vector<stage_seconds_t> seconds;
        for (auto const& [name, queue] : work) seconds.emplace_back(name, 0.0);
        std::vector<cudaEvent_t> events(work.size() + 1);
        for (auto& event : events) gpu::check(cudaEventCreate(&event), "creating an event");
        for (int i = 0; i < steps; ++i) {
            gpu::check(cudaEventRecord(events[0], stream), "recording an event");
            for (std::size_t k = 0; k < work.size(); ++k) {
                work[k].second();
                gpu::check(cudaEventRecord(events[k + 1], stream), "recording an event");
            }
            synchronize();
            for (std::size_t k = 0; k < work.size(); ++k) {
                float milliseconds = 0;
                gpu::check(cudaEventElapsedTime(&milliseconds, events[k], events[k + 1]), "reading an event");
                seconds[k].second += milliseconds * 1e-3 / steps;
            }
        }
        for (auto event : events) cudaEventDestroy(event);
        return seconds;
    }
    void synchronize() override {
        if (boxes_step_) over_boxes_ = boxes_step_->scalars();
        box_->synchronize();
        for (std::size_t i = 0; i < least_free_.size(); ++i) {
            if (least_free_.size() > 1) gpu::use_device(gpus()[i]);
            least_free_[i] = std::min(least_free_[i], free_bytes());
        }
        gpu::use_device(0);
    }

    /// Every device has the same sums; device 0's are returned.
    scalars_t scalars() override {
        synchronize();
        if (boxes_step_) return over_boxes_;
        double sums[3];
        gpu::check(cudaMemcpy(sums, out_[0].data() + (own_.count > 1 ? 3 : 0), sizeof sums, cudaMemcpyDeviceToHost),
                   "copying the scalars");
        return {sums[0], sums[1], sums[2]};
    }

    void gradient_rows(int set, std::span<std::int64_t const> rows, float* out) override {
        synchronize();
        auto const dims = static_cast<std::size_t>(problem_.dims), size = static_cast<std::size_t>(gradient_size());
        std::vector<std::byte> row_bytes(dims * size);
        for (std::int64_t const row : rows) {
            auto const& slot =
                slots_[static_cast<std::size_t>((row / problem_.rows - own_.first) * sets_of(problem_.loss) + set)];
            auto const* from = slot.gradient.data() + static_cast<std::size_t>(row % problem_.rows) * row_bytes.size();
            gpu::check(cudaMemcpy(row_bytes.data(), from, row_bytes.size(), cudaMemcpyDefault), "copying gradients");
            if (size == sizeof(float)) std::memcpy(out, row_bytes.data(), row_bytes.size());
            else
                for (std::size_t c = 0; c < dims; ++c)
                    out[c] = static_cast<float>(reinterpret_cast<bf16_t const*>(row_bytes.data())[c]);
            out += dims;
        }
    }

    void memory_reset() override {
        for (auto& ledger : ledgers_) ledger.reset_peak();
        least_free_ = baseline_free_;
        synchronize();
    }

    /// Of the device that holds most; `device_used` is the whole GPU's, shared equally by virtual devices.
    memory_t memory() override {
        synchronize();
        memory_t memory;
        std::int64_t peak = 0, inputs = 0, gradients = 0, used = 0;
        for (auto const& ledger : ledgers_) peak = std::max(peak, ledger.peak);
        for (auto const& slot : slots_) {
            inputs += slot.embeddings.bytes() + slot.labels.bytes();
            gradients += slot.gradient.bytes();
        }
        for (std::size_t i = 0; i < least_free_.size(); ++i) used = std::max(used, baseline_free_[i] - least_free_[i]);
        memory.allocated_peak_bytes = peak;
        memory.input_bytes = inputs / own_.count;
        memory.gradient_bytes = gradients / own_.count;
        memory.device_used_bytes = used * static_cast<std::int64_t>(gpus().size()) / own_.count;
        return memory;
    }

    void flush_caches() override {
        for (int const ordinal : gpus()) {
            gpu::use_device(ordinal);
            if (flushes_.size() < gpus().size()) {
                int size = 0;
                gpu::check(cudaDeviceGetAttribute(&size, cudaDevAttrL2CacheSize, ordinal), "asking for the L2's size");
                flushes_.emplace_back(flush_ledger_, std::int64_t{2} * size);
            }
            auto const& buffer = flushes_[flushes_.size() == 1 ? 0 : static_cast<std::size_t>(ordinal)];
            gpu::check(cudaMemset(buffer.data(), 0, static_cast<std::size_t>(buffer.bytes())), "flushing the L2");
            gpu::check(cudaDeviceSynchronize(), "flushing the L2");
        }
        gpu::use_device(0);
    }

    /// How long devices waited for one another, a step: at its start, of which the last to begin waits least, and in
    /// the sum of the scalars at its end, most of a device over devices. Nothing where they meet by events.
    std::map<std::string, double> figures() override {
        if (!domain_ || box_->meeting() != gpu::meeting_t::flags_k) return {};
        synchronize();
        auto seconds = [&](int device, domain::phase_t phase) {
            auto const state = domain_->state(device);
            auto const at = static_cast<std::size_t>(phase);
            return state.waits[at] ? 1e-9 * double(state.waited_ns[at]) / double(state.waits[at]) : 0.0;
        };
        double least = 1e30, most = 0, end = 0;
        for (int device = 0; device < own_.count; ++device) {
            double const start = seconds(device, domain::phase_t::embeddings_k);
            least = std::min(least, start), most = std::max(most, start);
            end = std::max(end, seconds(device, domain::phase_t::small_k));
        }
        return {{"start_skew_seconds", most - least}, {"start_wait_seconds", most}, {"end_wait_seconds", end}};
    }
    void watch() override {
        synchronize();
        if (domain_)
            for (int device = 0; device < own_.count; ++device) domain_->reset_waits(device);
    }

    std::string engine() const override { return engine_of(problem_, options_); }
    std::string note() const override {
        if (boxes_step_) return "several boxes of GPUs: run on one machine only; " + local_->note();
        std::string note = first_->note();
        if (problem_.pairs_once && problem_.world_size > 1)
            note = "pairs of devices scored once, engine " + engine() + (note.empty() ? "" : ", ") + note;
        return note;
    }
    std::optional<rails_report_t> rails() const override {
        if (!boxes_step_) return {};
        return report_of(*boxes_step_);
    }

  private:
    struct slot_t {
        gpu::buffer_t<bf16_t> embeddings;
        gpu::buffer_t<std::int32_t> labels;
        gpu::buffer_t<std::byte> gradient;
    };

    std::int64_t gradient_size() const { return problem_.gradient_type == gradient_type_t::float32_k ? 4 : 2; }
    /// The GPUs in use, each once.
    std::vector<int> gpus() const {
        if (ordinals_.back() == 0) return {0};
        return ordinals_;
    }

    problem_t problem_;
    run_options_t options_;
    devices_t own_;                                         // of this box; below, a device is one of these
    std::vector<int> ordinals_;                             // of each device
    std::vector<gpu::ledger_t> ledgers_;                    // before the buffers that refer to them
    std::vector<std::int64_t> baseline_free_, least_free_;  // of each GPU
    std::vector<slot_t> slots_;                             // [device][set]
    std::vector<gpu::buffer_t<float>> parameters_;          // [device]: scale, bias
    std::vector<gpu::buffer_t<double>> out_;                // [device]: its part of the scalars, their sums
    std::unique_ptr<domain::domain_t> domain_;
    std::unique_ptr<gpu::box_t> box_;
    std::unique_ptr<gpu::boxes_t> local_;              // of several boxes, this one
    std::unique_ptr<rails::boxes_step_t> boxes_step_;  // ends before what it drives
    scalars_t over_boxes_;
    gpu::device_step_t* first_ = nullptr;  // the box's, of device 0
    bool use_graph_ = true;
    std::int64_t steps_ = 0;
    gpu::ledger_t flush_ledger_;                     // the harness's own, in no figure
    std::vector<gpu::buffer_t<std::byte>> flushes_;  // of each GPU, twice its L2
};

std::string unsupported(problem_t const& problem, run_options_t const& options) {
    if (!device().problem.empty()) return device().problem;
    auto const engines = usable_engines();
    std::string const engine = engine_of(problem, options);
    if (std::ranges::find(engines, engine) == engines.end())
        return "engine " + engine +
               " does not run on this GPU; here: " + (engines[0] == "sm80" ? "sm80" : engines[0] + ", sm80");
    for (auto const& [name, value] : options.options)
        if (std::ranges::find(option_names_k, name) == std::end(option_names_k))
            return "unknown option " + name +
                   "; known are graph, superblock, fp16, two_set, virtual_devices, meeting, deadline_ms and "
                   "several_boxes, "
                   "and of "
                   "streaming from the "
                   "host's memory offload, device_memory_mib, block_rows and row_blocks";
    if (flag(options, "offload", false) && problem.forward_only)
        return "the offload mode has no forward pass alone; leave out offload or forward_only";
    if (options.boxes > 1 && flag(options, "offload", false)) return "offload drives one GPU; give nodes 1";
    if (options.boxes > 1 && !flag(options, "several_boxes", false))
        return "several boxes of GPUs have run on one machine only; the option several_boxes=true tries them";
    if (flag(options, "offload", false)) return offload_unsupported(problem, options);
    if (auto const fp16 = options.option("fp16", "auto"); fp16 != "auto" && fp16 != "true" && fp16 != "false")
        return "option fp16 is '" + fp16 + "'; known are auto, true and false";
    auto const two_set = options.option("two_set", "auto");
    if (two_set != "auto") {
        if (two_set != "grid" && two_set != "ladder")
            return "option two_set is '" + two_set + "'; known are auto, grid and ladder";
        if (engine != "sm90" || sets_of(problem.loss) != 2)
            return "option two_set is for the losses over two sets on the sm90 engine" +
                   (options.engine == "auto" && sets_of(problem.loss) == 2
                        ? "; engine auto takes " + engine + " for this problem: give engine sm90"
                        : std::string());
        if (two_set == "grid" && problem.pairs_once)
            return "option two_set=grid finds no gradients of another GPU's rows; leave out pairs=once";
    }
    auto whole = problem;  // a forward pass alone is run beside a step, with its options
    whole.forward_only = false;
    bool const ladder = engine == "sm90" && sm90_two_set_ladder(whole, two_set),
               chooses = (engine == "sm90" && problem.loss == loss_t::one_set_sigmoid_k) ||
                         (ladder && problem.loss == loss_t::two_set_sigmoid_k);
    if (fp16_of(options) && !chooses && (ladder || *fp16_of(options)))
        return "option fp16 is for the sigmoid losses, where the sm90 engine takes its kernels of one set";
    if (auto const meeting = options.option("meeting", "flags"); meeting != "flags" && meeting != "events")
        return "option meeting is '" + meeting + "'; known are flags and events";
    if (auto const reason = problem.pairs_once ? pairs_unsupported(problem) : ""; !reason.empty()) return reason;
    if (problem.pairs_once && options.boxes > 1) return "pairs=once runs one box; leave it out, or give nodes 1";
    int const here = problem.world_size / options.boxes;
    if (here > device().count && !flag(options, "virtual_devices", false))
        return std::to_string(here) + " GPUs are asked for, " + std::to_string(device().count) +
               " are here; virtual_devices=true lets them take turns on one";
    return unsupported_by(engine, problem, two_set);
}

std::string version_text(int version) {
    return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

backend_factory_t const& cuda_factory() {
    static backend_factory_t const factory = [] {
        backend_factory_t out;
        out.device = "cuda";
        if (sm100_built()) out.engines_built.push_back("sm100");
        if (sm90_built()) out.engines_built.push_back("sm90");
        out.engines_built.push_back("sm80");
        int runtime = 0, driver = 0, count = 0;
        cudaRuntimeGetVersion(&runtime);
        cudaDriverGetVersion(&driver);
        out.versions = {{"cuda_runtime", version_text(runtime)},
                        {"cuda_driver", driver ? version_text(driver) : "none"}};
        if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError(), count = 0;
        for (int i = 0; i < count; ++i) {
            cudaDeviceProp properties;
            if (cudaGetDeviceProperties(&properties, i) == cudaSuccess) out.device_names.push_back(properties.name);
            char id[32] = "";
            if (cudaDeviceGetPCIBusId(id, sizeof id, i) == cudaSuccess) out.bus_ids.push_back(id);
        }
        out.engines_usable = usable_engines();
        out.unsupported = unsupported;
        out.make = [](problem_t const& problem, run_options_t const& options) -> std::unique_ptr<backend_t> {
            if (flag(options, "offload", false)) return std::make_unique<offload_backend_t>(problem, options);
            return std::make_unique<cuda_backend_t>(problem, options);
        };
        return out;
    }();
    return factory;
}

}  // namespace scaling_contrasts::bench
