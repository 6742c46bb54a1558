// Copies out of L2 and products of sm90_probe.cu, each alone, as launches of a given length, for sm90_energy.py; and
// how many clocks a scheduler takes for instructions of several kinds.
#define main sm90_probe_main
#include "sm90_probe.cu"
#undef main

namespace {

/// Products of two warpgroups' 64 rows each and 256 columns, of whatever lies in four stages: as the pipeline's, with
/// nothing to wait for.
__global__ void __launch_bounds__(256, 1) products(uint8_t const* data, int slabs, float* out) {
    extern __shared__ uint8_t raw[];
    uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u, group = threadIdx.x / 128;
    constexpr int stage_bytes = 2 * 8192 + 256 * 128;
    uint8_t* const to = raw + (base - ptx::smem(raw));
    for (int i = threadIdx.x; i < 4 * stage_bytes / 16; i += 256)
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<uint4 const*>(data + blockIdx.x * 65536)[i];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float acc[128];
    ptx::zero(acc);
#pragma unroll 1
    for (int s = 0; s < slabs; ++s) {
        uint32_t const at = base + s % 4 * stage_bytes;
        uint64_t const a = ptx::operand(at + group * 8192), b = ptx::operand(at + 16384);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < slab_k / 16; ++k) ptx::wgmma_n256<0, 0>(acc, a + 2 * k, b + 2 * k, 1);
        ptx::wgmma_commit();
        ptx::wgmma_wait<1>();
    }
    ptx::wgmma_wait<0>();
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < 128; ++i) sum += acc[i];
    if (sum == 1.2345f) *out = sum;
}

using copies_t = shape_t<2, 256, 4, 1, 1, false>;
using both_t = shape_t<2, 256, 4, 1, 1, true>;

/// Clocks of `count_` rounds of 32 independent instructions each, by every warp of a block.
template <class what_>
__global__ void rate(what_ what, uint32_t* clocks, uint32_t* out) {
    uint32_t r[32], first, last;
    for (int i = 0; i < 32; ++i) r[i] = threadIdx.x * 32 + i + 0x3c003c00;
    uint32_t const a = out[0], b = out[1];     // 0: nothing that the compiler knows
    for (int round = 0; round < 2; ++round) {  // the first one fetches the instructions
        __syncthreads();
        asm volatile("mov.u32 %0, %%clock;" : "=r"(first)::"memory");
#pragma unroll 1
        for (int n = 0; n < 16; ++n) {
#pragma unroll
            for (int i = 0; i < 32; ++i) what(r[i], r[(i + 16) % 32], a, b, i);
        }
        asm volatile("mov.u32 %0, %%clock;" : "=r"(last)::"memory");
    }
    uint32_t all = 0;
    for (int i = 0; i < 32; ++i) all ^= r[i];
    if (all == 12345u) out[2] = all;
    if (threadIdx.x == 0) *clocks = last - first;
}
#define ONE(text) asm volatile(text : "+r"(x) : "r"(a), "r"(b))
struct ffma_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("fma.rn.f32 %0, %0, %1, %2;");
    }
};
struct fadd_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("add.f32 %0, %0, %1;");
    }
};
struct hfma2_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("fma.rn.f16x2 %0, %0, %1, %2;");
    }
};
struct hadd2_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("add.rn.f16x2 %0, %0, %1;");
    }
};
struct hfma2_bf16_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("fma.rn.bf16x2 %0, %0, %1, %2;");
    }
};
struct pack_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("cvt.rn.bf16x2.f32 %0, %0, %1;");
    }
};
struct pack_fp16_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("cvt.rn.satfinite.f16x2.f32 %0, %0, %1;");
    }
};
struct unpack_fp16_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("{ .reg .b16 l, h; mov.b32 {l, h}, %0; cvt.f32.f16 %0, l; }");
    }
};
struct ex2_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("ex2.approx.ftz.f32 %0, %0;");
    }
};
struct shuffle_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("shfl.sync.bfly.b32 %0, %0, 1, 0x1f, 0xffffffff;");
    }
};
struct select_t {
    __device__ void operator()(uint32_t& x, uint32_t&, uint32_t a, uint32_t b, int) const {
        ONE("lop3.b32 %0, %0, %1, %2, 0x96;");
    }
};
template <class first_, class second_, int every_>
struct mix_t {
    __device__ void operator()(uint32_t& x, uint32_t& y, uint32_t a, uint32_t b, int i) const {
        if (i % every_) second_{}(x, y, a, b, i);
        else first_{}(x, y, a, b, i);
    }
};
template <class what_>
void print_rate(char const* name, uint32_t* memory) {
    std::printf("%-44s", name);
    for (int warps : {1, 2}) {  // a scheduler
        uint32_t clocks = 0;
        rate<<<1, 128 * warps>>>(what_{}, memory, memory + 4);
        check(cudaMemcpy(&clocks, memory, 4, cudaMemcpyDeviceToHost), name);
        std::printf("  %d warps a scheduler: %5.2f clocks an instruction", warps, clocks / (16. * 32 * warps));
    }
    std::printf("\n");
}

}  // namespace

extern "C" {
/// kind: 0 copies alone, 1 products alone, 2 both. `data`: 32 MiB. Returns FLOPs; bytes out of L2 in *bytes.
double energy_launch(int kind, void const* data, float* out, int slabs, double* bytes, cudaStream_t stream) {
    int sms = 0;
    cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0);
    auto const* from = static_cast<uint8_t const*>(data);
    double const stages = double(sms) * slabs;
    *bytes = kind == 1 ? 0 : stages * both_t::stage_bytes;
    auto const launch = [&](auto* kernel, int threads, int shared) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        kernel<<<sms, threads, shared, stream>>>(from, slabs, out);
    };
    if (kind == 0) launch(probe<copies_t>, copies_t::threads, copies_t::shared_bytes);
    else if (kind == 1) launch(products, 256, 1024 + 4 * (2 * 8192 + 256 * 128));
    else launch(probe<both_t>, both_t::threads, both_t::shared_bytes);
    return cudaGetLastError() != cudaSuccess ? -1 : kind == 0 ? 0 : stages * 2 * 128 * 256 * slab_k;
}
void energy_rates() {
    uint32_t* memory;
    check(cudaMalloc(&memory, 64), "cudaMalloc");
    check(cudaMemset(memory, 0, 64), "cudaMemset");
    print_rate<ffma_t>("FFMA", memory);
    print_rate<fadd_t>("FADD", memory);
    print_rate<hfma2_t>("HFMA2", memory);
    print_rate<hadd2_t>("HADD2", memory);
    print_rate<hfma2_bf16_t>("HFMA2.BF16", memory);
    print_rate<pack_t>("F2FP to bf16", memory);
    print_rate<pack_fp16_t>("F2FP to fp16, saturating", memory);
    print_rate<unpack_fp16_t>("HADD2.F32 from fp16", memory);
    print_rate<ex2_t>("MUFU.EX2", memory);
    print_rate<shuffle_t>("SHFL", memory);
    print_rate<select_t>("LOP3", memory);
    print_rate<mix_t<hfma2_t, ffma_t, 2>>("HFMA2, FFMA in turn", memory);
    print_rate<mix_t<hfma2_t, fadd_t, 2>>("HFMA2, FADD in turn", memory);
    print_rate<mix_t<hfma2_t, select_t, 2>>("HFMA2, LOP3 in turn", memory);
    print_rate<mix_t<hfma2_t, pack_fp16_t, 2>>("HFMA2, F2FP in turn", memory);
    print_rate<mix_t<pack_fp16_t, ffma_t, 2>>("F2FP, FFMA in turn", memory);
    print_rate<mix_t<ex2_t, ffma_t, 8>>("MUFU.EX2 and seven FFMA", memory);
    print_rate<mix_t<ex2_t, ffma_t, 16>>("MUFU.EX2 and fifteen FFMA", memory);
    std::fflush(stdout);
}
}
