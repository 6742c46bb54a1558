// Descriptors by which the copy engine reads boxes of a matrix of bf16.
#pragma once
#include "scaling_contrasts/gpu/driver.cuh"
#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::gpu {

/// Boxes of 64 columns and `box_rows` rows of a [rows][dims] matrix, 16-byte aligned, in lines of 128 bytes with the
/// 128-byte swizzle. Rows past `rows` read as zeros. Throws failure_t where the driver lacks the function or refuses
/// the arguments.
inline CUtensorMap tensor_map(bf16_t const* matrix, std::int64_t rows, int dims, int box_rows) {
    auto* encode = driver().encode_tiled_map;
    if (!encode) throw failure_t(status_t::unsupported_k, "the driver has no cuTensorMapEncodeTiled; update it");
    CUtensorMap map;
    cuuint64_t const size[2] = {static_cast<cuuint64_t>(dims), static_cast<cuuint64_t>(rows)},
                     stride[1] = {static_cast<cuuint64_t>(dims) * sizeof(bf16_t)};
    cuuint32_t const box[2] = {64, static_cast<cuuint32_t>(box_rows)}, unit[2] = {1, 1};
    check_driver(encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<bf16_t*>(matrix), size, stride, box, unit,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
                 "describing embeddings to the copy engine");
    return map;
}

}  // namespace scaling_contrasts::gpu
