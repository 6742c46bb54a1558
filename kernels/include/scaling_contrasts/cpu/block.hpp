// The schedule of one block: the rows of one device against the candidates of one (perhaps the same), superblock by
// superblock. A superblock is packed, scored and turned into gradients before the next, by all threads together, so no
// two threads ever add to the same row, and results do not depend on the number of threads.
#pragma once
#include <cmath>

#include "scaling_contrasts/cpu/layout.hpp"
#include "scaling_contrasts/threads.hpp"

namespace scaling_contrasts::cpu {

/// What all blocks of a process share: the weights and packed operands of one superblock. Independent of the rows.
struct workspace_t {
    buffer_t<std::byte> left, weights, transposed_weights;
    buffer_t<std::uint32_t> right, row_panels, candidate_panels;
    buffer_t<float> row_sums, row_totals, candidate_sums, candidate_totals, exact_weights;
    buffer_t<exact_t> exact;
    buffer_t<int> exact_counts;
    buffer_t<double> losses, bias_sums;

    workspace_t(kernels_t const& kernels, packed_ladder_t const& ladder, bool both) {
        auto const bands = static_cast<std::size_t>(ladder.count), pairs = static_cast<std::size_t>(ladder.pairs());
        auto const panels = static_cast<std::size_t>(ladder.panels());
        constexpr std::size_t tasks = tasks_a_side_k * tasks_a_side_k, plane = block_k * block_k / 2;
        left = buffer_t<std::byte>(block_k * pairs * kernels.pair_bytes);
        right = buffer_t<std::uint32_t>(block_k * pairs);
        weights = buffer_t<std::byte>(bands * plane * kernels.pair_bytes);
        candidate_panels = buffer_t<std::uint32_t>(panels * panel_k * block_k / 2);
        if (both) {
            transposed_weights = buffer_t<std::byte>(bands * plane * kernels.pair_bytes);
            row_panels = buffer_t<std::uint32_t>(panels * panel_k * block_k / 2);
        }
        row_sums = buffer_t<float>(tasks * bands * task_k);
        row_totals = buffer_t<float>(tasks * bands * task_k);
        candidate_sums = buffer_t<float>(tasks * bands * task_k);
        candidate_totals = buffer_t<float>(tasks * bands * task_k);
        exact = buffer_t<exact_t>(tasks * exact_a_task_k);
        exact_weights = buffer_t<float>(tasks * exact_a_task_k * bands);
        exact_counts = buffer_t<int>(tasks);
        losses = buffer_t<double>(tasks);
        bias_sums = buffer_t<double>(tasks);
    }
};

/// What a block is scored for.
struct block_t {
    objective_t objective;
    form_t form;        ///< of one_set_info_nce
    bool symmetric;     ///< rows and candidates are one and the same side: score the upper triangle
    bool both;          ///< candidates get gradients or statistics as well
    bool forward_only;  ///< no gradients
    float scale2, bias2;
    std::array<float, max_prefixes_k> gradient_coefficient, loss_coefficient;
    std::int64_t first_row = 0;  ///< rows before it are left out; a multiple of task_k
};

namespace detail {

/// Sums the slots of the tasks that share `group` of a side, in a fixed order, into the side's own sums.
inline void fold_sums(packed_ladder_t const& ladder, side_t& side, float const* sums, std::int64_t first, int count,
                      int group, bool transposed) {
    for (int p = 0; p < ladder.count; ++p)
        for (int i = 0; i < std::min(task_k, count - group * task_k); ++i) {
            float sum = 0;
            for (int other = 0; other < tasks_a_side_k; ++other) {
                int const task = transposed ? other * tasks_a_side_k + group : group * tasks_a_side_k + other;
                sum += sums[(task * ladder.count + p) * task_k + i];
            }
            side.sums[static_cast<std::size_t>(p * side.padded + first + group * task_k + i)] += sum;
        }
}

/// Whether two stretches of labels have no label in common for sure: their ranges do not meet.
inline bool labels_apart(std::int32_t const* a, int a_count, std::int32_t const* b, int b_count) {
    auto const [a_least, a_most] = std::minmax_element(a, a + a_count);
    auto const [b_least, b_most] = std::minmax_element(b, b + b_count);
    return *a_most < *b_least || *b_most < *a_least;
}

/// The same for the softmax losses' running maxima and totals.
inline void fold_statistics(packed_ladder_t const& ladder, side_t& side, float const* greatest, float const* totals,
                            std::int64_t first, int count, int group, bool transposed) {
    for (int p = 0; p < ladder.count; ++p)
        for (int i = 0; i < std::min(task_k, count - group * task_k); ++i) {
            auto const at = static_cast<std::size_t>(p * side.padded + first + group * task_k + i);
            for (int other = 0; other < tasks_a_side_k; ++other) {
                int const task = transposed ? other * tasks_a_side_k + group : group * tasks_a_side_k + other;
                int const slot = (task * ladder.count + p) * task_k + i;
                float const most = std::max(side.greatest[at], greatest[slot]);
                side.rest[at] = side.rest[at] * std::exp2(side.greatest[at] - most) +
                                totals[slot] * std::exp2(greatest[slot] - most);
                side.greatest[at] = most;
            }
        }
}

}  // namespace detail

/// Scores `rows` x `candidates` and adds to the gradients (or statistics) of `rows`, with `block.both` of `candidates`
/// too, and to `sums.loss` and `sums.bias_gradient`.
inline void score_block(kernels_t const& kernels, pool_t& pool, packed_ladder_t const& ladder, workspace_t& space,
                        side_t& rows, side_t& candidates, block_t const& block, scalars_t& sums) {
    bool const statistics = gathers(block.objective);
    constexpr int groups = block_k / tile_rows_k, right_panels = block_k / panel_k,
                  tasks = tasks_a_side_k * tasks_a_side_k;
    std::size_t const left_bytes = static_cast<std::size_t>(ladder.pairs()) * tile_rows_k * kernels.pair_bytes;
    std::int64_t const panel_words = std::int64_t{panel_k} * block_k / 2;
    bool const multiplies = !statistics && !block.forward_only;
    int const panels = multiplies ? ladder.panels() : 0, row_panels = block.both ? panels : 0;

    for (std::int64_t i = block.first_row; i < rows.x.rows; i += block_k) {
        int const row_count = static_cast<int>(std::min<std::int64_t>(block_k, rows.x.rows - i));
        pool.run(groups, [&](int part) {
            kernels.pack_left(ladder, rows.x, i + part * tile_rows_k,
                              space.left.data() + static_cast<std::size_t>(part) * left_bytes);
        });
        pool.run(row_panels, [&](int panel) {
            kernels.pack_panel(ladder, rows.x, i, panel, space.row_panels.data() + panel * panel_words);
        });
        for (std::int64_t j = block.symmetric ? i : 0; j < candidates.x.rows; j += block_k) {
            int const candidate_count = static_cast<int>(std::min<std::int64_t>(block_k, candidates.x.rows - j));
            if (block.objective == objective_t::positives_k &&
                detail::labels_apart(rows.labels.data() + i, row_count, candidates.labels.data() + j, candidate_count))
                continue;
            pool.run(panels, [&](int panel) {
                kernels.pack_panel(ladder, candidates.x, j, panel, space.candidate_panels.data() + panel * panel_words);
            });
            pool.run(right_panels, [&](int part) {
                kernels.pack_right(ladder, candidates.x, j + part * panel_k,
                                   space.right.data() + std::int64_t{part} * ladder.pairs() * panel_k);
            });
            bool const diagonal = block.symmetric && i == j;
            score_job_t const job = {&ladder,
                                     &rows,
                                     &candidates,
                                     i,
                                     j,
                                     row_count,
                                     candidate_count,
                                     block.objective,
                                     block.form,
                                     diagonal,
                                     block.both,
                                     block.scale2,
                                     block.bias2,
                                     block.gradient_coefficient,
                                     block.loss_coefficient,
                                     space.left.data(),
                                     space.right.data(),
                                     space.weights.data(),
                                     space.transposed_weights.data(),
                                     space.row_sums.data(),
                                     space.candidate_sums.data(),
                                     space.row_totals.data(),
                                     space.candidate_totals.data(),
                                     space.losses.data(),
                                     space.bias_sums.data(),
                                     space.exact.data(),
                                     space.exact_weights.data(),
                                     space.exact_counts.data()};
            pool.run(tasks, [&](int task) { kernels.score(job, task); });
            for (int task = 0; task < tasks; ++task) {
                sums.loss += space.losses[static_cast<std::size_t>(task)];
                sums.bias_gradient += space.bias_sums[static_cast<std::size_t>(task)];
            }

            gradient_job_t const to_rows = {&ladder,
                                            &rows,
                                            &candidates,
                                            i,
                                            j,
                                            row_count,
                                            candidate_count,
                                            false,
                                            diagonal,
                                            space.weights.data(),
                                            space.candidate_panels.data(),
                                            space.exact.data(),
                                            space.exact_weights.data(),
                                            space.exact_counts.data()};
            gradient_job_t const to_candidates = {&ladder,
                                                  &candidates,
                                                  &rows,
                                                  j,
                                                  i,
                                                  candidate_count,
                                                  row_count,
                                                  true,
                                                  diagonal,
                                                  space.transposed_weights.data(),
                                                  space.row_panels.data(),
                                                  space.exact.data(),
                                                  space.exact_weights.data(),
                                                  space.exact_counts.data()};
            auto add_to = [&](gradient_job_t const& target, int group, int chunk) {
                if (group * task_k >= target.target_count) return;
                if (chunk == 0) {
                    float const* const folded = target.transposed ? space.candidate_sums.data() : space.row_sums.data();
                    float const* const totals =
                        target.transposed ? space.candidate_totals.data() : space.row_totals.data();
                    if (statistics)
                        detail::fold_statistics(ladder, *target.target, folded, totals, target.first_target,
                                                target.target_count, group, target.transposed);
                    else
                        detail::fold_sums(ladder, *target.target, folded, target.first_target, target.target_count,
                                          group, target.transposed);
                }
                if (multiplies) kernels.gradient(target, group, chunk);
            };
            int const chunks = multiplies ? ladder.chunks() : 1;
            // On the diagonal both targets are the same rows: one task does both, one after the other.
            int const sides = block.both && !diagonal ? 2 : 1;
            pool.run(sides * tasks_a_side_k * chunks, [&](int part) {
                // columns slowest: a thread keeps the columns whose panels it packed
                int const chunk = part / sides / tasks_a_side_k, group = part / sides % tasks_a_side_k;
                if (diagonal || part % sides == 0) add_to(to_rows, group, chunk);
                if (diagonal || part % sides == 1) add_to(to_candidates, group, chunk);
            });
        }
    }
}

}  // namespace scaling_contrasts::cpu
