// How the CPU engine cuts its work and lays out its operands.
//
// Cells are scored in superblocks of 256 x 256, each split into tasks of 64 x 64, each into tiles of 8 rows x 32
// candidates. All products run over pairs of consecutive elements, as the bf16 dot-product instruction wants them:
//   left operand    [pair][8 rows]                 a tile's rows (or weights, see below)
//   right operand   [pair][32 lanes], a "panel"    32 candidates, or 32 columns of a gradient
// Scores contract columns: pairs of columns, never across a band. Gradients contract candidates: pairs of rows.
// The weights of a superblock exist twice, for its rows `[band][row][candidate]` and transposed for its candidates
// `[band][candidate / 8][row / 2][8][2]`, and are overwritten by the next superblock.
#pragma once
#include <algorithm>
#include <cstdint>

#include "scaling_contrasts/ladder.hpp"
#include "scaling_contrasts/memory.hpp"
#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::cpu {

inline constexpr int tile_rows_k = 8;
inline constexpr int panel_k = 32;
inline constexpr int task_k = 64;
inline constexpr int block_k = 256;
inline constexpr int tasks_a_side_k = block_k / task_k;
inline constexpr int panels_a_chunk_k = 8;  ///< gradient columns of one task, in panels
inline constexpr int exact_a_task_k = 256;  ///< positives of a task kept apart in fp32
inline constexpr int exact_a_tile_k = 32;   ///< beyond it a tile's positives stay among the bf16 weights

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) { return (value + unit - 1) / unit * unit; }

/// The ladder as pairs of columns (scores) and panels of 32 columns (gradients); both are padded band by band.
struct packed_ladder_t : ladder_t {
    std::array<int, max_prefixes_k + 1> pair_begin = {};   ///< of each band; last: all pairs
    std::array<int, max_prefixes_k + 1> panel_begin = {};  ///< of each band; last: all panels

    explicit packed_ladder_t(ladder_t const& ladder) : ladder_t(ladder) {
        for (std::size_t b = 0; b < static_cast<std::size_t>(count); ++b) {
            int const width = bands[b].end - bands[b].begin;
            pair_begin[b + 1] = pair_begin[b] + (width + 1) / 2;
            panel_begin[b + 1] = panel_begin[b] + (width + panel_k - 1) / panel_k;
        }
    }
    int pairs() const { return pair_begin[static_cast<std::size_t>(count)]; }
    int panels() const { return panel_begin[static_cast<std::size_t>(count)]; }
    int chunks() const { return (panels() + panels_a_chunk_k - 1) / panels_a_chunk_k; }
    int band_of_panel(int panel) const {
        int band = 0;
        while (panel >= panel_begin[static_cast<std::size_t>(band + 1)]) ++band;
        return band;
    }
    /// Columns of a panel: `{begin, end}`, up to 32.
    band_t columns_of_panel(int panel) const {
        auto const band = static_cast<std::size_t>(band_of_panel(panel));
        int const begin = bands[band].begin + (panel - panel_begin[band]) * panel_k;
        return {begin, std::min(begin + panel_k, bands[band].end)};
    }
    /// Whether the padded gradient columns are the real ones.
    bool panels_are_columns() const { return panels() * panel_k == columns(); }
};

/// One set of embeddings of one device, with what the steps keep about each of its rows: arrays `[prefix][padded]`.
struct side_t {
    matrix_view_t x;                ///< live rows only
    std::int64_t padded = 0;        ///< x.rows rounded up to whole superblocks
    buffer_t<std::int32_t> labels;  ///< group of each row
    buffer_t<float> inverse_norms;  ///< 0 where the norm is below least_norm_k
    buffer_t<float> sums;           ///< sum over candidates of (dL/dlogit) * cosine
    // the softmax losses alone; logits are in units of ln 2
    buffer_t<float> greatest;  ///< running maximum of the logits
    buffer_t<float> rest;      ///< sum over negatives of exp2(logit - greatest); then its share of the whole sum
    buffer_t<float> own;       ///< the positive's logit; one_set_info_nce: log2 of the sum over positives
    buffer_t<float>
        log_sums;  ///< a negative's slope is exp2(logit - log_sums): log2 of the whole sum of exp2, or as it
                   ///< serves (score_groups.inl)
    buffer_t<float> negatives;  ///< one_set_info_nce: log2 of the sum over negatives
    buffer_t<float> each;       ///< one_set_info_nce, of a row: 1 / its positives, or 0
    buffer_t<float> own_accumulator;
    float* accumulator = nullptr;  ///< gradient so far, `[x.rows][accumulator_stride]`, in panels
    std::int64_t accumulator_stride = 0;
};

/// What a block is scored for: gradients of a loss, or (those that `gathers`) sums along rows and candidates.
enum class objective_t { sigmoid_k, statistics_k, info_nce_k, negatives_k, positives_k, groups_k };
constexpr bool gathers(objective_t objective) {
    return objective == objective_t::statistics_k || objective == objective_t::negatives_k ||
           objective == objective_t::positives_k;
}

/// A positive kept apart from the grid: cell (row, candidate) of a superblock; its weights lie beside, one a band.
struct exact_t {
    std::uint16_t row, candidate;
};

/// One superblock to score; tasks read it, and write their own slots of the results.
struct score_job_t {
    packed_ladder_t const* ladder;
    side_t* rows;
    side_t* candidates;
    std::int64_t first_row, first_candidate;
    int row_count, candidate_count;
    objective_t objective;
    form_t form;          ///< of one_set_info_nce
    bool diagonal;        ///< rows and candidates are the same: only cells right of the diagonal count
    bool both;            ///< candidates get gradients too
    float scale2, bias2;  ///< t and b times log2(e)
    std::array<float, max_prefixes_k> gradient_coefficient, loss_coefficient;
    void const* left;            ///< rows, `[row / 8][pair][8]`
    std::uint32_t const* right;  ///< candidates, `[candidate / 32][pair][32]`
    void* weights;
    void* transposed_weights;
    float* row_sums;  ///< `[task][prefix][64]`; statistics: greatest
    float* candidate_sums;
    float* row_totals;  ///< statistics: rest
    float* candidate_totals;
    double* losses;  ///< `[task]`
    double* bias_sums;
    exact_t* exact;        ///< `[task][exact_a_task_k]`
    float* exact_weights;  ///< `[task][exact_a_task_k][band]`
    int* exact_counts;
};

/// Adds a superblock's weights times one side's embeddings to the gradient of the other.
struct gradient_job_t {
    packed_ladder_t const* ladder;
    side_t* target;
    side_t const* source;
    std::int64_t first_target, first_source;
    int target_count, source_count;
    bool transposed;  ///< targets are the superblock's candidates
    bool diagonal;
    void const* weights;
    std::uint32_t const* panels;  ///< source rows, `[panel][row / 2][32]`
    exact_t const* exact;
    float const* exact_weights;
    int const* exact_counts;
};

/// What one instruction set offers; the schedule (block.hpp) knows nothing else about it.
struct kernels_t {
    char const* name;
    bool (*usable)();
    std::size_t pair_bytes;  ///< of a pair in a left operand: bf16 or fp32
    /// Left operand of 8 rows from `row` on; rows past the view are zero.
    void (*pack_left)(packed_ladder_t const&, matrix_view_t const&, std::int64_t row, void* out);
    /// Right operand for scores: 32 candidates from `row` on.
    void (*pack_right)(packed_ladder_t const&, matrix_view_t const&, std::int64_t row, std::uint32_t* out);
    /// Right operand for gradients: one panel of columns, `block_k` rows from `row` on.
    void (*pack_panel)(packed_ladder_t const&, matrix_view_t const&, std::int64_t row, int panel, std::uint32_t* out);
    /// Squared length of columns [begin, end).
    float (*square_sum)(bf16_t const* row, int begin, int end);
    void (*score)(score_job_t const&, int task);
    void (*gradient)(gradient_job_t const&, int group, int chunk);
    /// Gradient of one row from what was accumulated: scale * (accumulated - toward[band] * x).
    void (*write_row)(packed_ladder_t const&, float const* accumulated, bf16_t const* x, float const* toward,
                      float scale, gradient_type_t, void* out);
};

}  // namespace scaling_contrasts::cpu
