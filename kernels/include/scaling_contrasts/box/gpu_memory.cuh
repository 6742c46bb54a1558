// Whether embeddings travel between boxes from and to GPU memory itself: what the machine is asked for
// rails/registration.hpp to decide, and what then has to be called. Compiles, never run on hardware: it takes an RDMA
// device beside a GPU.
#pragma once
#include <functional>
#include <vector>

#include "scaling_contrasts/gpu/driver.cuh"
#include "scaling_contrasts/gpu/stream.cuh"
#include "scaling_contrasts/rails/registration.hpp"

namespace scaling_contrasts::gpu {

struct gpu_memory_t {
    bool direct = false;
    rails::flush_t flush = rails::flush_t::none_k;
};

/// What the GPUs `ordinals` can, as far as it is known before an RDMA device is opened. `travel`: option gpu_memory.
/// Throws failure_t unsupported_k where `direct` is asked for and impossible.
inline gpu_memory_t choose_gpu_memory(std::vector<int> const& ordinals, std::string const& travel, bool verbs) {
    rails::travel_facts_t facts;
    facts.wanted = travel, facts.verbs = verbs, facts.peers_read = ordinals.size() > 1;
    facts.registration.on_gpu = facts.registration.library_takes_dmabuf = facts.registration.gpu_exports_dmabuf = true;
    facts.registration.dmabuf_probe = EBADF;  // the device is asked when memory is registered
    facts.registration.peermem_loaded = rails::peermem_loaded("/sys");
    for (int const ordinal : verbs ? ordinals : std::vector<int>()) {
        int exports = 0, ordering = 0, options = 0;
        check_driver(driver().device_attribute(&exports, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ordinal),
                     "asking for dma-buf");
        check(cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, ordinal),
              "asking for the order of RDMA writes");
        check(cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, ordinal),
              "asking how RDMA writes are flushed");
        facts.registration.gpu_exports_dmabuf &= exports != 0 && driver().handle_for_range != nullptr;
        facts.writes_ordered_for = std::min(facts.writes_ordered_for, ordering);
        facts.host_can_flush &= (options & cudaFlushGPUDirectRDMAWritesOptionHost) != 0;
    }
    auto const choice = rails::choose_travel(facts);
    if (travel == "direct" && !choice.direct) throw failure_t(status_t::unsupported_k, choice.reason);
    return {choice.direct, choice.flush};
}

/// Of the current GPU: what an RDMA device has written, and its completion said so, can be read by kernels launched
/// from now on.
inline void flush_rdma_writes(rails::flush_t flush) {
    if (flush == rails::flush_t::none_k) return;
    check(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                             flush == rails::flush_t::to_all_k
                                                 ? cudaFlushGPUDirectRDMAWritesToAllDevices
                                                 : cudaFlushGPUDirectRDMAWritesToOwner),
          "flushing RDMA writes");
}

/// As plan_t::export_dmabuf wants it.
inline std::function<int(std::uint64_t, std::uint64_t)> dmabuf_exporter(std::vector<int> const& ordinals) {
    for (int const ordinal : ordinals) {
        int exports = 0;
        driver().device_attribute(&exports, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, ordinal);
        if (!exports || !driver().handle_for_range) return {};
    }
    return [](std::uint64_t address, std::uint64_t size) {
        int descriptor = -1;
        auto const result =
            driver().handle_for_range(&descriptor, address, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
        return result == CUDA_SUCCESS ? descriptor : -1;
    };
}

}  // namespace scaling_contrasts::gpu
