// The sm90 engine of the losses over two sets, two_set_sigmoid and info_nce: checks the problem, lays out scratch, launches a step.
// Nothing here waits for the device, so that a step captures into a graph.
//
//   begin    norms, positives, cleared sums
//   sums     info_nce only, for every block of pairs, then close_sums
//   score    for every block of pairs: weights of a superblock, then their products, superblock by superblock
//   finish   norm corrections, positives, rounding, scalars
//
// A block is another GPU's pairs or this one's own, which comes first. Each GPU sums the gradients of its own images and captions, and counts the cells of its own
// images. Forward only, `score` and `finish` leave gradients alone; info_nce then gives the loss and no dL/dt.
#pragma once
#include <algorithm>
#include <string>
#include <utility>

#include <cuda_runtime.h>

#include "scaling_contrasts/gpu/prep.cuh"
#include "scaling_contrasts/sm90/problem.cuh"
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

/// A block of pairs: this GPU's own or another's, in memory of this GPU.
struct two_set_block_t {
    void const* embeddings[2] = {};  ///< images, captions: [live][dims]
    float const* log_sums[2] = {};   ///< info_nce's scores: as log_sums() of the block's GPU gave them
    uint32_t live = 0;
    bool own = false;
};

class sm90_two_set_engine_t {
  public:
    /// Bytes of device memory that construct() expects. 0: the problem is not one that this engine solves.
    static size_t scratch_bytes(gpu_problem_t const& problem, bool forward_only = false,
                                two_set_tuning_t const& tuning = {}) {
        sm90_two_set_engine_t probe;
        if (!probe.plan(problem, forward_only, tuning)) return 0;
        return probe.lay_out(nullptr);
    }

    /// `scratch`: scratch_bytes() of device memory, 256-byte aligned; stays the caller's.
    gpu_status_t construct(gpu_problem_t const& problem, void* scratch, bool forward_only = false,
                           two_set_tuning_t const& tuning = {}) {
        if (auto s = plan(problem, forward_only, tuning); !s) return s;
        lay_out(static_cast<uint8_t*>(scratch));
        int device = 0, major = 0;
        if (auto s = check(cudaGetDevice(&device), "cudaGetDevice"); !s) return s;
        if (auto s = check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                           "cudaDeviceGetAttribute");
            !s)
            return s;
        if (major != 9) return {status_t::unsupported_k, "the sm90 engine needs a GPU of compute capability 9.0"};
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found;
        if (auto s = check(
                cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
                "cuTensorMapEncodeTiled");
            !s)
            return s;
        if (found != cudaDriverEntryPointSuccess)
            return {status_t::unsupported_k, "the driver has no cuTensorMapEncodeTiled"};
        encode_ = reinterpret_cast<decltype(encode_)>(function);
        for (kernel_t* kernel : {kernel_of(pass_t::sigmoid_k), kernel_of(pass_t::sums_k), kernel_of(pass_t::softmax_k)})
            if (auto s =
                    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes_k),
                          "cudaFuncSetAttribute");
                !s)
                return s;
        return check(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    }

    /// Starts a step on this GPU's pairs. `scale` and `bias` are read on the device, in every step.
    gpu_status_t begin(void const* images, void const* captions, float const* scale, float const* bias,
                       cudaStream_t stream) {
        pairs_.t = a_.t = scale;
        pairs_.b = a_.b = bias;
        pairs_.side[0].x = static_cast<__nv_bfloat16 const*>(images);
        pairs_.side[1].x = static_cast<__nv_bfloat16 const*>(captions);
        pairs_.side[0].accumulate = pairs_.side[1].accumulate = false;
        if (auto s = check(cudaMemsetAsync(cleared_, 0, cleared_bytes_, stream), "cudaMemsetAsync"); !s) return s;
        sm90::two_set::prepare_kernel<<<padded() / 8, sm90::two_set::rows_threads_k, 0, stream>>>(pairs_);
        return check(cudaGetLastError(), "prepare_kernel");
    }
    /// info_nce: sums over one block.
    gpu_status_t sums(two_set_block_t const& block, cudaStream_t stream) {
        return visit(block, pass_t::sums_k, stream);
    }
    /// After the sums over all blocks; before any score.
    gpu_status_t close_sums(cudaStream_t stream) {
        sm90::two_set::log_sums_kernel<<<dim3(padded() / sm90::two_set::rows_threads_k, pairs_.prefixes, 2),
                                         sm90::two_set::rows_threads_k, 0, stream>>>(pairs_);
        return check(cudaGetLastError(), "log_sums_kernel");
    }
    /// What close_sums() leaves for other GPUs, of images (0) or captions (1): log_sum_count() floats.
    float const* log_sums(int set) const { return pairs_.log_sums[set]; }
    int64_t log_sum_count() const { return int64_t(padded()) * pairs_.prefixes; }
    /// Scores one block and adds its part of the gradients.
    gpu_status_t score(two_set_block_t const& block, cudaStream_t stream) {
        if (pairs_.nce && forward_only_) return {};
        return visit(block, pairs_.nce ? pass_t::softmax_k : pass_t::sigmoid_k, stream);
    }
    /// Writes the gradients ([rows][dims], bf16 or fp32) and {loss, dL/dt, dL/db}: this GPU's part of the global mean.
    /// `scalars_double`, where given, gets the same in double. Forward only, the gradients stay untouched.
    gpu_status_t finish(void* image_gradient, void* caption_gradient, float* scalars, cudaStream_t stream,
                        double* scalars_double = nullptr) {
        auto a = pairs_;
        a.gradient[0] = image_gradient;
        a.gradient[1] = caption_gradient;
        a.scalars = scalars;
        a.scalars_double = scalars_double;
        sm90::two_set::positives_kernel<<<a.partial_count, sm90::two_set::rows_threads_k, 0, stream>>>(a);
        if (auto s = check(cudaGetLastError(), "positives_kernel"); !s) return s;
        sm90::two_set::scalars_kernel<<<1, 1024, 0, stream>>>(a);
        if (auto s = check(cudaGetLastError(), "scalars_kernel"); !s) return s;
        if (forward_only_) return {};
        dim3 const grid((problem_.rows + sm90::two_set::slice_k - 1) / sm90::two_set::slice_k, 2);
        if (ladder_) sm90::two_set::finish_kernel<true><<<grid, sm90::two_set::finish_threads_k, 0, stream>>>(a);
        else sm90::two_set::finish_kernel<false><<<grid, sm90::two_set::finish_threads_k, 0, stream>>>(a);
        return check(cudaGetLastError(), "finish_kernel");
    }

  private:
    using pass_t = sm90::two_set::pass_t;
    using params_t = sm90::two_set::params_t;
    using maps_t = sm90::two_set::maps_t;
    using kernel_t = void(maps_t, params_t);
    static constexpr int shared_bytes_k = int(sizeof(sm90::two_set::shared_t)) + 1024;

    static gpu_status_t check(cudaError_t error, char const* what) {
        if (error == cudaSuccess) return {};
        return {error == cudaErrorMemoryAllocation ? status_t::out_of_memory_k : status_t::crashed_k,
                std::string(what) + ": " + cudaGetErrorString(error)};
    }
    kernel_t* kernel_of(pass_t pass) const {
        using namespace sm90::two_set;
        switch (pass) {
        case pass_t::sigmoid_k:
            return ladder_ ? step_kernel<pass_t::sigmoid_k, true> : step_kernel<pass_t::sigmoid_k, false>;
        case pass_t::sums_k: return ladder_ ? step_kernel<pass_t::sums_k, true> : step_kernel<pass_t::sums_k, false>;
        case pass_t::softmax_k:
            return ladder_ ? step_kernel<pass_t::softmax_k, true> : step_kernel<pass_t::softmax_k, false>;
        }
        return nullptr;
    }
    int padded() const { return pairs_.side[0].padded; }

    gpu_status_t plan(gpu_problem_t const& p, bool forward_only, two_set_tuning_t const& tuning) {
        auto refuse = [](char const* why) {
            return gpu_status_t{status_t::unsupported_k, std::string("sm90: ") + why};
        };
        if (p.loss != loss_t::two_set_sigmoid_k && p.loss != loss_t::info_nce_k) return refuse("a loss over two sets");
        if (p.rows < 1 || p.live > p.rows || p.rows > (1u << 22))
            return refuse("rows must be 1 to 4194304, live at most rows");
        if (p.dims < 64 || p.dims % 64 || p.dims > 4096) return refuse("dims must be a multiple of 64 up to 4096");
        if (p.prefix_count < 1 || p.prefix_count > uint32_t(max_prefixes_k)) return refuse("1 to 16 prefixes");
        if (p.total_live < p.live || p.total_live == 0) return refuse("total_live is below live, or 0");
        for (uint32_t i = 0; i < p.prefix_count; ++i)
            if (p.prefixes[i] % 64 || p.prefixes[i] <= (i ? p.prefixes[i - 1] : 0) || p.prefixes[i] > p.dims)
                return refuse("prefixes must be ascending multiples of 64 up to dims");
        if (!(p.prefix_weights[0] > 0)) return refuse("the first prefix needs a positive weight");
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
    int column_tiles(int live) const {
        return (live + sm90::two_set::column_tile_k - 1) / sm90::two_set::column_tile_k;
    }
    /// Superblocks of `row_live` images x `column_live` captions.
    void plan_superblocks(params_t& a, int row_live, int column_live) const {
        a.column_groups = (column_tiles(column_live) + a.wide - 1) / a.wide;
        a.superblocks = ((row_live + sm90::tile_k - 1) / sm90::tile_k + a.high - 1) / a.high * a.column_groups;
    }
    static size_t flag_words(params_t const& a, int row_live, int column_live) {
        return 4 + size_t(a.superblocks) * 2 +
               size_t((row_live + 127) / 128 + (column_live + 127) / 128) * a.pieces * 2;
    }

    /// Assigns scratch from `base` on; returns its size.
    size_t lay_out(uint8_t* base) {
        size_t at = 0;
        auto const take = [&](auto*& pointer, size_t count) {
            using element_t = std::remove_reference_t<decltype(*pointer)>;
            pointer = reinterpret_cast<element_t*>(base + at);
            at += (count * sizeof(element_t) + 255) / 256 * 256;
        };
        size_t const rows = size_t(padded()), statistics = rows * a_.prefixes,
                     most = std::max<size_t>(problem_.rows, problem_.candidate_rows);
        take(pairs_.cosine, statistics);
        for (int k = 0; k < 2; ++k) {
            take(pairs_.inverse[k], statistics);
            if (pairs_.nce) {
                take(pairs_.log_sums[k], statistics);
                take(pairs_.excess[k], statistics);
            }
            pairs_.side[k].inverse = pairs_.inverse[k];
            pairs_.side[k].log_sums = pairs_.log_sums[k];
        }
        for (auto& inverse : candidate_inverse_)
            take(inverse, size_t(problem_.candidate_rows + 255) / 256 * 256 * a_.prefixes);
        take(pairs_.partials, 3 * size_t(pairs_.partial_count));
        size_t const cleared = at;  // zeroed in every step
        take(sums_, 6 * (rows / 128));
        for (auto& side : pairs_.side) {
            if (pairs_.nce) take(side.bins, statistics * sm90::two_set::bins_k);
            if (ladder_ && !forward_only_) take(side.s, statistics);
        }
        pairs_.sums = sums_;
        cleared_ = base + cleared;
        cleared_bytes_ = at - cleared;
        params_t worst = a_;  // a block of the most pairs on either side
        plan_superblocks(worst, int(most), int(most));
        flag_words_ = flag_words(worst, int(most), int(most));
        take(flags_, flag_words_);
        if (forward_only_) return at;
        for (auto& side : pairs_.side) take(side.dx, rows / 128 * a_.pieces * sm90::two_set::share_k);
        int const ring = std::min(a_.ring, std::max(1, worst.superblocks));
        take(a_.weights, size_t(ring) * a_.high * a_.wide * a_.prefixes * sm90::two_set::tile_bytes_k);
        return at;
    }

    /// Boxes of `box_rows` rows x `box_chunks` chunks of 64 columns, chunk after chunk.
    gpu_status_t map(CUtensorMap& out, sm90::two_set::side_t const& side, uint32_t box_rows,
                     uint32_t box_chunks) const {
        bool const flat = box_chunks == 1;
        cuuint64_t const row_bytes = cuuint64_t(a_.dims) * 2;
        cuuint64_t const dims[3] = {flat ? cuuint64_t(a_.dims) : 64, cuuint64_t(side.live), cuuint64_t(a_.dims / 64)},
                         strides[2] = {row_bytes, 128};
        cuuint32_t const box[3] = {64, box_rows, box_chunks}, unit[3] = {1, 1, 1};
        CUresult const r =
            encode_(&out, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, flat ? 2 : 3, const_cast<__nv_bfloat16*>(side.x), dims,
                    strides, box, unit, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                    CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
        if (r == CUDA_SUCCESS) return {};
        return {status_t::crashed_k,
                "cuTensorMapEncodeTiled: error " + std::to_string(int(r)) + " (embeddings must be 16-byte aligned)"};
    }

    gpu_status_t visit(two_set_block_t const& block, pass_t pass, cudaStream_t stream) {
        auto const& mine = pairs_.side;
        if (block.own) return launch(mine[0], mine[1], true, true, true, pass, stream);
        if (block.live > problem_.candidate_rows)
            return {status_t::unsupported_k, "sm90: a block has more pairs than candidate_rows said"};
        sm90::two_set::side_t theirs[2] = {};
        for (int k = 0; k < 2; ++k) {
            auto& side = theirs[k];
            side.x = static_cast<__nv_bfloat16 const*>(block.embeddings[k]);
            side.inverse = candidate_inverse_[k];
            side.log_sums = block.log_sums[k];
            side.live = int(block.live);
            side.padded = int((problem_.candidate_rows + 255) / 256 * 256);
            gpu::find_inverse_norms(reinterpret_cast<bf16_t const*>(side.x), side.live, side.padded, norms_of_,
                                    candidate_inverse_[k], stream);
        }
        if (auto s = launch(mine[0], theirs[1], true, false, false, pass, stream); !s) return s;
        return launch(theirs[0], mine[1], false, true, false, pass, stream);
    }
    /// Images of `row` x captions of `column`; `rows_mine`, `columns_mine`: their sums and gradients are this engine's.
    gpu_status_t launch(sm90::two_set::side_t const& row, sm90::two_set::side_t const& column, bool rows_mine,
                        bool columns_mine, bool own, pass_t pass, cudaStream_t stream) {
        if (row.live == 0 || column.live == 0) return {};
        if (!rows_mine && forward_only_ && pass != pass_t::sums_k) return {};  // these cells are another GPU's to count
        params_t a = a_;
        a.row = row;
        a.column = column;
        a.own = own;
        a.output = a.output && pass != pass_t::sums_k;
        a.sums = rows_mine ? sums_ : nullptr;
        for (auto [side, is_mine] : {std::pair{&a.row, rows_mine}, {&a.column, columns_mine}}) {
            if (!is_mine) side->bins = nullptr, side->s = nullptr, side->dx = nullptr;
            if (!a.output) side->dx = nullptr;
        }
        plan_superblocks(a, row.live, column.live);
        a.ring = std::min(a.ring, a.superblocks);
        size_t const flags = flag_words(a, row.live, column.live);
        if (flags > flag_words_) return {status_t::unsupported_k, "sm90: a block needs more flags than were laid out"};
        a.next_item = flags_;
        a.scored = a.next_item + 4;
        a.consumed = a.scored + a.superblocks;
        a.turn = a.consumed + a.superblocks;
        maps_t maps;
        if (auto s = map(maps.row, row, 128, 1); !s) return s;
        if (auto s = map(maps.column, column, 256, 1); !s) return s;
        if (auto s = map(maps.row_slab, row, 64, 4); !s) return s;
        if (auto s = map(maps.column_slab, column, 64, 4); !s) return s;
        if (auto s = check(cudaMemsetAsync(flags_, 0, flags * sizeof(uint32_t), stream), "cudaMemsetAsync"); !s)
            return s;
        kernel_of(pass)<<<sms_, sm90::two_set::threads_k, shared_bytes_k, stream>>>(maps, a);
        if (a.output) {
            if (rows_mine) pairs_.side[0].accumulate = true;
            if (columns_mine) pairs_.side[1].accumulate = true;
        }
        return check(cudaGetLastError(), "step_kernel");
    }

    gpu_problem_t problem_;
    params_t a_ = {};
    sm90::two_set::pairs_t pairs_ = {};
    bool forward_only_ = false, ladder_ = false;
    int sms_ = 0;
    int64_t* sums_ = nullptr;
    float* candidate_inverse_[2] = {};
    ladder_t norms_of_;
    uint32_t* flags_ = nullptr;
    size_t flag_words_ = 0, cleared_bytes_ = 0;
    void* cleared_ = nullptr;
    decltype(&cuTensorMapEncodeTiled) encode_ = nullptr;
};

}  // namespace scaling_contrasts
