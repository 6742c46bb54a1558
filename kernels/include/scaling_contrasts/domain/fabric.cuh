// Which way sums take through a box: the switch adds (multicast), or each GPU reads its peers (peer pointers).
#pragma once
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "scaling_contrasts/gpu/driver.cuh"

namespace scaling_contrasts::domain {

enum class fabric_t { auto_k, multicast_k, peer_k };

constexpr char const* name_of(fabric_t fabric) {
    return fabric == fabric_t::auto_k ? "auto" : fabric == fabric_t::peer_k ? "peer" : "multicast";
}

using environment_t = std::function<char const*(char const*)>;

/// The variable that forbids multicast, such as NCCL_NVLS_ENABLE=0, or empty. They are what NCCL, PyTorch and NVSHMEM
/// read: a machine's owner who turned multicast off there means every program.
inline std::string forbidden_by(environment_t const& variable) {
    constexpr char const* switches[][2] = {
        {"NCCL_NVLS_ENABLE", "0"}, {"TORCH_SYMM_MEM_DISABLE_MULTICAST", "1"}, {"NVSHMEM_DISABLE_NVLS", "1"}};
    for (auto const& [name, value] : switches)
        if (char const* set = variable(name); set && std::strcmp(set, value) == 0)
            return std::string(name) + "=" + value;
    return "";
}

/// Whether to create a multicast object over the GPUs `ordinals` (all different). `auto_k` decides without any call
/// that creates something. Throws failure_t unsupported_k where multicast_k is asked for and cannot be.
inline bool wants_multicast(fabric_t fabric, std::vector<int> const& ordinals, environment_t const& variable,
                            gpu::driver_t const& driver) {
    if (fabric == fabric_t::peer_k) return false;
    std::string why;
    if (ordinals.size() < 2) why = "there is one GPU";
    else if (auto const by = forbidden_by(variable); !by.empty() && fabric == fabric_t::auto_k) why = by + " is set";
    else if (!driver.multicast_create || !driver.multicast_add_device || !driver.multicast_bind ||
             !driver.multicast_unbind || !driver.multicast_granularity)
        why = "the driver is older than CUDA 12.1";
    else
        for (int const ordinal : ordinals) {
            int supported = 0;
            gpu::check_driver(driver.device_attribute(&supported, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, ordinal),
                              "asking for multicast", driver);
            if (!supported && why.empty()) why = "GPU " + std::to_string(ordinal) + " has no multicast";
        }
    if (!why.empty() && fabric == fabric_t::multicast_k)
        throw failure_t(status_t::unsupported_k, "fabric multicast: " + why + "; use --fabric peer");
    return why.empty();
}

}  // namespace scaling_contrasts::domain
