// Two buffers on one GPU for the rows of its peers: while one block is scored, the copy engines fetch the next over
// NVLink. A block that a buffer still holds is not fetched again, so up to three devices read each peer once in a step.
#pragma once
#include <vector>

#include "scaling_contrasts/box/device_step.cuh"
#include "scaling_contrasts/gpu/memory.cuh"
#include "scaling_contrasts/gpu/stream.cuh"

namespace scaling_contrasts::gpu {

class staging_t {
  public:
    static constexpr int buffers_k = 2;

    /// Allocates on the current device. `rows`: the most of a block; `log_sums`: the most that a set of a
    /// device has.
    staging_t(problem_t const& problem, std::int64_t rows, std::int64_t log_sums, ledger_t& ledger)
        : problem_(problem) {
        int const used = std::min(problem.world_size - 1, buffers_k), sets = sets_of(problem.loss);
        for (int i = 0; i < used; ++i) {
            auto& buffer = buffers_[i];
            for (int set = problem.pairs_once ? sets - 1 : 0; set < sets;
                 ++set) {  // of pairs scored once, captions alone
                buffer.embeddings[set] = buffer_t<bf16_t>(ledger, rows * problem.dims);
                buffer.log_sums[set] = buffer_t<float>(ledger, log_sums);
            }
            if (sets == 1) buffer.labels = buffer_t<std::int32_t>(ledger, rows);
        }
    }

    /// A new step: the copying stream follows `main`, and the buffers hold nothing.
    void open(cudaStream_t main) {
        opened_.record(main);
        opened_.wait(copies_);
        for (auto& buffer : buffers_) buffer.holds = -1, buffer.in_use = false;
    }

    /// Queues the fetch of a block, whose members' rows `rows_of(device, stream)` points at, once that stream may read
    /// them; two fetches may be ahead of their uses.
    template <class rows_of_t>
    void fetch(candidates_t const& block, rows_of_t&& rows_of) {
        auto& buffer = next_to_fetch(block.device);
        if (buffer.holds == block.device) return;
        if (buffer.in_use) buffer.free.wait(copies_);
        for (int member = 0; member < block.devices; ++member) {
            candidates_t const from = rows_of((block.device + member) % problem_.world_size, copies_);
            std::int64_t const live = problem_.live_of(from.device), first = member * problem_.rows;
            for (int set = 0; set < sets_of(problem_.loss); ++set)
                copy(buffer.embeddings[set].data() + first * problem_.dims, from.embeddings[set],
                     live * problem_.dims * 2, copies_);
            if (from.labels) copy(buffer.labels.data() + first, from.labels, live * 4, copies_);
        }
        buffer.ready.record(copies_);
        buffer.holds = block.device;
        buffer.fetched = true;
    }

    /// Queues the fetch of the log-sums of the peer whose rows are used next, on the stream that scores.
    template <class score_t>
    void use(candidates_t const& block, std::int64_t log_sums, cudaStream_t main, score_t&& score) {
        auto& buffer = holding(block.device);
        if (buffer.fetched) buffer.ready.wait(main);
        buffer.fetched = false;
        candidates_t staged = block;
        staged.labels = block.labels ? buffer.labels.data() : nullptr;
        for (int set = 0; set < sets_of(problem_.loss); ++set) {
            staged.embeddings[set] = buffer.embeddings[set].data();
            if (!block.log_sums[set]) continue;
            copy(buffer.log_sums[set].data(), block.log_sums[set], log_sums * 4, main);
            staged.log_sums[set] = buffer.log_sums[set].data();
        }
        score(staged);
        buffer.free.record(main);
        buffer.in_use = true;
    }

  private:
    struct peer_buffer_t {
        buffer_t<bf16_t> embeddings[2];
        buffer_t<std::int32_t> labels;
        buffer_t<float> log_sums[2];
        event_t ready, free;
        int holds = -1;                        // the block (its first device) whose rows are here or on their way
        bool fetched = false, in_use = false;  // not yet waited for; scored in this step
    };

    static void copy(void* to, void const* from, std::int64_t bytes, cudaStream_t stream) {
        if (bytes && to)
            check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDefault, stream),
                  "fetching a peer's rows");
    }
    peer_buffer_t& next_to_fetch(int device) {
        for (auto& buffer : buffers_)
            if (buffer.holds == device) return buffer;
        next_ ^= 1;
        return buffers_[next_ % used()];
    }
    peer_buffer_t& holding(int device) { return buffers_[buffers_[0].holds == device ? 0 : 1]; }
    int used() const { return std::min(problem_.world_size - 1, buffers_k); }

    problem_t problem_;
    peer_buffer_t buffers_[buffers_k];
    int next_ = 1;
    stream_t copies_;
    event_t opened_;
};

}  // namespace scaling_contrasts::gpu
