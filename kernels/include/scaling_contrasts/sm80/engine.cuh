// The sm80 engine's host side: buffers of one device, and what is queued for one step.
//
//   begin    inverse norms; sums set to zero
//   gather   info_nce only, for every block of candidates: maxima and sums, then close_gather
//   score    for every block of candidates: weights of a superblock, then their products, superblock by superblock
//   finish   norm corrections, rounding, scalars
//
// Everything is queued on one stream and captures into a graph. Nothing is added atomically: two runs give equal bits.
// How a superblock's tiles are scored and multiplied is the tile kernels' business (kernels.cuh; sm100 brings its own).
#pragma once
#include <algorithm>
#include <span>

#include "scaling_contrasts/box/device_step.cuh"
#include "scaling_contrasts/gpu/memory.cuh"
#include "scaling_contrasts/gpu/prep.cuh"
#include "scaling_contrasts/sm80/finish.cuh"
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

using input_t = gpu::set_t;

/// Why an engine whose tile kernels read columns in multiples of `columns` cannot run a problem, as one clause; empty: it can.
inline std::string unsupported(problem_t const& problem, int columns = 16) {
    if (problem.loss == loss_t::one_set_info_nce_k) return "one_set_info_nce runs on the CPU only";
    auto const multiple = " is no multiple of " + std::to_string(columns);
    if (problem.rows >= (std::int64_t(1) << 31) - tile_k) return "more than 2^31 rows a device";
    if (problem.dims % columns) return "dims " + std::to_string(problem.dims) + multiple;
    for (int prefix : problem.prefixes)
        if (prefix % columns) return "prefix " + std::to_string(prefix) + multiple;
    if (problem.dims > 4096) return "dims above 4096";
    return "";
}

/// `kernels_t`: what scores and multiplies the tiles of a superblock, see tile_kernels_t.
template <class kernels_t>
class basic_engine_t final : public gpu::device_step_t {
  public:
    /// Allocates all workspaces on the current device, which must outlive the engine's buffers. `scale` and `bias` are
    /// read, and `out` [3] (loss, dL/dt, dL/db) is written, on the device. `device` numbers the rows: its first one is
    /// device * problem.rows. `side_limit` bounds the superblocks; 0: the engine's choice.
    basic_engine_t(problem_t const& problem, int device, std::span<input_t const> inputs, float const* scale,
                   float const* bias, double* out, gpu::ledger_t& ledger, int side_limit = 0)
        : problem_(problem),
          device_(device),
          ladder_(make_ladder(problem)),
          kernels_(ladder_),
          scale_(scale),
          bias_(bias),
          out_(out) {
        int const live = static_cast<int>(problem.live_of(device)), padded = padded_of(device);
        std::int64_t const statistics = std::int64_t(ladder_.count) * padded,
                           cells = problem.rows * std::int64_t(problem.dims);
        bool const is_float = problem.gradient_type == gradient_type_t::float32_k;
        for (int i = 0; i < sets(); ++i) {
            auto& set = set_[i];
            set.input = inputs[i];
            set.inverse_norms = gpu::buffer_t<float>(ledger, statistics);
            set.products = gpu::buffer_t<float>(ledger, statistics);
            if (!is_float) set.gradient = gpu::buffer_t<float>(ledger, cells);
            set.partial = gpu::buffer_t<double2>(ledger, finish_blocks());
            std::int64_t candidates = 0;
            for (int peer = 0; peer < problem.world_size; ++peer)
                if (peer != device) candidates = std::max(candidates, log_sum_count(peer));
            set.candidate_norms = gpu::buffer_t<float>(ledger, candidates);
            if (is_nce()) {
                set.maxima = gpu::buffer_t<float2>(ledger, statistics);
                set.log_sums = gpu::buffer_t<float>(ledger, statistics);
                if (i == 0) positive_logits_ = gpu::buffer_t<float>(ledger, statistics);
            }
            auto& rows = set.rows;
            rows.embeddings = set.input.embeddings;
            rows.labels = set.input.labels;
            rows.inverse_norms = set.inverse_norms.data();
            rows.log_sums = set.log_sums.data();
            rows.maxima = set.maxima.data();
            rows.positive_logits = positive_logits_.data();
            rows.gradient = is_float ? static_cast<float*>(set.input.gradient) : set.gradient.data();
            rows.weighted_products = set.products.data();
            rows.first = device * problem.rows;
            rows.rows = live;
            rows.padded = padded;
        }
        side_ = choose_side(
            static_cast<int>(std::min<std::int64_t>((problem.rows + tile_k - 1) / tile_k * tile_k, 1 << 20)),
            side_limit);
        std::int64_t const plane = std::int64_t(side_) * side_;
        weights_ = gpu::buffer_t<std::uint32_t>(ledger, plane / 2 * ladder_.count * parts());
        row_products_ = gpu::buffer_t<float>(ledger, plane / 32 * ladder_.count);
        column_products_ = gpu::buffer_t<float>(ledger, plane / 64 * ladder_.count);
        slots_ = gpu::buffer_t<double>(ledger, plane / (tile_k * tile_k) * kernels_t::score_warps_k * 3);
    }

    int sets() const { return sets_of(problem_.loss); }
    int side() const { return side_; }
    void begin(cudaStream_t stream) override {
        for (int i = 0; i < sets(); ++i) {
            auto const& rows = set_[i].rows;
            gpu::find_inverse_norms(rows.embeddings, rows.rows, rows.padded, ladder_, set_[i].inverse_norms.data(),
                                    stream);
            clear(set_[i].products.data(), set_[i].products.bytes(), stream);
            clear(rows.gradient, problem_.rows * std::int64_t(problem_.dims) * 4, stream);
            if (is_nce() && rows.padded) {
                clear_maxima_kernel<<<grid(set_[i].maxima.size()), 256, 0, stream>>>(set_[i].maxima.data(),
                                                                                     set_[i].maxima.size());
                gpu::check_launch("clear_maxima_kernel");
            }
        }
        clear(slots_.data(), slots_.bytes(), stream);
        clear(positive_logits_.data(), positive_logits_.bytes(), stream);
    }

    bool gathers() const override { return is_nce(); }
    /// info_nce: maxima and sums over one block of candidates.
    void gather(gpu::candidates_t const& block, cudaStream_t stream) override {
        visit(block, pass_t::maxima_k, stream);
    }
    /// After the maxima over all blocks; before any score.
    void close_gather(cudaStream_t stream) override {
        for (int i = 0; i < sets(); ++i)
            if (auto const count = set_[i].maxima.size()) {
                log_sums_kernel<<<grid(count), 256, 0, stream>>>(set_[i].maxima.data(), positive_logits_.data(),
                                                                 set_[i].log_sums.data(), count);
                gpu::check_launch("log_sums_kernel");
            }
    }
    float const* log_sums(int set) const override { return set_[set].log_sums.data(); }
    std::int64_t log_sum_count(int device) const override { return std::int64_t(ladder_.count) * padded_of(device); }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        visit(block, is_nce() ? pass_t::softmax_k : pass_t::sigmoid_k, stream);
    }

    void finish(cudaStream_t stream) override {
        double const n = static_cast<double>(problem_.live_rows());
        scalars_job_t job = {.slots = slots_.data(),
                             .slot_count = static_cast<int>(slots_.size() / 3),
                             .partial = {},
                             .partial_count = finish_blocks(),
                             .factor = (is_nce() ? 0.5 : 1.0) / n,
                             .has_bias = !is_nce(),
                             .out = out_};
        double const factor = (sets() == 1 ? 2.0 : is_nce() ? 0.5 : 1.0) / n;
        for (int i = 0; i < sets(); ++i) {
            auto const& set = set_[i];
            job.partial[i] = set.partial.data();
            if (problem_.gradient_type == gradient_type_t::float32_k)
                finish_kernel<<<finish_blocks(), finish_threads_k, 0, stream>>>(
                    set.rows, problem_.rows, ladder_, scale_, factor, static_cast<float*>(set.input.gradient),
                    set.partial.data());
            else
                finish_kernel<<<finish_blocks(), finish_threads_k, 0, stream>>>(
                    set.rows, problem_.rows, ladder_, scale_, factor, static_cast<bf16_t*>(set.input.gradient),
                    set.partial.data());
            gpu::check_launch("finish_kernel");
        }
        scalars_kernel<<<1, 1024, 0, stream>>>(job);
        gpu::check_launch("scalars_kernel");
    }

    std::int64_t launches() const override {
        std::int64_t const along = (problem_.rows + side_ - 1) / side_;
        return 2 * along * along;
    }

  private:
    struct set_t {
        input_t input;
        rows_t rows;
        gpu::buffer_t<float> inverse_norms, products, gradient, log_sums, candidate_norms;
        gpu::buffer_t<float2> maxima;
        gpu::buffer_t<double2> partial;
    };

    /// Weights rounded to bf16 cost as much as gradients rounded to bf16 do; fp32 gradients get two parts.
    int parts() const { return problem_.gradient_type == gradient_type_t::float32_k ? 2 : 1; }
    int padded_of(int device) const {
        return static_cast<int>((problem_.live_of(device) + tile_k - 1) / tile_k * tile_k);
    }
    bool is_nce() const { return problem_.loss == loss_t::info_nce_k; }
    int finish_blocks() const {
        return static_cast<int>((problem_.rows + finish_threads_k / 32 - 1) / (finish_threads_k / 32));
    }
    static unsigned grid(std::int64_t count) { return static_cast<unsigned>((count + 255) / 256); }
    static void clear(void* at, std::int64_t bytes, cudaStream_t stream) {
        if (bytes) gpu::check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(bytes), stream), "clearing a buffer");
    }

    /// The side of a superblock: at most 40 MiB of each part's weights, and, of the sides that allows, one whose tiles and products
    /// fill the multiprocessors best (two thread blocks each).
    int choose_side(int padded, int limit) const {
        int device = 0, processors = 0;
        gpu::check(cudaGetDevice(&device), "asking for the device");
        gpu::check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
                   "asking for multiprocessors");
        auto const room = (std::int64_t(40) << 20) / 2 / ladder_.count;
        int most = std::min(padded, 4096);
        while (std::int64_t(most) * most > room) most -= tile_k;
        if (limit) return std::max(tile_k, std::min(most, limit / tile_k * tile_k));
        if (most == padded) return most;
        int best = most;
        double best_fill = 0;
        for (int side = most; side >= std::min(1024, most); side -= tile_k) {
            int const tiles = side / tile_k, slots = 2 * processors;
            auto fill = [&](int jobs) { return double(jobs) / (double((jobs + slots - 1) / slots) * slots); };
            double const both = fill(tiles * tiles) + fill(2 * kernels_.products_of_side(tiles));
            if (both > best_fill * 1.02) best_fill = both, best = side;
        }
        return best;
    }

    /// One pass over one block of candidates. The own block of one set is symmetric: its upper triangle is scored, and
    /// serves rows and columns. The own block of two sets serves both sets; of a foreign one, each set's rows meet the
    /// other set's candidates, and the loss is counted by the first.
    void visit(gpu::candidates_t const& block, pass_t pass, cudaStream_t stream) {
        bool const own = block.device == device_, one = sets() == 1;
        walk(0, columns_of(block, one ? 0 : 1, stream), one && own, own, one && own ? 2.0f : 1.0f, pass, stream);
        if (!one && !own) walk(1, columns_of(block, 0, stream), false, false, 0.0f, pass, stream);
    }

    /// A set of a block as the kernels see it: the device's own rows, or another's with the norms found anew.
    rows_t columns_of(gpu::candidates_t const& block, int set, cudaStream_t stream) {
        if (block.device == device_) return set_[set].rows;
        rows_t columns;
        columns.embeddings = block.embeddings[set];
        columns.labels = block.labels;
        columns.inverse_norms = set_[set].candidate_norms.data();
        columns.log_sums = block.log_sums[set];
        columns.first = block.device * problem_.rows;
        columns.rows = static_cast<int>(problem_.live_of(block.device));
        columns.padded = padded_of(block.device);
        gpu::find_inverse_norms(columns.embeddings, columns.rows, columns.padded, ladder_,
                                set_[set].candidate_norms.data(), stream);
        return columns;
    }

    /// All superblocks of the rows of `set` against the candidates `columns`. Symmetric: the upper triangle only.
    /// Both sides: the candidates' gradients too, of set 1 if there are two.
    void walk(int set, rows_t const& columns, bool symmetric, bool both_sides, float cell_weight, pass_t pass,
              cudaStream_t stream) {
        rows_t const& rows = set_[set].rows;
        superblock_t a;
        a.rows = rows;
        a.columns = columns;
        a.side = side_;
        a.labelled_self = sets() == 1;
        a.self_pairs = problem_.self_pairs;
        a.cell_weight = cell_weight;
        a.scale = scale_;
        a.bias = bias_;
        a.weights = weights_.data();
        a.parts = parts();
        a.row_products = row_products_.data();
        a.column_products = column_products_.data();
        a.row_maxima = reinterpret_cast<float2*>(weights_.data());  // no weights are there in that pass
        a.column_maxima = a.row_maxima + std::int64_t(side_) * side_ / 32 * ladder_.count;
        a.slots = slots_.data();
        for (a.first_row = 0; a.first_row < rows.padded; a.first_row += side_)
            for (a.first_column = symmetric ? a.first_row : 0; a.first_column < columns.padded;
                 a.first_column += side_) {
                a.tile_rows = std::min(side_, rows.padded - a.first_row) / tile_k;
                a.tile_columns = std::min(side_, columns.padded - a.first_column) / tile_k;
                a.triangle = symmetric && a.first_row == a.first_column;
                if (pass == pass_t::maxima_k) find_maxima(a, set, both_sides, stream);
                else score_superblock(a, both_sides && !a.triangle, pass, stream);
            }
    }

    void score_superblock(superblock_t const& a, bool both_sides, pass_t pass, cudaStream_t stream) {
        kernels_.score(a, pass, stream);
        kernels_.multiply(a, both_sides, stream);
    }

    void find_maxima(superblock_t const& a, int set, bool both_sides, cudaStream_t stream) {
        kernels_.score(a, pass_t::maxima_k, stream);
        for (int side = 0; side < (both_sides ? 2 : 1); ++side) {
            merge_maxima_kernel<<<dim3(static_cast<unsigned>(side ? a.tile_columns : a.tile_rows),
                                       static_cast<unsigned>(ladder_.count)),
                                  tile_k, 0, stream>>>(a, side == 1, ladder_.count, set_[set + side].maxima.data());
            gpu::check_launch("merge_maxima_kernel");
        }
    }

    problem_t problem_;
    int device_;
    ladder_t ladder_;
    kernels_t kernels_;
    float const *scale_, *bias_;
    double* out_;
    set_t set_[2];
    int side_ = 0;
    gpu::buffer_t<std::uint32_t> weights_;
    gpu::buffer_t<float> row_products_, column_products_, positive_logits_;
    gpu::buffer_t<double> slots_;
};

}  // namespace scaling_contrasts::sm80
