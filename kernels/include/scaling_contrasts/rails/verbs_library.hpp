// libibverbs, opened at run time: the binary runs where it is absent, and links to nothing. Symbols are asked for by
// version, since an unversioned look-up may bind the ABI of 1.0. Calls on the hot path need no symbol: the header
// inlines them through the device's own table.
#pragma once
#include <dlfcn.h>
#include <infiniband/verbs.h>

#include <string>

namespace scaling_contrasts::rails {

struct verbs_library_t {
    std::string problem;  ///< why it cannot be used; empty: it can

    ibv_device** (*get_device_list)(int*) = nullptr;
    void (*free_device_list)(ibv_device**) = nullptr;
    char const* (*get_device_name)(ibv_device*) = nullptr;
    ibv_context* (*open_device)(ibv_device*) = nullptr;
    int (*close_device)(ibv_context*) = nullptr;
    int (*query_device)(ibv_context*, ibv_device_attr*) = nullptr;
    int (*query_port)(ibv_context*, std::uint8_t, void*) = nullptr;  ///< fills the first part of ibv_port_attr
    int (*query_gid)(ibv_context*, std::uint8_t, int, ibv_gid*) = nullptr;
    ibv_pd* (*alloc_pd)(ibv_context*) = nullptr;
    int (*dealloc_pd)(ibv_pd*) = nullptr;
    ibv_mr* (*reg_mr)(ibv_pd*, void*, std::size_t, int) = nullptr;
    int (*dereg_mr)(ibv_mr*) = nullptr;
    ibv_comp_channel* (*create_comp_channel)(ibv_context*) = nullptr;
    int (*destroy_comp_channel)(ibv_comp_channel*) = nullptr;
    ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int) = nullptr;
    int (*destroy_cq)(ibv_cq*) = nullptr;
    ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*) = nullptr;
    int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int) = nullptr;
    int (*destroy_qp)(ibv_qp*) = nullptr;
    int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void**) = nullptr;
    void (*ack_cq_events)(ibv_cq*, unsigned) = nullptr;
    char const* (*wc_status_str)(ibv_wc_status) = nullptr;
    /// Absent in old libraries: memory of GPUs then needs nvidia_peermem.
    ibv_mr* (*reg_dmabuf_mr)(ibv_pd*, std::uint64_t, std::size_t, std::uint64_t, int, int) = nullptr;

    static verbs_library_t const& get() {
        static verbs_library_t const library;
        return library;
    }

  private:
    verbs_library_t() {
        void* const handle = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            problem = "libibverbs.so.1 cannot be opened; install rdma-core (Debian: libibverbs1 ibverbs-providers)";
            return;
        }
        auto find = [&](auto& pointer, char const* name, char const* version, bool needed = true) {
            pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(::dlvsym(handle, name, version));
            if (!pointer && needed) problem = std::string("libibverbs.so.1 lacks ") + name + " of " + version;
        };
        find(get_device_list, "ibv_get_device_list", "IBVERBS_1.1");
        find(free_device_list, "ibv_free_device_list", "IBVERBS_1.1");
        find(get_device_name, "ibv_get_device_name", "IBVERBS_1.1");
        find(open_device, "ibv_open_device", "IBVERBS_1.1");
        find(close_device, "ibv_close_device", "IBVERBS_1.1");
        find(query_device, "ibv_query_device", "IBVERBS_1.1");
        find(query_port, "ibv_query_port", "IBVERBS_1.1");
        find(query_gid, "ibv_query_gid", "IBVERBS_1.1");
        find(alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1");
        find(dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1");
        find(reg_mr, "ibv_reg_mr", "IBVERBS_1.1");
        find(dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1");
        find(create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0");  // these two never got a 1.1
        find(destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0");
        find(create_cq, "ibv_create_cq", "IBVERBS_1.1");
        find(destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1");
        find(create_qp, "ibv_create_qp", "IBVERBS_1.1");
        find(modify_qp, "ibv_modify_qp", "IBVERBS_1.1");
        find(destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1");
        find(get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1");
        find(ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1");
        find(wc_status_str, "ibv_wc_status_str", "IBVERBS_1.1");
        find(reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", false);
    }
};

}  // namespace scaling_contrasts::rails
