// What the host sides of the sm90 engines do alike: shapes they refuse, the device they need, and boxes that rows are
// read in.
#pragma once
#include <string>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "scaling_contrasts/sm90/problem.cuh"

namespace scaling_contrasts::sm90 {

inline gpu_status_t check(cudaError_t error, char const* what) {
    if (error == cudaSuccess) return {};
    return {error == cudaErrorMemoryAllocation ? status_t::out_of_memory_k : status_t::crashed_k,
            std::string(what) + ": " + cudaGetErrorString(error)};
}

/// Why no sm90 engine takes a problem of this shape; ok: they do.
inline gpu_status_t check_shape(gpu_problem_t const& p) {
    auto const refuse = [](char const* why) {
        return gpu_status_t{status_t::unsupported_k, std::string("sm90: ") + why};
    };
    if (p.rows < 1 || p.live > p.rows || p.rows > (1u << 22))
        return refuse("rows must be 1 to 4194304, live at most rows");
    if (p.dims < 64 || p.dims % 64 || p.dims > 4096) return refuse("dims must be a multiple of 64 up to 4096");
    if (p.prefix_count < 1 || p.prefix_count > uint32_t(max_prefixes_k)) return refuse("1 to 16 prefixes");
    if (p.total_live < p.live) return refuse("total_live is below live");
    for (uint32_t i = 0; i < p.prefix_count; ++i)
        if (p.prefixes[i] % 64 || p.prefixes[i] <= (i ? p.prefixes[i - 1] : 0) || p.prefixes[i] > p.dims)
            return refuse("prefixes must be ascending multiples of 64 up to dims");
    if (!(p.prefix_weights[0] > 0)) return refuse("the first prefix needs a positive weight");
    return {};
}

using encode_t = decltype(&cuTensorMapEncodeTiled);

/// Of the current device: whether it runs these engines, its multiprocessors, and the driver's function that describes
/// boxes.
inline gpu_status_t open_device(int& multiprocessors, encode_t& encode) {
    int device = 0, major = 0;
    if (auto s = check(cudaGetDevice(&device), "cudaGetDevice"); !s) return s;
    if (auto s = check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device),
                       "cudaDeviceGetAttribute");
        !s)
        return s;
    if (auto s =
            check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
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
    encode = reinterpret_cast<encode_t>(function);
    return {};
}

/// Boxes of `box_rows` rows x `box_chunks` chunks of 64 columns, chunk after chunk, of x [rows][dims], rows above 0,
/// numbers of 16 bits.
inline gpu_status_t map_rows(encode_t encode, CUtensorMap& out, __nv_bfloat16 const* x, int rows, int dims,
                             uint32_t box_rows, uint32_t box_chunks,
                             CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16) {
    bool const flat = box_chunks == 1;
    cuuint64_t const row_bytes = cuuint64_t(dims) * 2;
    cuuint64_t const sizes[3] = {flat ? cuuint64_t(dims) : 64, cuuint64_t(rows), cuuint64_t(dims / 64)},
                     strides[2] = {row_bytes, 128};
    cuuint32_t const box[3] = {64, box_rows, box_chunks}, unit[3] = {1, 1, 1};
    CUresult const r = encode(&out, type, flat ? 2 : 3, const_cast<__nv_bfloat16*>(x), sizes, strides, box, unit,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (r == CUDA_SUCCESS) return {};
    return {status_t::crashed_k,
            "cuTensorMapEncodeTiled: error " + std::to_string(int(r)) + " (embeddings must be 16-byte aligned)"};
}

}  // namespace scaling_contrasts::sm90
