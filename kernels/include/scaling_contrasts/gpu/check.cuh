// Every CUDA call is checked here: a failure becomes a failure_t with the status that a result table shows.
#pragma once
#include <cuda_runtime.h>

#include <string>

#include "scaling_contrasts/types.hpp"

namespace scaling_contrasts::gpu {

inline status_t status_of(cudaError_t error) {
    switch (error) {
    case cudaErrorMemoryAllocation: return status_t::out_of_memory_k;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion: return status_t::unsupported_k;
    default: return status_t::crashed_k;
    }
}

/// Throws failure_t where `error` is one; `what` says what was being done.
inline void check(cudaError_t error, char const* what) {
    if (error == cudaSuccess) return;
    cudaGetLastError();  // a later call shall not report it again
    throw failure_t(status_of(error), std::string(what) + ": " + cudaGetErrorString(error));
}

/// To be called after a launch: reports what was wrong with its arguments.
inline void check_launch(char const* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace scaling_contrasts::gpu
