// The runtime and driver calls that do something: memory, device attributes, tensor maps.
#include <map>

#include "cuda/cuda.h"
#include "cuda/cuda_runtime.h"
#include "tensor_map.hpp"

namespace {

/// Allocations stand between bytes that nobody may write, and hold NaN at first.
constexpr std::size_t margin_k = 1024;
constexpr unsigned char margin_byte_k = 0xa5;
std::map<void*, std::size_t>& allocations() {
    static std::map<void*, std::size_t> all;
    return all;
}

}  // namespace

cudaError_t cudaMalloc(void** to, std::size_t bytes) {
    std::size_t const whole = (bytes + 2 * margin_k + 1023) / 1024 * 1024;
    auto* const from = static_cast<unsigned char*>(std::aligned_alloc(1024, whole));
    if (!from) return cudaErrorMemoryAllocation;
    std::memset(from, margin_byte_k, whole);
    std::memset(from + margin_k, 0xff, bytes);
    *to = from + margin_k;
    allocations()[*to] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFree(void* at) {
    if (!at) return cudaSuccess;
    auto const found = allocations().find(at);
    if (found == allocations().end()) emulation::fail("cudaFree of what cudaMalloc did not give");
    auto const* const from = static_cast<unsigned char*>(at);
    for (std::size_t i = 1; i <= margin_k; ++i)
        if (*(from - i) != margin_byte_k || from[found->second + i - 1] != margin_byte_k) {
            std::fprintf(stderr, "emulation: device memory was written beside an allocation of %zu bytes\n",
                         found->second);
            std::abort();  // destructors call this
        }
    allocations().erase(found);
    std::free(static_cast<unsigned char*>(at) - margin_k);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = emulation::options().multiprocessors; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = emulation::options().major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; return cudaSuccess;
    }
    return cudaErrorInvalidValue;
}

cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
    bool const known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/// Refuses what the driver refuses, as its header says.
CUresult cuTensorMapEncodeTiled(CUtensorMap* out, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                cuuint64_t const* size, cuuint64_t const* strides, cuuint32_t const* box,
                                cuuint32_t const* element_strides, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
    constexpr std::uint8_t bytes_of[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
    constexpr std::uint8_t line_of[] = {0, 32, 64, 128};
    emulation::tensor_map_t map = {};
    map.mark = emulation::tensor_map_mark_k;
    map.base = static_cast<std::uint8_t*>(address);
    map.bytes = bytes_of[type], map.swizzle = line_of[swizzle];
    map.nan_outside = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
    if (rank < 1 || rank > 5 || reinterpret_cast<std::uintptr_t>(address) % 16) return CUDA_ERROR_INVALID_VALUE;
    map.rank = static_cast<std::uint8_t>(rank);
    map.stride[0] = static_cast<std::uint64_t>(map.bytes);
    for (cuuint32_t d = 0; d < rank; ++d) {
        map.size[d] = size[d], map.box[d] = static_cast<std::uint16_t>(box[d]);
        if (size[d] == 0 || size[d] > 1ull << 32 || box[d] == 0 || box[d] > 256 || element_strides[d] != 1)
            return CUDA_ERROR_INVALID_VALUE;
        if (d == 0) continue;
        map.stride[d] = strides[d - 1];
        if (strides[d - 1] % 16 || strides[d - 1] >= 1ull << 40) return CUDA_ERROR_INVALID_VALUE;
    }
    std::uint32_t const line = box[0] * static_cast<std::uint32_t>(map.bytes);
    if (line % 16 || (map.swizzle && line > static_cast<std::uint32_t>(map.swizzle))) return CUDA_ERROR_INVALID_VALUE;
    static_assert(sizeof(map) <= sizeof(CUtensorMap));
    std::memcpy(out, &map, sizeof map);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult, char const** text) { return *text = "an error of the driver", CUDA_SUCCESS; }
