// Streams and events that end with their owner. Both belong to the device that was current when they were made.
#pragma once
#include "scaling_contrasts/gpu/check.cuh"

namespace scaling_contrasts::gpu {

inline void use_device(int ordinal) { check(cudaSetDevice(ordinal), "choosing a device"); }

class stream_t {
  public:
    stream_t() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"); }
    stream_t(stream_t const&) = delete;
    stream_t& operator=(stream_t const&) = delete;
    ~stream_t() {
        cudaStreamSynchronize(stream_);
        cudaStreamDestroy(stream_);
    }
    operator cudaStream_t() const { return stream_; }
    void synchronize(char const* what) const { check(cudaStreamSynchronize(stream_), what); }

  private:
    cudaStream_t stream_ = nullptr;
};

class event_t {
  public:
    event_t() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "creating an event"); }
    event_t(event_t const&) = delete;
    event_t& operator=(event_t const&) = delete;
    ~event_t() { cudaEventDestroy(event_); }

    /// The stream must be of the event's device.
    void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "recording an event"); }
    /// A stream of any device.
    void wait(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "waiting for an event"); }
    /// Whether what was recorded is over. Never waits.
    bool done() const {
        auto const state = cudaEventQuery(event_);
        if (state == cudaErrorNotReady) return cudaGetLastError(), false;
        check(state, "asking for an event");
        return true;
    }

  private:
    cudaEvent_t event_ = nullptr;
};

}  // namespace scaling_contrasts::gpu
