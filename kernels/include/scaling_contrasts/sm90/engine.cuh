// The sm90 engine's host side: checks the problem, lays out scratch, launches a step. Nothing here waits for the
// device, so that a step captures into a graph.
#pragma once
#include <algorithm>
#include <cmath>
#include <optional>

#include "scaling_contrasts/sm90/finish.cuh"
#include "scaling_contrasts/sm90/host.cuh"
#include "scaling_contrasts/sm90/pairs.cuh"
#include "scaling_contrasts/sm90/prepare.cuh"
#include "scaling_contrasts/sm90/step.cuh"

namespace scaling_contrasts {

/// Settings that change speed and memory, never what is computed.
struct sm90_tuning_t {
    int wide = 0;                   ///< strips of 1024 candidates in a superblock; 0: everything is chosen by size
    int ring = 3;                   ///< superblocks of weights in memory
    int lag = 1;                    ///< superblocks that the gradient lags behind
    bool interleave = false;        ///< score and gradient items alternate
    bool general = false;           ///< take the general path for the article's ladder, too (tests)
    bool any_ladder = false;        ///< two sets: other ladders than the article's, too, which are slower
    std::optional<bool> fp16 = {};  ///< rows and weights as fp16; empty: where gradients are fp32
    /// With these, the article's ladder and bf16 gradients, weights are summed over longer prefixes in fp16, two an
    /// instruction, and rows lie where gradients go; empty: in one set.
    std::optional<bool> packed_sums = {};
    /// Score items of 64 x 64 cells, for the article's ladder in bf16 without pairs_once; empty: where rows are few.
    std::optional<bool> small_items = {};
    /// With these, a step is one kernel where it can be: no other device, no columns past the ladder, 32-bit numbers of
    /// X's elements; empty: where rows are fewer still.
    std::optional<bool> one_launch = {};
    /// With that, gradient tiles of 64 columns, not 128; empty: where rows are fewer still.
    std::optional<bool> narrow_tiles = {};
};

class sm90_engine_t {
  public:
    /// Bytes of device memory that construct() expects. 0: the problem is not one that this engine solves.
    static size_t scratch_bytes(gpu_problem_t const& problem, sm90_tuning_t const& tuning = {}) {
        sm90_engine_t probe;
        if (!probe.plan(problem, tuning)) return 0;
        return probe.lay_out(nullptr);
    }

    /// Bytes at the beginning of scratch that are the engine's from construct() on, between steps, too.
    size_t kept_bytes() const { return kept_bytes_; }

    /// `scratch`: scratch_bytes() of device memory, 256-byte aligned; stays the caller's.
    gpu_status_t construct(gpu_problem_t const& problem, void* scratch, sm90_tuning_t const& tuning = {}) {
        if (auto s = plan(problem, tuning); !s) return s;
        lay_out(static_cast<uint8_t*>(scratch));
        if (auto s = sm90::open_device(sms_, encode_); !s) return s;
        if (auto s = for_kind(prepare_launch_t{}); !s) return s;
        if (one_launch_) {
            if (auto s = check(cudaMemset(a_.next_item, 0, flag_words_ * sizeof(uint32_t)), "cudaMemset"); !s) return s;
            if (auto s = check(cudaStreamSynchronize(nullptr), "cudaStreamSynchronize"); !s) return s;
        }
        return problem.pairs_once ? for_pair_kind(prepare_launch_t{}) : gpu_status_t{};
    }

    /// Starts a step. `labels` may be null: every row its own group. `scale` and `bias` are read on the device, in
    /// every step. `gradient`: what finish() will be given; where packed_sums() says so, rows lie there until then.
    gpu_status_t begin(void const* embeddings, int32_t const* labels, int64_t first_row, float const* scale,
                       float const* bias, cudaStream_t stream, void* gradient = nullptr) {
        if (packed_sums_) {
            if (!gradient)
                return {status_t::unsupported_k, "sm90: fp16 rows lie where gradients go, which begin() lacks"};
            row_y_ = static_cast<__nv_bfloat16*>(gradient);
        }
        auto const* x = static_cast<__nv_bfloat16 const*>(embeddings);
        a_.x = fp16_ ? row_y_ : x;
        a_.t = scale;
        a_.b = bias;
        a_.first_row = first_row;
        scored_ = false;
        if (auto s = map(row_maps_, a_.x, a_.row.live); !s) return s;
        labels_ = labels;
        if (one_launch_) return {};
        flags_clean_ = a_.row.blocks > 0;
        return prepare(x, labels, a_.row.live, first_row, row_records_, a_.row.blocks, true, a_.s, stream);
    }

    /// Scores this GPU's rows against a block of candidates; `own`: the block is those rows. Own rows' gradients alone
    /// are summed. `stays`: the embeddings are still there in finish(), which then gives back what rounding takes off
    /// positives' weights.
    gpu_status_t score(void const* embeddings, int32_t const* labels, uint32_t rows, uint32_t live, int64_t first_row,
                       bool own, cudaStream_t stream, bool stays = true) {
        if (!own && rows > problem_.candidate_rows)
            return {status_t::unsupported_k, "a block of candidates is larger than candidate_rows"};
        if (one_launch_) return {};  // all of it is launched by finish()
        auto const* x = static_cast<__nv_bfloat16 const*>(embeddings);
        sm90::params_t a = a_;
        sm90::maps_t maps = row_maps_;
        a.own = own;
        a.accumulate = scored_;
        auto const* const column_x = own ? a_.x : fp16_ ? column_y_ : x;
        a.column_x = own || stays ? column_x : nullptr;
        if (own) {
            a.column = a.row;
        } else {
            a.column = {column_records_, int((live + sm90::tile_k - 1) / sm90::tile_k), int(live)};
            if (live == 0) return {};
            if (auto s = map(maps, column_x, live); !s) return s;
            maps.row = row_maps_.row;
            if (auto s = prepare(x, labels, live, first_row, column_records_, a.column.blocks, false, nullptr, stream);
                !s)
                return s;
        }
        if (a.row.blocks == 0) return {};
        if (auto s = plan_flags(a, false, stream); !s) return s;
        scored_ = true;
        return for_kind([&]<class kind_>(kind_) { return launch_step<kind_>(maps, a, stream); });
    }

    /// Of a problem with pairs_once: scores this GPU's rows from `from` on, a multiple of 128, against another one's
    /// first `live` rows, for both. That one's part of the gradients goes to `partial`, partial_bytes() of memory.
    gpu_status_t score_pair(void const* embeddings, int32_t const* labels, uint32_t live, int64_t first_row,
                            int64_t from, void* partial, cudaStream_t stream) {
        if (live == 0) return {};
        sm90::params_t a = a_;
        auto const there = sm90::partial_at(a, partial_blocks(), partial);
        a.column = {column_records_, int((live + sm90::tile_k - 1) / sm90::tile_k), int(live)};
        a.column_dx = there.dx;
        a.column_s = there.s;
        if (from >= a.row.live) {  // nothing is scored, and the other one reads that
            size_t const tiles = size_t(a.column.blocks) * a.columns * sm90::tile_k * sizeof(float),
                         sums = size_t(a.column.blocks) * a.prefixes * sm90::tile_k * sizeof(int64_t);
            if (auto s = check(cudaMemsetAsync(there.dx, 0, tiles, stream), "cudaMemsetAsync"); !s) return s;
            return check(cudaMemsetAsync(there.s, 0, sums, stream), "cudaMemsetAsync");
        }
        if (live > problem_.candidate_rows || from % sm90::tile_k)
            return {status_t::unsupported_k, "a pair has more candidates than candidate_rows, or no whole row blocks"};
        auto const* x = static_cast<__nv_bfloat16 const*>(embeddings);
        if (auto s = prepare(x, labels, live, first_row, column_records_, a.column.blocks, false, there.s, stream); !s)
            return s;
        int const skipped = int(from) / sm90::tile_k;
        a.row.records += skipped * sm90::record_floats(a.prefixes);
        a.row.blocks -= skipped;
        a.row.live -= int(from);
        a.s += int64_t(skipped) * a.prefixes * sm90::tile_k;
        a.sums += int64_t(skipped) * 2;
        a.dx += int64_t(skipped) * a.columns * sm90::tile_k;
        a.accumulate = scored_;
        sm90::maps_t rows = {};
        sm90::both_maps_t maps = {};
        if (auto s = map(maps, fp16_ ? column_y_ : x, int(live)); !s) return s;
        if (auto s = map(rows, a.x + from * a.dims, a.row.live); !s) return s;
        maps.row = rows.row;
        maps.row_pair = rows.pair;
        if (auto s = plan_flags(a, true, stream); !s) return s;
        scored_ = true;
        return for_pair_kind([&]<class kind_>(kind_) { return launch_step<kind_>(maps, a, stream); });
    }

    /// Adds what another GPU's score_pair() has left of this one's first `rows` rows.
    gpu_status_t take_pair(void const* partial, int64_t rows, cudaStream_t stream) {
        return add_partial(partial, rows, a_.dx, a_.s, stream);
    }
    size_t partial_bytes() const { return sm90::partial_bytes(a_, partial_blocks()); }
    /// Whether rows and weights are fp16.
    bool fp16() const { return fp16_; }
    /// Whether weights are summed in fp16, and rows lie where gradients go until those are written.
    bool packed_sums() const { return packed_sums_; }
    bool small_items() const { return small_items_; }
    /// Whether finish() launches all of a step: rows and labels must stay as begin() found them until then.
    bool one_launch() const { return one_launch_; }

    /// Writes the gradient ([rows][dims], bf16 or fp32, 16-byte aligned) and {loss, dL/dt, dL/db}: this GPU's part of the
    /// global mean. `scalars_double`, where given, gets the same in double.
    gpu_status_t finish(void* gradient, float* scalars, cudaStream_t stream, double* scalars_double = nullptr) {
        sm90::params_t a = a_;
        if (!fast_ || packed_sums_) a.residuals = nullptr;
        a.gradient = gradient;
        a.scalars = scalars;
        a.scalars_double = scalars_double;
        if (a.row.blocks == 0) {
            if (auto s =
                    check(cudaMemsetAsync(gradient, 0, size_t(a.rows) * a.dims * (a.fp32_gradients ? 4 : 2), stream),
                          "cudaMemsetAsync");
                !s)
                return s;
            if (scalars_double)
                if (auto s = check(cudaMemsetAsync(scalars_double, 0, 3 * sizeof(double), stream), "cudaMemsetAsync");
                    !s)
                    return s;
            return scalars ? check(cudaMemsetAsync(scalars, 0, 3 * sizeof(float), stream), "cudaMemsetAsync")
                           : gpu_status_t{};
        }
        int const covered = std::min(a.row.blocks * sm90::tile_k, a.rows);  // rows past the last live block
        size_t const row_bytes = size_t(a.dims) * (a.fp32_gradients ? 4 : 2);
        if (covered < a.rows)
            if (auto s = check(cudaMemsetAsync(static_cast<uint8_t*>(gradient) + covered * row_bytes, 0,
                                               (a.rows - covered) * row_bytes, stream),
                               "cudaMemsetAsync");
                !s)
                return s;
        if (one_launch_) return for_kind([&]<class kind_>(kind_) { return launch_step<kind_>(row_maps_, a, stream); });
        dim3 const grid(a.row.blocks, a.programs * 2);
        if (fp16_) sm90::finish_kernel<ptx::fp16_pair_t><<<grid, sm90::finish_threads_k, 0, stream>>>(a);
        else sm90::finish_kernel<ptx::bf16_pair_t><<<grid, sm90::finish_threads_k, 0, stream>>>(a);
        return check(cudaGetLastError(), "finish_kernel");
    }

  protected:
    static gpu_status_t check(cudaError_t error, char const* what) { return sm90::check(error, what); }
    /// For the calls below: what a kernel needs before it is launched.
    struct prepare_launch_t {
        template <class kind_>
        gpu_status_t operator()(kind_) const {
            return check(cudaFuncSetAttribute(sm90::step_kernel<kind_>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              shared_bytes<kind_>()),
                         "cudaFuncSetAttribute");
        }
    };
    /// Calls `work` with the kind of step kernel that solves the problem.
    template <class work_at>
    gpu_status_t for_kind(work_at const& work) const {
        if (one_launch_) return work(sm90::one_launch_t{});
        if (small_items_) return work(sm90::small_items_t{});
        return for_plain_kind(work);
    }
    /// The same of the kernel that scores pairs.
    template <class work_at>
    gpu_status_t for_pair_kind(work_at const& work) const {
        return for_plain_kind([&]<class kind_>(kind_) { return work(sm90::both_sides_t<kind_>{}); });
    }
    template <class work_at>
    gpu_status_t for_plain_kind(work_at const& work) const {
        if (packed_sums_) return work(sm90::packed_sums_t{});
        if (fast_) return fp16_ ? work(sm90::article_t<true>{}) : work(sm90::article_t<false>{});
        return fp16_ ? work(sm90::general_t<true>{}) : work(sm90::general_t<false>{});
    }
    template <class kind_>
    gpu_status_t launch_step(sm90::maps_of<kind_> const& maps, sm90::params_t const& a, cudaStream_t stream) const {
        auto const args = [&] {
            if constexpr (kind_::one_launch) return whole_step(a);
            else return a;
        }();
        sm90::step_kernel<kind_><<<sms_ * sm90::ctas_k, sm90::threads_k, shared_bytes<kind_>(), stream>>>(maps, args);
        return check(cudaGetLastError(), "step_kernel");
    }
    /// What the kernel of a step in one launch is told.
    sm90::one_launch_params_t whole_step(sm90::params_t const& given) const {
        sm90::one_launch_params_t a = {};
        static_cast<sm90::params_t&>(a) = given;
        a.own = true;
        a.column = a.row;
        a.column_x = a.x;
        plan_superblocks(a);
        place_flags(a);
        a.labels = labels_;
        a.records = row_records_;
        a.left = a.next_item + 1;
        a.ready = a.turn + size_t(a.row.blocks) * a.programs;
        a.taken = a.ready + a.row.blocks;
        a.flags = a.next_item;
        a.flag_words = int(flag_words_);
        return a;
    }
    template <class kind_>
    static constexpr int shared_bytes() {
        return int(sizeof(sm90::shared_t<kind_>)) + 1024;
    }

    /// Whether no band's weights are much smaller than the first's, so that fp16 holds all their bits: the sum of the
    /// weights of its prefixes, over norms that grow with the root of the columns.
    static bool fits_fp16(gpu_problem_t const& p) {
        float sum = 0, least = HUGE_VALF;
        for (int i = int(p.prefix_count) - 1; i >= 0; --i) {
            sum += std::fabs(p.prefix_weights[i]);
            if (sum > 0) least = std::min(least, sum * float(p.prefixes[0]) / float(p.prefixes[i]));
        }
        return least > sum / 1024;
    }

    /// Everything that depends on the problem alone.
    gpu_status_t plan(gpu_problem_t const& p, sm90_tuning_t const& tuning) {
        auto const refuse = [](char const* why) { return gpu_status_t{status_t::unsupported_k, why}; };
        if (p.loss != loss_t::one_set_sigmoid_k) return refuse("the sm90 engine has one_set_sigmoid only");
        if (auto s = sm90::check_shape(p); !s) return s;
        problem_ = p;
        a_ = {};
        a_.prefixes = int(p.prefix_count);
        a_.dims = int(p.dims);
        a_.columns = int(p.prefixes[p.prefix_count - 1]);
        a_.weight = p.prefix_weights[0];
        bool article = p.prefix_count == 5, uniform = true;
        for (int i = 0; i < a_.prefixes; ++i) {
            a_.slabs[i] = int(p.prefixes[i] - (i ? p.prefixes[i - 1] : 0)) / sm90::slab_k;
            a_.omega[i] = p.prefix_weights[i] / p.prefix_weights[0];
            article = article && p.prefixes[i] == 64u << i;
            uniform = uniform && p.prefix_weights[i] == p.prefix_weights[0];
        }
        fast_ = article && uniform && !tuning.general;
        fp16_ = tuning.fp16.value_or(p.fp32_gradients && fits_fp16(p));
        packed_sums_ = fast_ && fp16_ && !p.fp32_gradients && tuning.packed_sums.value_or(true);
        choose_kind(p, tuning);
        if (small_items_ && (!fast_ || fp16_ || p.pairs_once))
            return refuse("small items are for the article's ladder, in bf16, with blocks scored for one GPU");
        int const piece = narrow_tiles_ ? sm90::piece_k / 2 : sm90::piece_k;
        for (int band = 0; band < a_.prefixes; ++band) {
            int const begin = band ? int(p.prefixes[band - 1]) : 0, end = int(p.prefixes[band]);
            for (int column = begin; column < end; column += piece)
                a_.program[a_.programs++] = {int16_t(band), int16_t(column), int16_t(std::min(piece, end - column))};
        }
        a_.rows_everywhere = double(p.total_live);
        a_.self_pairs = p.self_pairs;
        a_.fp32_gradients = p.fp32_gradients;
        a_.rows = int(p.rows);
        a_.row.live = int(p.live);
        a_.row.blocks = int((p.live + sm90::tile_k - 1) / sm90::tile_k);
        if (tuning.wide) {
            a_.wide = tuning.wide;
            a_.lag = std::max(1, tuning.lag);
            a_.ring = std::max(tuning.ring, a_.lag + 1);
            a_.interleave = tuning.interleave;
        } else {  // as many superblocks in flight as CTAs can hold items of; fewer where memory is scarce
            bool const many = !small_items_ && p.rows > 4096;
            a_.wide = 1;
            a_.lag = many || one_launch_ ? 3 : 2;
            a_.ring = a_.lag + 2;
            a_.interleave = many;
        }
        sm90::params_t own = a_, foreign = a_;
        own.own = true;
        own.column.blocks = own.row.blocks;
        foreign.column.blocks = int((p.candidate_rows + sm90::tile_k - 1) / sm90::tile_k);
        if (!countable(own, true) || !countable(foreign, p.pairs_once))
            return refuse("sm90: more items of work than 32 bits count");
        return {};
    }
    /// Whether a launch's items have numbers of 32 bits (sm90::items_of), and those past the end that CTAs take.
    bool countable(sm90::params_t a, bool serves_twice) const {
        plan_superblocks(a);
        uint64_t const score = uint64_t(small_items_ ? 4 : 2) * sm90::strip_k * sm90::strip_k * a.wide,
                       gradient = uint64_t(a.programs) * sm90::strip_k * (serves_twice ? 1 + a.wide : 1);
        return uint64_t(a.superblocks + a.lag) * (score + gradient) < (uint64_t(1) << 32) - (1 << 16);
    }
    /// What was fastest on an H200, by size: docs/performance.md.
    void choose_kind(gpu_problem_t const& p, sm90_tuning_t const& tuning) {
        constexpr uint32_t small_items_rows_k = 5120, one_launch_rows_k = 3072, narrow_tiles_rows_k = 2048;
        bool const few = std::max(p.rows, p.candidate_rows) <= small_items_rows_k;
        small_items_ = tuning.small_items.value_or(few && fast_ && !fp16_ && !p.pairs_once);
        one_launch_ = small_items_ && p.candidate_rows == 0 && a_.columns == a_.dims && p.rows < 1u << 22 &&
                      tuning.one_launch.value_or(p.rows <= one_launch_rows_k);
        narrow_tiles_ = one_launch_ && tuning.narrow_tiles.value_or(p.rows <= narrow_tiles_rows_k);
    }
    void plan_superblocks(sm90::params_t& a) const {
        a.strips_i = (a.row.blocks + sm90::strip_k - 1) / sm90::strip_k;
        a.strips_j = (a.column.blocks + sm90::strip_k - 1) / sm90::strip_k;
        a.superblocks = 0;
        for (int i = 0; i < a.strips_i; ++i) a.superblocks += (a.strips_j - (a.own ? i : 0) + a.wide - 1) / a.wide;
        a.ring = std::min(a.ring, a.superblocks);
        a.lag = std::min(a.lag, std::max(1, a.superblocks));
    }
    /// `both`: the candidates get gradients, too.
    static size_t flag_words(sm90::params_t const& a, bool both) {
        size_t const blocks = both ? sm90::first_candidate(a) + a.column.blocks : a.row.blocks;
        return 4 + size_t(a.superblocks) * (sm90::counts_of(a) + 1) + blocks * a.programs;
    }
    static void place_flags(sm90::params_t& a) {
        a.scored = a.next_item + 4;
        a.consumed = a.scored + size_t(a.superblocks) * sm90::counts_of(a);
        a.turn = a.consumed + a.superblocks;
    }
    /// The superblocks of the block of candidates in `a`, with flags that are zero.
    gpu_status_t plan_flags(sm90::params_t& a, bool both, cudaStream_t stream) {
        plan_superblocks(a);
        size_t const flags = flag_words(a, both);
        if (flags > flag_words_)
            return {status_t::unsupported_k, "a block of candidates needs more flags than were laid out"};
        place_flags(a);
        bool const clean = flags_clean_;  // begin() has zeroed them for the first block
        flags_clean_ = false;
        return clean ? gpu_status_t{}
                     : check(cudaMemsetAsync(a.next_item, 0, flags * sizeof(uint32_t), stream), "cudaMemsetAsync");
    }
    gpu_status_t add_partial(void const* partial, int64_t rows, float* dx, int64_t* s, cudaStream_t stream) const {
        auto const from = sm90::partial_at(a_, partial_blocks(), const_cast<void*>(partial));
        int64_t const covered = (rows + sm90::tile_k - 1) / sm90::tile_k * sm90::tile_k;
        if (rows == 0) return {};
        sm90::add_partial_kernel<<<sm90::add_blocks_k, sm90::add_threads_k, 0, stream>>>(
            reinterpret_cast<float4*>(dx), reinterpret_cast<float4 const*>(from.dx), covered * a_.columns, s, from.s,
            covered * a_.prefixes);
        return check(cudaGetLastError(), "add_partial_kernel");
    }
    /// Of a partial, which all GPUs lay out alike: row blocks, dead rows included.
    int partial_blocks() const { return (a_.rows + sm90::tile_k - 1) / sm90::tile_k; }

    /// Assigns scratch from `base` on; returns its size.
    size_t lay_out(uint8_t* base) {
        size_t at = 0;
        auto const take = [&](auto*& pointer, size_t count) {
            using element_t = std::remove_reference_t<decltype(*pointer)>;
            pointer = reinterpret_cast<std::remove_const_t<element_t>*>(base + at);
            at += (count * sizeof(element_t) + 255) / 256 * 256;
        };
        size_t const blocks = size_t(std::max(1, a_.row.blocks)), prefixes = size_t(a_.prefixes);
        size_t const column_blocks = (problem_.candidate_rows + sm90::tile_k - 1) / sm90::tile_k;
        if (one_launch_) {  // first, where kept_bytes() says
            sm90::params_t own = a_;
            own.own = true;
            own.column.blocks = own.row.blocks;
            plan_superblocks(own);
            flag_words_ = flag_words(own, false) + blocks * (1 + sm90::tile_k / 32);
            take(a_.next_item, flag_words_);
            kept_bytes_ = at;
        }
        take(row_records_, blocks * sm90::record_floats(a_.prefixes));
        take(column_records_, column_blocks * sm90::record_floats(a_.prefixes));
        take(a_.s, blocks * prefixes * sm90::tile_k);
        take(a_.sums, blocks * 2);
        take(a_.partials, blocks * 3);
        take(a_.finished, 64);
        take(a_.residual_count, blocks * sm90::tile_k);
        take(a_.residuals, blocks * sm90::tile_k * (fast_ && !packed_sums_ ? sm90::residuals_k : 0));
        take(a_.dx, blocks * a_.columns * sm90::tile_k);
        if (fp16_) {
            if (!packed_sums_) take(row_y_, blocks * sm90::tile_k * a_.dims);
            take(column_y_, column_blocks * sm90::tile_k * a_.dims);
            take(row_scale_, blocks * sm90::tile_k);
            a_.row_scale = row_scale_;
        }
        sm90::params_t own = a_, foreign = a_;
        own.own = true;
        own.column.blocks = own.row.blocks;
        plan_superblocks(own);
        foreign.column.blocks = int(column_blocks);
        plan_superblocks(foreign);
        if (!one_launch_) {
            flag_words_ = std::max(flag_words(own, false), flag_words(foreign, problem_.pairs_once));
            take(a_.next_item, flag_words_);
        }
        // tiles of a ring that never wraps need not be whole
        size_t const superblocks =
            size_t(std::min(a_.ring, std::max(1, std::max(own.superblocks, foreign.superblocks))));
        take(a_.weights, superblocks * sm90::strip_k * sm90::strip_k * a_.wide * prefixes * sm90::plane_bytes_k);
        a_.row.records = row_records_;
        return at;
    }

    /// The boxes that rows are read in.
    gpu_status_t map(sm90::maps_t& out, __nv_bfloat16 const* x, int rows) const {
        if (auto s = map(out.row, x, rows, 64, 1); !s) return s;
        if (auto s = map(out.single, x, rows, 64, 1); !s) return s;
        if (auto s = map(out.column, x, rows, 128, 1); !s) return s;
        return map(out.pair, x, rows, 64, 2);
    }
    /// Boxes of `box_rows` rows x `box_chunks` chunks of 64 columns, chunk after chunk.
    gpu_status_t map(CUtensorMap& out, __nv_bfloat16 const* x, int rows, uint32_t box_rows, uint32_t box_chunks) const {
        if (rows == 0) return {};
        auto const type = fp16_ ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
        return sm90::map_rows(encode_, out, x, rows, a_.dims, box_rows, box_chunks, type);
    }
    gpu_status_t prepare(__nv_bfloat16 const* x, int32_t const* labels, int live, int64_t first_row, float* records,
                         int blocks, bool own, int64_t* s, cudaStream_t stream) const {
        sm90::prepare_t p = preparation(x, labels, live, first_row, records, s);
        p.y = reinterpret_cast<uint16_t*>(own ? row_y_ : column_y_);
        if (own) {
            p.sums = a_.sums;
            p.residual_count = a_.residual_count;
            p.flags = a_.next_item;
            p.finished = a_.finished;
            p.scale = row_scale_;
        }
        return prepare(p, blocks, stream);
    }
    /// What is the same of all sets of rows.
    sm90::prepare_t preparation(__nv_bfloat16 const* x, int32_t const* labels, int live, int64_t first_row,
                                float* records, int64_t* s) const {
        sm90::prepare_t p = {};
        p.x = x;
        p.labels = labels;
        p.records = records;
        p.live = live;
        p.dims = a_.dims;
        p.prefixes = a_.prefixes;
        p.first_row = first_row;
        p.s = s;
        p.flag_words = int64_t(flag_words_);
        p.t = a_.t;
        for (int i = 0; i < a_.prefixes; ++i) {
            p.prefix[i] = int(problem_.prefixes[i]);
            p.omega += most_slope_ * std::fabs(a_.omega[i]);
        }
        return p;
    }
    gpu_status_t prepare(sm90::prepare_t const& p, int blocks, cudaStream_t stream) const {
        if (blocks == 0) return {};
        int const grid = blocks * (sm90::tile_k / sm90::prepare_warps_k), threads = sm90::prepare_warps_k * 32;
        if (fp16_) sm90::prepare_kernel<true><<<grid, threads, 0, stream>>>(p);
        else sm90::prepare_kernel<false><<<grid, threads, 0, stream>>>(p);
        return check(cudaGetLastError(), "prepare_kernel");
    }

    gpu_problem_t problem_;
    sm90::params_t a_ = {};
    bool fast_ = false, fp16_ = false, small_items_ = false, one_launch_ = false, narrow_tiles_ = false;
    bool packed_sums_ = false, scored_ = false, flags_clean_ = false;
    float most_slope_ = 1.f;  // of a cell's loss by its logit
    int sms_ = 0;
    float *row_records_ = nullptr, *column_records_ = nullptr, *row_scale_ = nullptr;
    __nv_bfloat16 *row_y_ = nullptr, *column_y_ = nullptr;  // fp16 in fact
    int32_t const* labels_ = nullptr;
    size_t flag_words_ = 0, kept_bytes_ = 0;
    sm90::maps_t row_maps_ = {};
    sm90::encode_t encode_ = nullptr;
};

}  // namespace scaling_contrasts
