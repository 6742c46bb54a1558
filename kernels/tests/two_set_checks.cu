// Correctness of the sm90 engines of the losses over two sets against float64, computed on the same GPU by plain loops
// over the formulas.
//   two_set_checks [quick|all|large|tiny]     one line a case, and at the end 'N passed, N failed'
//   two_set_checks ladder|ladder_tiny         the same of the engine of ladders, two_set_sigmoid
//   two_set_checks ladder_nce|ladder_nce_tiny and info_nce
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "scaling_contrasts/inputs.hpp"
#include "scaling_contrasts/sm90/two_set_engine.cuh"
#include "scaling_contrasts/sm90/two_set_ladder_engine.cuh"
#include "sm90_checks.cuh"

enum class rows_t {
    plain,
    zeros,
    twins
};  // twins: captions that equal their images, and every 50th pair equal to its neighbour
char const* name_of(rows_t r) {
    char const* names[] = {"", " zeros", " twins"};
    return names[int(r)];
}
/// Row `i` of set 0 (images) or 1 of pairs first, first + 1, ...
__global__ void fill(bf16_t* x, int set, int64_t rows, int dims, int64_t first, uint32_t seed, rows_t kind) {
    int64_t const at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (at >= rows * dims) return;
    int64_t row = first + at / dims;
    uint32_t const column = uint32_t(at % dims);
    if (kind == rows_t::twins && row % 50 == 1) --row;
    int const stream = kind == rows_t::twins ? 0 : set;
    float v = input_value(row_key(seed, group_stream_k, uint32_t(row)), row_key(seed, stream, uint32_t(row)), column);
    v *= exp2f(float(int(mix(uint32_t(row) + 77u * set) % 13u) - 6));    // norms vary by powers of two
    if (kind == rows_t::zeros && (row + set) % 37 == 5) v = 0.f;         // whole rows of zeros
    if (kind == rows_t::zeros && row % 41 == 3 && column < 64) v = 0.f;  // only the first columns
    x[at] = bf16_t(v);
}

struct shape_t {
    int64_t n;  // pairs of all GPUs
    int dims, prefixes, prefix[16];
    double weight[16], t, b;
    bool nce;
};
__global__ void ref_norms(bf16_t const* x, shape_t const s, double* norm) {
    int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= s.n) return;
    double sum = 0;
    for (int p = 0, c = 0; p < s.prefixes; ++p) {
        for (; c < s.prefix[p]; ++c) {
            double const v = float(x[i * s.dims + c]);
            sum += v * v;
        }
        norm[p * s.n + i] = sqrt(sum);
    }
}
__global__ void ref_cosines(bf16_t const* x, bf16_t const* y, shape_t const s, double const* nx, double const* ny,
                            double* cosine) {
    __shared__ double xi[16][17], yj[16][17];
    int64_t const i = int64_t(blockIdx.y) * 16 + threadIdx.y, j = int64_t(blockIdx.x) * 16 + threadIdx.x;
    int64_t const jl = int64_t(blockIdx.x) * 16 + threadIdx.y;
    double dot = 0;
    for (int p = 0, c0 = 0; p < s.prefixes; ++p) {
        for (; c0 < s.prefix[p]; c0 += 16) {
            __syncthreads();
            xi[threadIdx.y][threadIdx.x] = i < s.n ? double(float(x[i * s.dims + c0 + threadIdx.x])) : 0.0;
            yj[threadIdx.y][threadIdx.x] = jl < s.n ? double(float(y[jl * s.dims + c0 + threadIdx.x])) : 0.0;
            __syncthreads();
            for (int k = 0; k < 16; ++k) dot += xi[threadIdx.y][k] * yj[threadIdx.x][k];
        }
        if (i >= s.n || j >= s.n) continue;
        double const a = nx[p * s.n + i], b = ny[p * s.n + j];
        cosine[(p * s.n + i) * s.n + j] = a < 1e-12 || b < 1e-12 ? 0.0 : dot / (a * b);
    }
}
/// Log sums of rows (which = 0) or columns (1), and by how much they exceed the positive's logit: the loss, exact where
/// it is tiny.
__global__ void ref_log_sums(shape_t const s, double const* cosine, int which, double* out, double* excess) {
    int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, p = blockIdx.y;
    if (i >= s.n) return;
    double most = -1e300, sum = 0;
    auto cell = [&](int64_t j) { return s.t * cosine[(p * s.n + (which ? j : i)) * s.n + (which ? i : j)]; };
    for (int64_t j = 0; j < s.n; ++j) most = fmax(most, cell(j));
    for (int64_t j = 0; j < s.n; ++j) sum += exp(cell(j) - most);
    out[p * s.n + i] = most + log(sum);
    double others = 0;
    for (int64_t j = 0; j < s.n; ++j)
        if (j != i) others += exp(cell(j) - cell(i));
    excess[p * s.n + i] = log1p(others);
}
/// Slopes g of the loss by logit, and {loss, dt, db, sums of absolute terms of dt and db}, of the images [first, first
/// + count) alone.
__global__ void ref_cells(shape_t const s, double const* cosine, double const* rows, double const* columns,
                          double const* row_excess, double const* column_excess, int64_t first, int64_t count,
                          double* g, double* out) {
    int64_t const j = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, i = blockIdx.y, p = blockIdx.z;
    if (j >= s.n) return;
    int64_t const at = (p * s.n + i) * s.n + j;
    double const c = cosine[at], w = s.weight[p] / double(s.n);
    double loss, slope;
    if (s.nce) {
        double const l = s.t * c, a = rows[p * s.n + i], b = columns[p * s.n + j];
        double const over_row = row_excess[p * s.n + i], over_column = column_excess[p * s.n + i];
        slope = 0.5 * (i == j ? expm1(-over_row) + expm1(-over_column) : exp(l - a) + exp(l - b));
        loss = i == j ? 0.5 * (over_row + over_column) : 0.0;
    } else {
        double const z = i == j ? 1 : -1, y = -z * (s.t * c + s.b);
        slope = -z / (1 + exp(-y));
        loss = fmax(y, 0.0) + log1p(exp(-fabs(y)));
    }
    g[at] = slope * w;
    if (i < first || i >= first + count) return;
    double const v[5] = {loss * w, slope * c * w, s.nce ? 0 : slope * w, fabs(slope * c * w),
                         s.nce ? 1 : fabs(slope * w)};
    for (int k = 0; k < 5; ++k)
        if (v[k] != 0) atomicAdd(out + k, v[k]);
}
/// Gradient of image i (which = 0) or caption i (1), and `terms`: what its positive alone leads to at a slope of 1.
__global__ void ref_gradient(bf16_t const* x, bf16_t const* y, shape_t const s, double const* nx, double const* ny,
                             double const* g, double const* cosine, int which, double* dx, double* terms) {
    int64_t const i = blockIdx.x;
    int const c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= s.dims) return;
    double sum = 0, term = 0;
    double const xi = float(x[i * s.dims + c]);
    for (int p = 0; p < s.prefixes; ++p) {
        double const ni = nx[p * s.n + i];
        if (c >= s.prefix[p] || ni < 1e-12) continue;
        if (ny[p * s.n + i] >= 1e-12)
            term += s.weight[p] / double(s.n) * double(float(y[i * s.dims + c])) / (ni * ny[p * s.n + i]);
        for (int64_t j = 0; j < s.n; ++j) {
            double const nj = ny[p * s.n + j];
            int64_t const at = (p * s.n + (which ? j : i)) * s.n + (which ? i : j);
            if (nj >= 1e-12)
                sum += g[at] * (double(float(y[j * s.dims + c])) / (ni * nj) - cosine[at] * xi / (ni * ni));
        }
    }
    dx[i * s.dims + c] = s.t * sum;
    terms[i * s.dims + c] = s.t * term;
}

struct case_t {
    loss_t loss;
    std::vector<int64_t> rows, live;  // of each GPU (they take turns on this one); the first is checked
    int dims;
    std::vector<int> ladder;
    double t, b;
    bool fp32 = false;
    rows_t kind = rows_t::plain;
    bool ramp = false;
    two_set_tuning_t tuning = {};
    std::optional<sm90_tuning_t> ladder_engine = {};  // run by that engine, so tuned
    bool once = false;                                // a block of two GPUs is scored by one of them
};

int passed = 0, failed = 0;

void run(case_t const& c) {
    size_t const gpus = c.rows.size();
    int64_t n = 0;
    for (int64_t v : c.live) n += v;
    shape_t s = {};
    s.n = n;
    s.dims = c.dims;
    s.prefixes = int(c.ladder.size());
    s.t = c.t;
    s.b = c.b;
    s.nce = c.loss == loss_t::info_nce_k;
    for (size_t i = 0; i < c.ladder.size(); ++i) {
        s.prefix[i] = c.ladder[i];
        s.weight[i] = c.ramp ? float(i + 1) / 8 : 1.f / float(c.ladder.size());
    }
    size_t const element = c.fp32 ? 4 : 2;
    struct gpu_t {
        std::unique_ptr<array_t<bf16_t>> x[2];
        std::unique_ptr<array_t<uint8_t>> gradient[2], scratch, forward_scratch;
        std::unique_ptr<array_t<float>> scalars;
        sm90_two_set_engine_t engine, forward;
        sm90_two_set_ladder_engine_t ladder;
        std::unique_ptr<array_t<uint8_t>> partial;
        size_t bytes = 0, forward_bytes = 0;
        uint32_t live = 0;
        int64_t first = 0;
    };
    std::vector<gpu_t> gpu(gpus);
    array_t<bf16_t> packed[2] = {array_t<bf16_t>(n * c.dims), array_t<bf16_t>(n * c.dims)};
    array_t<float> tb(2);
    float const host_tb[2] = {float(c.t), float(c.b)};
    CHECK(cudaMemcpy(tb.get(), host_tb, 8, cudaMemcpyHostToDevice));
    int64_t first = 0;
    for (size_t k = 0; k < gpus; ++k) {
        gpu_t& it = gpu[k];
        int64_t const rows = c.rows[k], live = c.live[k];
        for (int set = 0; set < 2; ++set) {
            it.x[set] = std::make_unique<array_t<bf16_t>>(rows * c.dims);
            it.gradient[set] = std::make_unique<array_t<uint8_t>>(rows * c.dims * element);
            if (live) {
                fill<<<unsigned((live * c.dims + 255) / 256), 256>>>(it.x[set]->get(), set, live, c.dims, first,
                                                                     1234u + unsigned(n), c.kind);
                CHECK(cudaGetLastError());
                CHECK(cudaMemcpy(packed[set].get() + first * c.dims, it.x[set]->get(), live * c.dims * 2,
                                 cudaMemcpyDeviceToDevice));  // dead rows hold NaN
            }
        }
        first += live;
        it.first = first - live;
        gpu_problem_t p;
        p.loss = c.loss;
        p.rows = uint32_t(rows);
        p.live = it.live = uint32_t(live);
        p.dims = uint32_t(c.dims);
        p.prefix_count = uint32_t(c.ladder.size());
        for (size_t i = 0; i < c.ladder.size(); ++i) {
            p.prefixes[i] = uint32_t(c.ladder[i]);
            p.prefix_weights[i] = float(s.weight[i]);
        }
        p.fp32_gradients = c.fp32;
        p.total_live = uint64_t(n);
        for (int64_t r : c.rows) p.candidate_rows = std::max(p.candidate_rows, uint32_t(r));
        it.scalars = std::make_unique<array_t<float>>(4);
        if (c.ladder_engine) {
            it.bytes = sm90_two_set_ladder_engine_t::scratch_bytes(p, *c.ladder_engine);
            it.scratch = std::make_unique<array_t<uint8_t>>(it.bytes);
            CALL(it.ladder.construct(p, it.scratch->get(), *c.ladder_engine));
            it.partial = std::make_unique<array_t<uint8_t>>(c.once ? it.ladder.partial_bytes() : 1);
            continue;
        }
        it.bytes = sm90_two_set_engine_t::scratch_bytes(p, false, c.tuning);
        it.forward_bytes = sm90_two_set_engine_t::scratch_bytes(p, true, c.tuning);
        it.scratch = std::make_unique<array_t<uint8_t>>(it.bytes);
        it.forward_scratch = std::make_unique<array_t<uint8_t>>(it.forward_bytes);
        CALL(it.engine.construct(p, it.scratch->get(), false, c.tuning));
        CALL(it.forward.construct(p, it.forward_scratch->get(), true, c.tuning));
    }
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    auto ladder_step = [&] {
        for (gpu_t& it : gpu)
            CALL(it.ladder.begin(it.x[0]->get(), it.x[1]->get(), it.first, tb.get(), tb.get() + 1,
                                 {it.gradient[0]->get(), it.gradient[1]->get()}, stream));
        for (bool scores : {false, true}) {
            if (!scores && !s.nce) continue;
            for (bool own : {true, false})
                for (gpu_t& it : gpu)
                    for (gpu_t& other : gpu) {
                        if ((&it == &other) != own || (c.once && !own)) continue;
                        void const *const images = other.x[0]->get(), *const captions = other.x[1]->get();
                        if (!scores) CALL(it.ladder.sums(images, captions, other.live, other.first, own, stream));
                        else
                            CALL(it.ladder.score(images, captions, other.live, other.first, own, stream,
                                                 {other.ladder.log_sums(0), other.ladder.log_sums(1)}));
                    }
            for (gpu_t& it : gpu)
                if (!scores) CALL(it.ladder.close_sums(stream));
        }
        for (size_t round = 1; c.once && round < gpus; ++round) {
            for (size_t k = 0; k < gpus; ++k) {
                gpu_t& other = gpu[(k + round) % gpus];
                CALL(gpu[k].ladder.score_pair(other.x[1]->get(), other.live, other.first, gpu[k].partial->get(),
                                              stream));
            }
            for (size_t k = 0; k < gpus; ++k)
                CALL(gpu[k].ladder.take_pair(gpu[(k + gpus - round) % gpus].partial->get(), gpu[k].live, stream));
        }
        for (gpu_t& it : gpu)
            CALL(it.ladder.finish({it.gradient[0]->get(), it.gradient[1]->get()}, it.scalars->get(), stream));
    };
    auto step = [&](sm90_two_set_engine_t gpu_t::* which) {
        if (c.ladder_engine) return ladder_step();
        for (gpu_t& it : gpu) CALL((it.*which).begin(it.x[0]->get(), it.x[1]->get(), tb.get(), tb.get() + 1, stream));
        // every GPU's own block first, then the others'
        auto for_each_block = [&](auto visit) {
            for (bool own : {true, false})
                for (gpu_t& it : gpu)
                    for (gpu_t& other : gpu) {
                        if ((&it == &other) != own) continue;
                        auto const& theirs = other.*which;
                        visit(it.*which, two_set_block_t{{other.x[0]->get(), other.x[1]->get()},
                                                         {theirs.log_sums(0), theirs.log_sums(1)},
                                                         other.live,
                                                         own});
                    }
        };
        if (s.nce) {
            for_each_block([&](auto& engine, auto const& block) { CALL(engine.sums(block, stream)); });
            for (gpu_t& it : gpu) CALL((it.*which).close_sums(stream));
        }
        for_each_block([&](auto& engine, auto const& block) { CALL(engine.score(block, stream)); });
        for (gpu_t& it : gpu)
            CALL((it.*which).finish(it.gradient[0]->get(), it.gradient[1]->get(), it.scalars->get(), stream));
    };
    struct result_t {
        std::vector<uint8_t> gradient[2];
        float scalars[3];
        bool operator==(result_t const& o) const {
            return gradient[0] == o.gradient[0] && gradient[1] == o.gradient[1] && !std::memcmp(scalars, o.scalars, 12);
        }
    };
    auto fetch = [&] {
        CHECK(cudaStreamSynchronize(stream));
        result_t r;
        for (int set = 0; set < 2; ++set) {
            r.gradient[set].resize(c.rows[0] * c.dims * element);
            CHECK(cudaMemcpy(r.gradient[set].data(), gpu[0].gradient[set]->get(), r.gradient[set].size(),
                             cudaMemcpyDeviceToHost));
        }
        CHECK(cudaMemcpy(r.scalars, gpu[0].scalars->get(), 12, cudaMemcpyDeviceToHost));
        for (size_t k = 1; c.ladder_engine && k < gpus; ++k) {  // their parts share other GPUs' cells
            float part[3];
            CHECK(cudaMemcpy(part, gpu[k].scalars->get(), 12, cudaMemcpyDeviceToHost));
            for (int i = 0; i < 3; ++i) r.scalars[i] += part[i];
        }
        return r;
    };
    step(&gpu_t::forward);
    float const forward_loss = fetch().scalars[0];
    step(&gpu_t::engine);
    result_t const got = fetch();
    // again, replayed from a graph, three times, on poisoned memory
    bool same = got.scalars[0] == forward_loss;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step(&gpu_t::engine);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int k = 0; k < 3; ++k) {
        for (gpu_t& it : gpu) {
            for (auto& out : it.gradient) CHECK(cudaMemset(out->get(), 0xff, out->bytes));
            CHECK(cudaMemset(it.scratch->get(), 0xff, it.bytes));
        }
        CHECK(cudaGraphLaunch(exec, stream));
        same = same && fetch() == got;
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    bool guards = true;
    for (gpu_t& it : gpu) {
        for (int set = 0; set < 2; ++set)
            guards = guards && it.x[set]->guards_hold() && it.gradient[set]->guards_hold();
        guards = guards && it.scratch->guards_hold() && it.scalars->guards_hold();
        for (auto* each : {&it.forward_scratch, &it.partial}) guards = guards && (!*each || (*each)->guards_hold());
    }

    double *norm[2], *cosine, *sums[2], *excess[2], *g, *ref[2], *terms[2], *out;
    for (int set = 0; set < 2; ++set) {
        CHECK(cudaMalloc(&norm[set], s.prefixes * n * 8));
        CHECK(cudaMalloc(&sums[set], s.prefixes * n * 8));
        CHECK(cudaMalloc(&excess[set], s.prefixes * n * 8));
        CHECK(cudaMalloc(&ref[set], n * c.dims * 8));
        CHECK(cudaMalloc(&terms[set], n * c.dims * 8));
        ref_norms<<<unsigned((n + 127) / 128), 128>>>(packed[set].get(), s, norm[set]);
    }
    CHECK(cudaMalloc(&cosine, s.prefixes * n * n * 8));
    CHECK(cudaMalloc(&g, s.prefixes * n * n * 8));
    CHECK(cudaMalloc(&out, 40));
    CHECK(cudaMemset(out, 0, 40));
    ref_cosines<<<dim3(unsigned((n + 15) / 16), unsigned((n + 15) / 16)), dim3(16, 16)>>>(
        packed[0].get(), packed[1].get(), s, norm[0], norm[1], cosine);
    if (s.nce)
        for (int set = 0; set < 2; ++set)
            ref_log_sums<<<dim3(unsigned((n + 127) / 128), s.prefixes), 128>>>(s, cosine, set, sums[set], excess[set]);
    ref_cells<<<dim3(unsigned((n + 127) / 128), unsigned(n), s.prefixes), 128>>>(
        s, cosine, sums[0], sums[1], excess[0], excess[1], 0, c.ladder_engine ? n : c.live[0], g, out);
    for (int set = 0; set < 2; ++set)
        ref_gradient<<<dim3(unsigned(n), unsigned((c.dims + 127) / 128)), 128>>>(
            packed[set].get(), packed[1 - set].get(), s, norm[set], norm[1 - set], g, cosine, set, ref[set],
            terms[set]);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    double want_sums[5];
    CHECK(cudaMemcpy(want_sums, out, 40, cudaMemcpyDeviceToHost));
    double worst = 0;
    char bands[512] = "";
    for (int set = 0; set < 2; ++set) {
        std::vector<double> want(c.live[0] * c.dims), cancelling(want.size());
        CHECK(cudaMemcpy(cancelling.data(), terms[set], want.size() * 8, cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(want.data(), ref[set], want.size() * 8, cudaMemcpyDeviceToHost));
        auto value = [&](int64_t i, int col) {
            size_t const at = size_t(i) * c.dims + col;
            return c.fp32 ? double(reinterpret_cast<float const*>(got.gradient[set].data())[at])
                          : double(float(reinterpret_cast<bf16_t const*>(got.gradient[set].data())[at]));
        };
        double all = 0;
        for (double w : want) all += w * w;
        for (int p0 = 0; p0 <= s.prefixes; ++p0) {
            int const begin = p0 ? s.prefix[p0 - 1] : 0, end = p0 < s.prefixes ? s.prefix[p0] : c.dims;
            double num = 0, den = 0, cancel = 0;
            for (int64_t i = 0; i < c.rows[0]; ++i)
                for (int col = begin; col < end; ++col) {
                    double const w = i < c.live[0] ? want[i * c.dims + col] : 0.0, d = value(i, col) - w;
                    num += d * d;
                    den += w * w;
                    if (i < c.live[0]) cancel += cancelling[i * c.dims + col] * cancelling[i * c.dims + col];
                }
            // a band whose gradient is below a millionth of the whole is measured against that; info_nce's weights p -
            // 1 cancel, so that it is held to 1e-4 of the terms that cancel (docs/contracts.md, section 3)
            double const scale = std::max(std::max(den, s.nce ? 1e-8 * cancel : 0.0),
                                          1e-12 * all * double(end - begin) / c.dims),
                         e = num == 0     ? 0
                             : scale == 0 ? 1e9
                                          : std::sqrt(num / scale);
            if (!(e <= worst)) worst = e;  // NaN sticks
            if (p0 < s.prefixes && p0 < 6)
                std::snprintf(bands + std::strlen(bands), sizeof bands - std::strlen(bands), " %.1e", e);
        }
        if (set == 0) std::snprintf(bands + std::strlen(bands), sizeof bands - std::strlen(bands), " |");
    }
    for (void* q :
         {(void*)norm[0], (void*)norm[1], (void*)sums[0], (void*)sums[1], (void*)excess[0], (void*)excess[1],
          (void*)ref[0], (void*)ref[1], (void*)terms[0], (void*)terms[1], (void*)cosine, (void*)g, (void*)out})
        CHECK(cudaFree(q));
    auto relative = [](double v, double w, double scale) {
        return v == w ? 0.0 : std::fabs(v - w) / (scale > 0 ? scale : 1e-300);
    };
    double const el = relative(got.scalars[0], want_sums[0], want_sums[0]),
                 et = relative(got.scalars[1], want_sums[1], want_sums[3]),
                 eb = relative(got.scalars[2], want_sums[2], want_sums[4]);
    // weights are bf16: 2e-3 at most each, which a mean over few cells does not lower; a ladder's are rounded twice
    // twice, or are fp16
    bool const fp16 = c.ladder_engine && c.ladder_engine->fp16.value_or(true);
    bool const wide_bins = s.nce && c.t > 220;  // of the first pass: 11 bits or less (info_nce_sums.cuh)
    double const limit = fp16 && c.fp32 && !wide_bins          ? (n <= 2 ? 1e-3 : 5e-4)
                         : c.ladder_engine && !fp16            ? 4e-3  // positives' roundings stay
                         : !c.fp32 || n <= 2 || s.prefixes > 1 ? 3e-3
                                                               : 2e-3;
    bool const ok = same && guards && worst <= limit && el <= 1e-5 && et <= 1e-4 && eb <= 1e-4;
    ok ? ++passed : ++failed;
    std::printf("%s %s R=%lld live=%lld of %lld D=%d P=%zu t=%g b=%g%s%s%s%s | dI, dC%s | loss %.1e dt %.1e db %.1e | "
                "repeats %s, guards %s%s\n",
                ok ? "ok   " : "WRONG", name_of(c.loss), (long long)c.rows[0], (long long)c.live[0], (long long)n,
                c.dims, c.ladder.size(), c.t, c.b, c.fp32 ? " fp32" : "", name_of(c.kind), c.ramp ? " ramp" : "",
                c.tuning.general           ? " general"
                : !c.ladder_engine         ? ""
                : c.ladder_engine->general ? " ladder engine, general"
                : fp16
                    ? (c.ladder_engine->packed_sums.value_or(false) ? " ladder engine, packed sums" : " ladder engine")
                    : " ladder engine, bf16",
                bands, el, et, eb, same ? "yes" : "NO", guards ? "hold" : "BROKEN",
                got.scalars[0] == forward_loss ? "" : ", forward differs");
    std::fflush(stdout);
}

/// By the engine of ladders.
std::vector<case_t> ladder_cases(loss_t loss, bool tiny) {
    std::vector<int> const article = {64, 128, 256, 512, 1024};
    std::vector<case_t> cases;
    auto add = [&](std::vector<int64_t> rows, std::vector<int64_t> live, double t, double b, bool fp32) {
        auto& it = cases.emplace_back(case_t{loss, std::move(rows), std::move(live), 1024, article, t, b, fp32});
        it.ladder_engine.emplace();
        return &it;
    };
    if (loss == loss_t::info_nce_k) {
        if (tiny) {
            add({130}, {130}, 5, 0, true)->kind = rows_t::zeros;
            add({200, 70}, {190, 70}, 10, 0, false);
            return cases;
        }
        for (double t : {1., 10., 100.})
            for (int64_t rows : {1, 2, 63, 65, 129, 300, 1000})
                for (bool fp32 : {false, true}) add({rows}, {rows}, t, 0, fp32);
        add({2049}, {2049}, 10, 0, false);
        for (double t : {20., 0.01, 0., 150., 250., -20.}) add({640}, {640}, t, 0, true);
        for (rows_t kind : {rows_t::zeros, rows_t::twins})
            for (double t : {5., 100., 150.})
                for (bool fp32 : {false, true})
                    if (kind == rows_t::zeros || t < 100) add({600}, {600}, t, 0, fp32)->kind = kind;
        add({1000}, {700}, 5, 0, false);
        for (double t : {5., 100.}) {
            add({1000, 1000, 1000}, {900, 1000, 100}, t, 0, true);
            add({300, 300}, {0, 200}, t, 0, false);
        }
        add({2049, 2049}, {2049, 2000}, 100, 0, false);
        add({4097}, {4000}, 5, 0, true);
        return cases;
    }
    if (tiny) {
        add({130}, {130}, 5, -1, true);
        add({200, 70}, {190, 70}, 10, -10, false);
        add({140, 140}, {140, 130}, 5, -1, false)->once = true;
        return cases;
    }
    struct tb_t {
        double t, b;
    };
    for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}, tb_t{100, -10}})
        for (int64_t rows : {1, 63, 65, 129, 300, 1000})
            for (bool fp32 : {false, true})
                if (rows > 1 || v.t < 100)  // one pair's weights are 1e-17 there, which fp16 does not hold
                    add({rows}, {rows}, v.t, v.b, fp32);
    add({2049}, {2049}, 10, -10, false);
    add({4097}, {4000}, 5, -1, true);
    for (tb_t v : {tb_t{20, 5}, tb_t{0.01, -5}, tb_t{0, -1}, tb_t{150, -10}}) add({640}, {640}, v.t, v.b, true);
    for (rows_t kind : {rows_t::zeros, rows_t::twins})
        for (bool fp32 : {false, true}) add({600}, {600}, 5, -1, fp32)->kind = kind;
    add({1000}, {700}, 5, -1, false);
    for (bool once : {false, true}) {
        add({1000, 1000, 1000}, {900, 1000, 100}, 5, -1, true)->once = once;
        add({300, 300}, {0, 200}, 5, -1, false)->once = once;
        add({2049, 2049}, {2049, 2000}, 10, -10, false)->once = once;
    }
    for (bool fp32 : {false, true}) {
        add({1000}, {1000}, 5, -1, fp32)->ladder_engine->general = true;
        if (!fp32) add({1000}, {1000}, 10, -10, false)->ladder_engine->fp16 = false;
    }
    for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}, tb_t{100, -10}})
        add({1000}, {1000}, v.t, v.b, false)->ladder_engine->packed_sums = true;
    for (bool once : {false, true}) {
        auto* const it = add({1000, 1000}, {900, 1000}, 5, -1, false);
        it->once = once;
        it->ladder_engine->packed_sums = true;
    }
    return cases;
}

int main(int argc, char** argv) {
    std::string const mode = argc > 1 ? argv[1] : "all";
    std::vector<int> const article = {64, 128, 256, 512, 1024};
    std::vector<case_t> cases;
    struct tb_t {
        double t, b;
    };
    auto one = [&](loss_t loss, int64_t rows, int dims, std::vector<int> ladder, tb_t v, bool fp32) {
        cases.push_back({loss, {rows}, {rows}, dims, std::move(ladder), v.t, v.b, fp32});
        return &cases.back();
    };
    bool const ladders = mode.starts_with("ladder"), nce = mode.starts_with("ladder_nce");
    if (ladders || mode == "all")
        cases = ladder_cases(nce ? loss_t::info_nce_k : loss_t::two_set_sigmoid_k, mode.ends_with("tiny"));
    if (mode == "all")
        for (case_t const& c : ladder_cases(loss_t::info_nce_k, false)) cases.push_back(c);
    for (loss_t loss : {loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        if (ladders) break;
        if (mode == "tiny") {  // for compute-sanitizer
            one(loss, 130, 256, {256}, {5, -1}, true);
            cases.push_back({loss, {200, 70}, {190, 70}, 256, {64, 192}, 5, -1, false});
            continue;
        }
        if (mode == "large") {
            one(loss, 8192, 768, {768}, {5, -1}, true);
            continue;
        }
        for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}, tb_t{100, -10}})
            for (int64_t rows : {129, 1000}) one(loss, rows, 768, {768}, v, true);
        one(loss, 4097, 768, {768}, {5, -1}, true);
        one(loss, 2000, 1024, article, {10, -10}, false);
        one(loss, 1000, 1024, article, {5, -1}, true);
        if (mode == "quick") continue;
        for (int64_t rows : {1, 2, 63, 64, 65, 127, 255, 257})
            for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}, tb_t{100, -10}}) one(loss, rows, 768, {768}, v, true);
        for (int64_t rows : {1, 2, 63, 64, 65, 127, 129}) one(loss, rows, 1024, article, {5, -1}, true);
        one(loss, 4097, 768, {768}, {10, -10}, false);
        one(loss, 1000, 1024, article, {100, -10}, false);
        for (tb_t v : {tb_t{20, 5}, tb_t{1, -20}, tb_t{0.01, -5}, tb_t{0, -1}, tb_t{150, -10}})
            one(loss, 1280, 768, {768}, v, true);
        one(loss, 1000, 64, {64}, {5, -1}, true);
        one(loss, 500, 4096, {64, 192, 448, 1024, 4096}, {5, -1}, false);
        one(loss, 300, 1088, {64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960, 1024}, {5, -1},
            true);
        one(loss, 1000, 1024, {704}, {5, -1}, false);  // columns past the last prefix
        one(loss, 1200, 1536, article, {5, -1}, false)->ramp = true;
        for (rows_t kind : {rows_t::zeros, rows_t::twins})
            for (tb_t v : {tb_t{5, -1}, tb_t{100, -10}}) {
                one(loss, 1000, 768, {768}, v, true)->kind = kind;
                // twins' two equal terms cancel in exact arithmetic: what is left of a ladder's are roundings of bf16
                // weights
                if (kind == rows_t::zeros || v.t < 100) one(loss, 600, 768, {64, 512}, v, true)->kind = kind;
            }
        for (bool ladder : {false, true}) {  // ragged; several GPUs; nobody alive
            std::vector<int> const l = ladder ? article : std::vector<int>{1024};
            cases.push_back({loss, {1000}, {700}, 1024, l, 5, -1, false});
            cases.push_back({loss, {1000, 1000, 1000}, {900, 1000, 100}, 1024, l, 5, -1, true});
            cases.push_back({loss, {300, 300}, {0, 200}, 1024, l, 5, -1, false});
        }
        for (two_set_tuning_t v : {two_set_tuning_t{2, 1, 2, 1, false}, two_set_tuning_t{8, 4, 3, 2, false},
                                   two_set_tuning_t{4, 8, 2, 1, false}, two_set_tuning_t{8, 4, 3, 1, true}})
            one(loss, 4000, 768, {768}, {5, -1}, true)->tuning = v;
    }
    for (case_t const& c : cases) run(c);
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
