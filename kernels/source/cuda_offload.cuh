// The benchmark's backend for --device cuda --options offload=true: embeddings and gradients in pinned memory of the
// host, streamed through one GPU by blocks of rows.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "backend.hpp"
#include "process_memory.hpp"
#include "scaling_contrasts/gpu/host_memory.cuh"
#include "scaling_contrasts/gpu/inputs.cuh"
#include "scaling_contrasts/sm80/kernels.cuh"
#include "scaling_contrasts/sm80/offload.cuh"

namespace scaling_contrasts::bench {

/// How the variant is cut: options of the run, or their defaults.
struct offload_options_t {
    std::int64_t budget = std::int64_t(2) << 30;  ///< `device_memory_mib`: bounds the block, 2048 unless given
    std::int64_t block_rows = 0;                  ///< `block_rows`; 0: as the budget allows
    int row_blocks = 1 << 30;  ///< `row_blocks`: a slice of a step, so many blocks of rows against all candidates

    explicit offload_options_t(run_options_t const& run) {
        auto number = [&](char const* name, std::int64_t otherwise) {
            auto const found = run.options.find(name);
            return found == run.options.end() ? otherwise
                                              : std::max<std::int64_t>(0, std::atoll(found->second.c_str()));
        };
        budget = number("device_memory_mib", budget >> 20) << 20;
        block_rows = number("block_rows", 0);
        row_blocks = static_cast<int>(std::clamp<std::int64_t>(number("row_blocks", row_blocks), 1, row_blocks));
    }
    std::int64_t choose(problem_t const& problem) const {
        std::int64_t const all = (problem.rows + sm80::tile_k - 1) / sm80::tile_k * sm80::tile_k;
        return block_rows ? std::min(all, block_rows) : sm80::offload_block_rows(problem, budget);
    }
};

/// Bytes of the host that a problem needs: embeddings, gradients, and fp32 sums of the set that streams by.
inline std::int64_t offload_host_bytes(problem_t const& problem) {
    bool const is_float = problem.gradient_type == gradient_type_t::float32_k;
    return problem.rows * problem.dims * (sets_of(problem.loss) * (is_float ? 6 : 4) + (is_float ? 0 : 4));
}

inline std::string offload_unsupported(problem_t const& problem, run_options_t const& run) {
    if (auto const reason = sm80::offload_unsupported(problem); !reason.empty()) return reason;
    if (auto const reason = sm80::unsupported(problem); !reason.empty()) return reason;
    offload_options_t const options(run);
    auto const block = options.choose(problem);
    if (block == 0)
        return "device_memory_mib=" + std::to_string(options.budget >> 20) +
               " has no room for a block of 128 rows and the rows' statistics; give more";
    if (block % sm80::tile_k) return "block_rows " + std::to_string(block) + " is no multiple of 128";
    auto const needed = offload_host_bytes(problem);
    if (auto const available = available_bytes(); available && needed > *available)
        throw failure_t(status_t::out_of_memory_k, "needs " + std::to_string(needed >> 20) +
                                                       " MiB of the host's memory, " +
                                                       std::to_string(*available >> 20) + " MiB are available");
    return "";
}

class offload_backend_t final : public backend_t {
  public:
    offload_backend_t(problem_t const& problem, run_options_t const& run) : problem_(problem), options_(run) {
        gpu::check(cudaSetDevice(0), "choosing device 0");
        gpu::check(cudaFree(nullptr), "creating a context");
        baseline_free_ = least_free_ = free_bytes();
        gpu::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream");
    }
    ~offload_backend_t() override {
        cudaStreamSynchronize(stream_);
        engine_.reset();
        cudaStreamDestroy(stream_);
    }

    void build() override {
        int const sets = sets_of(problem_.loss);
        std::int64_t const cells = problem_.rows * problem_.dims;
        if (sets == 1) labels_ = gpu::buffer_t<std::int32_t>(ledger_, problem_.rows);
        int const threads = std::max(1u, std::thread::hardware_concurrency());
        std::vector<sm80::host_set_t> hosts;
        for (int set = 0; set < sets; ++set) {
            embeddings_.emplace_back(cells, threads);
            gradients_.emplace_back(cells * gradient_size(), threads);
            bool const streams = set == sets - 1;
            if (gradient_size() == 2 && streams) sums_ = gpu::pinned_t<float>(cells, threads);
            hosts.push_back({embeddings_.back().data(), gradients_.back().data(),
                             gradient_size() == 4 ? reinterpret_cast<float*>(gradients_.back().data()) : sums_.data()});
            make_inputs(set);
        }
        parameters_ = gpu::buffer_t<float>(ledger_, 2);
        out_ = gpu::buffer_t<double>(ledger_, 3);
        float const parameters[2] = {static_cast<float>(problem_.scale), static_cast<float>(problem_.bias)};
        gpu::check(cudaMemcpy(parameters_.data(), parameters, sizeof parameters, cudaMemcpyHostToDevice),
                   "copying scale and bias");
        engine_ = std::make_unique<engine_t>(problem_, hosts, labels_.data(), parameters_.data(),
                                             parameters_.data() + 1, out_.data(), ledger_, options_.choose(problem_));
        ledger_.reset_peak();
    }

    void step() override {
        auto const begin = std::chrono::steady_clock::now();
        double told = 0;
        engine_->run(stream_, options_.row_blocks, [&](int done, int of) {
            double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            if (seconds < told + 5) return;
            told = seconds;
            std::fprintf(stderr, "scaling_contrasts: block of rows %d of %d, %.0f s\n", done, of, seconds);
        });
        least_free_ = std::min(least_free_, free_bytes());
    }
    void synchronize() override { gpu::check(cudaStreamSynchronize(stream_), "running the step"); }

    scalars_t scalars() override {
        double values[3];
        gpu::check(cudaMemcpy(values, out_.data(), sizeof values, cudaMemcpyDeviceToHost), "copying the scalars");
        return {values[0], values[1], values[2]};
    }

    void gradient_rows(int set, std::span<std::int64_t const> rows, float* out) override {
        auto const dims = static_cast<std::size_t>(problem_.dims), size = static_cast<std::size_t>(gradient_size());
        for (std::int64_t const row : rows) {
            auto const* from =
                gradients_[static_cast<std::size_t>(set)].data() + static_cast<std::size_t>(row) * dims * size;
            if (size == sizeof(float)) std::memcpy(out, from, dims * size);
            else
                for (std::size_t c = 0; c < dims; ++c)
                    out[c] = static_cast<float>(reinterpret_cast<bf16_t const*>(from)[c]);
            out += dims;
        }
    }

    void memory_reset() override {
        ledger_.reset_peak();
        least_free_ = free_bytes();
    }
    /// Of the GPU alone: the host holds inputs and gradients.
    memory_t memory() override {
        synchronize();
        memory_t memory;
        memory.allocated_peak_bytes = ledger_.peak;
        memory.input_bytes = 0;
        memory.gradient_bytes = 0;
        memory.device_used_bytes = baseline_free_ - least_free_;
        return memory;
    }

    std::string note() const override { return engine(); }
    std::string engine() const override {
        std::string const slice =
            options_.row_blocks < engine_->blocks() ? ", " + std::to_string(options_.row_blocks) + " of them run" : "";
        return "sm80 offload, " + std::to_string(engine_->blocks()) + " blocks of " +
               std::to_string(engine_->block_rows()) + " rows" + slice;
    }

  private:
    using engine_t = sm80::offload_t<sm80::tile_kernels_t>;

    static std::int64_t free_bytes() {
        std::size_t free = 0, total = 0;
        gpu::check(cudaMemGetInfo(&free, &total), "asking for free memory");
        return static_cast<std::int64_t>(free);
    }
    std::int64_t gradient_size() const { return problem_.gradient_type == gradient_type_t::float32_k ? 4 : 2; }

    /// Made on the GPU, some rows at a time.
    void make_inputs(int set) {
        std::int64_t const some = std::min<std::int64_t>(problem_.rows, 65536);
        gpu::buffer_t<bf16_t> rows(ledger_, some * problem_.dims);
        for (std::int64_t first = 0; first < problem_.rows; first += some) {
            std::int64_t const count = std::min(some, problem_.rows - first);
            gpu::fill_rows(problem_, set, first, count, rows.data(), labels_.data() ? labels_.data() + first : nullptr,
                           stream_);
            gpu::check(cudaMemcpyAsync(embeddings_[static_cast<std::size_t>(set)].data() + first * problem_.dims,
                                       rows.data(), static_cast<std::size_t>(count * problem_.dims * 2),
                                       cudaMemcpyDeviceToHost, stream_),
                       "copying inputs");
        }
        synchronize();
    }

    problem_t problem_;
    offload_options_t options_;
    gpu::ledger_t ledger_;
    cudaStream_t stream_ = nullptr;
    std::int64_t baseline_free_ = 0, least_free_ = 0;
    std::vector<gpu::pinned_t<bf16_t>> embeddings_;
    std::vector<gpu::pinned_t<std::byte>> gradients_;
    gpu::pinned_t<float> sums_;
    gpu::buffer_t<std::int32_t> labels_;
    gpu::buffer_t<float> parameters_;
    gpu::buffer_t<double> out_;
    std::unique_ptr<engine_t> engine_;
};

}  // namespace scaling_contrasts::bench
