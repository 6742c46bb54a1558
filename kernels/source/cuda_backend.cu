// The benchmark's backend for --device cuda: inputs made on the GPU, the engine its architecture calls for, the step
// replayed as one CUDA graph.
#include <algorithm>
#include <cstring>
#include <optional>

#include "backend.hpp"
#include "cuda_sm80.cuh"
#include "scaling_contrasts/gpu/driver.cuh"
#include "scaling_contrasts/gpu/graph.cuh"
#include "scaling_contrasts/gpu/inputs.cuh"

namespace scaling_contrasts::bench {
namespace {

constexpr char const* option_names_k[] = {"graph", "superblock", "virtual_devices"};

bool flag(run_options_t const& options, char const* name, bool otherwise) {
    auto const found = options.options.find(name);
    return found == options.options.end() ? otherwise : found->second == "true";
}

std::int64_t free_bytes() {
    std::size_t free = 0, total = 0;
    gpu::check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return static_cast<std::int64_t>(free);
}

/// What is known of device 0 without creating a context; `problem` says why there is none to use.
struct device_t {
    std::string problem;
    int capability = 0;  ///< 90 for 9.0
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

/// Why an engine cannot run a problem, as one clause; empty: it can.
std::string unsupported_by(std::string const& engine, problem_t const& problem) {
    return engine == "sm90"    ? sm90_unsupported(problem)
           : engine == "sm100" ? sm100_unsupported(problem)
                               : sm80::unsupported(problem);
}

/// The engine that runs a problem: the one asked for, or the best one here that can.
std::string engine_of(problem_t const& problem, run_options_t const& options) {
    if (options.engine != "auto") return options.engine;
    for (auto const& engine : usable_engines())
        if (unsupported_by(engine, problem).empty()) return engine;
    return "sm80";
}

class cuda_backend_t final : public backend_t {
  public:
    cuda_backend_t(problem_t const& problem, run_options_t const& options)
        : problem_(problem), options_(options), ledgers_(static_cast<std::size_t>(problem.world_size)) {
        gpu::check(cudaSetDevice(0), "choosing device 0");
        gpu::check(cudaFree(nullptr), "creating a context");
        baseline_free_ = least_free_ = free_bytes();
        gpu::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    }
    ~cuda_backend_t() override {
        cudaStreamSynchronize(stream_);
        cudaStreamDestroy(stream_);
    }

    void build() override {
        int const sets = sets_of(problem_.loss);
        std::int64_t const cells = problem_.rows * problem_.dims;
        std::vector<std::vector<gpu_set_t>> inputs(ledgers_.size());
        for (int device = 0; device < problem_.world_size; ++device)
            for (int set = 0; set < sets; ++set) {
                auto& ledger = ledgers_[static_cast<std::size_t>(device)];
                auto& slot = slots_.emplace_back();
                slot.embeddings = gpu::buffer_t<bf16_t>(ledger, cells);
                if (sets == 1) slot.labels = gpu::buffer_t<std::int32_t>(ledger, problem_.rows);
                slot.gradient = gpu::buffer_t<std::byte>(ledger, cells * gradient_size());
                gpu::fill_rows(problem_, set, device * problem_.rows, problem_.rows, slot.embeddings.data(),
                               slot.labels.data(), stream_);
                inputs[static_cast<std::size_t>(device)].push_back(
                    {slot.embeddings.data(), slot.labels.data(), slot.gradient.data()});
            }
        parameters_ = gpu::buffer_t<float>(ledgers_[0], 2);
        out_ = gpu::buffer_t<double>(ledgers_[0], 3 * problem_.world_size);
        float const parameters[2] = {static_cast<float>(problem_.scale), static_cast<float>(problem_.bias)};
        gpu::check(cudaMemcpy(parameters_.data(), parameters, sizeof parameters, cudaMemcpyHostToDevice),
                   "copying scale and bias");
        int side_limit = 0;
        if (auto const side = options_.options.find("superblock"); side != options_.options.end())
            side_limit = std::atoi(side->second.c_str());
        step_inputs_t const in = {problem_,    std::move(inputs), parameters_.data(), parameters_.data() + 1,
                                  out_.data(), ledgers_,          side_limit};
        auto const engine = engine_of(problem_, options_);
        if (engine == "sm90") step_ = make_sm90_step(in);
        else if (engine == "sm100") step_ = make_sm100_step(in);
        else step_ = std::make_unique<tiles_step_t<sm80::engine_t>>(in, "sm80");
        use_graph_ = flag(options_, "graph", true) && step_->launches() <= gpu_step_t::graph_limit_k;
        synchronize();
    }

    /// The first step is queued kernel by kernel, which loads them; later ones replay the graph.
    void step() override {
        if (use_graph_ && steps_ == 1) graph_.capture(stream_, [&] { step_->queue(stream_); });
        if (graph_.captured()) graph_.replay(stream_);
        else step_->queue(stream_);
        ++steps_;
    }
    void synchronize() override {
        gpu::check(cudaStreamSynchronize(stream_), "running the step");
        least_free_ = std::min(least_free_, free_bytes());
    }

    scalars_t scalars() override {
        synchronize();
        std::vector<double> parts(static_cast<std::size_t>(out_.size()));
        gpu::check(
            cudaMemcpy(parts.data(), out_.data(), static_cast<std::size_t>(out_.bytes()), cudaMemcpyDeviceToHost),
            "copying the scalars");
        scalars_t sum;
        for (std::size_t i = 0; i < parts.size(); i += 3) {
            sum.loss += parts[i];
            sum.scale_gradient += parts[i + 1];
            sum.bias_gradient += parts[i + 2];
        }
        return sum;
    }

    void gradient_rows(int set, std::span<std::int64_t const> rows, float* out) override {
        synchronize();
        auto const dims = static_cast<std::size_t>(problem_.dims), size = static_cast<std::size_t>(gradient_size());
        std::vector<std::byte> row_bytes(dims * size);
        for (std::int64_t const row : rows) {
            auto const& slot = slots_[static_cast<std::size_t>(row / problem_.rows * sets_of(problem_.loss) + set)];
            auto const* from = slot.gradient.data() + static_cast<std::size_t>(row % problem_.rows) * row_bytes.size();
            gpu::check(cudaMemcpy(row_bytes.data(), from, row_bytes.size(), cudaMemcpyDeviceToHost),
                       "copying gradients");
            if (size == sizeof(float)) std::memcpy(out, row_bytes.data(), row_bytes.size());
            else
                for (std::size_t c = 0; c < dims; ++c)
                    out[c] = static_cast<float>(reinterpret_cast<bf16_t const*>(row_bytes.data())[c]);
            out += dims;
        }
    }

    void memory_reset() override {
        for (auto& ledger : ledgers_) ledger.reset_peak();
        least_free_ = free_bytes();
    }

    /// Of the device that holds most; `device_used` is the whole GPU's, shared equally by virtual devices.
    memory_t memory() override {
        synchronize();
        memory_t memory;
        std::int64_t peak = 0, inputs = 0, gradients = 0;
        for (auto const& ledger : ledgers_) peak = std::max(peak, ledger.peak);
        for (auto const& slot : slots_) {
            inputs += slot.embeddings.bytes() + slot.labels.bytes();
            gradients += slot.gradient.bytes();
        }
        memory.allocated_peak_bytes = peak;
        memory.input_bytes = inputs / problem_.world_size;
        memory.gradient_bytes = gradients / problem_.world_size;
        memory.device_used_bytes = (baseline_free_ - least_free_) / problem_.world_size;
        return memory;
    }

    std::string engine() const override { return engine_of(problem_, options_); }

  private:
    struct slot_t {
        gpu::buffer_t<bf16_t> embeddings;
        gpu::buffer_t<std::int32_t> labels;
        gpu::buffer_t<std::byte> gradient;
    };

    std::int64_t gradient_size() const { return problem_.gradient_type == gradient_type_t::float32_k ? 4 : 2; }

    problem_t problem_;
    run_options_t options_;
    std::vector<gpu::ledger_t> ledgers_;  // before the buffers that refer to them
    cudaStream_t stream_ = nullptr;
    std::int64_t baseline_free_ = 0, least_free_ = 0;
    std::vector<slot_t> slots_;        // [device][set]
    gpu::buffer_t<float> parameters_;  // scale, bias
    gpu::buffer_t<double> out_;
    std::unique_ptr<gpu_step_t> step_;
    bool use_graph_ = true;
    gpu::graph_t graph_;
    std::int64_t steps_ = 0;
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
            return "unknown option " + name + "; known are graph, superblock and virtual_devices";
    if (problem.world_size > 1 && !flag(options, "virtual_devices", false))
        return "several GPUs are not driven yet; virtual_devices=true lets them take turns on one";
    return unsupported_by(engine, problem);
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
        }
        out.engines_usable = usable_engines();
        out.unsupported = unsupported;
        out.make = [](problem_t const& problem, run_options_t const& options) -> std::unique_ptr<backend_t> {
            return std::make_unique<cuda_backend_t>(problem, options);
        };
        return out;
    }();
    return factory;
}

}  // namespace scaling_contrasts::bench
