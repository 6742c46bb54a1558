// What the sm90 engines' C interfaces for the timings share. Included after the engine.
#pragma once
#include <cstdio>

#include "scaling_contrasts/sm90/problem.cuh"
#include "scaling_contrasts/sm90/stages.cuh"

namespace {
int report(scaling_contrasts::gpu_status_t const& s) {
    if (s) return 0;
    std::fprintf(stderr, "%s\n", s.message.c_str());
    return 1;
}
}  // namespace

extern "C" {
/// Copies the stage clocks (see stages.cuh) to `out` and zeroes them; returns how many there are, 0 where not compiled
/// in.
int bench_stages(unsigned long long* out) {
#ifdef SCALING_CONTRASTS_STAGES
    unsigned long long const zero[scaling_contrasts::sm90::stages_k] = {};
    if (cudaMemcpyFromSymbol(out, scaling_contrasts::sm90::stage_clocks, sizeof zero) != cudaSuccess) return -1;
    if (cudaMemcpyToSymbol(scaling_contrasts::sm90::stage_clocks, zero, sizeof zero) != cudaSuccess) return -1;
    return scaling_contrasts::sm90::stages_k;
#else
    (void)out;
    return 0;
#endif
}
}
