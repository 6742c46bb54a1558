// Score tasks of one instruction set: 64 x 64 cells, tile by tile. After each band of columns a tile's dot products are
// those of the next prefix, and the epilogue turns them into losses, sums and weights.

/// One tile, in the first-level cache.
struct tile_t {
    alignas(64) float dots[tile_rows_k * panel_k];
    alignas(64) float logits[tile_rows_k * panel_k];
    alignas(64) float weights[max_prefixes_k][tile_rows_k * panel_k];
    integers_t positive[tile_rows_k][vectors_k];  ///< all ones where labels are equal
    integers_t counted[tile_rows_k][vectors_k];   ///< all ones where the cell is part of the loss
    bool plain;                                   ///< every cell is counted, none is positive
    bool positives;
    int row, candidate, rows;  ///< place in the superblock, rows in use
};

/// What a task sums while it goes from tile to tile.
struct task_sums_t {
    vector_t rows[task_k * max_prefixes_k];  ///< `[row][prefix]`
    float most[task_k * max_prefixes_k];     ///< statistics: the maximum that `rows` refers to
    vector_t loss, bias;
};

SC_INLINE void begin_tile(score_job_t const& job, tile_t& tile) {
    integers_t lane;
    for (int i = 0; i < lanes_k; ++i) lane[i] = i;
    integers_t all = ~integers_t{}, any = {};
    std::int32_t const* const row_labels = job.rows->labels.data() + job.first_row + tile.row;
    std::int32_t const* const labels = job.candidates->labels.data() + job.first_candidate + tile.candidate;
    tile.rows = std::min(tile_rows_k, job.row_count - tile.row);
    for (int r = 0; r < tile_rows_k; ++r)
        for (int v = 0; v < vectors_k; ++v) {
            integers_t const place = lane + (tile.candidate + v * lanes_k);
            integers_t counted = place < (r < tile.rows ? job.candidate_count : 0);
            if (job.diagonal) counted &= place > tile.row + r;
            tile.counted[r][v] = counted;
            tile.positive[r][v] = counted & (load<integers_t>(labels + v * lanes_k) == row_labels[r]);
            all &= counted;
            any |= tile.positive[r][v];
        }
    tile.positives = any_of(any);
    tile.plain = !tile.positives && !any_of(~all);
    __builtin_memset(tile.dots, 0, sizeof(tile.dots));
}

/// Logits (times log2 e) of prefix p; returns the greatest.
SC_INLINE float find_logits(score_job_t const& job, int p, tile_t& tile) {
    float const* const inverse_rows = job.rows->inverse_norms.data() + p * job.rows->padded + job.first_row + tile.row;
    float const* const inverse =
        job.candidates->inverse_norms.data() + p * job.candidates->padded + job.first_candidate + tile.candidate;
    vector_t most = broadcast(-3e38f);
    for (int v = 0; v < vectors_k; ++v) {
        vector_t const scaled = load(inverse + v * lanes_k) * job.scale2;
        for (int r = 0; r < tile_rows_k; ++r) {
            int const at = r * panel_k + v * lanes_k;
            vector_t const x = load(tile.dots + at) * (scaled * inverse_rows[r]) + job.bias2;
            store(tile.logits + at, x);
            most = greater(x, most);
        }
    }
    return greatest_of(most);
}

/// Turns a vector of logits into weights and sums. `cell(x, r, v, loss, slope)` gives softplus-like loss and slope.
template <class cell_function_t>
SC_INLINE void weigh(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* candidate_sums,
                     cell_function_t&& cell) {
    float const* const inverse_rows = job.rows->inverse_norms.data() + p * job.rows->padded + job.first_row + tile.row;
    float const* const inverse =
        job.candidates->inverse_norms.data() + p * job.candidates->padded + job.first_candidate + tile.candidate;
    float const coefficient = job.gradient_coefficient[static_cast<std::size_t>(p)];
    vector_t losses = {}, slopes = {};
    vector_t* const row_sums = sums.rows + tile.row % task_k * job.ladder->count + p;
    for (int v = 0; v < vectors_k; ++v) {
        vector_t const inverse_lanes = load(inverse + v * lanes_k) * coefficient;
        vector_t lane_sums = {};
        for (int r = 0; r < tile_rows_k; ++r) {
            int const at = r * panel_k + v * lanes_k;
            vector_t loss, slope;
            cell(load(tile.logits + at), r, v, loss, slope);
            losses += loss;
            slopes += slope;
            vector_t const weight = slope * (inverse_lanes * inverse_rows[r]);
            vector_t const pull = weight * load(tile.dots + at);
            store(tile.weights[p] + at, weight);
            row_sums[r * job.ladder->count] += pull;
            lane_sums += pull;
        }
        store(candidate_sums + v * lanes_k, load(candidate_sums + v * lanes_k) + lane_sums);
    }
    float const loss_coefficient = job.loss_coefficient[static_cast<std::size_t>(p)];
    sums.loss += losses * loss_coefficient;
    sums.bias += slopes * loss_coefficient;
}

SC_INLINE void weigh_sigmoid(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* candidate_sums) {
    float const most = find_logits(job, p, tile);
    if (tile.plain && most <= far_below_k)
        return weigh(job, p, tile, sums, candidate_sums,
                     [](vector_t x, int, int, vector_t& loss, vector_t& slope) SC_TARGET {
                         vector_t const e = exp2_of(x);
                         far_cell(e, loss, slope);
                     });
    weigh(job, p, tile, sums, candidate_sums, [&](vector_t x, int r, int v, vector_t& loss, vector_t& slope) SC_TARGET {
        integers_t const positive = tile.positive[r][v], counted = tile.counted[r][v];
        x = positive ? -x : x;
        vector_t const e = exp2_of(x > 0.0f ? -x : x);
        near_cell(x, e, loss, slope);
        loss = cast<vector_t>(cast<integers_t>(loss) & counted);
        slope = cast<vector_t>(cast<integers_t>(positive ? -slope : slope) & counted);
    });
}

/// Second pass of info_nce: the slope is softmax along the row plus softmax along the column, minus 2 at the positive.
/// There softmax - 1 is minus the negatives' share, which `gather` found without cancellation.
SC_INLINE void weigh_info_nce(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* candidate_sums) {
    find_logits(job, p, tile);
    std::int64_t const row = p * job.rows->padded + job.first_row + tile.row;
    std::int64_t const candidate = p * job.candidates->padded + job.first_candidate + tile.candidate;
    float const *const row_logs = job.rows->log_sums.data() + row, *const row_rest = job.rows->rest.data() + row;
    float const *const logs = job.candidates->log_sums.data() + candidate, *const rest =
                                                                               job.candidates->rest.data() + candidate;
    weigh(job, p, tile, sums, candidate_sums, [&](vector_t x, int r, int v, vector_t& loss, vector_t& slope) SC_TARGET {
        slope = exp2_of(x - row_logs[r]) + exp2_of(x - load(logs + v * lanes_k));
        slope = tile.positive[r][v] ? -(load(rest + v * lanes_k) + row_rest[r]) : slope;
        slope = cast<vector_t>(cast<integers_t>(slope) & tile.counted[r][v]);
        loss = vector_t{};
    });
}

/// Keeps the logits of a tile's positives: each row and each candidate has one.
SC_INLINE void keep_own_logits(score_job_t const& job, int p, tile_t const& tile) {
    std::int64_t const row = p * job.rows->padded + job.first_row + tile.row;
    std::int64_t const candidate = p * job.candidates->padded + job.first_candidate + tile.candidate;
    for (int r = 0; r < tile.rows; ++r)
        for (int c = 0; c < panel_k; ++c)
            if (tile.positive[r][c / lanes_k][c % lanes_k] != 0)
                job.rows->own.data()[row + r] = job.candidates->own.data()[candidate + c] =
                    tile.logits[r * panel_k + c];
}

/// First pass of info_nce: running maximum of all logits and sum of exp2 over negatives, along rows and candidates.
SC_INLINE void gather_statistics(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* lane_most,
                                 float* lane_rest) {
    find_logits(job, p, tile);
    if (tile.positives) keep_own_logits(job, p, tile);
    float const none = -1e30f;
    for (int v = 0; v < vectors_k; ++v) {
        vector_t most = load(lane_most + v * lanes_k);
        vector_t const before = most;
        for (int r = 0; r < tile_rows_k; ++r) {
            int const at = r * panel_k + v * lanes_k;
            vector_t const x = tile.counted[r][v] ? load(tile.logits + at) : broadcast(none);
            store(tile.logits + at, x);
            most = greater(x, most);
        }
        vector_t rest = load(lane_rest + v * lanes_k) * exp2_of(before - most);
        for (int r = 0; r < tile_rows_k; ++r) {
            vector_t const e = exp2_of(load(tile.logits + r * panel_k + v * lanes_k) - most);
            rest += cast<vector_t>(cast<integers_t>(e) & tile.counted[r][v] & ~tile.positive[r][v]);
        }
        store(lane_most + v * lanes_k, most);
        store(lane_rest + v * lanes_k, rest);
    }
    for (int r = 0; r < tile.rows; ++r) {
        vector_t greatest = load(tile.logits + r * panel_k);
        for (int v = 1; v < vectors_k; ++v) greatest = greater(load(tile.logits + r * panel_k + v * lanes_k), greatest);
        int const slot = (tile.row % task_k + r) * job.ladder->count + p;
        float const most = std::max(greatest_of(greatest), sums.most[slot]);
        vector_t rest = sums.rows[slot] * exp2_of(broadcast(sums.most[slot] - most));
        for (int v = 0; v < vectors_k; ++v) {
            vector_t const e = exp2_of(load(tile.logits + r * panel_k + v * lanes_k) - most);
            rest += cast<vector_t>(cast<integers_t>(e) & tile.counted[r][v] & ~tile.positive[r][v]);
        }
        sums.rows[slot] = rest;
        sums.most[slot] = most;
    }
}

/// Takes a tile's positives out of its weights (suffix sums by now) into the task's list, if they are few.
SC_INLINE void set_positives_apart(score_job_t const& job, int task, tile_t& tile) {
    int found = 0;
    for (int r = 0; r < tile_rows_k; ++r)
        for (int v = 0; v < vectors_k; ++v)
            for (int i = 0; i < lanes_k; ++i) found += tile.positive[r][v][i] != 0;
    int& count = job.exact_counts[task];
    if (found > exact_a_tile_k || count + found > exact_a_task_k) return;
    int const bands = job.ladder->count;
    for (int r = 0; r < tile_rows_k; ++r)
        for (int c = 0; c < panel_k; ++c) {
            if (tile.positive[r][c / lanes_k][c % lanes_k] == 0) continue;
            int const slot = task * exact_a_task_k + count++;
            job.exact[slot] = {static_cast<std::uint16_t>(tile.row + r),
                               static_cast<std::uint16_t>(tile.candidate + c)};
            for (int band = 0; band < bands; ++band) {
                job.exact_weights[std::int64_t{slot} * bands + band] = tile.weights[band][r * panel_k + c];
                tile.weights[band][r * panel_k + c] = 0;
            }
        }
}

/// Two vectors (32 bf16 lanes of a row, or two rows' lanes) to pairs.
SC_INLINE void store_weights(score_job_t const& job, int band, tile_t const& tile) {
    float const* const weights = tile.weights[band];
    auto* const plane = static_cast<pair_t*>(job.weights) + std::int64_t{band} * block_k * (block_k / 2);
    auto* const transposed =
        static_cast<pair_t*>(job.transposed_weights) + std::int64_t{band} * block_k * (block_k / 2);
    for (int r = 0; r < tile_rows_k; ++r) {
        pair_t* const out = plane + std::int64_t{tile.row + r} * (block_k / 2) + tile.candidate / 2;
#if SC_BF16_PRODUCTS
        store(out, _mm512_cvtne2ps_pbh(load<__m512>(weights + r * panel_k + 16), load<__m512>(weights + r * panel_k)));
#else
        __builtin_memcpy(out, weights + r * panel_k, panel_k * sizeof(float));
#endif
    }
    if (!job.both) return;
    for (int r = 0; r < tile_rows_k; r += 2)
        for (int c = 0; c < panel_k; c += tile_rows_k) {
            float const* const even = weights + r * panel_k + c;
            float const* const odd = even + panel_k;
            pair_t* const out =
                transposed + std::int64_t{tile.candidate + c} * (block_k / 2) + (tile.row + r) / 2 * tile_rows_k;
#if SC_BF16_PRODUCTS
            __m256i const low = _mm256_cvtepu16_epi32((__m128i)_mm256_cvtneps_pbh(_mm256_loadu_ps(even)));
            __m256i const high = _mm256_cvtepu16_epi32((__m128i)_mm256_cvtneps_pbh(_mm256_loadu_ps(odd)));
            store(out, _mm256_or_si256(low, _mm256_slli_epi32(high, 16)));
#else
            for (int i = 0; i < tile_rows_k; ++i) out[i] = {even[i], odd[i]};
#endif
        }
}

SC_INLINE void finish_tile(score_job_t const& job, int task, tile_t& tile) {
    int const bands = job.ladder->count;
    for (int band = bands - 2; band >= 0; --band)
        for (int at = 0; at < tile_rows_k * panel_k; at += lanes_k)
            store(tile.weights[band] + at, load(tile.weights[band] + at) + load(tile.weights[band + 1] + at));
    if (tile.positives) set_positives_apart(job, task, tile);
    for (int band = 0; band < bands; ++band) store_weights(job, band, tile);
}

#include "scaling_contrasts/cpu/score_groups.inl"

template <objective_t objective>
inline void score_cells(score_job_t const& job, int task) {
    auto const& ladder = *job.ladder;
    int const first_row = task / tasks_a_side_k * task_k, first_candidate = task % tasks_a_side_k * task_k;
    int const slots = task_k * ladder.count;
    constexpr bool statistics = gathers(objective);
    tile_t tile;
    task_sums_t sums;
    sums.loss = sums.bias = vector_t{};
    for (int i = 0; i < slots; ++i) sums.rows[i] = vector_t{}, sums.most[i] = -1e30f;
    float* const lane_sums = job.candidate_sums + std::int64_t{task} * slots;
    float* const lane_totals = job.candidate_totals + std::int64_t{task} * slots;
    for (int i = 0; i < slots; ++i) lane_sums[i] = statistics ? -1e30f : 0.0f, lane_totals[i] = 0;
    job.exact_counts[task] = 0;

    for (int c = first_candidate; c < std::min(first_candidate + task_k, job.candidate_count); c += panel_k)
        for (int r = first_row; r < std::min(first_row + task_k, job.row_count); r += tile_rows_k) {
            if (job.diagonal && c + panel_k - 1 <= r) continue;
            tile.row = r, tile.candidate = c;
            begin_tile(job, tile);
            if (objective == objective_t::positives_k && !tile.positives) continue;
            for (int p = 0; p < ladder.count; ++p) {
                int const begin = ladder.pair_begin[static_cast<std::size_t>(p)];
                int const end = ladder.pair_begin[static_cast<std::size_t>(p + 1)];
                multiply<1, tile_rows_k>(tile.dots, panel_k,
                                         static_cast<pair_t const*>(job.left) +
                                             (std::int64_t{r / tile_rows_k} * ladder.pairs() + begin) * tile_rows_k,
                                         job.right + (std::int64_t{c / panel_k} * ladder.pairs() + begin) * panel_k,
                                         end - begin);
                int const slot = p * task_k + c - first_candidate;
                if constexpr (objective == objective_t::sigmoid_k) weigh_sigmoid(job, p, tile, sums, lane_sums + slot);
                if constexpr (objective == objective_t::info_nce_k)
                    weigh_info_nce(job, p, tile, sums, lane_sums + slot);
                if constexpr (objective == objective_t::groups_k) weigh_groups(job, p, tile, sums, lane_sums + slot);
                if constexpr (objective == objective_t::statistics_k)
                    gather_statistics(job, p, tile, sums, lane_sums + slot, lane_totals + slot);
                if constexpr (objective == objective_t::negatives_k)
                    gather_negatives(job, p, tile, sums, lane_sums + slot, lane_totals + slot);
                if constexpr (objective == objective_t::positives_k)
                    gather_positives(job, p, tile, sums, lane_sums + slot, lane_totals + slot);
            }
            if constexpr (!statistics) finish_tile(job, task, tile);
        }
    for (int p = 0; p < ladder.count; ++p)
        for (int r = 0; r < task_k; ++r) {
            float const sum = sum_of(sums.rows[r * ladder.count + p]);
            std::int64_t const slot = std::int64_t{task} * slots + p * task_k + r;
            job.row_sums[slot] = statistics ? sums.most[r * ladder.count + p] : sum;
            job.row_totals[slot] = statistics ? sum : 0;
        }
    job.losses[task] = static_cast<double>(sum_of(sums.loss));
    job.bias_sums[task] = static_cast<double>(sum_of(sums.bias));
}

inline void score(score_job_t const& job, int task) {
    switch (job.objective) {
    case objective_t::sigmoid_k: return score_cells<objective_t::sigmoid_k>(job, task);
    case objective_t::info_nce_k: return score_cells<objective_t::info_nce_k>(job, task);
    case objective_t::statistics_k: return score_cells<objective_t::statistics_k>(job, task);
    case objective_t::negatives_k: return score_cells<objective_t::negatives_k>(job, task);
    case objective_t::positives_k: return score_cells<objective_t::positives_k>(job, task);
    case objective_t::groups_k: return score_cells<objective_t::groups_k>(job, task);
    }
}
