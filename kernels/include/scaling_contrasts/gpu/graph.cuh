// A step captured into a CUDA graph: one call replays it, and the host writes nothing.
#pragma once
#include "scaling_contrasts/gpu/check.cuh"

namespace scaling_contrasts::gpu {

class graph_t {
  public:
    graph_t() = default;
    graph_t(graph_t const&) = delete;
    graph_t& operator=(graph_t const&) = delete;
    ~graph_t() {
        if (executable_) cudaGraphExecDestroy(executable_);
    }

    /// Captures what `work` queues on `stream`; nothing runs yet.
    template <class work_t>
    void capture(cudaStream_t stream, work_t&& work) {
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
        cudaGraph_t graph = nullptr;
        try {
            work();
        } catch (...) {
            cudaStreamEndCapture(stream, &graph);
            if (graph) cudaGraphDestroy(graph);
            throw;
        }
        check(cudaStreamEndCapture(stream, &graph), "ending a capture");
        auto const error = cudaGraphInstantiate(&executable_, graph, 0);
        cudaGraphDestroy(graph);
        check(error, "instantiating a graph");
    }
    bool captured() const { return executable_ != nullptr; }
    void replay(cudaStream_t stream) const { check(cudaGraphLaunch(executable_, stream), "replaying a graph"); }

  private:
    cudaGraphExec_t executable_ = nullptr;
};

}  // namespace scaling_contrasts::gpu
