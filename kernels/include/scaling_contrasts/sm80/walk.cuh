// One pass over the cells of some rows against some candidates, superblock by superblock, and the scratch it needs; and
// what happens to rows before the first pass and after the last. The engine (engine.cuh) and the offload mode
// (offload.cuh) say which rows meet which.
#pragma once
#include <algorithm>

#include "scaling_contrasts/gpu/memory.cuh"
#include "scaling_contrasts/gpu/prep.cuh"
#include "scaling_contrasts/sm80/finish.cuh"
#include "scaling_contrasts/sm80/step.cuh"

namespace scaling_contrasts::sm80 {

/// Queues zeros.
inline void clear(void* at, std::int64_t bytes, cudaStream_t stream) {
    if (bytes) gpu::check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(bytes), stream), "clearing a buffer");
}

/// Before the first pass: inverse norms, which are `rows.inverse_norms` to be written; sums set to zero, gradients not.
inline void begin_rows(rows_t const& rows, float* inverse_norms, ladder_t const& ladder, cudaStream_t stream) {
    std::int64_t const count = std::int64_t(ladder.count) * rows.padded;
    gpu::find_inverse_norms(rows.embeddings, rows.rows, rows.padded, ladder, inverse_norms, stream);
    clear(rows.weighted_products, count * 4, stream);
    for (float2* running : {rows.maxima, rows.positives})
        if (running && count) {
            clear_maxima_kernel<<<static_cast<unsigned>((count + 255) / 256), 256, 0, stream>>>(running, count);
            gpu::check_launch("clear_maxima_kernel");
        }
}

/// Thread blocks of finish_rows(), each of which leaves one partial sum.
inline int finish_blocks(std::int64_t capacity) {
    return static_cast<int>((capacity + finish_threads_k / 32 - 1) / (finish_threads_k / 32));
}

/// After the last pass: the gradients of `capacity` rows, dead ones included, to `output`, which may be where the
/// embeddings are if its type is as wide, or where the sums are.
inline void finish_rows(rows_t const& rows, problem_t const& problem, std::int64_t capacity, ladder_t const& ladder,
                        float const* scale, double const* mean_over, void* output, double2* partial,
                        cudaStream_t stream) {
    double const n = mean_over ? 1.0 : static_cast<double>(problem.live_rows());
    double const factor = (sets_of(problem.loss) == 1 ? 2.0 : problem.loss == loss_t::info_nce_k ? 0.5 : 1.0) / n;
    bool const row_losses = problem.loss == loss_t::info_nce_k ||
                            (problem.loss == loss_t::one_set_info_nce_k && problem.form == form_t::sup_con_k);
    int const blocks = finish_blocks(capacity);
    if (problem.gradient_type == gradient_type_t::float32_k)
        finish_kernel<<<blocks, finish_threads_k, 0, stream>>>(rows, capacity, ladder, scale, factor, mean_over,
                                                               row_losses, static_cast<float*>(output), partial);
    else
        finish_kernel<<<blocks, finish_threads_k, 0, stream>>>(rows, capacity, ladder, scale, factor, mean_over,
                                                               row_losses, static_cast<bf16_t*>(output), partial);
    gpu::check_launch("finish_kernel");
}

/// `kernels_t`: what scores and multiplies the tiles of a superblock, see tile_kernels_t.
template <class kernels_t>
class walker_t {
  public:
    /// Scratch for walks over at most `padded` rows, on the current device. `scale` and `bias` are read on the device.
    /// `side_limit` bounds the superblocks; 0: a choice of this.
    walker_t(problem_t const& problem, std::int64_t padded, float const* scale, float const* bias,
             gpu::ledger_t& ledger, int side_limit)
        : problem_(problem), ladder_(make_ladder(problem)), kernels_(ladder_), scale_(scale), bias_(bias) {
        side_ = choose_side(static_cast<int>(std::min<std::int64_t>(padded, 1 << 20)), side_limit);
        std::int64_t const plane = std::int64_t(side_) * side_;
        weights_ = gpu::buffer_t<std::uint32_t>(ledger, plane / 2 * ladder_.count * parts());
        row_products_ = gpu::buffer_t<float>(ledger, plane / 32 * ladder_.count);
        column_products_ = gpu::buffer_t<float>(ledger, plane / 64 * ladder_.count);
        slots_ = gpu::buffer_t<double>(ledger, plane / (tile_k * tile_k) * kernels_t::score_warps_k * 3);
    }

    int side() const { return side_; }
    /// Before the first walk of a step.
    void clear(cudaStream_t stream) { sm80::clear(slots_.data(), slots_.bytes(), stream); }

    /// All superblocks of `rows` against the candidates `columns`. Symmetric, for rows against themselves: the upper
    /// triangle only. Both sides: the columns' gradients or sums, too. Rows before `first_row`, a multiple of tile_k,
    /// are left out.
    void walk(rows_t const& rows, rows_t const& columns, bool symmetric, bool both_sides, float cell_weight,
              pass_t pass, cudaStream_t stream, int first_row = 0) {
        bool const grouped = problem_.loss == loss_t::one_set_info_nce_k;
        superblock_t a;
        a.rows = rows;
        a.columns = columns;
        a.side = side_;
        a.labelled_self = sets_of(problem_.loss) == 1;
        a.self_pairs = problem_.self_pairs;
        a.grouped = grouped;
        a.sup_con = grouped && problem_.form == form_t::sup_con_k;
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
        for (a.first_row = first_row; a.first_row < rows.rows; a.first_row += side_)
            for (a.first_column = symmetric ? a.first_row : 0; a.first_column < columns.padded;
                 a.first_column += side_) {
                a.tile_rows = std::min(side_, rows.padded - a.first_row) / tile_k;
                a.tile_columns = std::min(side_, columns.padded - a.first_column) / tile_k;
                a.triangle = symmetric && a.first_row == a.first_column;
                kernels_.score(a, pass, stream);
                if (gathers(pass)) merge_maxima(a, both_sides && !a.triangle, pass, stream);
                else if (!problem_.forward_only) kernels_.multiply(a, both_sides && !a.triangle, stream);
            }
    }

    /// What scalars_kernel() is given, but for the rows' partial sums.
    scalars_job_t scalars(double* out, double const* mean_over) const {
        double const n = mean_over ? 1.0 : static_cast<double>(problem_.live_rows());
        return {.slots = slots_.data(),
                .slot_count = static_cast<int>(slots_.size() / 3),
                .partial = {},
                .partial_count = 0,
                .factor = (problem_.loss == loss_t::info_nce_k ? 0.5 : 1.0) / n,
                .mean_over = mean_over,
                .has_bias = !is_softmax(problem_.loss),
                .out = out};
    }

  private:
    /// Weights rounded to bf16 cost as much as gradients rounded to bf16 do; fp32 gradients get two parts.
    int parts() const { return problem_.gradient_type == gradient_type_t::float32_k ? 2 : 1; }

    /// The side of a superblock: at most 40 MiB of each part's weights, and, of the sides that allows, one whose tiles
    /// and products fill the multiprocessors best (two thread blocks each).
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

    void merge_maxima(superblock_t const& a, bool both_sides, pass_t pass, cudaStream_t stream) {
        for (bool const of_columns : {false, true}) {
            if (of_columns && !both_sides) return;
            auto const& target = of_columns ? a.columns : a.rows;
            dim3 const grid(static_cast<unsigned>(of_columns ? a.tile_columns : a.tile_rows),
                            static_cast<unsigned>(ladder_.count));
            merge_maxima_kernel<<<grid, tile_k, 0, stream>>>(
                a, of_columns, ladder_.count, pass == pass_t::maxima_k ? target.maxima : target.positives);
            gpu::check_launch("merge_maxima_kernel");
        }
    }

    problem_t problem_;
    ladder_t ladder_;
    kernels_t kernels_;
    float const *scale_, *bias_;
    int side_ = 0;
    gpu::buffer_t<std::uint32_t> weights_;
    gpu::buffer_t<float> row_products_, column_products_;
    gpu::buffer_t<double> slots_;
};

}  // namespace scaling_contrasts::sm80
