// What feeds the tensor cores: a pipeline of slabs with nothing else in it, with and without operands shared over a
// cluster.
//
//   sm90_probe     one line a shape: bytes out of L2, bytes into shared memory, products, per second
//
// Every CTA copies slabs of 64 columns, `rows` and `columns` of them, from 24 MiB that stay in the L2, and multiplies
// them (or not). CTAs above each other share the columns, those side by side the rows: each copies its part to all that
// share it.
#include <cstdio>
#include <cstdlib>

#include <cuda_runtime.h>

#include "scaling_contrasts/ptx/barrier.cuh"
#include "scaling_contrasts/ptx/copy.cuh"
#include "scaling_contrasts/ptx/math.cuh"
#include "scaling_contrasts/ptx/wgmma.cuh"
#include "sm90_probe_cluster.cuh"

using namespace scaling_contrasts;

namespace {

constexpr int copied_bytes_k = 24 << 20, slab_k = 64;

void check(cudaError_t error, char const* what) {
    if (error == cudaSuccess) return;
    std::printf("%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}

/// `groups_` warpgroups of 64 rows each against `columns_` columns; `high_` x `broad_` CTAs in a cluster.
template <int groups_, int columns_, int stages_, int high_, int broad_, bool multiplies_>
struct shape_t {
    static constexpr int groups = groups_, columns = columns_, stages = stages_, high = high_, broad = broad_;
    static constexpr bool multiplies = multiplies_;
    static constexpr int ctas = high * broad, peers = high + broad - 1, threads = 128 * (groups + 1);
    static constexpr int rows_bytes = groups * 8192, columns_bytes = columns * 128,
                         stage_bytes = rows_bytes + columns_bytes;
    static constexpr int shared_bytes = 1024 + stages * stage_bytes + 2 * stages * 8;
    static constexpr int an_sm = groups == 1 ? 2 : 1;
};

template <class shape_>
__device__ void load(uint8_t const* data, uint32_t base, uint32_t row, uint32_t column, int slabs) {
    uint32_t const bars = base + shape_::stages * shape_::stage_bytes;
    uint16_t const row_mask = (shape_::broad > 1 ? (1u << shape_::high | 1u) : 1u) << row,
                   column_mask = ((1u << shape_::high) - 1) << (column * shape_::high);
    uint32_t const rows_part = shape_::rows_bytes / shape_::broad, columns_part = shape_::columns_bytes / shape_::high;
    uint32_t at = blockIdx.x * 65536u % copied_bytes_k;
    for (int s = 0; s < slabs; ++s) {
        uint32_t const stage = s % shape_::stages, full = bars + stage * 8, to = base + stage * shape_::stage_bytes;
        ptx::mbar_wait(full + shape_::stages * 8, (s / shape_::stages & 1) ^ 1);
        ptx::mbar_expect(full, shape_::stage_bytes);
        auto const copy = [&](uint32_t dst, uint32_t bytes, uint16_t mask) {
            if (shape_::ctas == 1) ptx::bulk_load(dst, data + at, bytes, full);
            else ptx::bulk_load_multicast(dst, data + at, bytes, full, mask);
            at = (at + bytes) % copied_bytes_k;
        };
        copy(to + column * rows_part, rows_part, row_mask);
        copy(to + shape_::rows_bytes + row * columns_part, columns_part, column_mask);
    }
}

template <class shape_>
__device__ void consume(uint32_t base, uint32_t rank, int slabs, float* out) {
    uint32_t const bars = base + shape_::stages * shape_::stage_bytes, group = threadIdx.x / 128 - 1;
    int const thread = threadIdx.x & 127;
    uint32_t const peer = ptx::remote(bars, thread < shape_::peers && thread ? rank ^ thread : rank);
    float acc[shape_::columns / 2];
    ptx::zero(acc);
    auto const release = [&](int s) {
        if (thread < shape_::peers) ptx::mbar_arrive_remote(peer + (shape_::stages + s % shape_::stages) * 8);
    };
#pragma unroll 1
    for (int s = 0; s < slabs; ++s) {
        uint32_t const stage = s % shape_::stages, at = base + stage * shape_::stage_bytes;
        ptx::mbar_wait(bars + stage * 8, s / shape_::stages & 1);
        if constexpr (shape_::multiplies) {
            uint64_t const a = ptx::operand(at + group * 8192), b = ptx::operand(at + shape_::rows_bytes);
            ptx::wgmma_fence();
#pragma unroll
            for (int k = 0; k < slab_k / 16; ++k) {
                if constexpr (shape_::columns == 128) ptx::wgmma_n128<0, 0>(acc, a + 2 * k, b + 2 * k, 1);
                else ptx::wgmma_n256<0, 0>(acc, a + 2 * k, b + 2 * k, 1);
            }
            ptx::wgmma_commit();
            ptx::wgmma_wait<1>();
            if (s > 0) release(s - 1);
        } else {
            release(s);
        }
    }
    if constexpr (shape_::multiplies) {
        ptx::wgmma_wait<0>();
        release(slabs - 1);
        float sum = 0.f;
#pragma unroll
        for (int i = 0; i < shape_::columns / 2; ++i) sum += acc[i];
        if (sum == 1.2345f) *out = sum;  // never: the products must not be optimised away
    }
}

template <class shape_>
__global__ void __launch_bounds__(shape_::threads, shape_::an_sm) probe(uint8_t const* data, int slabs, float* out) {
    extern __shared__ uint8_t raw[];
    uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u;
    uint32_t const rank = shape_::ctas > 1 ? ptx::cluster_rank() : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < shape_::stages; ++i) {
            uint32_t const bar = base + shape_::stages * shape_::stage_bytes + i * 8;
            ptx::mbar_init(bar, 1);
            ptx::mbar_init(bar + shape_::stages * 8, shape_::groups * shape_::peers);
        }
        ptx::fence_mbar_init();
    }
    ptx::cluster_sync();
    if (threadIdx.x < 128) {
        if (threadIdx.x == 0) load<shape_>(data, base, rank % shape_::high, rank / shape_::high, slabs);
    } else {
        consume<shape_>(base, rank, slabs, out);
    }
    __syncthreads();
    ptx::cluster_sync();
}

template <class shape_>
void measure(char const* name, uint8_t const* data, float* out) {
    int sms = 0;
    check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "cudaDeviceGetAttribute");
    check(cudaFuncSetAttribute(probe<shape_>, cudaFuncAttributeMaxDynamicSharedMemorySize, shape_::shared_bytes),
          "cudaFuncSetAttribute");
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    config.gridDim = dim3(unsigned(sms * shape_::an_sm / shape_::ctas * shape_::ctas));
    config.blockDim = dim3(shape_::threads);
    config.dynamicSmemBytes = shape_::shared_bytes;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = shape_::ctas;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    attributes[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
    config.attrs = attributes;
    config.numAttrs = shape_::ctas > 1 ? 2 : 0;
    int clusters = 0;
    if (shape_::ctas > 1) {
        check(cudaOccupancyMaxActiveClusters(&clusters, probe<shape_>, &config), "cudaOccupancyMaxActiveClusters");
        if (clusters == 0) {
            std::printf("%-28s no such cluster fits\n", name);
            return;
        }
        config.gridDim = dim3(unsigned(clusters * shape_::ctas));
    }
    int const slabs = 2048 / shape_::an_sm;
    cudaEvent_t begin, end;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    float least = 1e9f;
    for (int i = 0; i < 8; ++i) {
        check(cudaEventRecord(begin), "cudaEventRecord");
        check(cudaLaunchKernelEx(&config, probe<shape_>, data, slabs, out), "probe");
        check(cudaEventRecord(end), "cudaEventRecord");
        check(cudaEventSynchronize(end), name);
        float ms = 0.f;
        check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
        if (i > 0 && ms < least) least = ms;
    }
    double const all = double(config.gridDim.x) * slabs, seconds = least * 1e-3;
    double const out_of_l2 = all * (shape_::rows_bytes / shape_::broad + shape_::columns_bytes / shape_::high),
                 into_shared = all * shape_::stage_bytes,
                 flops = shape_::multiplies ? all * 2 * 64 * shape_::groups * shape_::columns * slab_k : 0;
    std::printf(
        "%-28s %u CTAs, %d an SM, %d x 64 rows x %3d columns, %d stages, cluster %d x %d: %.3f ms, out of L2 %5.2f "
        "TB/s, into shared memory %5.2f TB/s, products %4.0f TFLOP/s\n",
        name, config.gridDim.x, shape_::an_sm, shape_::groups, shape_::columns, shape_::stages, shape_::high,
        shape_::broad, least, out_of_l2 / seconds / 1e12, into_shared / seconds / 1e12, flops / seconds / 1e12);
    std::fflush(stdout);
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
}

template <int groups_, int columns_, int stages_, bool multiplies_>
void clusters(char const* name, uint8_t const* data, float* out) {
    measure<shape_t<groups_, columns_, stages_, 1, 1, multiplies_>>(name, data, out);
    measure<shape_t<groups_, columns_, stages_, 2, 1, multiplies_>>(name, data, out);
    measure<shape_t<groups_, columns_, stages_, 2, 2, multiplies_>>(name, data, out);
}

}  // namespace

int main() {
    uint8_t* data;
    float* out;
    check(cudaMalloc(&data, copied_bytes_k + (1 << 20)), "cudaMalloc");
    check(cudaMemset(data, 0, copied_bytes_k + (1 << 20)), "cudaMemset");
    check(cudaMalloc(&out, sizeof(float)), "cudaMalloc");
    clusters<1, 128, 2, false>("copies, half a score tile", data, out);
    clusters<1, 128, 2, true>("both, half a score tile", data, out);
    clusters<1, 128, 4, true>("both, half a score tile", data, out);
    clusters<2, 128, 6, false>("copies, score tile", data, out);
    clusters<2, 128, 6, true>("both, score tile", data, out);
    clusters<2, 256, 4, false>("copies, gradient tile", data, out);
    clusters<2, 256, 4, true>("both, gradient tile", data, out);
    return 0;
}
