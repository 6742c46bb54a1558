// The host side that the sm90 engine of two sets and that of one_set_info_nce share: a grid of cells, rows x columns,
// in superblocks. Lays out scratch and launches a pass. Nothing here waits for the device, so that a step captures into
// a graph.
#pragma once
#include <algorithm>
#include <utility>

#include "scaling_contrasts/gpu/prep.cuh"
#include "scaling_contrasts/sm90/host.cuh"
#include "scaling_contrasts/sm90/two_set_kernel.cuh"
#include "scaling_contrasts/sm90/two_set_rows.cuh"

namespace scaling_contrasts {

/// Settings that change speed and memory, never what is computed.
struct two_set_tuning_t {
    int high = 0, wide = 0;  ///< of a superblock: tiles of 128 images, tiles of 256 captions; 0: chosen by size
    int ring = 3;            ///< superblocks of weights in memory
    int lag = 1;             ///< superblocks that the gradient lags behind
    bool general = false;    ///< take the general path for one prefix, too (tests)
};

class sm90_grid_t {
  protected:
    using pass_t = sm90::two_set::pass_t;
    using params_t = sm90::two_set::params_t;
    using side_t = sm90::two_set::side_t;
    using kernel_t = void(sm90::two_set::maps_t, params_t);
    static constexpr int shared_bytes_k = int(sizeof(sm90::two_set::shared_t)) + 1024;

    template <pass_t pass_>
    kernel_t* kernel() const {
        return ladder_ ? sm90::two_set::step_kernel<pass_, true> : sm90::two_set::step_kernel<pass_, false>;
    }
    template <pass_t... passes_>
    gpu_status_t open() {
        if (auto s = sm90::open_device(sms_, encode_); !s) return s;
        for (kernel_t* one : {kernel<passes_>()...})
            if (auto s =
                    sm90::check(cudaFuncSetAttribute(one, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_k),
                                "cudaFuncSetAttribute");
                !s)
                return s;
        return {};
    }
    int padded() const { return pairs_.side[0].padded; }
    int candidate_padded() const { return int((problem_.candidate_rows + 255) / 256 * 256); }

    /// Everything that depends on the problem alone.
    gpu_status_t plan(gpu_problem_t const& p, bool forward_only, two_set_tuning_t const& tuning) {
        if (auto s = sm90::check_shape(p); !s) return s;
        if (p.total_live == 0) return {status_t::unsupported_k, "sm90: total_live is 0"};
        sets_ = sets_of(p.loss);
        problem_ = p;
        forward_only_ = forward_only;
        ladder_ = p.prefix_count > 1 || tuning.general;
        a_ = {};
        pairs_ = {};
        a_.prefixes = pairs_.prefixes = int(p.prefix_count);
        a_.dims = pairs_.dims = int(p.dims);
        a_.columns = pairs_.columns = int(p.prefixes[p.prefix_count - 1]);
        a_.rows_everywhere = pairs_.rows_everywhere = double(p.total_live);
        norms_of_.count = a_.prefixes;
        norms_of_.dims = a_.dims;
        a_.output = !forward_only;
        pairs_.nce = p.loss == loss_t::info_nce_k;
        pairs_.rows = int(p.rows);
        pairs_.weight = p.prefix_weights[0];
        pairs_.fp32_gradients = p.fp32_gradients;
        for (int i = 0; i < a_.prefixes; ++i) {
            int const begin = i ? int(p.prefixes[i - 1]) : 0, end = int(p.prefixes[i]);
            a_.slabs[i] = (end - begin) / sm90::slab_k;
            a_.omega[i] = pairs_.omega[i] = p.prefix_weights[i] / p.prefix_weights[0];
            pairs_.end[i] = end;
            norms_of_.bands[size_t(i)] = {begin, end};
            for (int column = begin; column < end; column += sm90::two_set::piece_k) {
                auto const piece = sm90::two_set::piece_t{int16_t(i), int16_t(column),
                                                          int16_t(std::min(sm90::two_set::piece_k, end - column))};
                a_.piece[a_.pieces++] = piece;
                pairs_.piece[pairs_.pieces++] = piece;
            }
        }
        // 2048 x 2048 cells a superblock: 8 MiB of weights a prefix, about a tile an SM
        a_.high = tuning.high ? tuning.high : 16;
        a_.wide = tuning.wide ? tuning.wide : 8;
        a_.lag = std::max(1, tuning.lag);
        a_.ring = std::max(tuning.ring, a_.lag + 1);
        for (auto& side : pairs_.side) {
            side.live = int(p.live);
            side.padded = int((p.rows + 255) / 256 * 256);
        }
        pairs_.partial_count = padded() / sm90::two_set::rows_threads_k;
        return {};
    }
    static int column_tiles(int live) {
        return (live + sm90::two_set::column_tile_k - 1) / sm90::two_set::column_tile_k;
    }
    /// Superblocks of `row_live` images x `column_live` captions.
    static void plan_superblocks(params_t& a, int row_live, int column_live) {
        a.column_groups = (column_tiles(column_live) + a.wide - 1) / a.wide;
        a.superblocks = ((row_live + sm90::tile_k - 1) / sm90::tile_k + a.high - 1) / a.high * a.column_groups;
    }
    static size_t flag_words(params_t const& a, int row_live, int column_live) {
        return 4 + size_t(a.superblocks) * 2 +
               size_t((row_live + 127) / 128 + (column_live + 127) / 128) * a.pieces * 2;
    }

    /// Hands out scratch, piece after piece.
    struct scratch_t {
        uint8_t* base;
        size_t at = 0;
        template <class element_t>
        void operator()(element_t*& pointer, size_t count) {
            pointer = reinterpret_cast<element_t*>(base + at);
            at += (count * sizeof(element_t) + 255) / 256 * 256;
        }
    };
    /// Assigns scratch from `base` on; returns its size.
    size_t lay_out(uint8_t* base) {
        scratch_t take = {base};
        size_t const rows = size_t(padded()), statistics = rows * a_.prefixes,
                     most = std::max<size_t>(problem_.rows, problem_.candidate_rows);
        bool const sums = is_softmax(problem_.loss);
        if (sets_ == 2) take(pairs_.cosine, statistics);
        for (int k = 0; k < sets_; ++k) {
            take(pairs_.inverse[k], statistics);
            if (pairs_.nce) {
                take(pairs_.log_sums[k], statistics);
                take(pairs_.excess[k], statistics);
            }
            pairs_.side[k].inverse = pairs_.inverse[k];
            pairs_.side[k].log_sums = pairs_.log_sums[k];
        }
        for (int k = 0; k < sets_; ++k) take(candidate_inverse_[k], size_t(candidate_padded()) * a_.prefixes);
        take(pairs_.partials, 3 * size_t(pairs_.partial_count));
        params_t worst = a_;  // a block of the most pairs on either side
        plan_superblocks(worst, int(most), int(most));
        flag_words_ = flag_words(worst, int(most), int(most));
        take(flags_, flag_words_);
        size_t const cleared = take.at;  // zeroed in every step
        take(sums_, 6 * (rows / 128));
        for (int k = 0; k < sets_; ++k)
            if (ladder_ && !forward_only_) take(pairs_.side[k].s, statistics * sm90::two_set::s_words(sums));
        kept_bytes_ = take.at;
        for (int k = 0; k < sets_; ++k)
            if (sums) take(pairs_.side[k].bins, statistics * sm90::two_set::bins_k);
        pairs_.sums = sums_;
        cleared_ = base + cleared;
        cleared_bytes_ = take.at - cleared;
        if (forward_only_) return take.at;
        for (int k = 0; k < sets_; ++k) take(pairs_.side[k].dx, rows / 128 * a_.pieces * sm90::two_set::share_k);
        int const ring = std::min(a_.ring, std::max(1, worst.superblocks));
        take(a_.weights, size_t(ring) * a_.high * a_.wide * a_.prefixes * sm90::two_set::tile_bytes_k);
        return take.at;
    }

    /// Inverse norms of `live` rows, to `inverse`.
    void find_norms(void const* x, int live, int padded, float* inverse, cudaStream_t stream) const {
        gpu::find_inverse_norms(static_cast<bf16_t const*>(x), live, padded, norms_of_, inverse, stream);
    }

    /// Rows x columns, another GPU's or this one's; `rows_mine`, `columns_mine`: their sums and gradients are this
    /// engine's.
    template <pass_t pass_>
    gpu_status_t launch(side_t const& row, side_t const& column, bool rows_mine, bool columns_mine, bool own,
                        cudaStream_t stream) {
        if (row.live == 0 || column.live == 0) return {};
        if (!rows_mine && forward_only_ && !is_sum(pass_)) return {};  // these cells are another GPU's to count
        params_t a = a_;
        a.row = row;
        a.column = column;
        a.own = own;
        a.output = a.output && !is_sum(pass_);
        a.sums = rows_mine ? sums_ : nullptr;
        for (auto [side, is_mine] : {std::pair{&a.row, rows_mine}, {&a.column, columns_mine}}) {
            if (!is_mine) side->bins = nullptr, side->s = nullptr, side->dx = nullptr;
            if (!a.output) side->dx = nullptr;
        }
        plan_superblocks(a, row.live, column.live);
        if (a.triangle) a.superblocks = a.column_groups * (a.column_groups + 1) / 2;
        a.ring = std::min(a.ring, a.superblocks);
        size_t const flags = flag_words(a, row.live, column.live);
        if (flags > flag_words_) return {status_t::unsupported_k, "sm90: a block needs more flags than were laid out"};
        a.next_item = flags_;
        a.scored = a.next_item + 4;
        a.consumed = a.scored + a.superblocks;
        a.turn = a.consumed + a.superblocks;
        sm90::two_set::maps_t maps;
        auto const map = [&](CUtensorMap& out, side_t const& side, uint32_t box_rows, uint32_t box_chunks) {
            return sm90::map_rows(encode_, out, side.x, side.live, a.dims, box_rows, box_chunks);
        };
        if (auto s = map(maps.row, row, 128, 1); !s) return s;
        if (auto s = map(maps.column, column, 256, 1); !s) return s;
        if (auto s = map(maps.row_slab, row, 64, 4); !s) return s;
        if (auto s = map(maps.column_slab, column, 64, 4); !s) return s;
        if (auto s = sm90::check(cudaMemsetAsync(flags_, 0, flags * sizeof(uint32_t), stream), "cudaMemsetAsync"); !s)
            return s;
        kernel<pass_>()<<<sms_, sm90::two_set::threads_k, shared_bytes_k, stream>>>(maps, a);
        if (a.output) {
            if (rows_mine) pairs_.side[0].accumulate = true;
            if (columns_mine) pairs_.side[sets_ - 1].accumulate = true;
        }
        return sm90::check(cudaGetLastError(), "step_kernel");
    }

    gpu_problem_t problem_;
    params_t a_ = {};
    sm90::two_set::pairs_t pairs_ = {};
    bool forward_only_ = false, ladder_ = false;
    int sms_ = 0, sets_ = 2;
    int64_t* sums_ = nullptr;
    float* candidate_inverse_[2] = {};
    ladder_t norms_of_;
    uint32_t* flags_ = nullptr;
    size_t flag_words_ = 0, cleared_bytes_ = 0, kept_bytes_ = 0;
    void* cleared_ = nullptr;
    sm90::encode_t encode_ = nullptr;
};

}  // namespace scaling_contrasts
