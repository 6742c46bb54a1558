// The sm90 engine of one_set_info_nce, NT-Xent and SupCon (docs/one_set_info_nce.md).
//
//   begin             norms, ranges of labels, cleared sums
//   gather            for every block of candidates: sums over negatives, then close_gather
//   gather_positives  likewise over positives, then close_positives
//   score             for every block: weights of a superblock, then their products, superblock by superblock
//   finish            norm corrections, rounding, scalars
//
// A block is another GPU's rows or this one's own, which comes first: superblocks on and above its diagonal are scored,
// and those above serve their rows and their columns. Forward only, tiles that can hold no positive are left out, and
// there is no dL/dt.
#pragma once
#include "scaling_contrasts/sm80/counts.cuh"
#include "scaling_contrasts/sm90/grid.cuh"
#include "scaling_contrasts/sm90/group_rows.cuh"

namespace scaling_contrasts {

/// A block of candidates: this GPU's own rows or another's, in memory of this GPU.
struct group_block_t {
    void const* embeddings = nullptr;  ///< [live][dims]
    int32_t const* labels = nullptr;   ///< [live]; null: every row is its own group
    float const* sums = nullptr;       ///< score: as sums() of the block's GPU gave them
    uint32_t live = 0;
    int64_t first_row = 0;  ///< global number of row 0
    bool own = false;
};

class sm90_groups_engine_t : sm90_grid_t {
  public:
    /// Bytes of device memory that construct() expects. 0: the problem is not one that this engine solves.
    static size_t scratch_bytes(gpu_problem_t const& problem, bool forward_only = false,
                                two_set_tuning_t const& tuning = {}) {
        sm90_groups_engine_t probe;
        if (!probe.plan(problem, forward_only, tuning)) return 0;
        return probe.lay_out(nullptr);
    }

    /// `scratch`: scratch_bytes() of device memory, 256-byte aligned; stays the caller's.
    gpu_status_t construct(gpu_problem_t const& problem, void* scratch, bool forward_only = false,
                           two_set_tuning_t const& tuning = {}) {
        if (auto s = plan(problem, forward_only, tuning); !s) return s;
        lay_out(static_cast<uint8_t*>(scratch));
        return open<pass_t::negatives_k, pass_t::positives_k, pass_t::groups_k>();
    }

    /// Starts a step on this GPU's rows. `labels` as in a block. `scale` is read on the device, in every step.
    gpu_status_t begin(void const* embeddings, int32_t const* labels, int64_t first_row, float const* scale,
                       float const* bias, cudaStream_t stream) {
        pairs_.t = a_.t = scale;
        pairs_.b = a_.b = bias;
        auto& mine = pairs_.side[0];
        mine.x = static_cast<__nv_bfloat16 const*>(embeddings);
        mine.accumulate = false;
        pairs_.groups = groups_of(labels, first_row, sums_of_rows_, ranges_);
        if (auto s = clear(cleared_, cleared_bytes_, stream); !s) return s;
        if (auto s = clear(counts_, size_t(padded()) * sizeof(int), stream); !s) return s;
        if (auto s = clear(mean_over_, sizeof(double), stream); !s) return s;
        if (auto s =
                sm90::check(cudaMemsetAsync(partner_, 0xff, size_t(padded()) * sizeof(int), stream), "cudaMemsetAsync");
            !s)
            return s;
        find_norms(embeddings, mine.live, mine.padded, pairs_.inverse[0], stream);
        return find_ranges(pairs_.groups, mine.live, mine.padded, ranges_, stream);
    }
    /// Sums over the negatives in one block.
    gpu_status_t gather(group_block_t const& block, cudaStream_t stream) {
        return visit<pass_t::negatives_k>(block, stream);
    }
    /// After the negatives of all blocks; before any positives.
    gpu_status_t close_gather(cudaStream_t stream) {
        sm90::two_set::negatives_kernel<<<row_grid(), sm90::two_set::rows_threads_k, 0, stream>>>(
            pairs_, const_cast<float*>(pairs_.groups.negatives));
        if (auto s = sm90::check(cudaGetLastError(), "negatives_kernel"); !s) return s;
        return clear(pairs_.side[0].bins, statistics() * sm90::two_set::bins_k * sizeof(int64_t), stream);
    }
    /// Counts and sums over the positives in one block.
    gpu_status_t gather_positives(group_block_t const& block, cudaStream_t stream) {
        auto const& mine = pairs_.side[0];
        if (mine.live == 0 || block.live == 0 || !pairs_.groups.labels || !block.labels) return {};
        sm80::rows_t rows, columns;
        rows.labels = pairs_.groups.labels;
        rows.first = pairs_.groups.first;
        rows.rows = mine.live;
        columns.labels = block.labels;
        columns.first = block.first_row;
        columns.rows = int(block.live);
        dim3 const grid(unsigned(mine.live + 255) / 256, unsigned(block.live + 4095) / 4096);
        sm80::count_positives_kernel<<<grid, 256, 0, stream>>>(rows, columns, counts_);
        if (auto s = sm90::check(cudaGetLastError(), "count_positives_kernel"); !s) return s;
        return visit<pass_t::positives_k>(block, stream);
    }
    /// After the positives of all blocks; before any score.
    gpu_status_t close_positives(cudaStream_t stream) {
        sm80::close_counts_kernel<<<1, 1024, 0, stream>>>(
            counts_, pairs_.side[0].live, const_cast<float*>(pairs_.groups.each), sums_of_rows_ + sum_count() - 2);
        if (auto s = sm90::check(cudaGetLastError(), "close_counts_kernel"); !s) return s;
        sm90::two_set::group_sums_kernel<<<row_grid(), sm90::two_set::rows_threads_k, 0, stream>>>(
            pairs_, const_cast<float*>(pairs_.groups.positives), sums_of_rows_);
        return sm90::check(cudaGetLastError(), "group_sums_kernel");
    }
    /// What close_positives() leaves for other GPUs, sum_count() floats: l, n and u of every prefix and row, 1 /
    /// positives of every row, and over all rows positive pairs and rows that have positives.
    float const* sums() const { return sums_of_rows_; }
    int64_t sum_count() const { return int64_t(3 * statistics()) + padded() + 2; }
    /// Scores one block and adds its part of the gradients. Every block is scored once: its counts are added here.
    gpu_status_t score(group_block_t const& block, cudaStream_t stream) {
        float const* const counts = (block.own ? sums_of_rows_ : block.sums) + sum_count() - 2;
        sm80::add_count_kernel<<<1, 1, 0, stream>>>(counts + pairs_.sup_con, mean_over_);
        if (auto s = sm90::check(cudaGetLastError(), "add_count_kernel"); !s) return s;
        return visit<pass_t::groups_k>(block, stream);
    }
    /// Writes the gradient ([rows][dims], bf16 or fp32) and {loss, dL/dt, 0}: this GPU's part of the global mean.
    /// `scalars_double`, where given, gets the same in double. Forward only, the gradient stays untouched.
    gpu_status_t finish(void* gradient, float* scalars, cudaStream_t stream, double* scalars_double = nullptr) {
        auto a = pairs_;
        a.gradient[0] = gradient;
        a.scalars = scalars;
        a.scalars_double = scalars_double;
        a.mean_over = mean_over_;
        a.residual = residual_;
        a.partner = partner_;
        sm90::two_set::row_losses_kernel<<<a.partial_count, sm90::two_set::rows_threads_k, 0, stream>>>(a);
        if (auto s = sm90::check(cudaGetLastError(), "row_losses_kernel"); !s) return s;
        sm90::two_set::scalars_kernel<true><<<1, 1024, 0, stream>>>(a);
        if (auto s = sm90::check(cudaGetLastError(), "scalars_kernel"); !s) return s;
        if (forward_only_) return {};
        dim3 const grid((problem_.rows + sm90::two_set::slice_k - 1) / sm90::two_set::slice_k, 1);
        constexpr int threads = sm90::two_set::finish_threads_k;
        if (ladder_) sm90::two_set::finish_kernel<true, true><<<grid, threads, 0, stream>>>(a);
        else sm90::two_set::finish_kernel<false, true><<<grid, threads, 0, stream>>>(a);
        return sm90::check(cudaGetLastError(), "finish_kernel");
    }

  private:
    using groups_t = sm90::two_set::groups_t;

    gpu_status_t plan(gpu_problem_t const& p, bool forward_only, two_set_tuning_t const& tuning) {
        if (p.loss != loss_t::one_set_info_nce_k) return {status_t::unsupported_k, "sm90: one_set_info_nce"};
        if (auto s = sm90_grid_t::plan(p, forward_only, tuning); !s) return s;
        a_.high = 2 * a_.wide;  // superblocks as high as wide, so that the diagonal runs through whole ones
        a_.sup_con = pairs_.sup_con = p.form == form_t::sup_con_k;
        return {};
    }
    size_t lay_out(uint8_t* base) {
        scratch_t take = {base, sm90_grid_t::lay_out(base)};
        take(sums_of_rows_, size_t(sum_count()));
        take(ranges_, size_t(padded()) / sm90::two_set::range_rows_k);
        take(candidate_ranges_, size_t(candidate_padded()) / sm90::two_set::range_rows_k);
        take(counts_, size_t(padded()));
        take(mean_over_, 1);
        take(partner_, size_t(padded()));
        take(residual_, forward_only_ ? 0 : statistics());
        pairs_.side[0].log_sums = sums_of_rows_;
        return take.at;
    }

    size_t statistics() const { return size_t(padded()) * size_t(pairs_.prefixes); }
    dim3 row_grid() const {
        return dim3(unsigned(padded() / sm90::two_set::rows_threads_k), unsigned(pairs_.prefixes));
    }
    static gpu_status_t clear(void* at, size_t bytes, cudaStream_t stream) {
        return sm90::check(cudaMemsetAsync(at, 0, bytes, stream), "cudaMemsetAsync");
    }
    groups_t groups_of(int32_t const* labels, int64_t first_row, float const* sums, int2 const* ranges) const {
        groups_t out = {labels, first_row, ranges, nullptr, nullptr, nullptr};
        if (!sums) return out;
        out.negatives = sums + statistics();
        out.positives = sums + 2 * statistics();
        out.each = sums + 3 * statistics();
        return out;
    }
    static gpu_status_t find_ranges(groups_t const& groups, int live, int padded, int2* ranges, cudaStream_t stream) {
        if (padded == 0) return {};
        sm90::two_set::ranges_kernel<<<padded / sm90::two_set::range_rows_k, 32, 0, stream>>>(groups, live, ranges);
        return sm90::check(cudaGetLastError(), "ranges_kernel");
    }

    template <pass_t pass_>
    gpu_status_t visit(group_block_t const& block, cudaStream_t stream) {
        auto const& mine = pairs_.side[0];
        a_.row_groups = pairs_.groups;
        a_.triangle = block.own;
        a_.residual = block.own && !forward_only_ ? residual_ : nullptr;
        a_.partner = partner_;
        if (block.own) {
            a_.column_groups_of = pairs_.groups;
            return launch<pass_>(mine, mine, true, true, true, stream);
        }
        if (block.live > problem_.candidate_rows)
            return {status_t::unsupported_k, "sm90: a block has more rows than candidate_rows said"};
        side_t theirs = {};
        theirs.x = static_cast<__nv_bfloat16 const*>(block.embeddings);
        theirs.inverse = candidate_inverse_[0];
        theirs.log_sums = block.sums;
        theirs.live = int(block.live);
        theirs.padded = candidate_padded();
        a_.column_groups_of = groups_of(block.labels, block.first_row, block.sums, candidate_ranges_);
        find_norms(block.embeddings, theirs.live, theirs.padded, candidate_inverse_[0], stream);
        if (auto s = find_ranges(a_.column_groups_of, theirs.live, theirs.padded, candidate_ranges_, stream); !s)
            return s;
        return launch<pass_>(mine, theirs, true, false, false, stream);
    }

    float* sums_of_rows_ = nullptr;  // see sums()
    int2 *ranges_ = nullptr, *candidate_ranges_ = nullptr;
    int *counts_ = nullptr, *partner_ = nullptr;  // each row's positives; see params_t
    float* residual_ = nullptr;
    double* mean_over_ = nullptr;  // what the mean is over, of all GPUs
};

}  // namespace scaling_contrasts
