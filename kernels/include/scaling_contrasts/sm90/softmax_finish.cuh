// The end of info_nce's step by the ladder kernel: finish.cuh's, where the positive of a row, which no cell holds, adds
// its weight times its row, in fp32. That row is read as it was given: where the other set's lie as fp16, its gradient
// may be there already.
#pragma once
#include "scaling_contrasts/sm90/finish.cuh"
#include "scaling_contrasts/sm90/two_set_rows.cuh"

namespace scaling_contrasts::sm90 {

/// Of one set's rows.
struct pair_positives_t {
    static constexpr bool any = true;
    two_set::pairs_t const& a;
    int which;
    float t2;

    /// Weight times dot product, and weight, of a row whose inverse norm is `inverse` as fp16.
    __device__ __forceinline__ float2 of(int p, int row, float inverse) const {
        int64_t const at = int64_t(p) * a.side[0].padded + row;
        float const slope = two_set::positive(a, p, row).slope * a.omega[p] * t2;
        return {slope * a.cosine[at], slope * inverse * a.inverse[1 - which][at]};
    }
    __device__ __forceinline__ __nv_bfloat16 const* other(int row) const {
        return a.side[1 - which].x + int64_t(row) * a.dims;
    }
};

/// Grid: (row blocks, 2 programs, sets). The scalars are two_set_rows.cuh's.
static __global__ void __launch_bounds__(finish_threads_k)
    finish_pairs_kernel(params_t const __grid_constant__ a, finished_set_t const __grid_constant__ second,
                        two_set::pairs_t const __grid_constant__ pairs) {
    int const which = int(blockIdx.z);
    finish_half<ptx::fp16_pair_t>(a, which == 0 ? rows_of(a) : second, 0, 0,
                                  pair_positives_t{pairs, which, scales_of(a).t2});
}

}  // namespace scaling_contrasts::sm90
