// The host side of the sm90 engine's forward pass alone of one_set_sigmoid: the loss, no gradient, no dL/dt and no dL/db.
// Scratch is the rows' statistics and their sums.
#pragma once
#include <algorithm>
#include <type_traits>

#include "scaling_contrasts/sm90/finish.cuh"
#include "scaling_contrasts/sm90/forward.cuh"
#include "scaling_contrasts/sm90/host.cuh"
#include "scaling_contrasts/sm90/prepare.cuh"

namespace scaling_contrasts {

class sm90_forward_engine_t {
  public:
    /// Bytes of device memory that construct() expects. 0: the problem is not one that this engine solves.
    static size_t scratch_bytes(gpu_problem_t const& problem) {
        sm90_forward_engine_t probe;
        if (!probe.plan(problem)) return 0;
        return probe.lay_out(nullptr);
    }

    /// `scratch`: scratch_bytes() of device memory, 256-byte aligned; stays the caller's.
    gpu_status_t construct(gpu_problem_t const& problem, void* scratch) {
        if (auto s = plan(problem); !s) return s;
        lay_out(static_cast<uint8_t*>(scratch));
        if (auto s = sm90::open_device(sms_, encode_); !s) return s;
        return for_ladder([]<bool few_>(std::bool_constant<few_>) {
            return sm90::check(cudaFuncSetAttribute(sm90::forward::score_kernel<few_>,
                                                    cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes<few_>()),
                               "cudaFuncSetAttribute");
        });
    }

    /// Starts a step. `labels` may be null: every row its own group. `scale` and `bias` are read on the device, in
    /// every step.
    gpu_status_t begin(void const* embeddings, int32_t const* labels, int64_t first_row, float const* scale,
                       float const* bias, cudaStream_t stream) {
        a_.t = scale;
        a_.b = bias;
        if (auto s = map(maps_.row, embeddings, a_.row.live); !s) return s;
        return prepare(embeddings, labels, a_.row.live, first_row, row_records_, a_.row.blocks, a_.sums, stream);
    }

    /// Scores this GPU's rows against a block of candidates; `own`: the block is those rows.
    gpu_status_t score(void const* embeddings, int32_t const* labels, uint32_t live, int64_t first_row, bool own,
                       cudaStream_t stream) {
        if (live == 0 || a_.row.blocks == 0) return {};
        sm90::params_t a = a_;
        sm90::forward::maps_t maps = maps_;
        a.own = own;
        a.column = a.row;
        maps.column = maps.row;
        if (!own) {
            if (live > problem_.candidate_rows)
                return {status_t::unsupported_k, "a block of candidates is larger than candidate_rows"};
            a.column = {column_records_, int((live + sm90::tile_k - 1) / sm90::tile_k), int(live)};
            if (auto s = map(maps.column, embeddings, int(live)); !s) return s;
            if (auto s = prepare(embeddings, labels, int(live), first_row, column_records_, a.column.blocks, nullptr,
                                 stream);
                !s)
                return s;
        }
        int64_t const tiles = sm90::forward::count_tiles(a);
        if (tiles > INT32_MAX) return {status_t::unsupported_k, "more than 2^31 tiles in a block"};
        return for_ladder([&]<bool few_>(std::bool_constant<few_>) {
            int const grid = int(std::min<int64_t>(tiles, sms_ * sm90::ctas_k)), count = int(tiles);
            constexpr int shared = shared_bytes<few_>();
            sm90::forward::score_kernel<few_><<<grid, sm90::threads_k, shared, stream>>>(maps, a, count);
            return sm90::check(cudaGetLastError(), "score_kernel");
        });
    }

    /// Writes {loss, 0, 0}: this GPU's part of the global mean. `scalars_double`, where given, gets the same in double.
    gpu_status_t finish(float* scalars, cudaStream_t stream, double* scalars_double = nullptr) {
        sm90::params_t a = a_;
        a.scalars = scalars;
        a.scalars_double = scalars_double;
        sm90::forward::scalars_kernel<<<1, sm90::forward::scalars_threads_k, 0, stream>>>(a);
        return sm90::check(cudaGetLastError(), "scalars_kernel");
    }

  private:
    template <class work_at>
    gpu_status_t for_ladder(work_at const& work) const {
        return a_.prefixes <= 5 ? work(std::true_type{}) : work(std::false_type{});
    }
    template <bool few_>
    static constexpr int shared_bytes() {
        return int(sizeof(sm90::forward::shared_t<few_>)) + 1024;
    }

    /// Everything that depends on the problem alone.
    gpu_status_t plan(gpu_problem_t const& p) {
        if (p.loss != loss_t::one_set_sigmoid_k) return {status_t::unsupported_k, "sm90: one_set_sigmoid"};
        if (auto s = sm90::check_shape(p); !s) return s;
        problem_ = p;
        a_ = {};
        a_.prefixes = int(p.prefix_count);
        a_.dims = int(p.dims);
        a_.columns = int(p.prefixes[p.prefix_count - 1]);
        a_.weight = p.prefix_weights[0];
        for (int i = 0; i < a_.prefixes; ++i) {
            a_.slabs[i] = int(p.prefixes[i] - (i ? p.prefixes[i - 1] : 0)) / sm90::slab_k;
            a_.omega[i] = p.prefix_weights[i] / p.prefix_weights[0];
        }
        a_.rows_everywhere = double(p.total_live);
        a_.self_pairs = p.self_pairs;
        a_.row.live = int(p.live);
        a_.row.blocks = int((p.live + sm90::tile_k - 1) / sm90::tile_k);
        return {};
    }
    /// Assigns scratch from `base` on; returns its size.
    size_t lay_out(uint8_t* base) {
        size_t at = 0;
        auto const take = [&](auto*& pointer, size_t count) {
            using element_t = std::remove_reference_t<decltype(*pointer)>;
            pointer = reinterpret_cast<element_t*>(base + at);
            at += (count * sizeof(element_t) + 255) / 256 * 256;
        };
        size_t const blocks = size_t(std::max(1, a_.row.blocks)),
                     column_blocks = (problem_.candidate_rows + sm90::tile_k - 1) / sm90::tile_k;
        take(row_records_, blocks * sm90::record_floats(a_.prefixes));
        take(column_records_, column_blocks * sm90::record_floats(a_.prefixes));
        take(a_.sums, blocks * 2);
        a_.row.records = row_records_;
        return at;
    }
    gpu_status_t map(CUtensorMap& out, void const* x, int rows) const {
        if (rows == 0) return {};
        return sm90::map_rows(encode_, out, static_cast<__nv_bfloat16 const*>(x), rows, a_.dims, sm90::tile_k, 1);
    }
    gpu_status_t prepare(void const* x, int32_t const* labels, int live, int64_t first_row, float* records, int blocks,
                         int64_t* sums, cudaStream_t stream) const {
        if (blocks == 0) return {};
        sm90::prepare_t p = {};
        p.x = static_cast<__nv_bfloat16 const*>(x);
        p.labels = labels;
        p.records = records;
        p.live = live;
        p.dims = a_.dims;
        p.prefixes = a_.prefixes;
        for (int i = 0; i < a_.prefixes; ++i) p.prefix[i] = int(problem_.prefixes[i]);
        p.first_row = first_row;
        p.sums = sums;
        int const grid = blocks * (sm90::tile_k / sm90::prepare_warps_k), threads = sm90::prepare_warps_k * 32;
        sm90::prepare_kernel<false><<<grid, threads, 0, stream>>>(p);
        return sm90::check(cudaGetLastError(), "prepare_kernel");
    }

    gpu_problem_t problem_;
    sm90::params_t a_ = {};
    int sms_ = 0;
    float *row_records_ = nullptr, *column_records_ = nullptr;
    sm90::forward::maps_t maps_ = {};
    sm90::encode_t encode_ = nullptr;
};

}  // namespace scaling_contrasts
