// GPUs of one machine that read and write each other's memory.
#pragma once
#include <string>
#include <vector>

#include "scaling_contrasts/gpu/stream.cuh"

namespace scaling_contrasts::gpu {

/// Peer access of every GPU to every other one. Throws failure_t unsupported_k where the machine has none.
inline void open_peers(std::vector<int> const& ordinals) {
    for (int const from : ordinals)
        for (int const to : ordinals) {
            if (from == to) continue;
            int can = 0;
            check(cudaDeviceCanAccessPeer(&can, from, to), "asking for peer access");
            if (!can)
                throw failure_t(status_t::unsupported_k,
                                "GPU " + std::to_string(from) + " cannot read the memory of GPU " + std::to_string(to));
            use_device(from);
            auto const error = cudaDeviceEnablePeerAccess(to, 0);
            if (error == cudaErrorPeerAccessAlreadyEnabled) cudaGetLastError();
            else check(error, "opening peer access");
        }
}

}  // namespace scaling_contrasts::gpu
