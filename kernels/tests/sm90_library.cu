// The sm90 engine behind a C interface, for sm90_bench.py.
#include <cstring>
#include <memory>

#include "scaling_contrasts/sm90/engine.cuh"
#include "scaling_contrasts/sm90/forward_engine.cuh"
#include "sm90_library.cuh"
#include "sm90_tuning.cuh"

using namespace scaling_contrasts;

namespace {
struct bench_t {
    sm90_engine_t engine;
    sm90_forward_engine_t forward;
    bool forward_only = false;
    gpu_problem_t problem;
};
bool is_forward(char const* tuning) { return !std::strcmp(tuning, "forward"); }
gpu_problem_t article(int rows, int candidates) {
    gpu_problem_t p;
    p.rows = p.live = uint32_t(rows);
    p.dims = 1024;
    p.prefix_count = 5;
    for (int i = 0; i < 5; ++i) p.prefixes[i] = 64u << i, p.prefix_weights[i] = 0.2f;
    p.total_live = uint64_t(rows) + candidates;
    p.candidate_rows = uint32_t(candidates);
    return p;
}
}  // namespace

extern "C" {
/// `candidates`: rows of a foreign block, 0 where there is none. `tuning`: see sm90_tuning.cuh, or `forward`, the
/// forward pass alone. 0: there is no such.
size_t bench_scratch(int rows, int candidates, char const* tuning) {
    if (is_forward(tuning)) return sm90_forward_engine_t::scratch_bytes(article(rows, candidates));
    auto const given = tuning_of(tuning);
    return given ? sm90_engine_t::scratch_bytes(article(rows, candidates), *given) : 0;
}
void* bench_open(int rows, int candidates, char const* tuning, void* scratch) {
    auto b = std::make_unique<bench_t>();
    b->problem = article(rows, candidates);
    b->forward_only = is_forward(tuning);
    if (b->forward_only) return report(b->forward.construct(b->problem, scratch)) ? nullptr : b.release();
    auto const given = tuning_of(tuning);
    if (!given) return nullptr;
    if (report(b->engine.construct(b->problem, scratch, *given))) return nullptr;
    return b.release();
}
void bench_close(void* b) { delete static_cast<bench_t*>(b); }
/// stages: 1 preparation, 2 scoring and gradients, 4 finishing, 8 scoring and gradients of `x` as a foreign block.
int bench_step(void* handle, void const* x, int32_t const* labels, float const* tb, void* gradient, float* scalars,
               int stages, cudaStream_t stream) {
    auto& b = *static_cast<bench_t*>(handle);
    uint32_t const rows = b.problem.rows;
    if (b.forward_only) {
        if (stages & 1 && report(b.forward.begin(x, labels, 0, tb, tb + 1, stream))) return 1;
        if (stages & 2 && report(b.forward.score(x, labels, rows, 0, true, stream))) return 1;
        if (stages & 8 && report(b.forward.score(x, labels, rows, rows, false, stream))) return 1;
        return stages & 4 ? report(b.forward.finish(scalars, stream)) : 0;
    }
    if (stages & 1 && report(b.engine.begin(x, labels, 0, tb, tb + 1, stream, gradient))) return 1;
    if (stages & 2 && report(b.engine.score(x, labels, rows, rows, 0, true, stream))) return 1;
    if (stages & 8 && report(b.engine.score(x, labels, rows, rows, rows, false, stream))) return 1;
    if (stages & 4 && report(b.engine.finish(gradient, scalars, stream))) return 1;
    return 0;
}
}
