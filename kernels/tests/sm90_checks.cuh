// What the checks of the sm90 engines share: calls that end the program where they fail, and guarded memory of the
// device.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "scaling_contrasts/sm90/host.cuh"

using namespace scaling_contrasts;

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        cudaError_t e_ = (call);                                                                                       \
        if (e_ != cudaSuccess) {                                                                                       \
            std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(e_));                          \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)
#define CALL(call)                                                                                                     \
    do {                                                                                                               \
        gpu_status_t s_ = (call);                                                                                      \
        if (!s_) {                                                                                                     \
            std::printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, s_.message.c_str());                              \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

/// Device memory with guard zones of NaN on both sides.
template <class T>
struct array_t {
    static constexpr size_t guard_k = 4096;
    uint8_t* raw = nullptr;
    size_t bytes = 0;
    explicit array_t(size_t count) : bytes((count * sizeof(T) + 255) / 256 * 256) {
        CHECK(cudaMalloc(&raw, bytes + 2 * guard_k));
        CHECK(cudaMemset(raw, 0xff, bytes + 2 * guard_k));
    }
    ~array_t() { cudaFree(raw); }
    array_t(array_t const&) = delete;
    T* get() const { return reinterpret_cast<T*>(raw + guard_k); }
    bool guards_hold() const {
        std::vector<uint8_t> host(2 * guard_k);
        CHECK(cudaMemcpy(host.data(), raw, guard_k, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(host.data() + guard_k, raw + guard_k + bytes, guard_k, cudaMemcpyDeviceToHost));
        for (uint8_t b : host)
            if (b != 0xff) return false;
        return true;
    }
};
