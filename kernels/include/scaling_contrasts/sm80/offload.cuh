// A step whose embeddings and gradients lie in pinned memory of the host, so that the number of rows is bounded by that
// memory and not the GPU's. Rows are cut into blocks. A block of rows stays on the GPU while the blocks of candidates
// stream by: two buffers, the next block comes while this one is scored. Scores are computed once and serve both sides:
// the gradient sums of a candidate block come with it and go back with what was added, in fp32.
//
// What stays on the GPU, whatever the number of rows: three blocks and the walk's scratch. What grows: labels and the
// rows' statistics, 8 bytes a row and prefix (sigmoid) or 20 to 24 (info_nce).
#pragma once
#include <cstring>
#include <functional>
#include <memory>
#include <span>

#include "scaling_contrasts/gpu/stream.cuh"
#include "scaling_contrasts/sm80/walk.cuh"

namespace scaling_contrasts::sm80 {

/// One set in pinned memory of the host.
struct host_set_t {
    bf16_t const* embeddings = nullptr;  ///< [rows][dims]
    void* gradient = nullptr;            ///< [rows][dims], of the problem's gradient type
    float* sums = nullptr;               ///< [rows][dims]: gradients so far; `gradient` itself where that is fp32
};

/// Why a problem cannot be streamed, as one clause; empty: it can.
inline std::string offload_unsupported(problem_t const& problem) {
    if (problem.loss == loss_t::one_set_info_nce_k)
        return "offload streams one_set_sigmoid, two_set_sigmoid and info_nce";
    if (problem.world_size > 1) return "offload drives one GPU";
    return "";
}

/// The largest block of rows, a multiple of 128 and no more than all, with which a step stays within `budget` bytes of
/// device memory; 0: none does.
inline std::int64_t offload_block_rows(problem_t const& problem, std::int64_t budget) {
    std::int64_t const sets = sets_of(problem.loss), prefixes = static_cast<std::int64_t>(problem.prefixes.size()),
                       all = (problem.rows + tile_k - 1) / tile_k * tile_k;
    std::int64_t const parts = problem.gradient_type == gradient_type_t::float32_k ? 2 : 1;
    std::int64_t const scratch = (std::int64_t(40) << 20) * parts + (std::int64_t(8) << 20);
    std::int64_t const per_row = sets * (2 + prefixes * (is_softmax(problem.loss) ? 24 : 8)) + 4;
    std::int64_t const room = (budget - scratch - all * per_row) / (3 * 6 * problem.dims) / tile_k * tile_k;
    return room < tile_k ? 0 : std::min(room, all);
}

template <class kernels_t>
class offload_t {
  public:
    /// `labels` [rows], `scale`, `bias` and `out` [3] are on the current device; what `sets` point to is the host's,
    /// and outlives the steps. `block_rows`: a multiple of 128.
    offload_t(problem_t const& problem, std::span<host_set_t const> sets, std::int32_t const* labels,
              float const* scale, float const* bias, double* out, gpu::ledger_t& ledger, std::int64_t block_rows,
              int side_limit = 0)
        : problem_(problem),
          ladder_(make_ladder(problem)),
          labels_(labels),
          scale_(scale),
          out_(out),
          block_rows_(block_rows),
          blocks_(static_cast<int>((problem.live_of(0) + block_rows - 1) / block_rows)),
          walker_(problem, block_rows, scale, bias, ledger, side_limit) {
        std::int64_t const statistics = ladder_.count * block_rows * blocks_;
        for (std::size_t i = 0; i < sets.size(); ++i) {
            auto& set = set_[i];
            set.host = sets[i];
            set.inverse_norms = gpu::buffer_t<float>(ledger, statistics);
            set.products = gpu::buffer_t<float>(ledger, statistics);
            set.partial = gpu::buffer_t<double2>(ledger, std::int64_t(finish_blocks(block_rows)) * blocks_);
            if (!is_nce()) continue;
            set.maxima = gpu::buffer_t<float2>(ledger, statistics);
            set.log_sums = gpu::buffer_t<float>(ledger, statistics);
            if (i == 0) positive_logits_ = gpu::buffer_t<float>(ledger, statistics);
        }
        for (auto& place : places_) {
            place.embeddings = gpu::buffer_t<bf16_t>(ledger, block_rows * problem.dims);
            place.sums = gpu::buffer_t<float>(ledger, block_rows * problem.dims);
        }
        stored_ = std::make_unique<gpu::event_t[]>(static_cast<std::size_t>(blocks_));
    }

    int blocks() const { return blocks_; }
    std::int64_t block_rows() const { return block_rows_; }

    /// One step; returns when it is done. `row_blocks` below blocks(): a slice of it, those blocks of rows against all
    /// candidates. `progress(done, of)` is called after each block of rows.
    void run(cudaStream_t stream, int row_blocks, std::function<void(int, int)> const& progress) {
        compute_ = stream;
        begin();
        if (is_nce()) {
            for (int i = 0; i < blocks_; ++i) sweep(i, pass_t::maxima_k);
            for (int set = 0; set < 2; ++set) {
                auto const count = set_[set].maxima.size();
                log_sums_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, compute_>>>(
                    set_[set].maxima.data(), positive_logits_.data(), set_[set].log_sums.data(), count);
                gpu::check_launch("log_sums_kernel");
            }
        }
        for (int i = 0; i < std::min(row_blocks, blocks_); ++i) {
            sweep(i, is_nce() ? pass_t::softmax_k : pass_t::sigmoid_k);
            gpu::check(cudaStreamSynchronize(compute_), "streaming a block of rows");
            progress(i + 1, blocks_);
        }
        scalars_job_t job = walker_.scalars(out_, nullptr);
        job.partial_count = finish_blocks(block_rows_) * blocks_;
        for (int set = 0; set < sets(); ++set) job.partial[set] = set_[set].partial.data();
        scalars_kernel<<<1, 1024, 0, compute_>>>(job);
        gpu::check_launch("scalars_kernel");
        last_out_.record(out_stream_);
        last_out_.wait(compute_);
        gpu::check(cudaStreamSynchronize(compute_), "finishing the step");
    }

  private:
    /// A block's place on the GPU. `loaded`: its data is there; `free`: nobody needs it any more.
    struct place_t {
        gpu::buffer_t<bf16_t> embeddings;
        gpu::buffer_t<float> sums;
        gpu::event_t loaded, free;
    };
    struct set_t {
        host_set_t host;
        gpu::buffer_t<float> inverse_norms, products, log_sums;
        gpu::buffer_t<float2> maxima;
        gpu::buffer_t<double2> partial;
    };

    bool is_nce() const { return problem_.loss == loss_t::info_nce_k; }
    int sets() const { return sets_of(problem_.loss); }
    int candidate_set() const { return sets() - 1; }
    std::int64_t first_of(int block) const { return block * block_rows_; }
    std::int64_t live_of(int block) const { return std::min(block_rows_, problem_.live_of(0) - first_of(block)); }
    /// With dead rows: the last block with live rows takes those of its own length.
    std::int64_t capacity_of(int block) const { return std::min(block_rows_, problem_.rows - first_of(block)); }

    rows_t rows_of(int set, int block, place_t const& place) const {
        std::int64_t const at = std::int64_t(block) * ladder_.count * block_rows_;
        auto const& from = set_[set];
        rows_t rows;
        rows.embeddings = place.embeddings.data();
        rows.labels = labels_ ? labels_ + first_of(block) : nullptr;
        rows.inverse_norms = from.inverse_norms.data() + at;
        if (is_nce()) {
            rows.log_sums = from.log_sums.data() + at;
            rows.maxima = from.maxima.data() + at;
            rows.positive_logits = positive_logits_.data() + at;
        }
        rows.gradient = place.sums.data();
        rows.weighted_products = from.products.data() + at;
        rows.first = first_of(block);
        rows.rows = static_cast<int>(live_of(block));
        rows.padded = (rows.rows + tile_k - 1) / tile_k * tile_k;
        return rows;
    }

    static void copy(void* to, void const* from, std::int64_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
        gpu::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), kind, stream), "streaming a block");
    }

    /// Queues a block's copy to the GPU on `stream`, with its gradient sums if there are any yet, or zeros.
    void load(place_t& place, int set, int block, bool with_sums, bool first, cudaStream_t stream) {
        std::int64_t const at = first_of(block) * problem_.dims, count = live_of(block) * problem_.dims;
        copy(place.embeddings.data(), set_[set].host.embeddings + at, count * 2, cudaMemcpyHostToDevice, stream);
        if (!with_sums) return;
        if (first) return clear(place.sums.data(), count * 4, stream);
        stored_[static_cast<std::size_t>(block)].wait(stream);
        copy(place.sums.data(), set_[set].host.sums + at, count * 4, cudaMemcpyHostToDevice, stream);
    }
    void load_candidates(place_t& place, int block, bool with_sums, bool first) {
        place.free.wait(in_stream_);
        load(place, candidate_set(), block, with_sums, first, in_stream_);
        place.loaded.record(in_stream_);
    }

    /// Queues a finished block's gradient: made where its embeddings (bf16) or sums (fp32) were, then copied out.
    void store_gradient(place_t const& place, int set, int block, cudaStream_t stream) {
        bool const is_float = problem_.gradient_type == gradient_type_t::float32_k;
        void* made = is_float ? static_cast<void*>(place.sums.data()) : place.embeddings.data();
        std::int64_t const size = is_float ? 4 : 2, row = problem_.dims * size;
        computed_.record(compute_);
        computed_.wait(stream);
        copy(static_cast<std::byte*>(set_[set].host.gradient) + first_of(block) * row, made, capacity_of(block) * row,
             cudaMemcpyDeviceToHost, stream);
    }
    void finish(place_t const& place, int set, int block) {
        bool const is_float = problem_.gradient_type == gradient_type_t::float32_k;
        void* to = is_float ? static_cast<void*>(place.sums.data()) : place.embeddings.data();
        finish_rows(rows_of(set, block, place), problem_, capacity_of(block), ladder_, scale_, nullptr, to,
                    set_[set].partial.data() + std::int64_t(block) * finish_blocks(block_rows_), compute_);
    }

    /// Norms of all rows, block by block; sums cleared.
    void begin() {
        computed_.record(compute_);
        computed_.wait(in_stream_);
        computed_.wait(out_stream_);
        walker_.clear(compute_);
        clear(positive_logits_.data(), positive_logits_.bytes(), compute_);
        int turn = 0;
        for (int set = 0; set < sets(); ++set) {
            clear(set_[set].partial.data(), set_[set].partial.bytes(), compute_);
            for (int block = 0; block < blocks_; ++block, ++turn) {
                auto& place = places_[1 + turn % 2];
                place.free.wait(in_stream_);
                load(place, set, block, false, false, in_stream_);
                place.loaded.record(in_stream_);
                place.loaded.wait(compute_);
                std::int64_t const at = std::int64_t(block) * ladder_.count * block_rows_;
                begin_rows(rows_of(set, block, place), set_[set].inverse_norms.data() + at, ladder_, compute_);
                place.free.record(compute_);
            }
            std::int64_t const row = problem_.dims * (problem_.gradient_type == gradient_type_t::float32_k ? 4 : 2);
            for (std::int64_t dead = first_of(blocks_); dead < problem_.rows; ++dead)
                std::memset(static_cast<std::byte*>(set_[set].host.gradient) + dead * row, 0, row);
        }
    }

    /// One block of rows against all candidates it has to meet: in one set, itself and those after it.
    void sweep(int block, pass_t pass) {
        bool const one = sets() == 1, weighs = !gathers(pass), last = block + 1 == blocks_;
        auto& resident = places_[0];
        load(resident, 0, block, weighs, !one || block == 0, compute_);
        rows_t const rows = rows_of(0, block, resident);
        int const begin = one ? block + 1 : 0;
        auto place_of = [&](int candidate) -> place_t& { return places_[1 + candidate % 2]; };
        if (begin < blocks_) load_candidates(place_of(begin), begin, weighs, block == 0);
        if (one) walker_.walk(rows, rows, true, true, 2.0f, pass, compute_);
        for (int candidate = begin; candidate < blocks_; ++candidate) {
            auto& place = place_of(candidate);
            if (candidate + 1 < blocks_) load_candidates(place_of(candidate + 1), candidate + 1, weighs, block == 0);
            place.loaded.wait(compute_);
            walker_.walk(rows, rows_of(candidate_set(), candidate, place), false, true, one ? 2.0f : 1.0f, pass,
                         compute_);
            if (!weighs) {
                place.free.record(compute_);
                continue;
            }
            if (!one && last) {
                finish(place, 1, candidate);
                store_gradient(place, 1, candidate, out_stream_);
            } else {
                computed_.record(compute_);
                computed_.wait(out_stream_);
                copy(set_[candidate_set()].host.sums + first_of(candidate) * problem_.dims, place.sums.data(),
                     live_of(candidate) * problem_.dims * 4, cudaMemcpyDeviceToHost, out_stream_);
                stored_[static_cast<std::size_t>(candidate)].record(out_stream_);
            }
            place.free.record(out_stream_);
        }
        if (!weighs) return;
        finish(resident, 0, block);
        store_gradient(resident, 0, block, compute_);
    }

    problem_t problem_;
    ladder_t ladder_;
    std::int32_t const* labels_;
    float const* scale_;
    double* out_;
    std::int64_t block_rows_;
    int blocks_;
    walker_t<kernels_t> walker_;
    set_t set_[2];
    gpu::buffer_t<float> positive_logits_;
    place_t places_[3];                       // the resident rows', and two for candidates
    std::unique_ptr<gpu::event_t[]> stored_;  // a block's sums are back in the host's memory
    gpu::event_t computed_, last_out_;
    gpu::stream_t in_stream_, out_stream_;
    cudaStream_t compute_ = nullptr;
};

}  // namespace scaling_contrasts::sm80
