// The losses over two sets with a ladder of prefixes by the step kernel of one set: images are its rows, captions its
// candidates, and a superblock's weights serve both, as in a block that one device scores for two (engine.cuh). A cell
// counts once here, not twice, so the prefixes' weights are halved.
//
//   begin                   norms, cleared sums; rows as fp16
//   sums, close_sums        info_nce only: for every block of pairs, and then
//   score                   for every block of pairs, this GPU's own first
//   score_pair, take_pair   in the place of the others' blocks: cells once for both GPUs. Not of info_nce
//   finish                  norm corrections, rounding, scalars
//
// two_set_sigmoid: each side adds half of the loss, of dL/dt and of dL/db. info_nce: the engine of the grid adds up the
// rows' and the columns' sums of 2^x in its forward pass, and has the positives and the scalars.
//
// Nothing here waits for the device, so that a step captures into a graph.
#pragma once
#include "scaling_contrasts/sm90/engine.cuh"
#include "scaling_contrasts/sm90/softmax_finish.cuh"
#include "scaling_contrasts/sm90/softmax_sums.cuh"
#include "scaling_contrasts/sm90/two_set_engine.cuh"

namespace scaling_contrasts {

class sm90_two_set_ladder_engine_t : sm90_engine_t {
  public:
    /// Bytes of device memory that construct() expects. 0: the problem is not one that this engine solves. Of `tuning`
    /// wide, ring, lag, interleave, general, any_ladder, fp16 and packed_sums are heard; fp16 is taken where it is
    /// empty, packed_sums is not.
    static size_t scratch_bytes(gpu_problem_t const& problem, sm90_tuning_t const& tuning = {}) {
        sm90_two_set_ladder_engine_t probe;
        if (!probe.plan(problem, tuning)) return 0;
        return probe.lay_out(nullptr);
    }

    /// `scratch`: scratch_bytes() of device memory, 256-byte aligned; stays the caller's.
    gpu_status_t construct(gpu_problem_t const& problem, void* scratch, sm90_tuning_t const& tuning = {}) {
        if (auto s = plan(problem, tuning); !s) return s;
        lay_out(static_cast<uint8_t*>(scratch));
        if (nce_)
            if (auto s = grid_.construct(problem, scratch, true); !s) return s;
        if (auto s = sm90::open_device(sms_, encode_); !s) return s;
        if (nce_)
            if (auto s = check(cudaFuncSetAttribute(sm90::sums_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                    sums_shared_bytes_k),
                               "cudaFuncSetAttribute");
                !s)
                return s;
        if (auto s = for_both_sides(prepare_launch_t{}); !s) return s;
        return foreign_rows_ ? for_one_side(prepare_launch_t{}) : gpu_status_t{};
    }

    /// Starts a step on this GPU's pairs, the first of which has the global number `first_pair`. `scale` and `bias` are
    /// read on the device, in every step. `gradients`: what finish() will be given, images' and captions', 16-byte
    /// aligned. Where rows are fp16 and gradients bf16, the former lie there until then.
    gpu_status_t begin(void const* images, void const* captions, int64_t first_pair, float const* scale,
                       float const* bias, void* const (&gradients)[2], cudaStream_t stream) {
        void const* const given[2] = {images, captions};
        a_.t = scale;
        a_.b = bias;
        scored_ = false;
        flags_clean_ = a_.row.blocks > 0;
        for (int k = 0; k < 2; ++k) {
            auto& set = sets_[k];
            auto const* const x = static_cast<__nv_bfloat16 const*>(given[k]);
            auto* const y = set.y ? set.y : reinterpret_cast<uint16_t*>(gradients[k]);  // 16-bit numbers in either case
            set.of.x = fp16_ ? reinterpret_cast<__nv_bfloat16 const*>(y) : x;
            sm90::prepare_t p = preparation(x, nullptr, a_.row.live, first_pair, set.records, set.of.s);
            p.sums = nce_ ? nullptr : set.of.sums;
            p.y = y;
            p.scale = set.scale;
            if (k == 0) p.flags = a_.next_item, p.finished = a_.finished;
            if (auto s = prepare(p, a_.row.blocks, stream); !s) return s;
        }
        return nce_ ? grid_.begin(images, captions, scale, bias, stream) : gpu_status_t{};
    }

    /// info_nce: sums over a block of pairs, as score() takes it.
    gpu_status_t sums(void const* images, void const* captions, uint32_t live, int64_t first_pair, bool own,
                      cudaStream_t stream) {
        if (a_.row.blocks == 0) return {};
        auto const& pairs = grid_.pairs();
        sm90::params_t a = with_rows_of(sets_[0]);
        if (own) {
            a.paired = true;
            a.column = sets_[1].of.row;
            return add_sums(a, sets_[1].of.x, {pairs.side[0], pairs.side[1]}, stream);
        }
        void const* const given[2] = {captions, images};
        for (int k = 0; k < 2; ++k) {
            a = with_rows_of(sets_[k]);
            __nv_bfloat16 const* x = nullptr;
            if (auto s = take_candidates(given[k], live, first_pair, nullptr, a.column, x, stream); !s) return s;
            if (live == 0) continue;
            if (auto s = add_sums(a, x, {pairs.side[k], {}}, stream); !s) return s;
        }
        return {};
    }
    gpu_status_t close_sums(cudaStream_t stream) {
        if (auto s = grid_.close_sums(stream); !s) return s;
        return find_shares({grid_.log_sums(0), grid_.log_sums(1)}, {sets_[0].shares, sets_[1].shares}, 2, a_.row.live,
                           int(grid_.log_sum_count() / a_.prefixes), stream);
    }
    float const* log_sums(int set) const { return nce_ ? grid_.log_sums(set) : nullptr; }
    int64_t log_sum_count() const { return nce_ ? grid_.log_sum_count() : 0; }
    bool needs_sums() const { return nce_; }

    /// Scores a block of pairs: this GPU's own, or `live` of another's, in memory of this GPU. Of those, this GPU's rows
    /// alone get gradients: its images meet their captions, and its captions their images. `log_sums`: info_nce, of
    /// another's images and captions, as log_sums() there gave them.
    gpu_status_t score(void const* images, void const* captions, uint32_t live, int64_t first_pair, bool own,
                       cudaStream_t stream, float const* const (&log_sums)[2] = {nullptr, nullptr}) {
        if (own) {
            if (a_.row.blocks == 0) return {};
            auto const& second = sets_[1].of;
            return score_for_both(second.x, second.row, second.dx, second.s, false, stream);
        }
        void const* const given[2] = {captions, images};
        for (int k = 0; k < 2; ++k) {
            sm90::params_t a = with_rows_of(sets_[k]);
            __nv_bfloat16 const* x = nullptr;
            if (auto s = take_candidates(given[k], live, first_pair, nullptr, a.column, x, stream); !s) return s;
            if (live == 0 || a.row.blocks == 0) continue;
            if (nce_) {
                a.column.shares = column_shares_;
                if (auto s = find_shares({log_sums[1 - k], nullptr}, {column_shares_, nullptr}, 1, int(live),
                                         (int(foreign_rows_) + 255) / 256 * 256, stream);
                    !s)
                    return s;
                if (k == 1) a.sums = nullptr;  // cells of another's images, which counts them
            }
            sm90::maps_t maps = {}, rows = {};
            if (auto s = map(maps, x, int(live)); !s) return s;
            if (auto s = map(rows, a.x, a.row.live); !s) return s;
            maps.row = rows.row;
            a.accumulate = true;
            if (auto s = plan_flags(a, false, stream); !s) return s;
            if (auto s = for_one_side([&]<class kind_>(kind_) { return launch_step<kind_>(maps, a, stream); }); !s)
                return s;
        }
        return {};
    }

    /// Of a problem with pairs_once: scores this GPU's images against another's first `live` captions, for both. The
    /// captions' part of the gradients goes to `partial`, partial_bytes() of memory.
    gpu_status_t score_pair(void const* captions, uint32_t live, int64_t first_pair, void* partial,
                            cudaStream_t stream) {
        if (live == 0) return {};
        auto const there = sm90::partial_at(a_, partial_blocks(), partial);
        sm90::side_t candidates;
        __nv_bfloat16 const* x = nullptr;
        if (auto s = take_candidates(captions, live, first_pair, there.s, candidates, x, stream); !s) return s;
        if (a_.row.blocks == 0)  // nothing is scored, and the other one reads that
            return check(
                cudaMemsetAsync(there.dx, 0, size_t(candidates.blocks) * a_.columns * sm90::tile_k * 4, stream),
                "cudaMemsetAsync");
        return score_for_both(x, candidates, there.dx, there.s, true, stream);
    }
    /// Adds what another GPU's score_pair() has left of this one's first `live` captions.
    gpu_status_t take_pair(void const* partial, int64_t live, cudaStream_t stream) {
        return add_partial(partial, live, sets_[1].of.dx, sets_[1].of.s, stream);
    }
    using sm90_engine_t::fp16;
    using sm90_engine_t::partial_bytes;

    /// Writes the gradients ([rows][dims], bf16 or fp32) and {loss, dL/dt, dL/db}: this GPU's part of the global mean.
    /// `scalars_double`, where given, gets the same in double.
    gpu_status_t finish(void* const (&gradients)[2], float* scalars, cudaStream_t stream,
                        double* scalars_double = nullptr) {
        auto const clear = [&](void* at, size_t bytes) {
            return bytes ? check(cudaMemsetAsync(at, 0, bytes, stream), "cudaMemsetAsync") : gpu_status_t{};
        };
        int const covered = std::min(a_.row.blocks * sm90::tile_k, a_.rows);
        size_t const row_bytes = size_t(a_.dims) * (a_.fp32_gradients ? 4 : 2);
        for (void* gradient : gradients)  // rows past the last live block
            if (auto s = clear(static_cast<uint8_t*>(gradient) + covered * row_bytes, (a_.rows - covered) * row_bytes);
                !s)
                return s;
        if (a_.row.blocks == 0) {
            if (auto s = clear(scalars, scalars ? 3 * sizeof(float) : 0); !s) return s;
            return clear(scalars_double, scalars_double ? 3 * sizeof(double) : 0);
        }
        sm90::params_t a = with_rows_of(sets_[0]);
        sm90::finished_set_t second = sets_[1].of;
        a.gradient = gradients[0];
        second.gradient = gradients[1];
        a.scalars = scalars;
        a.scalars_double = scalars_double;
        dim3 const grid(a.row.blocks, a.programs * 2, 2);
        if (nce_) {
            sm90::finish_pairs_kernel<<<grid, sm90::finish_threads_k, 0, stream>>>(a, second, grid_.pairs());
            if (auto s = check(cudaGetLastError(), "finish_pairs_kernel"); !s) return s;
            return grid_.finish(nullptr, nullptr, scalars, stream, scalars_double);
        }
        if (fp16_) sm90::finish_two_kernel<ptx::fp16_pair_t><<<grid, sm90::finish_threads_k, 0, stream>>>(a, second);
        else sm90::finish_two_kernel<ptx::bf16_pair_t><<<grid, sm90::finish_threads_k, 0, stream>>>(a, second);
        return check(cudaGetLastError(), "finish_two_kernel");
    }

  private:
    /// This GPU's images or captions.
    struct own_set_t {
        sm90::finished_set_t of = {};
        float *records = nullptr, *scale = nullptr, *shares = nullptr;  // what `of` refers to
        uint16_t* y = nullptr;  // rows as fp16; null: they lie where the gradient goes
    };

    gpu_status_t plan(gpu_problem_t const& p, sm90_tuning_t const& given) {
        auto const refuse = [](char const* why) { return gpu_status_t{status_t::unsupported_k, why}; };
        nce_ = p.loss == loss_t::info_nce_k;
        if (p.loss != loss_t::two_set_sigmoid_k && !nce_) return refuse("sm90: a loss over two sets");
        foreign_rows_ = p.candidate_rows;
        sm90_tuning_t tuning;
        tuning.wide = given.wide;
        tuning.ring = given.ring;
        tuning.lag = given.lag;
        tuning.interleave = given.interleave;
        tuning.general = given.general;
        tuning.fp16 = given.fp16.value_or(true);
        tuning.packed_sums = given.packed_sums.value_or(false);
        if (tuning.wide == 0 && p.rows <= 4096) {  // what was fastest on an H200: docs/performance_two_set.md
            tuning.wide = 1;
            tuning.ring = 4;
            tuning.lag = 3;
            tuning.interleave = true;
        }
        gpu_problem_t one = p;
        one.loss = loss_t::one_set_sigmoid_k;
        one.self_pairs = false;
        one.pairs_once = true;
        one.candidate_rows = std::max(p.rows, p.candidate_rows);
        if (auto s = sm90_engine_t::plan(one, tuning); !s) return s;
        if (!fast_ && !given.general && !given.any_ladder)
            return refuse("sm90: the article's ladder, all prefixes of one weight");
        if (!given.fp16 && !fits_fp16(p)) return refuse("sm90: weights that fp16 does not hold");
        a_.weight /= 2;
        if (!nce_) return {};
        if (!fast_ || !fp16_) return refuse("sm90: info_nce with the article's ladder in fp16");
        if (p.pairs_once) return refuse("sm90: info_nce's pairs are scored twice");
        a_.weight /= 2;  // the mean of two cross-entropies
        most_slope_ = 2.f;
        grid_bytes_ = sm90_two_set_engine_t::scratch_bytes(p, true);
        grid_kept_ = sm90_two_set_engine_t::kept_bytes(p);
        return grid_bytes_ ? gpu_status_t{} : refuse("sm90: info_nce's sums");
    }
    /// Calls `work` with the kind of step kernel that finds gradients of both sides, or of the rows.
    template <class work_at>
    gpu_status_t for_both_sides(work_at const& work) const {
        return nce_ ? work(sm90::both_sides_t<sm90::softmax_t>{}) : for_pair_kind(work);
    }
    template <class work_at>
    gpu_status_t for_one_side(work_at const& work) const {
        return nce_ ? work(sm90::softmax_t{}) : for_plain_kind(work);
    }

    /// Assigns scratch from `base` on; returns its size.
    size_t lay_out(uint8_t* base) {
        size_t at = 0;
        auto const take = [&](auto*& pointer, size_t count) {
            using element_t = std::remove_reference_t<decltype(*pointer)>;
            pointer = reinterpret_cast<std::remove_const_t<element_t>*>(base + at);
            at += (count * sizeof(element_t) + 255) / 256 * 256;
        };
        size_t const blocks = size_t(std::max(1, a_.row.blocks)), prefixes = size_t(a_.prefixes),
                     foreign_blocks = (foreign_rows_ + sm90::tile_k - 1) / sm90::tile_k;
        if (nce_) at = grid_kept_;  // on sums that are no longer needed then
        for (own_set_t& set : sets_) take(set.of.dx, blocks * a_.columns * sm90::tile_k);
        if (nce_) at = std::max(at, grid_bytes_);
        for (own_set_t& set : sets_) {
            take(set.records, blocks * sm90::record_floats(a_.prefixes));
            take(set.of.s, blocks * prefixes * sm90::tile_k);
            if (nce_) take(set.shares, blocks * sm90::share_floats(a_.prefixes));
            else take(set.of.sums, blocks * 2);
            if (fp16_) take(set.scale, blocks * sm90::tile_k);
            if (fp16_ && a_.fp32_gradients) take(set.y, blocks * sm90::tile_k * a_.dims);
            set.of.row = {set.records, a_.row.blocks, a_.row.live, set.shares};
            set.of.row_scale = set.scale;
        }
        take(a_.partials, blocks * 6);
        take(a_.finished, 64);
        take(column_records_, foreign_blocks * sm90::record_floats(a_.prefixes));
        if (nce_) take(column_shares_, foreign_blocks * sm90::share_floats(a_.prefixes));
        if (fp16_) take(column_y_, foreign_blocks * sm90::tile_k * a_.dims);
        sm90::params_t worst = a_;
        worst.column.blocks = int(std::max(blocks, foreign_blocks));
        plan_superblocks(worst);
        flag_words_ = flag_words(worst, true);
        take(a_.next_item, flag_words_);
        take(a_.weights, size_t(std::min(a_.ring, std::max(1, worst.superblocks))) * sm90::strip_k * sm90::strip_k *
                             a_.wide * prefixes * sm90::plane_bytes_k);
        return at;
    }

    sm90::params_t with_rows_of(own_set_t const& set) const {
        sm90::params_t a = a_;
        a.row = set.of.row;
        a.x = set.of.x;
        a.row_scale = set.of.row_scale;
        a.s = set.of.s;
        a.sums = nce_ ? grid_.cell_sums() : set.of.sums;
        a.dx = set.of.dx;
        return a;
    }
    /// Statistics of `live` rows of another GPU, and what the step kernel reads in their place. `s` is cleared.
    gpu_status_t take_candidates(void const* embeddings, uint32_t live, int64_t first_pair, int64_t* s,
                                 sm90::side_t& side, __nv_bfloat16 const*& x, cudaStream_t stream) {
        if (live > foreign_rows_)
            return {status_t::unsupported_k, "sm90: a block has more pairs than candidate_rows said"};
        auto const* const given = static_cast<__nv_bfloat16 const*>(embeddings);
        x = fp16_ ? column_y_ : given;
        side = {column_records_, int((live + sm90::tile_k - 1) / sm90::tile_k), int(live)};
        sm90::prepare_t p = preparation(given, nullptr, int(live), first_pair, column_records_, s);
        p.y = reinterpret_cast<uint16_t*>(column_y_);
        return prepare(p, side.blocks, stream);
    }
    /// This GPU's images against captions, for both.
    gpu_status_t score_for_both(__nv_bfloat16 const* captions, sm90::side_t const& side, float* dx, int64_t* s,
                                bool accumulate, cudaStream_t stream) {
        sm90::params_t a = with_rows_of(sets_[0]);
        a.column = side;
        a.column_dx = dx;
        a.column_s = s;
        a.accumulate = accumulate;
        a.paired = nce_;  // whose only block for both is its own
        sm90::maps_t rows = {};
        sm90::both_maps_t maps = {};
        if (auto status = map(maps, captions, side.live); !status) return status;
        if (auto status = map(rows, a.x, a.row.live); !status) return status;
        maps.row = rows.row;
        maps.row_pair = rows.pair;
        if (auto status = plan_flags(a, true, stream); !status) return status;
        return for_both_sides([&]<class kind_>(kind_) { return launch_step<kind_>(maps, a, stream); });
    }

    /// Sums over the rows of `a` against candidates `x`.
    gpu_status_t add_sums(sm90::params_t const& a, __nv_bfloat16 const* x, sm90::sums_t const& to,
                          cudaStream_t stream) const {
        sm90::forward::maps_t maps = {};
        if (auto s = map(maps.row, a.x, a.row.live, sm90::tile_k, 1); !s) return s;
        if (auto s = map(maps.column, x, a.column.live, sm90::tile_k, 1); !s) return s;
        int64_t const tiles = sm90::forward::count_tiles(a);
        if (tiles > INT32_MAX) return {status_t::unsupported_k, "more than 2^31 tiles in a block"};
        int const grid = int(std::min<int64_t>(tiles, sms_ * sm90::ctas_k));
        sm90::sums_kernel<<<grid, sm90::threads_k, sums_shared_bytes_k, stream>>>(maps, a, to, int(tiles));
        return check(cudaGetLastError(), "sums_kernel");
    }
    /// What the step kernel reads in the place of log sums, of `sets` sets.
    gpu_status_t find_shares(float const* const (&log_sums)[2], float* const (&shares)[2], int sets, int live,
                             int padded, cudaStream_t stream) const {
        int const blocks = (live + sm90::tile_k - 1) / sm90::tile_k;
        if (blocks == 0) return {};
        sm90::shares_t const a = {{log_sums[0], log_sums[1]}, {shares[0], shares[1]}, live, padded, a_.prefixes, a_.t};
        sm90::shares_kernel<<<dim3(unsigned(blocks), unsigned(sets)), sm90::tile_k, 0, stream>>>(a);
        return check(cudaGetLastError(), "shares_kernel");
    }

    static constexpr int sums_shared_bytes_k = int(sizeof(sm90::forward::shared_t<true>)) + 1024;
    bool nce_ = false;
    uint32_t foreign_rows_ = 0;  // most of a block of another GPU
    own_set_t sets_[2];
    sm90_two_set_engine_t grid_;             // info_nce alone
    size_t grid_bytes_ = 0, grid_kept_ = 0;  // its scratch; its part that must stay
    float* column_shares_ = nullptr;
};

}  // namespace scaling_contrasts
