// What the box asks of whoever fetches rows from other boxes.
#pragma once
#include "scaling_contrasts/box/device_step.cuh"

namespace scaling_contrasts::gpu {

/// The rows of other boxes' devices, once they are in memory of this box's GPUs.
class elsewhere_t {
  public:
    virtual ~elsewhere_t() = default;
    virtual candidates_t rows_of(int device) = 0;
    /// Makes a stream wait until they have landed, or their log-sums.
    virtual void wait_for_rows(int device, cudaStream_t stream) = 0;
    virtual void wait_for_log_sums(int device, cudaStream_t stream) = 0;
};

}  // namespace scaling_contrasts::gpu
