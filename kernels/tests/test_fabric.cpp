// `--fabric auto` reaches cuMulticastCreate only where it may, and a refusal of the driver there is one line. The
// driver is a table of functions planted here: no GPU, no driver. cuMulticastCreate in it always fails, and counts its
// calls.
#include <map>

#include "scaling_contrasts/domain/symmetric.cuh"
#include "testing.hpp"

using namespace scaling_contrasts;
using namespace scaling_contrasts::domain;

namespace {

int created = 0, allocated = 0, live = 0, multicast_supported = 1;

gpu::driver_t planted() {
    gpu::driver_t t;
    t.error_string = [](CUresult, char const** text) { return *text = "planted failure", CUDA_SUCCESS; };
    t.device_attribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
        *value = attribute == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED ? multicast_supported : 0;
        return CUDA_SUCCESS;
    };
    t.granularity = [](std::size_t* out, CUmemAllocationProp const*, CUmemAllocationGranularity_flags) {
        return *out = 4096, CUDA_SUCCESS;
    };
    t.create = [](CUmemGenericAllocationHandle* out, std::size_t, CUmemAllocationProp const*, unsigned long long) {
        return ++allocated, ++live, *out = 7, CUDA_SUCCESS;
    };
    t.release = [](CUmemGenericAllocationHandle) { return --live, CUDA_SUCCESS; };
    t.reserve = [](CUdeviceptr* out, std::size_t, std::size_t, CUdeviceptr, unsigned long long) {
        return *out = 0x10000, CUDA_SUCCESS;
    };
    t.free_address = [](CUdeviceptr, std::size_t) { return CUDA_SUCCESS; };
    t.map = [](CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long) {
        return CUDA_SUCCESS;
    };
    t.unmap = [](CUdeviceptr, std::size_t) { return CUDA_SUCCESS; };
    t.set_access = [](CUdeviceptr, std::size_t, CUmemAccessDesc const*, std::size_t) { return CUDA_SUCCESS; };
    t.multicast_create = [](CUmemGenericAllocationHandle*, CUmulticastObjectProp const*) {
        return ++created, CUDA_ERROR_NOT_SUPPORTED;
    };
    t.multicast_add_device = [](CUmemGenericAllocationHandle, CUdevice) { return CUDA_SUCCESS; };
    t.multicast_bind = [](CUmemGenericAllocationHandle, std::size_t, CUmemGenericAllocationHandle, std::size_t,
                          std::size_t, unsigned long long) { return CUDA_SUCCESS; };
    t.multicast_unbind = [](CUmemGenericAllocationHandle, CUdevice, std::size_t, std::size_t) { return CUDA_SUCCESS; };
    t.multicast_granularity = [](std::size_t* out, CUmulticastObjectProp const*, CUmulticastGranularity_flags) {
        return *out = 4096, CUDA_SUCCESS;
    };
    return t;
}

using variables_t = std::map<std::string, std::string>;

/// What came of it: "peer", or the failure's one line; `created` counts calls of cuMulticastCreate.
std::string make(fabric_t fabric, std::vector<int> const& ordinals, variables_t const& variables) {
    created = 0;
    auto const driver = planted();
    auto const variable = [&](char const* name) {
        auto const found = variables.find(name);
        return found == variables.end() ? nullptr : found->second.c_str();
    };
    try {
        symmetric_t const memory(driver, ordinals, 1 << 20, fabric, variable);
        return memory.everywhere() ? "multicast" : "peer";
    } catch (failure_t const& problem) {
        return problem.what();
    }
}

void never(fabric_t fabric, std::vector<int> const& ordinals, variables_t const& variables, std::string const& what) {
    testing::expect(make(fabric, ordinals, variables) == "peer", what + ": falls back to peer pointers");
    testing::expect(created == 0, what + ": cuMulticastCreate is not reached");
}

}  // namespace

int main() {
    // The plant works: without a reason to keep away, auto does reach it.
    testing::expect(make(fabric_t::auto_k, {0, 1}, {}) == "peer", "auto goes on with peer pointers where it fails");
    testing::expect(created == 1, "auto, two GPUs, nothing forbids: the planted function is reached");
    testing::expect(make(fabric_t::multicast_k, {0, 1}, {}) == "creating a multicast object: planted failure",
                    "multicast asked for: one line");

    never(fabric_t::auto_k, {0}, {}, "one GPU");
    never(fabric_t::auto_k, {0, 0, 0}, {}, "three ranks of one GPU");
    never(fabric_t::auto_k, {0, 1, 0}, {}, "three ranks of two GPUs");
    never(fabric_t::auto_k, {0, 1}, {{"NCCL_NVLS_ENABLE", "0"}}, "NCCL_NVLS_ENABLE=0");
    never(fabric_t::auto_k, {0, 1}, {{"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"}}, "TORCH_SYMM_MEM_DISABLE_MULTICAST=1");
    never(fabric_t::auto_k, {0, 1, 2}, {{"NVSHMEM_DISABLE_NVLS", "1"}}, "NVSHMEM_DISABLE_NVLS=1");
    never(fabric_t::peer_k, {0, 1}, {}, "fabric peer");
    multicast_supported = 0;
    never(fabric_t::auto_k, {0, 1}, {}, "GPUs without multicast");
    testing::expect(make(fabric_t::multicast_k, {0, 1}, {}) ==
                        "fabric multicast: GPU 0 has no multicast; use --fabric peer",
                    "multicast asked for where there is none");
    multicast_supported = 1;
    testing::expect(make(fabric_t::auto_k, {0, 1}, {{"NCCL_NVLS_ENABLE", "1"}}) == "peer" && created == 1,
                    "other values of the variables forbid nothing");
    testing::expect(make(fabric_t::multicast_k, {0}, {}) == "fabric multicast: there is one GPU; use --fabric peer" &&
                        created == 0,
                    "multicast asked for with one GPU");
    testing::expect(allocated > 0 && live == 0, "every allocation is released");
    return testing::report();
}
