// Launches, as translated sources write them.
#pragma once
#include <functional>

#include "shapes.hpp"

inline uint3 threadIdx, blockIdx;  // of the thread that runs
inline dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;
using cudaStream_t = struct CUstream_st*;

namespace emulation {

struct launch_shape_t {
    dim3 grid, block;
    std::size_t shared = 0;
    dim3 cluster = {};
};

/// Runs `kernel` in every thread of the grid; returns when all are done. Throws failure_t.
void run_grid(launch_shape_t const& shape, std::function<void()> const& kernel);

template <class kernel_t>
struct launcher_t {
    kernel_t kernel;
    launch_shape_t shape;

    template <class... arguments_t>
    void operator()(arguments_t const&... arguments) const {
        run_grid(shape, [&] { kernel(arguments...); });
    }
};
template <class kernel_t>
launcher_t<kernel_t> launch(kernel_t kernel, dim3 grid, dim3 block, std::size_t shared = 0, cudaStream_t = {}) {
    return {kernel, {grid, block, shared}};
}

/// The running block's dynamic shared memory.
void* dynamic_shared_memory();
template <class element_t>
element_t* dynamic_shared() {
    return static_cast<element_t*>(dynamic_shared_memory());
}

}  // namespace emulation
