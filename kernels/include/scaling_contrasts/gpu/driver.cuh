// The driver's own functions, fetched at run time through the runtime, so that nothing links against libcuda and the
// binary starts on machines without a driver. One table; each entry names the CUDA version whose signature is meant.
// What takes the table as an argument can be given another in a test.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

#include "scaling_contrasts/gpu/check.cuh"

namespace scaling_contrasts::gpu {

struct driver_t {
    decltype(&cuGetErrorString) error_string = nullptr;
    decltype(&cuTensorMapEncodeTiled) encode_tiled_map = nullptr;  ///< null before compute capability 9.0's drivers
    // memory that every GPU maps
    decltype(&cuDeviceGetAttribute) device_attribute = nullptr;
    decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
    decltype(&cuMemCreate) create = nullptr;
    decltype(&cuMemRelease) release = nullptr;
    decltype(&cuMemAddressReserve) reserve = nullptr;
    decltype(&cuMemAddressFree) free_address = nullptr;
    decltype(&cuMemMap) map = nullptr;
    decltype(&cuMemUnmap) unmap = nullptr;
    decltype(&cuMemSetAccess) set_access = nullptr;
    decltype(&cuMemGetHandleForAddressRange) handle_for_range = nullptr;  ///< null before CUDA 11.7's drivers
    // memory that the switch adds up
    decltype(&cuMulticastCreate) multicast_create = nullptr;
    decltype(&cuMulticastAddDevice) multicast_add_device = nullptr;
    decltype(&cuMulticastBindMem) multicast_bind = nullptr;
    decltype(&cuMulticastUnbind) multicast_unbind = nullptr;
    decltype(&cuMulticastGetGranularity) multicast_granularity = nullptr;
};

/// The table, filled on first use. Throws failure_t unsupported_k where the driver is missing or too old.
inline driver_t const& driver() {
    static driver_t const table = [] {
        driver_t t;
        auto fetch = [](char const* name, auto& to, unsigned version) {
            cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
            void* function = nullptr;
            check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
                  "fetching a driver function");
            if (found == cudaDriverEntryPointSuccess)
                to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(function);
            else check(cudaGetLastError(), name);
        };
        fetch("cuGetErrorString", t.error_string, 6000);
        fetch("cuTensorMapEncodeTiled", t.encode_tiled_map, 12000);
        fetch("cuDeviceGetAttribute", t.device_attribute, 2000);
        fetch("cuMemGetAllocationGranularity", t.granularity, 10020);
        fetch("cuMemCreate", t.create, 10020);
        fetch("cuMemRelease", t.release, 10020);
        fetch("cuMemAddressReserve", t.reserve, 10020);
        fetch("cuMemAddressFree", t.free_address, 10020);
        fetch("cuMemMap", t.map, 10020);
        fetch("cuMemUnmap", t.unmap, 10020);
        fetch("cuMemSetAccess", t.set_access, 10020);
        fetch("cuMemGetHandleForAddressRange", t.handle_for_range, 11070);
        fetch("cuMulticastCreate", t.multicast_create, 12010);
        fetch("cuMulticastAddDevice", t.multicast_add_device, 12010);
        fetch("cuMulticastBindMem", t.multicast_bind, 12010);
        fetch("cuMulticastUnbind", t.multicast_unbind, 12010);
        fetch("cuMulticastGetGranularity", t.multicast_granularity, 12010);
        return t;
    }();
    return table;
}

/// Checks a driver call as check() does a runtime call.
inline void check_driver(CUresult result, char const* what, driver_t const& table = driver()) {
    if (result == CUDA_SUCCESS) return;
    char const* text = nullptr;
    if (table.error_string) table.error_string(result, &text);
    throw failure_t(result == CUDA_ERROR_OUT_OF_MEMORY ? status_t::out_of_memory_k : status_t::crashed_k,
                    std::string(what) + ": " +
                        (text ? text : "driver error " + std::to_string(static_cast<int>(result))));
}

}  // namespace scaling_contrasts::gpu
