// The emulator itself: that it reads operands as the hardware was measured to, and that mistakes are found and named.
#include <cuda.h>
#include <cuda_runtime.h>

#include <numeric>

#include "operand.hpp"
#include "scaling_contrasts/ptx/barrier.cuh"
#include "scaling_contrasts/ptx/copy.cuh"
#include "scaling_contrasts/ptx/tcgen05.cuh"
#include "scaling_contrasts/ptx/wgmma.cuh"
#include "testing.hpp"

namespace ptx = scaling_contrasts::ptx;
using emulation::timing_t;
using testing::expect;

namespace {

constexpr timing_t timings_k[] = {timing_t::eager_k, timing_t::late_k, timing_t::shuffled_k};

/// Runs `launch`, which must fail with a message that has all of `parts`.
template <class launch_t>
void expect_failure(std::string const& what, launch_t const& launch, std::initializer_list<char const*> parts) {
    try {
        launch();
    } catch (emulation::failure_t const& failure) {
        for (char const* part : parts)
            expect(std::string(failure.what()).find(part) != std::string::npos,
                   what + ": the message lacks '" + part + "': " + failure.what());
        return;
    }
    expect(false, what + ": nothing was found");
}

/// Operands as they were laid out for wgmma on an H200, every one bit-right there. (along, k) -> byte, before
/// swizzling.
void operands_lie_as_measured() {
    struct layout_t {
        char const* name;
        emulation::matrix_t matrix;
        bool k_major;
        std::uint32_t step;  ///< bytes from 16 k to the next
        std::uint32_t (*byte)(std::uint32_t along, std::uint32_t k);
    };
    layout_t const layouts[] = {
        {"K-major, 128-byte lines", {0, 16, 1024, 128}, true, 32, [](auto m, auto k) { return m * 128 + k * 2; }},
        {"K-major, 64-byte lines", {0, 16, 512, 64}, true, 32, [](auto m, auto k) { return m * 64 + k * 2; }},
        {"K-major, cores of 8 x 16 bytes",
         {0, 128, 1024, 0},
         true,
         256,
         [](auto m, auto k) { return m / 8 * 1024 + k / 8 * 128 + m % 8 * 16 + k % 8 * 2; }},
        {"MN-major, chunks of 64 k-lines",
         {0, 8192, 1024, 128},
         false,
         2048,
         [](auto m, auto k) { return m / 64 * 8192 + k * 128 + m % 64 * 2; }},
        {"MN-major, chunks side by side in 8 k-lines",
         {0, 1024, 2048, 128},
         false,
         4096,
         [](auto m, auto k) { return k / 8 * 2048 + m / 64 * 1024 + k % 8 * 128 + m % 64 * 2; }},
        {"MN-major, cores of 8 x 16 bytes",
         {0, 2048, 128, 0},
         false,
         4096,
         [](auto m, auto k) { return k / 8 * 2048 + m / 8 * 128 + k % 8 * 16 + m % 8 * 2; }},
    };
    for (auto layout : layouts) {
        bool right = true;
        for (std::uint32_t k0 : {0u, 16u}) {
            layout.matrix.start = 0x2000 + k0 / 16 * layout.step;
            for (std::uint32_t m = 0; m < 128; ++m)
                for (std::uint32_t k = 0; k < 16; ++k)
                    right = right && emulation::address_of(layout.matrix, m, k, layout.k_major) ==
                                         emulation::swizzled(0x2000 + layout.byte(m, k0 + k), layout.matrix.swizzle);
        }
        expect(right, layout.name);
    }
    // what was measured of the 128-byte swizzle: 16-byte pieces of a line are permuted by the line's number in its
    // group of eight
    for (std::uint32_t line = 0; line < 16; ++line)
        for (std::uint32_t piece = 0; piece < 8; ++piece)
            expect(emulation::swizzled(line * 128 + piece * 16, 128) == line * 128 + (piece ^ line % 8) * 16,
                   "swizzle");
    auto const tensor = emulation::decode_tensor_descriptor(0x4000404000000000u | 0x200u << 16 | 0x123u);
    expect(tensor.start == 0x1230 && tensor.leading == 8192 && tensor.stride == 1024 && tensor.swizzle == 128,
           "a descriptor of tcgen05");
    expect_failure("a version of 0", [] { emulation::decode_tensor_descriptor(0x4000004000000000u); }, {"001"});
    expect_failure("a swizzle of 3", [] { emulation::decode_tensor_descriptor(0x6000404000000000u); }, {"swizzle 3"});
    expect_failure("reserved bits", [] { emulation::decode_warpgroup_descriptor(1ull << 46); }, {"must be 0"});
}

__global__ void load_a_box(__grid_constant__ CUtensorMap const map, int x, int y, std::uint16_t* out, bool wait) {
    extern __shared__ std::uint8_t raw[];
    std::uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u, barrier = base + 8192;
    if (threadIdx.x == 0) {
        ptx::mbar_init(barrier, 1);
        ptx::mbar_expect(barrier, 8192);
        ptx::tma_load(base, &map, x, y, barrier);
    }
    __syncthreads();
    if (wait) ptx::mbar_wait(barrier, 0);
    auto const* numbers = reinterpret_cast<std::uint16_t const*>(raw + (base - ptx::smem(raw)));
    for (int i = threadIdx.x; i < 4096; i += 32) out[i] = numbers[i];
    __syncthreads();
    ptx::mbar_wait(barrier, 0);
}

void boxes_are_swizzled_and_zero_outside() {
    constexpr int rows = 70, columns = 192;
    alignas(16) static std::uint16_t matrix[rows][columns];
    for (int r = 0; r < rows; ++r)
        for (int c = 0; c < columns; ++c) matrix[r][c] = static_cast<std::uint16_t>(1 + r * columns + c);
    CUtensorMap map;
    cuuint64_t const size[] = {columns, rows}, stride[] = {columns * 2};
    cuuint32_t box[] = {64, 64}, unit[] = {1, 1};
    auto encode = [&] {
        return cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, matrix, size, stride, box, unit,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                      CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    box[0] = 128;
    expect(encode() == CUDA_ERROR_INVALID_VALUE, "a line longer than the swizzle is refused");
    box[0] = 64;
    expect(encode() == CUDA_SUCCESS, "a map");
    for (auto timing : timings_k)
        for (bool wait : {true, false}) {
            emulation::options().timing = timing;
            std::vector<std::uint16_t> got(4096);
            load_a_box<<<1, 32, 10240>>>(map, 128, 20, got.data(), wait);
            bool right = true;
            for (int r = 0; r < 64; ++r)
                for (int c = 0; c < 64; ++c)
                    right = right && got[static_cast<std::size_t>(r * 64 + (c / 8 ^ r % 8) * 8 + c % 8)] ==
                                         (20 + r < rows ? matrix[20 + r][128 + c] : 0);
            expect(right == wait || timing == timing_t::eager_k || (timing == timing_t::shuffled_k && right),
                   "a box, waited for or seen too early");
        }
}

__global__ void never_arrives() {
    extern __shared__ std::uint64_t barrier[];
    if (threadIdx.x == 0) ptx::mbar_init(ptx::smem(barrier), 2);
    __syncthreads();
    if (threadIdx.x == 5) ptx::mbar_arrive(ptx::smem(barrier));
    if (threadIdx.x >= 32) ptx::mbar_wait(ptx::smem(barrier), 0);
    else if (threadIdx.x < 7) ptx::named_sync(3, 64);
}
__global__ void diverges() {
    if (threadIdx.x < 16) __shfl_xor_sync(~0u, 1, 1);
    else __any_sync(~0u, 1);
}
__global__ void arrives_too_often() {
    extern __shared__ std::uint64_t barrier[];
    ptx::mbar_init(ptx::smem(barrier), 2);
    ptx::mbar_expect(ptx::smem(barrier), 16);
    ptx::mbar_arrive(ptx::smem(barrier));
    ptx::mbar_arrive(ptx::smem(barrier));
}
__global__ void reads_beside() {
    extern __shared__ float memory[];
    ptx::load_float(ptx::smem(memory) + 256);
}
__global__ void unknown() { asm volatile("frobnicate.u32 %0, 1;" ::"r"(1)); }
__global__ void keeps_columns() {
    extern __shared__ std::uint32_t at[];
    ptx::tensor_alloc<64>(ptx::smem(at));
}
__global__ void loads_unfenced() {
    extern __shared__ std::uint32_t at[];
    float v[32];
    ptx::tensor_alloc<32>(ptx::smem(at));
    __syncthreads();
    ptx::tensor_load(v, at[0]);
}
__global__ void multiplies_unfenced() {
    extern __shared__ std::uint8_t raw[];
    float d[32] = {};
    std::uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u;
    ptx::wgmma_n64<0, 0>(d, ptx::operand(base), ptx::operand(base), 1);
}
/// Each row of A is its number, B is ones: D[r][c] = 16 r. `early`: out is written before the wait.
__global__ void multiplies(float* out, bool early) {
    extern __shared__ std::uint8_t raw[];
    std::uint32_t const base = (ptx::smem(raw) + 1023) & ~1023u;
    float d[32] = {};
    for (int i = threadIdx.x; i < 64 * 64; i += 128) {
        auto number = [&](int offset, float value) {
            auto const place = emulation::swizzled(base + static_cast<std::uint32_t>(i * 2), 128) - ptx::smem(raw);
            auto const bits = static_cast<std::uint16_t>(emulation::to_bf16(value));
            std::memcpy(raw + place + offset, &bits, 2);
        };
        number(0, static_cast<float>(i / 64));
        number(8192, 1.0f);
    }
    ptx::fence_async_shared();
    __syncthreads();
    ptx::wgmma_fence();
    ptx::wgmma_n64<0, 0>(d, ptx::operand(base), ptx::operand(base + 8192), 0);
    ptx::wgmma_commit();
    auto write = [&] {
        for (int i = 0; i < 32; ++i) out[threadIdx.x * 32 + i] = d[i];
    };
    if (early) write();
    ptx::wgmma_wait<0>();
    if (!early) write();
}

void mistakes_are_named() {
    for (auto timing : timings_k) {
        emulation::options().timing = timing;
        expect_failure("a deadlock", [] { never_arrives<<<1, 64, 64>>>(); },
                       {"deadlock",
                        "block (0, 0, 0) warp 1, lanes 0-31: the end of a phase of parity 0 of the mbarrier",
                        "phase 0 with 1 of 2 arrivals", "warp 0, lanes 0-6: bar.sync 3: 7 of 64 threads"});
        expect_failure("divergence", [] { diverges<<<1, 32>>>(); }, {"meet in", "__shfl_xor_sync", "__any_sync"});
        expect_failure("arrivals", [] { arrives_too_often<<<1, 1, 64>>>(); }, {"more arrivals"});
        expect_failure("an address", [] { reads_beside<<<1, 1, 256>>>(); },
                       {"dynamic shared memory is 0x480 to 0x580"});
        expect_failure("an instruction", [] { unknown<<<1, 1>>>(); }, {"does not know: frobnicate.u32"});
        expect_failure("columns", [] { keeps_columns<<<1, 32, 64>>>(); }, {"columns of tensor memory allocated"});
        expect_failure("tcgen05's fence", [] { loads_unfenced<<<1, 32, 64>>>(); }, {"fence::after_thread_sync"});
        expect_failure("wgmma's fence", [] { multiplies_unfenced<<<1, 128, 20480>>>(); }, {"without wgmma.fence"});
        expect_failure("a warpgroup that is not whole",
                       [] {
                           std::vector<float> out(4096);
                           multiplies<<<1, 96, 20480>>>(out.data(), false);
                       },
                       {"deadlock", "not all warps of the warpgroup"});
        for (bool early : {false, true}) {
            std::vector<float> out(4096);
            multiplies<<<1, 128, 20480>>>(out.data(), early);
            bool right = true;
            for (int t = 0; t < 128; ++t)
                for (int i = 0; i < 32; ++i)
                    right = right && out[static_cast<std::size_t>(t * 32 + i)] ==
                                         static_cast<float>(16 * (t / 32 * 16 + t % 32 / 4 + (i & 2 ? 8 : 0)));
            expect(right != early, "a product, waited for or not");
        }
    }
}

}  // namespace

int main() {
    operands_lie_as_measured();
    boxes_are_swizzled_and_zero_outside();
    mistakes_are_named();
    return testing::report();
}
