// How a kernel run by clusters of CTAs is launched.
#pragma once
#include <string_view>

#include "scaling_contrasts/sm90/host.cuh"
#include "scaling_contrasts/sm90/kinds.cuh"

namespace scaling_contrasts::sm90 {

/// Which of clusters_k has this name; -1: none.
inline int cluster_named(std::string_view name) {
    for (int i = 0; i < cluster_count_k; ++i)
        if (clusters_k[i].name == name) return i;
    return -1;
}

/// CTAs of a cluster go to different SMs: on one SM they would work in step, and want the same parts of it at a time.
struct cluster_launch_t {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};

    cluster_launch_t(int ctas, int grid, int threads, int shared_bytes, cudaStream_t stream) {
        config.gridDim = dim3(unsigned(grid));
        config.blockDim = dim3(unsigned(threads));
        config.dynamicSmemBytes = size_t(shared_bytes);
        config.stream = stream;
        config.attrs = attributes;
        config.numAttrs = 2;
        attributes[0].id = cudaLaunchAttributeClusterDimension;
        attributes[0].val.clusterDim.x = unsigned(ctas);
        attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
        attributes[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
        attributes[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
    }
    cluster_launch_t(cluster_launch_t const&) = delete;
};

}  // namespace scaling_contrasts::sm90
