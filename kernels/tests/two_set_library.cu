// The sm90 engines of the losses over two sets behind a C interface, for two_set_bench.py.
#include <memory>

#include "scaling_contrasts/sm90/two_set_engine.cuh"
#include "scaling_contrasts/sm90/two_set_ladder_engine.cuh"
#include "sm90_library.cuh"

using namespace scaling_contrasts;

namespace {
struct bench_t {
    sm90_two_set_engine_t engine;
    sm90_two_set_ladder_engine_t ladder;
    gpu_problem_t problem;
    bool is_ladder = false;
};
/// {2, wide, ring, lag, bits: 1 interleave, 2 bf16, 4 the general path, 8 sums in fp16}; wide 0: its choice of those
sm90_tuning_t ladder_tuning(int const* tuning) {
    sm90_tuning_t out;
    out.wide = tuning[1];
    out.ring = tuning[2];
    out.lag = tuning[3];
    out.interleave = tuning[4] & 1;
    if (tuning[4] & 2) out.fp16 = false;
    out.general = tuning[4] & 4;
    if (tuning[4] & 8) out.packed_sums = true;
    return out;
}
/// prefixes: 1 (D alone) or 5 (the article's ladder).
gpu_problem_t problem_of(int loss, int rows, int dims, int prefixes) {
    gpu_problem_t p;
    p.loss = loss_t(loss);
    p.rows = p.live = uint32_t(rows);
    p.dims = uint32_t(dims);
    p.prefix_count = uint32_t(prefixes);
    for (int i = 0; i < prefixes; ++i)
        p.prefixes[i] = prefixes == 1 ? uint32_t(dims) : 64u << i, p.prefix_weights[i] = 1.f / float(prefixes);
    p.total_live = uint64_t(rows);
    return p;
}
}  // namespace

extern "C" {
/// tuning: {forward only, high, wide, ring, lag}, or that of the engine of ladders
size_t bench_scratch(int loss, int rows, int dims, int prefixes, int const* tuning) {
    if (tuning[0] == 2)
        return sm90_two_set_ladder_engine_t::scratch_bytes(problem_of(loss, rows, dims, prefixes),
                                                           ladder_tuning(tuning));
    return sm90_two_set_engine_t::scratch_bytes(problem_of(loss, rows, dims, prefixes), tuning[0] != 0,
                                                {tuning[1], tuning[2], tuning[3], tuning[4], false});
}
void* bench_open(int loss, int rows, int dims, int prefixes, int const* tuning, void* scratch) {
    auto b = std::make_unique<bench_t>();
    b->problem = problem_of(loss, rows, dims, prefixes);
    b->is_ladder = tuning[0] == 2;
    if (b->is_ladder)
        return report(b->ladder.construct(b->problem, scratch, ladder_tuning(tuning))) ? nullptr : b.release();
    if (report(b->engine.construct(b->problem, scratch, tuning[0] != 0,
                                   {tuning[1], tuning[2], tuning[3], tuning[4], false})))
        return nullptr;
    return b.release();
}
void bench_close(void* b) { delete static_cast<bench_t*>(b); }
/// parts: 1 preparation, 2 info_nce's sums, 4 scores and gradients, 8 finishing.
int bench_step(void* handle, void const* images, void const* captions, float const* tb, void* image_gradient,
               void* caption_gradient, float* scalars, int parts, cudaStream_t stream) {
    auto& b = *static_cast<bench_t*>(handle);
    bool const nce = b.problem.loss == loss_t::info_nce_k;
    if (b.is_ladder) {
        void* const gradients[2] = {image_gradient, caption_gradient};
        if (parts & 1 && report(b.ladder.begin(images, captions, 0, tb, tb + 1, gradients, stream))) return 1;
        if (parts & 2 && nce && report(b.ladder.sums(images, captions, b.problem.live, 0, true, stream))) return 1;
        if (parts & 2 && nce && report(b.ladder.close_sums(stream))) return 1;
        if (parts & 4 && report(b.ladder.score(images, captions, b.problem.live, 0, true, stream))) return 1;
        return parts & 8 && report(b.ladder.finish(gradients, scalars, stream));
    }
    if (parts & 1 && report(b.engine.begin(images, captions, tb, tb + 1, stream))) return 1;
    two_set_block_t const own = {
        {images, captions}, {b.engine.log_sums(0), b.engine.log_sums(1)}, b.problem.live, true};
    if (parts & 2 && nce && report(b.engine.sums(own, stream))) return 1;
    if (parts & 2 && nce && report(b.engine.close_sums(stream))) return 1;
    if (parts & 4 && report(b.engine.score(own, stream))) return 1;
    if (parts & 8 && report(b.engine.finish(image_gradient, caption_gradient, scalars, stream))) return 1;
    return 0;
}
}
