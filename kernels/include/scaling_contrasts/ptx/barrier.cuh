// mbarriers, named barriers and the fences between proxies. Every wait is bounded: a wait that lasts too long faults,
// so that a mistake ends as a CUDA error and never as a hang.
#pragma once
#include <cstdint>

namespace scaling_contrasts::ptx {

/// Tries before a wait gives up, which happens only when stuck. How long they take depends on the wait: wait_count() does
/// not suspend, and is through in seconds; a try of mbar_wait() suspends for as long as the hardware likes, which PTX
/// leaves open. No clock is read: that would change the machine code of every engine.
constexpr uint32_t patience_k = 1u << 22;

/// Ends the kernel with an illegal address. (A trap would do, but ptxas then ignores setmaxnreg and spills.)
__device__ __forceinline__ void give_up() { asm volatile("st.global.u32 [%0], %1;" ::"l"(0ull), "r"(0u) : "memory"); }

__device__ __forceinline__ uint32_t smem(void const* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ __forceinline__ void mbar_init(uint32_t b, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}
__device__ __forceinline__ void fence_mbar_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void mbar_expect(uint32_t b, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
__device__ __forceinline__ bool mbar_try(uint32_t b, uint32_t parity) {
    uint32_t ok;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(ok)
                 : "r"(b), "r"(parity)
                 : "memory");
    return ok;
}
/// The same without ever waiting.
__device__ __forceinline__ bool mbar_try_once(uint32_t b, uint32_t parity) {
    uint32_t ok;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(ok)
                 : "r"(b), "r"(parity)
                 : "memory");
    return ok;
}
__device__ __forceinline__ void mbar_wait(uint32_t b, uint32_t parity) {
    for (uint32_t tries = 0; !mbar_try(b, parity); ++tries)
        if (tries > patience_k) give_up();
}

/// One lane of a warp that is together: to the compiler, which issues copies once then, and not lane by lane.
__device__ __forceinline__ bool elect() {
    uint32_t mine;
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(mine));
    return mine;
}

__device__ __forceinline__ void named_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Ordinary shared-memory writes before, copy-engine and tensor-core reads after.
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// The same for global memory, in both directions.
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
/// Accesses by one virtual address before, by another of the same memory after (PTX ISA, Proxies, Causality Order). It
/// orders nothing between threads: a release and an acquire do, and it stands on the way between the two accesses.
__device__ __forceinline__ void fence_alias() { asm volatile("fence.proxy.alias;" ::: "memory"); }
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __forceinline__ uint32_t load_acquire(uint32_t const* p) {
    uint32_t v;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_release(uint32_t* p, uint32_t v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void add_release(uint32_t* p, uint32_t v) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/// Waits until *p is at least `count`.
__device__ __forceinline__ void wait_count(uint32_t const* p, uint32_t count) {
    for (uint32_t tries = 0; load_acquire(p) < count; ++tries)
        if (tries > patience_k) give_up();
}

}  // namespace scaling_contrasts::ptx
