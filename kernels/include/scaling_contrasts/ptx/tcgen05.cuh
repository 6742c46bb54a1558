// Blackwell's matrix products and tensor memory, one instruction each. Compute capability 10.0 and 10.3 alone.
#pragma once
#include <cstdint>

namespace scaling_contrasts::ptx {

/// One whole warp; writes the address of `columns_` columns of tensor memory (a power of two, 32 to 512) to shared
/// memory.
template <int columns_>
__device__ __forceinline__ void tensor_alloc(uint32_t to) {
    asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(to), "n"(columns_)
                 : "memory");
}
/// The same warp: lets other thread blocks of the multiprocessor allocate.
__device__ __forceinline__ void tensor_relinquish() {
    asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
}
/// The same warp, when all reads are done.
template <int columns_>
__device__ __forceinline__ void tensor_free(uint32_t at) {
    asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(at), "n"(columns_) : "memory");
}

/// d = a b + (accumulate ? d : 0) over 16 columns: d in tensor memory, a and b by descriptor in shared memory. One
/// thread.
__device__ __forceinline__ void tensor_multiply(uint32_t d, uint64_t a, uint64_t b, uint32_t instruction,
                                                bool accumulate) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }" ::"r"(d),
                 "l"(a), "l"(b), "r"(instruction), "r"(uint32_t(accumulate))
                 : "memory");
}
/// One arrival at `barrier` once all products that this thread has issued are done.
__device__ __forceinline__ void tensor_commit(uint32_t barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
}

/// 32 columns of this lane's row, starting at address `at`. Complete after tensor_wait_load().
__device__ __forceinline__ void tensor_load(float (&v)[32], uint32_t at) {
    asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
                 : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]), "=f"(v[7]),
                   "=f"(v[8]), "=f"(v[9]), "=f"(v[10]), "=f"(v[11]), "=f"(v[12]), "=f"(v[13]), "=f"(v[14]), "=f"(v[15]),
                   "=f"(v[16]), "=f"(v[17]), "=f"(v[18]), "=f"(v[19]), "=f"(v[20]), "=f"(v[21]), "=f"(v[22]),
                   "=f"(v[23]), "=f"(v[24]), "=f"(v[25]), "=f"(v[26]), "=f"(v[27]), "=f"(v[28]), "=f"(v[29]),
                   "=f"(v[30]), "=f"(v[31])
                 : "r"(at)
                 : "memory");
}
/// The registers of earlier loads hold their values; `v` is named so that nothing reads them before.
__device__ __forceinline__ void tensor_wait_load(float (&v)[32]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(v[i]));
}

/// Around barriers that order tensor-memory instructions of different threads.
__device__ __forceinline__ void tensor_fence_before() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void tensor_fence_after() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

}  // namespace scaling_contrasts::ptx
