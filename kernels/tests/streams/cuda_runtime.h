// CUDA's streams and events without a GPU: what is queued runs late, in any order that streams and events allow, so
// that a missing wait reads what is not there yet, or is gone. Memory is the host's. Each thread has GPUs of its own: a
// box.
//
// Work runs when somebody waits, and a little of it whenever somebody looks at an event. The order is drawn from
// `seed()`.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <vector>

enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorNotReady,
    cudaErrorNoDevice,
    cudaErrorInsufficientDriver,
    cudaErrorNoKernelImageForDevice,
    cudaErrorUnsupportedPtxVersion,
    cudaErrorPeerAccessAlreadyEnabled,
};
enum cudaMemcpyKind { cudaMemcpyDefault };
enum cudaDeviceAttr { cudaDevAttrGPUDirectRDMAFlushWritesOptions, cudaDevAttrGPUDirectRDMAWritesOrdering };
enum cudaFlushGPUDirectRDMAWritesTarget { cudaFlushGPUDirectRDMAWritesTargetCurrentDevice };
enum cudaFlushGPUDirectRDMAWritesScope {
    cudaFlushGPUDirectRDMAWritesToOwner,
    cudaFlushGPUDirectRDMAWritesToAllDevices
};
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess, cudaDriverEntryPointSymbolNotFound };
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostRegisterPortable = 1;
inline constexpr int cudaFlushGPUDirectRDMAWritesOptionHost = 1;
inline constexpr unsigned long long cudaEnableDefault = 0;
using cudaGraph_t = void*;
using cudaGraphExec_t = void*;

#include <cuda.h>

namespace streams {

struct work_t {
    std::function<bool()> can_run;  // empty: yes
    std::function<void()> run;
};
struct stream_t {
    int device = 0;
    std::deque<work_t> queue;
};
struct event_t {
    int device = 0;
    std::shared_ptr<bool> last;  // whether what was recorded last is over; null: nothing was
};
struct gpus_t {
    int current = 0;
    std::vector<stream_t*> streams;
    std::mt19937 random;
};
inline gpus_t& gpus() {
    thread_local gpus_t mine;
    return mine;
}
inline void seed(unsigned number) { gpus().random.seed(number); }

/// Runs one thing that can run; false: there is none.
inline bool run_something() {
    std::vector<stream_t*> able;
    for (auto* const each : gpus().streams)
        if (!each->queue.empty() && (!each->queue.front().can_run || each->queue.front().can_run()))
            able.push_back(each);
    if (able.empty()) return false;
    auto* const chosen = able[gpus().random() % able.size()];
    work_t const work = std::move(chosen->queue.front());
    chosen->queue.pop_front();
    if (work.run) work.run();
    return true;
}
inline void run_until(std::function<bool()> const& done) {
    while (!done())
        if (!run_something()) {
            std::fprintf(stderr, "streams: nothing can run, and something is waited for\n");
            std::abort();
        }
}
/// A kernel.
inline void launch(stream_t* stream, std::function<void()> run) { stream->queue.push_back({{}, std::move(run)}); }

}  // namespace streams

using cudaStream_t = streams::stream_t*;
using cudaEvent_t = streams::event_t*;

inline char const* cudaGetErrorString(cudaError_t) { return "an error of the stand-in for CUDA"; }
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaSetDevice(int device) { return streams::gpus().current = device, cudaSuccess; }
inline cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 1, cudaSuccess; }
inline cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) { return *value = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetPCIBusId(char* id, int size, int device) {
    return std::snprintf(id, static_cast<std::size_t>(size), "0000:%02x:00.0", device), cudaSuccess;
}
inline cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTarget,
                                                      cudaFlushGPUDirectRDMAWritesScope) {
    return cudaSuccess;
}
inline cudaError_t cudaGetDriverEntryPointByVersion(char const* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* found) {
    bool const known = std::strcmp(name, "cuDeviceGetAttribute") == 0;
    *function = known ? reinterpret_cast<void*>(&cuDeviceGetAttribute) : nullptr;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

/// Fresh memory holds 0xff: as bf16 or float, NaN.
inline cudaError_t cudaMalloc(void** to, std::size_t bytes) {
    *to = std::malloc(bytes);
    return std::memset(*to, 0xff, bytes), cudaSuccess;
}
inline cudaError_t cudaFree(void* at) {
    while (streams::run_something()) {}
    return std::free(at), cudaSuccess;
}
inline cudaError_t cudaHostRegister(void*, std::size_t, unsigned) { return cudaSuccess; }
inline cudaError_t cudaHostUnregister(void*) { return cudaSuccess; }
inline cudaError_t cudaMemcpyAsync(void* to, void const* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return streams::launch(stream, [=] { std::memcpy(to, from, bytes); }), cudaSuccess;
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
    *stream = new streams::stream_t{streams::gpus().current, {}};
    return streams::gpus().streams.push_back(*stream), cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return streams::run_until([=] { return stream->queue.empty(); }), cudaSuccess;
}
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    std::erase(streams::gpus().streams, stream);
    return delete stream, cudaSuccess;
}
inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    return *event = new streams::event_t{streams::gpus().current, {}}, cudaSuccess;
}
inline cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
/// As CUDA, refuses a stream of another device than the event's.
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (event->device != stream->device) return cudaErrorInvalidValue;
    auto const over = std::make_shared<bool>(false);
    event->last = over;
    return streams::launch(stream, [over] { *over = true; }), cudaSuccess;
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    if (auto const over = event->last) stream->queue.push_back({[over] { return *over; }, {}});
    return cudaSuccess;
}
inline cudaError_t cudaEventQuery(cudaEvent_t event) {
    for (unsigned some = streams::gpus().random() % 3; some > 0; --some) streams::run_something();
    return !event->last || *event->last ? cudaSuccess : cudaErrorNotReady;
}

// Graphs: declared so that the box's sources compile; steps over several boxes have none.
inline cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode) { return cudaErrorInvalidValue; }
inline cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*) { return cudaErrorInvalidValue; }
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long) {
    return cudaErrorInvalidValue;
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) { return cudaErrorInvalidValue; }
inline cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }
