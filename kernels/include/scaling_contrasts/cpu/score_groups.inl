// one_set_info_nce: NT-Xent and SupCon over rows with group labels (docs/one_set_info_nce.md). Logits x are in units of
// ln 2. Three sweeps over the cells:
//   negatives  n_i = log2 of the sum over row i's negatives of 2^x
//   positives  over tiles that hold any. SupCon: u_i, the same over positives. NT-Xent: u_i = log2 of the sum over
//              positives of f(x) = 2^n_i / (2^n_i + 2^x), the slope of a positive pair
//   groups     weights. Row i pulls a negative by 2^(x - l_i), where l_i is n_i - u_i (NT-Xent) or log2(2^n_i + 2^u_i)
//              (SupCon). Both rows of a cell pull: a cell's slope is their mean, and counts twice as in all one-set losses.

/// log2 of the sum of 2^value over a tile's cells with `keep(r, v)`, along rows and along candidates, added to what was
/// gathered before. `along_row(x, r)` and `along_lane(x, v)` give the values.
template <class keep_t, class row_value_t, class lane_value_t>
SC_INLINE void gather_log_sums(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* lane_most,
                               float* lane_rest, keep_t&& keep, row_value_t&& along_row, lane_value_t&& along_lane) {
    find_logits(job, p, tile);
    vector_t const none = broadcast(-1e30f);
    float *const across = tile.weights[0], *const down = tile.weights[1];  // no weights are there in these sweeps
    for (int v = 0; v < vectors_k; ++v) {
        vector_t most = load(lane_most + v * lanes_k);
        vector_t const before = most;
        for (int r = 0; r < tile_rows_k; ++r) {
            int const at = r * panel_k + v * lanes_k;
            vector_t const x = load(tile.logits + at);
            store(across + at, keep(r, v) ? along_row(x, r) : none);
            vector_t const value = keep(r, v) ? along_lane(x, v) : none;
            store(down + at, value);
            most = greater(value, most);
        }
        vector_t rest = load(lane_rest + v * lanes_k) * exp2_of(before - most);
        for (int r = 0; r < tile_rows_k; ++r) {
            vector_t const e = exp2_of(load(down + r * panel_k + v * lanes_k) - most);
            rest += cast<vector_t>(cast<integers_t>(e) & keep(r, v));
        }
        store(lane_most + v * lanes_k, most);
        store(lane_rest + v * lanes_k, rest);
    }
    for (int r = 0; r < tile.rows; ++r) {
        vector_t greatest = load(across + r * panel_k);
        for (int v = 1; v < vectors_k; ++v) greatest = greater(load(across + r * panel_k + v * lanes_k), greatest);
        int const slot = (tile.row % task_k + r) * job.ladder->count + p;
        float const most = std::max(greatest_of(greatest), sums.most[slot]);
        vector_t rest = sums.rows[slot] * exp2_of(broadcast(sums.most[slot] - most));
        for (int v = 0; v < vectors_k; ++v) {
            vector_t const e = exp2_of(load(across + r * panel_k + v * lanes_k) - most);
            rest += cast<vector_t>(cast<integers_t>(e) & keep(r, v));
        }
        sums.rows[slot] = rest;
        sums.most[slot] = most;
    }
}

SC_INLINE void gather_negatives(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* lane_most,
                                float* lane_rest) {
    gather_log_sums(
        job, p, tile, sums, lane_most, lane_rest,
        [&](int r, int v) SC_TARGET { return tile.counted[r][v] & ~tile.positive[r][v]; },
        [](vector_t x, int) SC_TARGET { return x; }, [](vector_t x, int) SC_TARGET { return x; });
}

/// log2 of 2^n / (2^n + 2^x): minus the softplus of x - n.
SC_INLINE vector_t log_share(vector_t n, vector_t x) {
    vector_t const z = x - n;
    vector_t loss, slope;
    near_cell(z, exp2_of(z > 0.0f ? -z : z), loss, slope);
    return loss * -log2e_k;
}

SC_INLINE void gather_positives(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* lane_most,
                                float* lane_rest) {
    auto const keep = [&](int r, int v) SC_TARGET { return tile.positive[r][v]; };
    if (job.form == form_t::sup_con_k)
        return gather_log_sums(
            job, p, tile, sums, lane_most, lane_rest, keep, [](vector_t x, int) SC_TARGET { return x; },
            [](vector_t x, int) SC_TARGET { return x; });
    float const* const row_negatives = job.rows->negatives.data() + p * job.rows->padded + job.first_row + tile.row;
    float const* const negatives =
        job.candidates->negatives.data() + p * job.candidates->padded + job.first_candidate + tile.candidate;
    gather_log_sums(
        job, p, tile, sums, lane_most, lane_rest, keep,
        [&](vector_t x, int r) SC_TARGET { return log_share(broadcast(row_negatives[r]), x); },
        [&](vector_t x, int v) SC_TARGET { return log_share(load(negatives + v * lanes_k), x); });
}

/// What a positive pair adds to one of its rows: the slope of that row's loss, and its part of it.
/// NT-Xent: softplus of n - x. With n = -1e30, no negatives, both are 0.
SC_INLINE void nt_xent_cell(vector_t n, vector_t x, vector_t& loss, vector_t& slope) {
    vector_t const z = n - x;
    near_cell(z, exp2_of(z > 0.0f ? -z : z), loss, slope);
    slope = -slope;
}

/// SupCon: the share q of all positives, less 1/k, less what q loses to the negatives. `log_whole_of_positives` is u,
/// `lost` the negatives' share of the row's whole sum; of a positive alone q is 1 and u is x, exactly.
SC_INLINE void sup_con_cell(vector_t u, vector_t lost, vector_t each, vector_t x, vector_t& loss, vector_t& slope) {
    vector_t const above = each == 1.0f ? vector_t{} : u - x;
    vector_t const q = exp2_of(-above);
    slope = (q - each) - q * lost;
    loss = above * each * ln2_k;
}

SC_INLINE void weigh_groups(score_job_t const& job, int p, tile_t& tile, task_sums_t& sums, float* candidate_sums) {
    find_logits(job, p, tile);
    std::int64_t const row = p * job.rows->padded + job.first_row + tile.row;
    std::int64_t const lane = p * job.candidates->padded + job.first_candidate + tile.candidate;
    side_t const &rows = *job.rows, &lanes = *job.candidates;
    float const *const row_logs = rows.log_sums.data() + row, *const logs = lanes.log_sums.data() + lane;
    auto const pull = [&](vector_t x, int r, int v) SC_TARGET {
        return exp2_of(x - row_logs[r] - 1.0f) + exp2_of(x - load(logs + v * lanes_k) - 1.0f);
    };
    if (!tile.positives)
        return weigh(job, p, tile, sums, candidate_sums,
                     [&](vector_t x, int r, int v, vector_t& loss, vector_t& slope) SC_TARGET {
                         slope = cast<vector_t>(cast<integers_t>(pull(x, r, v)) & tile.counted[r][v]);
                         loss = vector_t{};
                     });
    float const *const row_each = rows.each.data() + job.first_row + tile.row, *const each = lanes.each.data() +
                                                                                             job.first_candidate +
                                                                                             tile.candidate;
    weigh(job, p, tile, sums, candidate_sums, [&](vector_t x, int r, int v, vector_t& loss, vector_t& slope) SC_TARGET {
        integers_t const positive = tile.positive[r][v];
        vector_t mine, theirs, my_slope, their_slope;
        if (job.form == form_t::nt_xent_k) {
            nt_xent_cell(broadcast(rows.negatives.data()[row + r]), x, mine, my_slope);
            nt_xent_cell(load(lanes.negatives.data() + lane + v * lanes_k), x, theirs, their_slope);
        } else {
            sup_con_cell(broadcast(rows.own.data()[row + r]), broadcast(rows.rest.data()[row + r]),
                         broadcast(row_each[r]), x, mine, my_slope);
            sup_con_cell(load(lanes.own.data() + lane + v * lanes_k), load(lanes.rest.data() + lane + v * lanes_k),
                         load(each + v * lanes_k), x, theirs, their_slope);
        }
        loss = cast<vector_t>(cast<integers_t>((mine + theirs) * 0.5f) & positive);
        slope = positive ? (my_slope + their_slope) * 0.5f : pull(x, r, v);
        slope = cast<vector_t>(cast<integers_t>(slope) & tile.counted[r][v]);
    });
}
