// Gradient tasks of one instruction set: 64 targets x up to 8 panels of columns.

template <bool transposed>
SC_INLINE void add_products(gradient_job_t const& job, int group, int panel) {
    auto const& ladder = *job.ladder;
    int const band = ladder.band_of_panel(panel);
    auto const* const plane = static_cast<pair_t const*>(job.weights) + std::int64_t{band} * block_k * (block_k / 2);
    std::uint32_t const* const right = job.panels + std::int64_t{panel} * (block_k / 2) * panel_k;
    side_t& target = *job.target;
    for (int row = group * task_k; row < std::min((group + 1) * task_k, job.target_count); row += tile_rows_k) {
        // Weights exist for whole tiles; in a diagonal superblock for tiles that reach right of the diagonal.
        int begin = 0, end = static_cast<int>(round_up(job.source_count, transposed ? tile_rows_k : panel_k));
        if (job.diagonal && !transposed) begin = row / panel_k * panel_k;
        if (job.diagonal && transposed) end = std::min(end, row / panel_k * panel_k + panel_k);
        int const pairs = (end - begin) / 2;
        std::int64_t const stride = target.accumulator_stride;
        float* const out = target.accumulator + (job.first_target + row) * stride + panel * panel_k;
        int const rows = std::min(tile_rows_k, job.target_count - row);
        alignas(64) float spare[tile_rows_k * panel_k];
        float* const c = rows == tile_rows_k ? out : spare;
        std::int64_t const c_stride = rows == tile_rows_k ? stride : panel_k;
        if (c == spare)
            for (int r = 0; r < rows; ++r)
                __builtin_memcpy(spare + r * panel_k, out + r * stride, panel_k * sizeof(float));
        std::uint32_t const* const b = right + begin / 2 * panel_k;
        if constexpr (transposed)
            multiply<1, tile_rows_k>(c, c_stride, plane + std::int64_t{row} * (block_k / 2) + begin / 2 * tile_rows_k,
                                     b, pairs);
        else multiply<block_k / 2, 1>(c, c_stride, plane + std::int64_t{row} * (block_k / 2) + begin / 2, b, pairs);
        if (c == spare)
            for (int r = 0; r < rows; ++r)
                __builtin_memcpy(out + r * stride, spare + r * panel_k, panel_k * sizeof(float));
    }
}

/// The positives that were kept apart, in fp32.
SC_INLINE void add_exact(gradient_job_t const& job, int group, int first_panel, int last_panel) {
    auto const& ladder = *job.ladder;
    for (int other = 0; other < tasks_a_side_k; ++other) {
        int const task = job.transposed ? other * tasks_a_side_k + group : group * tasks_a_side_k + other;
        for (int e = 0; e < job.exact_counts[task]; ++e) {
            exact_t const cell = job.exact[task * exact_a_task_k + e];
            float const* const weights = job.exact_weights + (std::int64_t{task} * exact_a_task_k + e) * ladder.count;
            int const target = job.transposed ? cell.candidate : cell.row;
            int const source = job.transposed ? cell.row : cell.candidate;
            bf16_t const* const x = job.source->x.row(job.first_source + source);
            float* const out = job.target->accumulator + (job.first_target + target) * job.target->accumulator_stride;
            for (int panel = first_panel; panel < last_panel; ++panel) {
                auto const [begin, end] = ladder.columns_of_panel(panel);
                float const weight = weights[ladder.band_of_panel(panel)];
                for (int c = 0; c < end - begin; ++c)
                    out[panel * panel_k + c] += weight * static_cast<float>(x[begin + c]);
            }
        }
    }
}

inline void add_gradient(gradient_job_t const& job, int group, int chunk) {
    int const first = chunk * panels_a_chunk_k;
    int const last = std::min(first + panels_a_chunk_k, job.ladder->panels());
    for (int panel = first; panel < last; ++panel)
        job.transposed ? add_products<true>(job, group, panel) : add_products<false>(job, group, panel);
    add_exact(job, group, first, last);
}
