// An all-reduce in the place of a loss: --loss one_set_all_reduce --device cuda --world-size N. Each GPU holds rows x
// dims floats, the case's embeddings at first; a step makes each of them the sum over GPUs. Steps repeat in place, so
// numbers grow. With dtype=bfloat16 the same bytes hold the embeddings twice.
#include <algorithm>
#include <cstring>

#include "backend.hpp"
#include "scaling_contrasts/box/box.cuh"
#include "scaling_contrasts/gpu/inputs.cuh"

namespace scaling_contrasts::bench {
namespace {

using domain::schedule_t;

/// Steps in one graph: where a step takes microseconds, launches of one graph each would be what is measured.
constexpr int batch_k = 10;

constexpr std::pair<char const*, schedule_t> schedules_k[] = {{"auto", schedule_t::auto_k},
                                                              {"one_shot", schedule_t::one_shot_k},
                                                              {"two_shot", schedule_t::two_shot_k},
                                                              {"in_switch", schedule_t::in_switch_k},
                                                              {"in_switch_small", schedule_t::in_switch_small_k}};
/// Sums of the same numbers that are compared bit for bit.
constexpr int repetitions_k = 10;

std::string option(run_options_t const& options, char const* name, char const* otherwise) {
    auto const found = options.options.find(name);
    return found == options.options.end() ? otherwise : found->second;
}

domain::fabric_t fabric_of(run_options_t const& options) {
    return options.fabric == "peer"        ? domain::fabric_t::peer_k
           : options.fabric == "multicast" ? domain::fabric_t::multicast_k
                                           : domain::fabric_t::auto_k;
}

static __global__ void widen_kernel(bf16_t const* from, float* to, std::int64_t count) {
    for (std::int64_t i = std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += std::int64_t(gridDim.x) * blockDim.x)
        to[i] = static_cast<float>(from[i]);
}

/// Adds to `digest` a number that depends on every word and its place.
static __global__ void digest_kernel(std::uint32_t const* words, std::size_t count, unsigned long long* digest) {
    unsigned long long mine = 0;
    for (std::size_t i = std::size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
         i += std::size_t(gridDim.x) * blockDim.x)
        mine += mix(words[i] + mix(static_cast<std::uint32_t>(i)));
    atomicAdd(digest, mine);
}

class all_reduce_backend_t final : public backend_t {
  public:
    all_reduce_backend_t(problem_t const& problem, run_options_t const& options)
        : problem_(problem), options_(options) {
        for (int rank = 0; rank < problem.world_size; ++rank) {
            ordinals_.push_back(rank);
            gpu::use_device(rank);
            gpu::check(cudaFree(nullptr), "creating a context");
            baseline_free_.push_back(free_bytes());
            streams_.push_back(std::make_unique<gpu::stream_t>());
        }
        for (auto const& [name, schedule] : schedules_k)
            if (option(options, "schedule", "auto") == name) schedule_ = schedule;
        narrow_ = option(options, "dtype", "float32") == "bfloat16";
    }

    void build() override {
        std::int64_t const count = problem_.rows * problem_.dims;
        domain::domain_settings_t settings;
        settings.fabric = fabric_of(options_);
        settings.data_bytes = static_cast<std::size_t>(count) * 4;
        settings.inbox_bytes =
            std::min<std::size_t>(settings.data_bytes + 16, schedule_ == schedule_t::one_shot_k ? 16u << 20 : 1u << 20);
        settings.blocks = std::atoi(option(options_, "blocks", "0").c_str());
        domain_ = std::make_unique<domain::domain_t>(ordinals_, settings);
        fill();
    }

    /// Queued in graphs of batch_k steps; synchronize() queues what is left one by one.
    void step() override {
        if (steps_++ == 0) return queue(1);
        if (++pending_ < batch_k) return;
        queue(batch_k);
        pending_ = 0;
    }
    void synchronize() override {
        for (; pending_; --pending_) queue(1);
        for (int rank = 0; rank < problem_.world_size; ++rank) {
            gpu::use_device(rank);
            streams_[static_cast<std::size_t>(rank)]->synchronize("running an all-reduce");
        }
        domain_->require_all_met();
    }
    scalars_t scalars() override { return {}; }

    void gradient_rows(int, std::span<std::int64_t const> rows, float* out) override {
        synchronize();
        std::vector<bf16_t> sums(narrow_ ? static_cast<std::size_t>(problem_.dims) : 0);
        for (std::int64_t const row : rows) {
            int const rank = static_cast<int>(row / problem_.rows);
            std::int64_t const first = row % problem_.rows * problem_.dims;
            void const* const from =
                narrow_ ? static_cast<void const*>(narrow(rank) + first) : domain_->data(rank) + first;
            gpu::check(cudaMemcpy(narrow_ ? static_cast<void*>(sums.data()) : out, from,
                                  static_cast<std::size_t>(problem_.dims) * (narrow_ ? 2 : 4), cudaMemcpyDefault),
                       "copying sums");
            std::ranges::transform(sums, out, [](bf16_t sum) { return static_cast<float>(sum); });
            out += problem_.dims;
        }
    }
    void memory_reset() override {}
    memory_t memory() override {
        synchronize();
        memory_t memory;
        auto const bytes = static_cast<std::int64_t>(domain_->bytes_per_rank());
        memory.allocated_peak_bytes = bytes;
        memory.input_bytes = problem_.rows * problem_.dims * 4;
        memory.gradient_bytes = 0;
        std::int64_t used = 0;
        for (int rank = 0; rank < problem_.world_size; ++rank) {
            gpu::use_device(rank);
            used = std::max(used, baseline_free_[static_cast<std::size_t>(rank)] - free_bytes());
        }
        memory.device_used_bytes = used;
        return memory;
    }
    /// How many of repetitions_k sums of the same numbers have other bits than the first, on any GPU.
    std::map<std::string, double> figures() override {
        synchronize();
        std::vector<unsigned long long> first;
        int others = 0;
        for (int i = 0; i <= repetitions_k; ++i) {
            fill();
            queue(1);
            synchronize();
            auto const digests = this->digests();
            if (i == 0) first = digests;
            else others += digests != first;
        }
        return {{"differing_repetitions", others}};
    }

    std::string engine() const override {
        return std::string("domain-") + domain::name_of(schedule_) + (narrow_ ? "-bfloat16" : "");
    }
    std::string note() const override {
        return domain_ && !domain_->refusal().empty() ? "no multicast: " + domain_->refusal() : "";
    }

  private:
    static std::int64_t free_bytes() {
        std::size_t free = 0, total = 0;
        gpu::check(cudaMemGetInfo(&free, &total), "asking for free memory");
        return static_cast<std::int64_t>(free);
    }
    bf16_t* narrow(int rank) const { return reinterpret_cast<bf16_t*>(domain_->data(rank)); }
    /// The case's embeddings, in every rank's buffer.
    void fill() {
        for (int rank = 0; rank < problem_.world_size; ++rank) {
            gpu::use_device(rank);
            std::int64_t const first = rank * problem_.rows, count = problem_.rows * problem_.dims;
            if (narrow_)
                for (int half = 0; half < 2; ++half)
                    gpu::fill_rows(problem_, 0, first, problem_.rows, narrow(rank) + half * count, nullptr, nullptr);
            else fill_floats(first, domain_->data(rank));
            gpu::check(cudaDeviceSynchronize(), "making inputs");
        }
    }
    void fill_floats(std::int64_t first, float* to) const {
        gpu::ledger_t ledger;
        std::int64_t const chunk = std::max<std::int64_t>(1, (std::int64_t(64) << 20) / problem_.dims);
        gpu::buffer_t<bf16_t> narrow(ledger, std::min(chunk, problem_.rows) * problem_.dims);
        for (std::int64_t row = 0; row < problem_.rows; row += chunk) {
            std::int64_t const rows = std::min(chunk, problem_.rows - row);
            gpu::fill_rows(problem_, 0, first + row, rows, narrow.data(), nullptr, nullptr);
            widen_kernel<<<1024, 256>>>(narrow.data(), to + row * problem_.dims, rows * problem_.dims);
            gpu::check_launch("widen_kernel");
        }
        gpu::check(cudaDeviceSynchronize(), "making inputs");
    }
    /// Of every rank's buffer.
    std::vector<unsigned long long> digests() {
        std::vector<unsigned long long> out;
        for (int rank = 0; rank < problem_.world_size; ++rank) {
            gpu::use_device(rank);
            gpu::ledger_t ledger;
            gpu::buffer_t<unsigned long long> digest(ledger, 1);
            gpu::check(cudaMemset(digest.data(), 0, sizeof(unsigned long long)), "clearing a digest");
            digest_kernel<<<1024, 256>>>(reinterpret_cast<std::uint32_t const*>(domain_->data(rank)),
                                         static_cast<std::size_t>(problem_.rows * problem_.dims), digest.data());
            gpu::check_launch("digest_kernel");
            gpu::check(cudaMemcpy(&out.emplace_back(), digest.data(), sizeof(unsigned long long), cudaMemcpyDefault),
                       "copying a digest");
        }
        return out;
    }
    void reduce(int rank, cudaStream_t stream) const {
        auto const count = static_cast<std::size_t>(problem_.rows * problem_.dims);
        if (narrow_) domain_->all_reduce_bf16(rank, 2 * count, stream);
        else domain_->all_reduce(rank, count, schedule_, stream);
    }
    void queue(int steps) {
        auto& graphs = steps == 1 ? single_ : batch_;
        if (graphs.empty())
            for (int rank = 0; rank < problem_.world_size; ++rank) {
                gpu::use_device(rank);
                graphs.push_back(std::make_unique<gpu::graph_t>());
                auto const& stream = *streams_[static_cast<std::size_t>(rank)];
                graphs.back()->capture(stream, [&] {
                    for (int i = 0; i < steps; ++i) reduce(rank, stream);
                });
            }
        for (int rank = 0; rank < problem_.world_size; ++rank) {
            gpu::use_device(rank);
            graphs[static_cast<std::size_t>(rank)]->replay(*streams_[static_cast<std::size_t>(rank)]);
        }
    }

    problem_t problem_;
    run_options_t options_;
    schedule_t schedule_ = schedule_t::auto_k;
    bool narrow_ = false;  // bf16 in the place of floats
    std::vector<int> ordinals_;
    std::vector<std::int64_t> baseline_free_;
    std::vector<std::unique_ptr<gpu::stream_t>> streams_;
    std::unique_ptr<domain::domain_t> domain_;
    std::vector<std::unique_ptr<gpu::graph_t>> single_, batch_;
    int pending_ = 0;
    std::int64_t steps_ = 0;
};

std::string unsupported(problem_t const& problem, run_options_t const& options) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError(), count = 0;
    if (problem.world_size < 2) return "an all-reduce needs two GPUs or more";
    if (problem.world_size > count)
        return std::to_string(problem.world_size) + " GPUs are asked for, " + std::to_string(count) + " are here";
    for (auto const& [name, value] : options.options)
        if (name != "schedule" && name != "blocks" && name != "dtype")
            return "unknown option " + name + "; known are schedule, blocks and dtype";
    auto const schedule = option(options, "schedule", "auto");
    if (std::ranges::none_of(schedules_k, [&](auto const& each) { return schedule == each.first; }))
        return "schedule is '" + schedule + "'; known are auto, one_shot, two_shot, in_switch and in_switch_small";
    auto const dtype = option(options, "dtype", "float32");
    if (dtype != "float32" && dtype != "bfloat16") return "dtype is '" + dtype + "'; known are float32 and bfloat16";
    if (dtype == "bfloat16" && schedule != "in_switch") return "bfloat16 is summed by schedule in_switch alone";
    if (schedule == "one_shot" && problem.rows * problem.dims * 4 > (4 << 20))
        return "one_shot is for 4 MiB and less: its inboxes hold every rank's payload twice";
    if (schedule == "in_switch_small" && problem.rows * problem.dims * 4 > std::int64_t(domain::small_bytes_k))
        return "in_switch_small is for 4 KiB and less: a slot of the switch";
    if (schedule.starts_with("in_switch")) {
        auto const variable = [](char const* name) { return static_cast<char const*>(std::getenv(name)); };
        std::string const by = domain::forbidden_by(variable);
        if (options.fabric == "peer") return "the in-switch schedule needs multicast, and --fabric is peer";
        if (options.fabric == "auto" && !by.empty())
            return "the in-switch schedule needs multicast, and " + by + " is set";
        std::vector<int> gpus;
        for (int gpu = 0; gpu < problem.world_size; ++gpu) gpus.push_back(gpu);
        if (!domain::wants_multicast(domain::fabric_t::auto_k, gpus, variable, gpu::driver()) &&
            options.fabric == "auto")
            return "the in-switch schedule needs multicast, which this machine has not";
    }
    return "";
}

}  // namespace

backend_factory_t const& collectives_factory() {
    static backend_factory_t const factory = [] {
        backend_factory_t out = cuda_factory();
        auto const& unsupported_here = unsupported;
        out.unsupported = unsupported_here;
        out.make = [](problem_t const& problem, run_options_t const& options) -> std::unique_ptr<backend_t> {
            return std::make_unique<all_reduce_backend_t>(problem, options);
        };
        return out;
    }();
    return factory;
}

}  // namespace scaling_contrasts::bench
