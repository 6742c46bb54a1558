// The driver's own functions, fetched at run time through the runtime, so that nothing links against libcuda and the
// binary starts on machines without a driver. One table; each entry names the CUDA version whose signature is meant.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "scaling_contrasts/gpu/check.cuh"

namespace scaling_contrasts::gpu {

struct driver_t {
    decltype(&cuGetErrorString) error_string = nullptr;
    decltype(&cuTensorMapEncodeTiled) encode_tiled_map = nullptr;  ///< null before compute capability 9.0's drivers
};

/// The table, filled on first use. Throws failure_t unsupported_k where the driver is missing or too old.
inline driver_t const& driver() {
    static driver_t const table = [] {
        driver_t t;
        auto fetch = [](char const* name, void* to, unsigned version) {
            cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
            void* function = nullptr;
            check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
                  "fetching a driver function");
            if (found == cudaDriverEntryPointSuccess) *static_cast<void**>(to) = function;
            else check(cudaGetLastError(), name);
        };
        fetch("cuGetErrorString", &t.error_string, 6000);
        fetch("cuTensorMapEncodeTiled", &t.encode_tiled_map, 12000);
        return t;
    }();
    return table;
}

/// Checks a driver call as check() does a runtime call.
inline void check_driver(CUresult result, char const* what) {
    if (result == CUDA_SUCCESS) return;
    char const* text = nullptr;
    if (driver().error_string) driver().error_string(result, &text);
    throw failure_t(result == CUDA_ERROR_OUT_OF_MEMORY ? status_t::out_of_memory_k : status_t::crashed_k,
                    std::string(what) + ": " +
                        (text ? text : "driver error " + std::to_string(static_cast<int>(result))));
}

}  // namespace scaling_contrasts::gpu
