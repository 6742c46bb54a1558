// How memory becomes known to an RDMA device. Host memory is registered as it is. A GPU's is handed over as a dma-buf
// where driver, kernel and device can, else through the nvidia_peermem module. The decision is tested on the host; the
// GPU paths compile and have never run on hardware, which would take an RDMA device beside a GPU.
#pragma once
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <string>

namespace scaling_contrasts::rails {

enum class registration_t { host_k, dmabuf_k, peermem_k, impossible_k };

/// What is known of a piece of memory and of the machine.
struct registration_facts_t {
    bool on_gpu = false;
    bool gpu_exports_dmabuf = false;    ///< CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED
    bool library_takes_dmabuf = false;  ///< libibverbs has ibv_reg_dmabuf_mr (1.12)
    int dmabuf_probe = EOPNOTSUPP;      ///< errno of registering the descriptor -1: EBADF says the device could
    bool peermem_loaded = false;
};

struct registration_choice_t {
    registration_t how;
    std::string reason;  ///< where it is impossible
};

inline registration_choice_t choose_registration(registration_facts_t const& facts) {
    if (!facts.on_gpu) return {registration_t::host_k, ""};
    bool const device_takes = facts.dmabuf_probe != EOPNOTSUPP && facts.dmabuf_probe != EPROTONOSUPPORT;
    if (facts.gpu_exports_dmabuf && facts.library_takes_dmabuf && device_takes) return {registration_t::dmabuf_k, ""};
    if (facts.peermem_loaded) return {registration_t::peermem_k, ""};
    std::string const why = !facts.gpu_exports_dmabuf     ? "the GPU's driver exports no dma-buf"
                            : !facts.library_takes_dmabuf ? "libibverbs lacks ibv_reg_dmabuf_mr"
                                                          : "the RDMA device takes no dma-buf";
    return {registration_t::impossible_k, why + ", and the module nvidia_peermem is not loaded"};
}

/// Whether nvidia_peermem, or its predecessor nv_peer_mem, is there. `sysfs` is `/sys`, or a test's own folder.
inline bool peermem_loaded(std::filesystem::path const& sysfs) {
    std::error_code ignored;
    return std::filesystem::exists(sysfs / "module/nvidia_peermem/version", ignored) ||
           std::filesystem::exists(sysfs / "kernel/mm/memory_peers/nv_mem/version", ignored);
}

/// A dma-buf covers whole pages: the range to export, and where in it the memory begins.
struct pages_t {
    std::uint64_t begin = 0, size = 0, offset = 0;
};

inline pages_t whole_pages(std::uint64_t address, std::uint64_t size, std::uint64_t page) {
    std::uint64_t const begin = address / page * page;
    std::uint64_t const end = (address + size + page - 1) / page * page;
    return {begin, end - begin, address - begin};
}

/// A message in parts that the device can send, of at most `most` bytes; the last one carries the immediate.
inline std::uint64_t parts_of(std::uint64_t bytes, std::uint64_t most) {
    return bytes == 0 ? 1 : (bytes + most - 1) / most;
}

}  // namespace scaling_contrasts::rails
