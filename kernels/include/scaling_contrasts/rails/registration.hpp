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

/// What must be called after a completion, before kernels may read what an RDMA device wrote into a GPU's memory.
enum class flush_t { none_k, to_owner_k, to_all_k };

/// How far an RDMA device's writes are in order without help: CUDA's numbers (cudaGPUDirectRDMAWritesOrdering).
inline constexpr int ordered_for_owner_k = 100, ordered_for_all_k = 200;

/// Whether embeddings travel from and to a GPU's memory itself.
struct travel_facts_t {
    std::string wanted = "auto";  ///< `auto`, `direct`, `host`
    bool verbs = false;
    bool peers_read = false;  ///< other GPUs read what has come
    registration_facts_t registration;
    int writes_ordered_for = ordered_for_all_k;  ///< the least of the box's GPUs
    bool host_can_flush = true;                  ///< all of them
};
struct travel_t {
    bool direct = false;
    flush_t flush = flush_t::none_k;
    std::string reason;  ///< why not directly
};

inline travel_t choose_travel(travel_facts_t const& facts) {
    auto by_host = [](std::string const& reason) { return travel_t{false, flush_t::none_k, reason}; };
    if (facts.wanted == "host") return by_host("gpu_memory is host");
    if (!facts.verbs) return by_host("TCP carries memory of the host; a GPU's needs verbs");
    auto const choice = choose_registration(facts.registration);
    if (choice.how == registration_t::impossible_k) return by_host(choice.reason);
    if (facts.writes_ordered_for >= (facts.peers_read ? ordered_for_all_k : ordered_for_owner_k))
        return {true, flush_t::none_k, ""};
    if (!facts.host_can_flush) return by_host("a GPU's RDMA writes are not in order, and the host cannot flush them");
    return {true, facts.peers_read ? flush_t::to_all_k : flush_t::to_owner_k, ""};
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
