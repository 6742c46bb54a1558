// A problem of the checks in the host's pinned memory, streamed through the GPU.
#pragma once
#include <cstring>
#include <vector>

#include "scaling_contrasts/gpu/host_memory.cuh"
#include "scaling_contrasts/gpu/inputs.cuh"
#include "scaling_contrasts/sm80/kernels.cuh"
#include "scaling_contrasts/sm80/offload.cuh"

namespace checks {

using namespace scaling_contrasts;

class offload_bench_t {
  public:
    /// Dead rows are NaN and must not be read; gradients are NaN beforehand.
    offload_bench_t(problem_t const& problem, std::int64_t block_rows) : problem_(problem) {
        int const sets = sets_of(problem.loss);
        std::int64_t const cells = problem.rows * problem.dims;
        gpu::buffer_t<bf16_t> rows(ledger_, cells);
        labels_ = gpu::buffer_t<std::int32_t>(ledger_, problem.rows);
        std::vector<sm80::host_set_t> hosts;
        for (int set = 0; set < sets; ++set) {
            embeddings_.emplace_back(cells, 1);
            gradients_.emplace_back(cells * (is_float() ? 4 : 2), 1);
            std::memset(gradients_.back().data(), 0xff, static_cast<std::size_t>(gradients_.back().bytes()));
            gpu::fill_rows(problem, set, 0, problem.rows, rows.data(), labels_.data(), nullptr);
            gpu::check(cudaMemcpy(embeddings_.back().data(), rows.data(), static_cast<std::size_t>(rows.bytes()),
                                  cudaMemcpyDeviceToHost),
                       "copying inputs");
            std::int64_t const live = problem.live_of(0);
            std::memset(static_cast<void*>(embeddings_.back().data() + live * problem.dims), 0xff,
                        static_cast<std::size_t>((problem.rows - live) * problem.dims * 2));
            if (!is_float() && set == sets - 1) sums_ = gpu::pinned_t<float>(cells, 1);
            hosts.push_back({embeddings_.back().data(), gradients_.back().data(),
                             is_float() ? reinterpret_cast<float*>(gradients_.back().data()) : sums_.data()});
        }
        parameters_ = gpu::buffer_t<float>(ledger_, 2);
        out_ = gpu::buffer_t<double>(ledger_, 3);
        float const values[2] = {float(problem.scale), float(problem.bias)};
        gpu::check(cudaMemcpy(parameters_.data(), values, sizeof values, cudaMemcpyHostToDevice), "scale and bias");
        engine_ = std::make_unique<engine_t>(problem, hosts, sets == 1 ? labels_.data() : nullptr, parameters_.data(),
                                             parameters_.data() + 1, out_.data(), ledger_, block_rows, 128);
    }

    void run() {
        engine_->run(stream_, engine_->blocks(), [](int, int) {});
    }
    std::vector<double> scalars() const {
        std::vector<double> values(3);
        gpu::check(cudaMemcpy(values.data(), out_.data(), 24, cudaMemcpyDeviceToHost), "scalars");
        return values;
    }
    std::vector<std::vector<float>> gradients() const {
        std::vector<std::vector<float>> out;
        for (auto const& bytes : gradients_) {
            std::vector<float> values(static_cast<std::size_t>(problem_.rows * problem_.dims));
            for (std::size_t i = 0; i < values.size(); ++i)
                values[i] = is_float() ? reinterpret_cast<float const*>(bytes.data())[i]
                                       : static_cast<float>(reinterpret_cast<bf16_t const*>(bytes.data())[i]);
            out.push_back(std::move(values));
        }
        return out;
    }

  private:
    using engine_t = sm80::offload_t<sm80::tile_kernels_t>;
    bool is_float() const { return problem_.gradient_type == gradient_type_t::float32_k; }

    problem_t problem_;
    gpu::ledger_t ledger_;
    gpu::stream_t stream_;
    std::vector<gpu::pinned_t<bf16_t>> embeddings_;
    std::vector<gpu::pinned_t<std::byte>> gradients_;
    gpu::pinned_t<float> sums_;
    gpu::buffer_t<std::int32_t> labels_;
    gpu::buffer_t<float> parameters_;
    gpu::buffer_t<double> out_;
    std::unique_ptr<engine_t> engine_;
};

}  // namespace checks
