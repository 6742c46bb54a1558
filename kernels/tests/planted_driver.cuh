// A driver without GPUs: a table of functions that keep account of what exists, refuse what a real one would, and fail
// where a test says so.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "scaling_contrasts/gpu/driver.cuh"

namespace planted {

using handle_t = CUmemGenericAllocationHandle;

struct object_t {
    unsigned devices = 0;  // that it is for
    std::set<int> added;   // GPUs
    std::map<int, handle_t> bound;
};

struct state_t {
    std::string fails;  // a call's name: the call that fails
    int after = 0;      // calls of it that succeed before
    bool multicast_supported = true;

    std::vector<std::string> calls;    // of the multicast object alone, in order
    std::vector<std::string> misuses;  // what a driver would not have taken
    int allocated = 0, multicast_creates = 0;
    std::map<handle_t, int> memory;             // GPU of each allocation
    std::map<handle_t, object_t> objects;       // multicast
    std::map<CUdeviceptr, handle_t> addresses;  // reserved; 0: nothing is mapped there
    std::set<CUdeviceptr> opened;
    handle_t next = 100;

    bool nothing_left() const { return memory.empty() && objects.empty() && addresses.empty(); }
    bool holds(handle_t handle) const { return memory.count(handle) || objects.count(handle); }
};
inline state_t& state() {
    static state_t mine;
    return mine;
}

inline CUresult call(char const* name, bool right, std::string const& what = "") {
    state_t& s = state();
    if (!what.empty()) s.calls.push_back(what);
    if (!right) return s.misuses.push_back(name), CUDA_ERROR_INVALID_VALUE;
    if (s.fails == name && s.after-- == 0) return CUDA_ERROR_NOT_SUPPORTED;
    return CUDA_SUCCESS;
}

inline scaling_contrasts::gpu::driver_t table() {
    scaling_contrasts::gpu::driver_t t;
    t.error_string = [](CUresult, char const** text) { return *text = "planted failure", CUDA_SUCCESS; };
    t.device_attribute = [](int* value, CUdevice_attribute attribute, CUdevice) {
        *value = attribute == CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED && state().multicast_supported;
        return CUDA_SUCCESS;
    };
    t.granularity = [](std::size_t* out, CUmemAllocationProp const*, CUmemAllocationGranularity_flags) {
        return *out = 4096, CUDA_SUCCESS;
    };
    t.create = [](handle_t* out, std::size_t, CUmemAllocationProp const* properties, unsigned long long) {
        CUresult const result = call("create", true);
        if (result == CUDA_SUCCESS)
            ++state().allocated, state().memory[*out = state().next++] = properties->location.id;
        return result;
    };
    t.release = [](handle_t handle) {
        auto const found = state().objects.find(handle);
        bool const is_object = found != state().objects.end();
        CUresult const result = call("release", state().holds(handle) && (!is_object || found->second.bound.empty()),
                                     is_object ? "release" : "");
        state().memory.erase(handle), state().objects.erase(handle);
        return result;
    };
    t.reserve = [](CUdeviceptr* out, std::size_t, std::size_t, CUdeviceptr, unsigned long long) {
        CUresult const result = call("reserve", true);
        if (result == CUDA_SUCCESS) state().addresses[*out = CUdeviceptr(state().next++) << 20] = 0;
        return result;
    };
    t.free_address = [](CUdeviceptr address, std::size_t) {
        auto const found = state().addresses.find(address);
        CUresult const result = call("free_address", found != state().addresses.end() && found->second == 0);
        state().addresses.erase(address);
        return result;
    };
    t.map = [](CUdeviceptr address, std::size_t, std::size_t, handle_t handle, unsigned long long) {
        auto const found = state().addresses.find(address);
        bool const is_object = state().objects.count(handle);
        CUresult const result = call(is_object ? "multicast_map" : "map",
                                     found != state().addresses.end() && found->second == 0 && state().holds(handle),
                                     is_object ? "map" : "");
        if (result == CUDA_SUCCESS) found->second = handle;
        return result;
    };
    t.unmap = [](CUdeviceptr address, std::size_t) {
        auto const found = state().addresses.find(address);
        bool const mapped = found != state().addresses.end() && found->second;
        bool const is_object = mapped && state().objects.count(found->second);
        CUresult const result = call(is_object ? "multicast_unmap" : "unmap", mapped, is_object ? "unmap" : "");
        if (mapped) found->second = 0, state().opened.erase(address);
        return result;
    };
    t.set_access = [](CUdeviceptr address, std::size_t, CUmemAccessDesc const*, std::size_t) {
        auto const found = state().addresses.find(address);
        bool const mapped = found != state().addresses.end() && found->second;
        bool const is_object = mapped && state().objects.count(found->second);
        CUresult const result =
            call(is_object ? "multicast_set_access" : "set_access", mapped, is_object ? "set_access" : "");
        if (result == CUDA_SUCCESS) state().opened.insert(address);
        return result;
    };
    t.multicast_create = [](handle_t* out, CUmulticastObjectProp const* properties) {
        ++state().multicast_creates;
        CUresult const result = call("multicast_create", properties->numDevices > 1, "create");
        if (result == CUDA_SUCCESS) state().objects[*out = state().next++].devices = properties->numDevices;
        return result;
    };
    t.multicast_add_device = [](handle_t handle, CUdevice gpu) {
        auto const found = state().objects.find(handle);
        bool const right = found != state().objects.end() && !found->second.added.count(gpu) &&
                           found->second.added.size() < found->second.devices;
        CUresult const result = call("multicast_add_device", right, "add " + std::to_string(gpu));
        if (result == CUDA_SUCCESS) found->second.added.insert(gpu);
        return result;
    };
    t.multicast_bind = [](handle_t handle, std::size_t, handle_t memory, std::size_t, std::size_t, unsigned long long) {
        auto const found = state().objects.find(handle);
        auto const lies = state().memory.find(memory);
        int const gpu = lies == state().memory.end() ? -1 : lies->second;
        bool const right = found != state().objects.end() && found->second.added.count(gpu) &&
                           found->second.added.size() == found->second.devices && !found->second.bound.count(gpu);
        CUresult const result = call("multicast_bind", right, "bind " + std::to_string(gpu));
        if (result == CUDA_SUCCESS) found->second.bound[gpu] = memory;
        return result;
    };
    t.multicast_unbind = [](handle_t handle, CUdevice gpu, std::size_t, std::size_t) {
        auto const found = state().objects.find(handle);
        bool const right = found != state().objects.end() && found->second.bound.erase(gpu) == 1;
        return call("multicast_unbind", right, "unbind " + std::to_string(gpu));
    };
    t.multicast_granularity = [](std::size_t* out, CUmulticastObjectProp const*, CUmulticastGranularity_flags) {
        return *out = 8192, CUDA_SUCCESS;
    };
    return t;
}

}  // namespace planted
