// Clusters of thread blocks: who am I, addresses in another block's shared memory, arrivals there, and copies that
// reach several blocks at once. Compute capability 9.0 and newer.
#pragma once
#include <cstdint>

namespace scaling_contrasts::ptx {

__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/// All threads of all blocks of the cluster, in any order within a warp.
__device__ __forceinline__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
/// The address, for instructions on .shared::cluster, of what lies at `addr` in the shared memory of block `rank`.
__device__ __forceinline__ uint32_t remote(uint32_t addr, uint32_t rank) {
    uint32_t out;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(out) : "r"(addr), "r"(rank));
    return out;
}
/// One arrival at a barrier of any block of the cluster; `b` is a remote() address.
__device__ __forceinline__ void mbar_arrive_remote(uint32_t b) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(b) : "memory");
}

/// Copies to the same place of every block in `mask`, a bit a rank; the bytes count at each one's own barrier at `bar`.
__device__ __forceinline__ void bulk_load_multicast(uint32_t dst, void const* src, uint32_t bytes, uint32_t bar,
                                                    uint16_t mask) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar), "h"(mask)
        : "memory");
}

}  // namespace scaling_contrasts::ptx
