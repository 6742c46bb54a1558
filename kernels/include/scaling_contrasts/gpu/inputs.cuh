// The synthetic embeddings, made on the device: the same bits as inputs.hpp makes on the host.
#pragma once
#include "scaling_contrasts/gpu/check.cuh"
#include "scaling_contrasts/inputs.hpp"

namespace scaling_contrasts::gpu {

/// Rows `first` to `first + rows` of a set, [rows][dims]; `labels` (may be null) gets their groups.
/// For two sets a row's group is its global number.
static __global__ void fill_rows_kernel(std::uint32_t seed, int set, bool two_sets, label_layout_t layout,
                                        std::int64_t first, std::int64_t rows, int dims, bf16_t* embeddings,
                                        std::int32_t* labels) {
    for (std::int64_t i = blockIdx.x; i < rows; i += gridDim.x) {
        std::int64_t const row = first + i;
        std::int32_t const group = two_sets ? static_cast<std::int32_t>(row) : label_of(layout, row);
        std::uint32_t const group_key = row_key(seed, group_stream_k, static_cast<std::uint32_t>(group));
        std::uint32_t const own_key = row_key(seed, static_cast<std::uint32_t>(set), static_cast<std::uint32_t>(row));
        for (int column = threadIdx.x; column < dims; column += blockDim.x)
            embeddings[i * dims + column] = bf16_t(input_value(group_key, own_key, static_cast<std::uint32_t>(column)));
        if (labels && threadIdx.x == 0) labels[i] = group;
    }
}

inline void fill_rows(problem_t const& problem, int set, std::int64_t first, std::int64_t rows, bf16_t* embeddings,
                      std::int32_t* labels, cudaStream_t stream) {
    if (rows == 0) return;
    int const blocks = static_cast<int>(rows < 65536 ? rows : 65536);
    fill_rows_kernel<<<blocks, 128, 0, stream>>>(problem.seed, set, sets_of(problem.loss) == 2, problem.labels, first,
                                                 rows, problem.dims, embeddings, labels);
    check_launch("fill_rows_kernel");
}

}  // namespace scaling_contrasts::gpu
