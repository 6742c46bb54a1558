// The sm80 engine's host side: buffers of one device, and what is queued for one step.
//
//   begin    inverse norms; sums set to zero
//   gather   softmax losses only, for every block of candidates: maxima and sums, then close_gather
//   gather_positives  one_set_info_nce only, likewise, then close_positives
//   score    for every block of candidates: weights of a superblock, then their products, superblock by superblock
//   finish   norm corrections, rounding, scalars
//
// Everything is queued on one stream and captures into a graph. Nothing is added atomically: two runs give equal bits.
// How a superblock's tiles are scored and multiplied is the tile kernels' business (kernels.cuh; sm100 brings its own).
#pragma once
#include <algorithm>
#include <span>

#include "scaling_contrasts/box/device_step.cuh"
#include "scaling_contrasts/sm80/counts.cuh"
#include "scaling_contrasts/sm80/walk.cuh"

namespace scaling_contrasts::sm80 {

using input_t = gpu::set_t;

/// Why an engine whose tile kernels read columns in multiples of `columns` cannot run a problem, as one clause; empty:
/// it can.
inline std::string unsupported(problem_t const& problem, int columns = 16) {
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
          scale_(scale),
          out_(out),
          walker_(problem, (problem.rows + tile_k - 1) / tile_k * tile_k, scale, bias, ledger, side_limit) {
        int const live = static_cast<int>(problem.live_of(device)), padded = padded_of(device);
        std::int64_t const statistics = std::int64_t(ladder_.count) * padded,
                           cells = problem.rows * std::int64_t(problem.dims);
        bool const is_float = problem.gradient_type == gradient_type_t::float32_k;
        for (int i = 0; i < sets(); ++i) {
            auto& set = set_[i];
            set.input = inputs[i];
            set.inverse_norms = gpu::buffer_t<float>(ledger, statistics);
            set.products = gpu::buffer_t<float>(ledger, statistics);
            if (!is_float && !problem.forward_only) set.gradient = gpu::buffer_t<float>(ledger, cells);
            set.partial = gpu::buffer_t<double2>(ledger, finish_blocks(problem.rows));
            if (problem.world_size > 1) {
                auto const candidates = takes_groups() ? candidate_rows(problem) : problem.rows;
                set.candidate_norms = gpu::buffer_t<float>(ledger, std::int64_t(ladder_.count) * padded_to(candidates));
            }
            if (is_softmax(problem.loss)) {
                set.maxima = gpu::buffer_t<float2>(ledger, statistics);
                set.log_sums = gpu::buffer_t<float>(ledger, log_sum_count(device));
            }
            if (is_nce() && i == 0) positive_logits_ = gpu::buffer_t<float>(ledger, statistics);
            if (sets() == 2 && !is_float && i == 0) residuals_ = gpu::buffer_t<float>(ledger, statistics);
            if (is_grouped()) {
                set.positives = gpu::buffer_t<float2>(ledger, statistics);
                counts_ = gpu::buffer_t<int>(ledger, padded);
                mean_over_ = gpu::buffer_t<double>(ledger, 1);
            }
            auto& rows = set.rows;
            rows.embeddings = set.input.embeddings;
            rows.labels = set.input.labels;
            rows.inverse_norms = set.inverse_norms.data();
            rows.log_sums = set.log_sums.data();
            rows.maxima = set.maxima.data();
            rows.positives = set.positives.data();
            rows.positive_logits = positive_logits_.data();
            rows.gradient = is_float ? static_cast<float*>(set.input.gradient) : set.gradient.data();
            rows.weighted_products = set.products.data();
            rows.residuals = residuals_.data();
            rows.partners = sets() == 2 ? inputs[1 - i].embeddings : nullptr;
            rows.first = device * problem.rows;
            rows.rows = live;
            rows.padded = padded;
            if (is_grouped()) set_group_sums(rows, set.log_sums.data());
        }
    }

    int sets() const { return sets_of(problem_.loss); }
    int side() const { return walker_.side(); }
    void begin(cudaStream_t stream) override {
        for (int i = 0; i < sets(); ++i) {
            auto const& rows = set_[i].rows;
            begin_rows(rows, set_[i].inverse_norms.data(), ladder_, stream);
            if (!problem_.forward_only) clear(rows.gradient, problem_.rows * std::int64_t(problem_.dims) * 4, stream);
        }
        clear(counts_.data(), counts_.bytes(), stream);
        walker_.clear(stream);
        clear(positive_logits_.data(), positive_logits_.bytes(), stream);
    }

    bool gathers() const override { return is_softmax(problem_.loss); }
    bool takes_groups() const override { return !is_softmax(problem_.loss) && !problem_.pairs_once; }
    /// Maxima and sums over one block of candidates.
    void gather(gpu::candidates_t const& block, cudaStream_t stream) override {
        visit(block, pass_t::maxima_k, stream);
    }
    /// After the maxima over all blocks; before any score.
    void close_gather(cudaStream_t stream) override {
        if (is_grouped()) {
            auto const& rows = set_[0].rows;
            if (auto const count = set_[0].maxima.size()) {
                negatives_kernel<<<grid(count), 256, 0, stream>>>(rows.maxima, set_[0].log_sums.data() + count, count);
                gpu::check_launch("negatives_kernel");
            }
            return;
        }
        for (int i = 0; i < sets(); ++i)
            if (auto const count = set_[i].maxima.size()) {
                log_sums_kernel<<<grid(count), 256, 0, stream>>>(set_[i].maxima.data(), positive_logits_.data(),
                                                                 set_[i].log_sums.data(), count);
                gpu::check_launch("log_sums_kernel");
            }
    }
    float const* log_sums(int set) const override { return set_[set].log_sums.data(); }
    /// one_set_info_nce shares all of its group sums.
    std::int64_t log_sum_count(int device) const override {
        std::int64_t const statistics = std::int64_t(ladder_.count) * padded_of(device);
        return is_grouped() ? 3 * statistics + padded_of(device) + 2 : statistics;
    }

    bool gathers_positives() const override { return is_grouped(); }
    /// Counts each row's positives in one block, and sums over them.
    void gather_positives(gpu::candidates_t const& block, cudaStream_t stream) override {
        rows_t const rows = set_[0].rows, columns = columns_of(block, 0, stream);
        if (rows.rows == 0 || columns.rows == 0 || !rows.labels || !columns.labels) return;
        dim3 const blocks(grid(rows.rows), static_cast<unsigned>(columns.rows + 4095) / 4096);
        count_positives_kernel<<<blocks, 256, 0, stream>>>(rows, columns, counts_.data());
        gpu::check_launch("count_positives_kernel");
        visit(block, pass_t::positives_k, stream);
    }
    void close_positives(cudaStream_t stream) override {
        auto const& rows = set_[0].rows;
        bool const sup_con = problem_.form == form_t::sup_con_k;
        close_counts_kernel<<<1, 1024, 0, stream>>>(counts_.data(), rows.rows,
                                                    set_[0].log_sums.data() + 3 * set_[0].maxima.size(),
                                                    totals_of(set_[0].log_sums.data(), device_));
        gpu::check_launch("close_counts_kernel");
        if (auto const count = set_[0].maxima.size()) {
            group_sums_kernel<<<grid(count), 256, 0, stream>>>(rows.negatives, rows.positives, sup_con,
                                                               rows.positive_logits, set_[0].log_sums.data(), count);
            gpu::check_launch("group_sums_kernel");
        }
        clear(mean_over_.data(), mean_over_.bytes(), stream);
    }

    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        if (is_grouped()) {  // what the mean is over comes with the blocks, each of which is scored once
            float const* totals = totals_of(block.log_sums[0], block.device);
            add_count_kernel<<<1, 1, 0, stream>>>(totals + (problem_.form == form_t::sup_con_k), mean_over_.data());
            gpu::check_launch("add_count_kernel");
        }
        if (is_nce() && problem_.forward_only) return;  // its loss follows from the maxima's sums
        visit(block, is_nce() ? pass_t::softmax_k : is_grouped() ? pass_t::groups_k : pass_t::sigmoid_k, stream);
    }

    /// The columns' gradients come from the same weights as the rows'. A cell of one set stands for its mirror image,
    /// too.
    void score_pair(gpu::candidates_t const& block, pair_t const& pair, std::byte* partial,
                    cudaStream_t stream) override {
        bool const one = sets() == 1;
        rows_t columns = columns_of(block, one ? 0 : 1, stream, pair.candidates);
        columns.gradient = reinterpret_cast<float*>(partial);
        columns.weighted_products = columns.gradient + problem_.rows * problem_.dims;
        clear(columns.gradient, pair.candidates * std::int64_t(problem_.dims) * 4, stream);
        clear(columns.weighted_products, std::int64_t(ladder_.count) * columns.padded * 4, stream);
        walker_.walk(set_[0].rows, columns, false, true, one ? 2.0f : 1.0f, pass_t::sigmoid_k, stream,
                     static_cast<int>(pair.first_row));
    }
    void take_pair(std::byte const* partial, std::int64_t rows, cudaStream_t stream) override {
        if (rows == 0) return;
        auto const* const gradient = reinterpret_cast<float const*>(partial);
        auto const blocks = static_cast<unsigned>(std::clamp<std::int64_t>(rows * problem_.dims / 4 / 256, 1, 1024));
        add_partial_kernel<<<blocks, 256, 0, stream>>>(set_[sets() - 1].rows, static_cast<int>(rows), ladder_,
                                                       reinterpret_cast<float4 const*>(gradient),
                                                       gradient + problem_.rows * problem_.dims, padded_to(rows));
        gpu::check_launch("add_partial_kernel");
    }
    std::int64_t partial_bytes() const override {
        return (problem_.rows * problem_.dims + std::int64_t(ladder_.count) * padded_to(problem_.rows)) * 4;
    }

    void finish(cudaStream_t stream) override {
        double const* const mean_over = is_grouped() ? mean_over_.data() : nullptr;
        scalars_job_t job = walker_.scalars(out_, mean_over);
        job.partial_count = finish_blocks(problem_.rows);
        for (int i = 0; i < sets(); ++i) {
            auto const& set = set_[i];
            job.partial[i] = set.partial.data();
            finish_rows(set.rows, problem_, problem_.rows, ladder_, scale_, mean_over,
                        problem_.forward_only ? nullptr : set.input.gradient, set.partial.data(), stream);
        }
        scalars_kernel<<<1, 1024, 0, stream>>>(job);
        gpu::check_launch("scalars_kernel");
    }

    std::int64_t launches() const override {
        std::int64_t const along = (problem_.rows + side() - 1) / side();
        return 2 * along * along;
    }

  private:
    struct set_t {
        input_t input;
        rows_t rows;
        gpu::buffer_t<float> inverse_norms, products, gradient, log_sums, candidate_norms;
        gpu::buffer_t<float2> maxima, positives;
        gpu::buffer_t<double2> partial;
    };

    static int padded_to(std::int64_t rows) { return static_cast<int>((rows + tile_k - 1) / tile_k * tile_k); }
    int padded_of(int device) const { return padded_to(problem_.live_of(device)); }
    bool is_nce() const { return problem_.loss == loss_t::info_nce_k; }
    bool is_grouped() const { return problem_.loss == loss_t::one_set_info_nce_k; }
    static unsigned grid(std::int64_t count) { return static_cast<unsigned>((count + 255) / 256); }
    /// one_set_info_nce's sums of a device's rows in one array, as devices share them: l, n and u of every prefix and
    /// row (groups.cuh), 1 / positives of every row, and over all rows positive pairs and rows that have positives.
    float* totals_of(float* sums, int device) const { return sums + log_sum_count(device) - 2; }
    float const* totals_of(float const* sums, int device) const { return sums + log_sum_count(device) - 2; }
    void set_group_sums(rows_t& rows, float const* sums) const {
        std::int64_t const statistics = std::int64_t(ladder_.count) * rows.padded;
        if (!sums) return;
        rows.log_sums = sums;
        rows.negatives = sums + statistics;
        rows.positive_logits = const_cast<float*>(sums) + 2 * statistics;
        rows.each = sums + 3 * statistics;
    }

    /// One pass over one block of candidates. The own block of one set is symmetric: its upper triangle is scored, and
    /// serves rows and columns. The own block of two sets serves both sets; of a foreign one, each set's rows meet the
    /// other set's candidates, and the loss is counted by the first.
    void visit(gpu::candidates_t const& block, pass_t pass, cudaStream_t stream) {
        bool const own = block.device == device_, one = sets() == 1;
        walker_.walk(set_[0].rows, columns_of(block, one ? 0 : 1, stream), one && own, own, one && own ? 2.0f : 1.0f,
                     pass, stream);
        if (!one && !own) walker_.walk(set_[1].rows, columns_of(block, 0, stream), false, false, 0.0f, pass, stream);
    }

    /// A set of a block as the kernels see it: the device's own rows, or another's (the first `count`; -1: all) with
    /// the norms found anew.
    rows_t columns_of(gpu::candidates_t const& block, int set, cudaStream_t stream, std::int64_t count = -1) {
        if (block.device == device_) return set_[set].rows;
        rows_t columns;
        columns.embeddings = block.embeddings[set];
        columns.labels = block.labels;
        columns.inverse_norms = set_[set].candidate_norms.data();
        columns.log_sums = block.log_sums[set];
        columns.first = block.device * problem_.rows;
        columns.rows = static_cast<int>(count < 0 ? gpu::live_of(problem_, block) : count);
        columns.padded = padded_to(columns.rows);
        if (is_grouped()) set_group_sums(columns, block.log_sums[0]);
        gpu::find_inverse_norms(columns.embeddings, columns.rows, columns.padded, ladder_,
                                set_[set].candidate_norms.data(), stream);
        return columns;
    }

    problem_t problem_;
    int device_;
    ladder_t ladder_;
    float const* scale_;
    double* out_;
    walker_t<kernels_t> walker_;
    set_t set_[2];
    gpu::buffer_t<float> positive_logits_, residuals_;
    gpu::buffer_t<int> counts_;        // one_set_info_nce: each row's positives
    gpu::buffer_t<double> mean_over_;  // and what its mean is over, of all devices
};

}  // namespace scaling_contrasts::sm80
