// Correctness of the sm90 engine against float64, computed on the same GPU by plain loops over the formulas.
//   sm90_checks [quick|all|large|tiny|race|few|busy|variant TUNING]  one line a case, and at the end 'N passed, N failed'
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include "scaling_contrasts/inputs.hpp"
#include "scaling_contrasts/sm90/engine.cuh"
#include "scaling_contrasts/sm90/forward_engine.cuh"
#include "sm90_checks.cuh"
#include "sm90_tuning.cuh"

enum class labels_t { pairs, equal, distinct, mixed, scattered };
char const* name_of(labels_t l) {
    char const* names[] = {"pairs", "equal", "distinct", "mixed", "scattered"};
    return names[int(l)];
}
int32_t label_at(labels_t layout, int64_t row, int64_t rows) {
    switch (layout) {
    case labels_t::pairs: return label_of(label_layout_t::pairs_k, row);
    case labels_t::equal: return label_of(label_layout_t::equal_k, row);
    case labels_t::distinct: return label_of(label_layout_t::distinct_k, row);
    case labels_t::mixed: return label_of(label_layout_t::mixed_k, row);
    case labels_t::scattered: return int32_t(row % ((rows + 1) / 2)) - 7;  // partners far apart
    }
    return 0;
}

__global__ void fill(bf16_t* x, int32_t const* labels, int64_t rows, int dims, uint32_t seed, bool zero_rows) {
    int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= rows * dims) return;
    int64_t const row = i / dims;
    uint32_t const column = uint32_t(i % dims);
    float v =
        input_value(row_key(seed, group_stream_k, uint32_t(labels[row])), row_key(seed, 0, uint32_t(row)), column);
    v *= exp2f(float(int(mix(uint32_t(row)) % 13u) - 6));    // norms vary by powers of two
    if (zero_rows && row % 37 == 5) v = 0.f;                 // whole rows of zeros
    if (zero_rows && row % 41 == 3 && column < 64) v = 0.f;  // only the first prefix
    x[i] = bf16_t(v);
}

struct shape_t {
    int64_t rows, candidates;  // rows that get gradients are candidates 0 .. rows - 1
    int dims, prefixes, prefix[16];
    double weight[16], t, b;
    bool self_pairs;
};
__global__ void ref_norms(bf16_t const* x, shape_t const s, double* norm) {
    int64_t const i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= s.candidates) return;
    double sum = 0;
    for (int p = 0, c = 0; p < s.prefixes; ++p) {
        for (; c < s.prefix[p]; ++c) {
            double const v = float(x[i * s.dims + c]);
            sum += v * v;
        }
        norm[p * s.candidates + i] = sqrt(sum);
    }
}
/// out: loss, dt, db, sums of absolute terms of dt and db.
__global__ void ref_cells(bf16_t const* x, int32_t const* labels, shape_t const s, double const* norm, double* g,
                          double* cosine, double* out) {
    __shared__ double xi[16][17], xj[16][17];
    int64_t const i = int64_t(blockIdx.y) * 16 + threadIdx.y, j = int64_t(blockIdx.x) * 16 + threadIdx.x;
    int64_t const jl = int64_t(blockIdx.x) * 16 + threadIdx.y;
    bool const inside = i < s.rows && j < s.candidates;
    double dot = 0, loss = 0, dt = 0, db = 0, adt = 0, adb = 0;
    for (int p = 0, c0 = 0; p < s.prefixes; ++p) {
        for (; c0 < s.prefix[p]; c0 += 16) {
            __syncthreads();
            xi[threadIdx.y][threadIdx.x] = i < s.rows ? double(float(x[i * s.dims + c0 + threadIdx.x])) : 0.0;
            xj[threadIdx.y][threadIdx.x] = jl < s.candidates ? double(float(x[jl * s.dims + c0 + threadIdx.x])) : 0.0;
            __syncthreads();
            for (int k = 0; k < 16; ++k) dot += xi[threadIdx.y][k] * xj[threadIdx.x][k];
        }
        if (!inside) continue;
        double const ni = norm[p * s.candidates + i], nj = norm[p * s.candidates + j];
        double const co = ni < 1e-12 || nj < 1e-12 ? 0.0 : dot / (ni * nj), z = labels[i] == labels[j] ? 1 : -1,
                     y = -z * (s.t * co + s.b);
        bool const live = i != j || s.self_pairs;
        double const gr = live ? -z / (1 + exp(-y)) : 0;
        if (live) {
            loss += s.weight[p] * (fmax(y, 0.0) + log1p(exp(-fabs(y))));
            dt += s.weight[p] * gr * co;
            db += s.weight[p] * gr;
            adt += s.weight[p] * fabs(gr * co);
            adb += s.weight[p] * fabs(gr);
        }
        g[(p * s.rows + i) * s.candidates + j] = gr;
        cosine[(p * s.rows + i) * s.candidates + j] = co;
    }
    if (!inside) return;
    double const scale = 1.0 / double(s.candidates), v[5] = {loss, dt, db, adt, adb};
    for (int k = 0; k < 5; ++k) atomicAdd(out + k, v[k] * scale);
}
__global__ void ref_gradient(bf16_t const* x, shape_t const s, double const* norm, double const* g,
                             double const* cosine, double* dx) {
    int64_t const i = blockIdx.x;
    int const c = blockIdx.y * blockDim.x + threadIdx.x;
    if (c >= s.dims) return;
    double sum = 0;
    double const xi = float(x[i * s.dims + c]);
    for (int p = 0; p < s.prefixes; ++p) {
        double const ni = norm[p * s.candidates + i];
        if (c >= s.prefix[p] || ni < 1e-12) continue;
        double part = 0;
        for (int64_t j = 0; j < s.candidates; ++j) {
            double const nj = norm[p * s.candidates + j];
            int64_t const at = (p * s.rows + i) * s.candidates + j;
            if (nj >= 1e-12)
                part += g[at] * (double(float(x[j * s.dims + c])) / (ni * nj) - cosine[at] * xi / (ni * ni));
        }
        sum += s.weight[p] * part;
    }
    dx[i * s.dims + c] = 2.0 * s.t * sum / double(s.candidates);
}

struct case_t {
    int64_t rows, live, foreign;  // this GPU's rows; live ones; rows of another GPU's block
    int dims;
    std::vector<int> ladder;
    labels_t labels;
    double t, b;
    bool fp32 = false, self_pairs = false, zero_rows = false, ramp = false;
    sm90_tuning_t tuning = {};
    bool busy = false;  // once more beside another kernel
};

/// A kernel that keeps half of the multiprocessors for 20 ms or so.
__global__ void spin(unsigned* started, long long clocks) {
    long long const begin = clock64();
    if (threadIdx.x == 0) atomicAdd_system(started, 1u);
    while (clock64() - begin < clocks) __nanosleep(1000);
}
class busy_half_t {
  public:
    busy_half_t() {
        constexpr int shared = 200 * 1024;  // one a multiprocessor, and nothing beside it
        int sms = 0, khz = 0;
        CHECK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));
        CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
        CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
        CHECK(cudaHostAlloc(&started_, sizeof *started_, cudaHostAllocMapped));
        *started_ = 0;
        CHECK(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
        spin<<<unsigned(sms / 2), 32, shared, stream_>>>(started_, 20ll * khz);
        CHECK(cudaGetLastError());
        while (*const_cast<unsigned volatile*>(started_) < unsigned(sms / 2) && still()) {}
    }
    bool still() const { return cudaStreamQuery(stream_) == cudaErrorNotReady; }
    ~busy_half_t() {
        CHECK(cudaStreamSynchronize(stream_));
        CHECK(cudaStreamDestroy(stream_));
        CHECK(cudaFreeHost(started_));
    }

  private:
    cudaStream_t stream_ = nullptr;
    unsigned* started_ = nullptr;
};

int passed = 0, failed = 0, replays = 3;

/// The loss by the forward pass alone; NaN where a second run on poisoned memory differs or writes beside its scratch.
float forward_loss(gpu_problem_t const& p, bf16_t const* x, int32_t const* label, bf16_t const* foreign_x,
                   float const* tb) {
    size_t const bytes = sm90_forward_engine_t::scratch_bytes(p);
    array_t<uint8_t> scratch(bytes);
    array_t<float> scalars(4);
    sm90_forward_engine_t engine;
    CALL(engine.construct(p, scratch.get()));
    float loss[2];
    for (float& one : loss) {
        CHECK(cudaMemset(scratch.get(), 0xff, bytes));
        CALL(engine.begin(x, label, 0, tb, tb + 1, nullptr));
        CALL(engine.score(x, label, p.live, 0, true, nullptr));
        if (p.candidate_rows) CALL(engine.score(foreign_x, label + p.rows, p.candidate_rows, p.rows, false, nullptr));
        CALL(engine.finish(scalars.get(), nullptr));
        CHECK(cudaMemcpy(&one, scalars.get(), 4, cudaMemcpyDeviceToHost));
    }
    bool const right = loss[0] == loss[1] && scratch.guards_hold() && scalars.guards_hold();
    return right ? loss[0] : NAN;
}

void run(case_t const& c) {
    int64_t const total = c.rows + c.foreign, n = c.live + c.foreign;
    std::vector<int32_t> labels(total);
    for (int64_t i = 0; i < total; ++i) labels[i] = label_at(c.labels, i, n);
    array_t<bf16_t> x(total * c.dims), foreign_x(std::max<int64_t>(1, c.foreign * c.dims));
    array_t<int32_t> label(total);
    CHECK(cudaMemcpy(label.get(), labels.data(), total * 4, cudaMemcpyHostToDevice));
    fill<<<unsigned((total * c.dims + 255) / 256), 256>>>(x.get(), label.get(), total, c.dims, 1234u + unsigned(c.rows),
                                                          c.zero_rows);
    CHECK(cudaGetLastError());
    if (c.foreign)
        CHECK(cudaMemcpy(foreign_x.get(), x.get() + c.rows * c.dims, c.foreign * c.dims * 2, cudaMemcpyDeviceToDevice));
    // the reference sees live rows alone, this GPU's first
    array_t<bf16_t> packed(n * c.dims);
    array_t<int32_t> packed_label(n);
    CHECK(cudaMemcpy(packed.get(), x.get(), c.live * c.dims * 2, cudaMemcpyDeviceToDevice));
    CHECK(cudaMemcpy(packed_label.get(), label.get(), c.live * 4, cudaMemcpyDeviceToDevice));
    if (c.foreign) {
        CHECK(cudaMemcpy(packed.get() + c.live * c.dims, foreign_x.get(), c.foreign * c.dims * 2,
                         cudaMemcpyDeviceToDevice));
        CHECK(cudaMemcpy(packed_label.get() + c.live, label.get() + c.rows, c.foreign * 4, cudaMemcpyDeviceToDevice));
    }
    CHECK(cudaMemset(x.get() + c.live * c.dims, 0xff, (c.rows - c.live) * c.dims * 2));  // dead rows hold NaN

    gpu_problem_t p;
    p.rows = uint32_t(c.rows);
    p.live = uint32_t(c.live);
    p.dims = uint32_t(c.dims);
    p.prefix_count = uint32_t(c.ladder.size());
    shape_t s = {};
    s.rows = c.live;
    s.candidates = n;
    s.dims = c.dims;
    s.prefixes = int(c.ladder.size());
    s.t = c.t;
    s.b = c.b;
    s.self_pairs = c.self_pairs;
    for (size_t i = 0; i < c.ladder.size(); ++i) {
        p.prefixes[i] = uint32_t(c.ladder[i]);
        p.prefix_weights[i] = c.ramp ? float(i + 1) / 8 : 1.f / float(c.ladder.size());
        s.prefix[i] = c.ladder[i];
        s.weight[i] = p.prefix_weights[i];
    }
    p.self_pairs = c.self_pairs;
    p.fp32_gradients = c.fp32;
    p.total_live = uint64_t(n);
    p.candidate_rows = uint32_t(c.foreign);

    size_t const bytes = sm90_engine_t::scratch_bytes(p, c.tuning), element = c.fp32 ? 4 : 2;
    array_t<uint8_t> scratch(bytes), gradient(c.rows * c.dims * element);
    array_t<float> scalars(4), tb(2);
    float const host_tb[2] = {float(c.t), float(c.b)};
    CHECK(cudaMemcpy(tb.get(), host_tb, 8, cudaMemcpyHostToDevice));
    sm90_engine_t engine;
    CALL(engine.construct(p, scratch.get(), c.tuning));
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    auto step = [&] {
        CALL(engine.begin(x.get(), label.get(), 0, tb.get(), tb.get() + 1, stream, gradient.get()));
        CALL(engine.score(x.get(), label.get(), p.rows, p.live, 0, true, stream));
        if (c.foreign)
            CALL(engine.score(foreign_x.get(), label.get() + c.rows, uint32_t(c.foreign), uint32_t(c.foreign), c.rows,
                              false, stream));
        CALL(engine.finish(gradient.get(), scalars.get(), stream));
    };
    std::vector<uint8_t> out(c.rows * c.dims * element), again(out.size());
    float got[3], got_again[3];
    step();
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpy(out.data(), gradient.get(), out.size(), cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(got, scalars.get(), 12, cudaMemcpyDeviceToHost));
    // again, replayed from a graph, on poisoned memory
    bool same = true;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    step();
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    double beside = 0;  // ms beside another kernel
    for (int k = 0; k < replays + c.busy; ++k) {
        CHECK(cudaMemset(gradient.get(), 0xff, out.size()));
        size_t const kept = engine.kept_bytes();
        CHECK(cudaMemset(scratch.get() + kept, 0xff, bytes - kept));
        CHECK(cudaDeviceSynchronize());
        std::optional<busy_half_t> other;
        if (k == replays) other.emplace();
        auto const begin = std::chrono::steady_clock::now();
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaStreamSynchronize(stream));
        if (other) {
            beside = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
            same = same && other->still();  // it waited for nothing that the other one holds
            other.reset();
        }
        CHECK(cudaMemcpy(again.data(), gradient.get(), out.size(), cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(got_again, scalars.get(), 12, cudaMemcpyDeviceToHost));
        same = same && out == again && !std::memcmp(got, got_again, 12);
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    bool const guards = x.guards_hold() && foreign_x.guards_hold() && scratch.guards_hold() && gradient.guards_hold() &&
                        scalars.guards_hold() && label.guards_hold();

    double *norm, *g, *co, *ref, *sums;
    CHECK(cudaMalloc(&norm, s.prefixes * n * 8));
    CHECK(cudaMalloc(&g, s.prefixes * s.rows * n * 8));
    CHECK(cudaMalloc(&co, s.prefixes * s.rows * n * 8));
    CHECK(cudaMalloc(&ref, s.rows * c.dims * 8));
    CHECK(cudaMalloc(&sums, 40));
    CHECK(cudaMemset(sums, 0, 40));
    if (s.rows > 0) {
        ref_norms<<<unsigned((n + 127) / 128), 128>>>(packed.get(), s, norm);
        ref_cells<<<dim3(unsigned((n + 15) / 16), unsigned((s.rows + 15) / 16)), dim3(16, 16)>>>(
            packed.get(), packed_label.get(), s, norm, g, co, sums);
        ref_gradient<<<dim3(unsigned(s.rows), unsigned((c.dims + 127) / 128)), 128>>>(packed.get(), s, norm, g, co,
                                                                                      ref);
    }
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
    std::vector<double> want(s.rows * c.dims);
    double want_sums[5];
    CHECK(cudaMemcpy(want.data(), ref, want.size() * 8, cudaMemcpyDeviceToHost));
    CHECK(cudaMemcpy(want_sums, sums, 40, cudaMemcpyDeviceToHost));
    for (void* q : {(void*)norm, (void*)g, (void*)co, (void*)ref, (void*)sums}) CHECK(cudaFree(q));

    auto value = [&](int64_t i, int col) {
        size_t const at = size_t(i) * c.dims + col;
        return c.fp32 ? double(reinterpret_cast<float*>(out.data())[at])
                      : double(float(reinterpret_cast<bf16_t*>(out.data())[at]));
    };
    double worst = 0, all = 0;
    for (double w : want) all += w * w;
    char bands[256] = "";
    for (int p0 = 0; p0 <= s.prefixes; ++p0) {
        int const begin = p0 ? s.prefix[p0 - 1] : 0, end = p0 < s.prefixes ? s.prefix[p0] : c.dims;
        double num = 0, den = 0;
        for (int64_t i = 0; i < c.rows; ++i)
            for (int col = begin; col < end; ++col) {
                double const w = i < c.live ? want[i * c.dims + col] : 0.0, d = value(i, col) - w;
                num += d * d;
                den += w * w;
            }
        // a band whose gradient is below a millionth of the whole is measured against that
        double const scale = std::max(den, 1e-12 * all * double(end - begin) / c.dims),
                     e = num == 0     ? 0
                         : scale == 0 ? 1e9
                                      : std::sqrt(num / scale);
        if (!(e <= worst)) worst = e;  // NaN sticks
        if (p0 < s.prefixes && p0 < 6)
            std::snprintf(bands + std::strlen(bands), sizeof bands - std::strlen(bands), " %.1e", e);
    }
    auto relative = [](double v, double w, double scale) {
        return v == w ? 0.0 : std::fabs(v - w) / (scale > 0 ? scale : 1e-300);
    };
    double const el = relative(got[0], want_sums[0], want_sums[0]), et = relative(got[1], want_sums[1], want_sums[3]),
                 eb = relative(got[2], want_sums[2], want_sums[4]);
    double const forward =
        relative(forward_loss(p, x.get(), label.get(), foreign_x.get(), tb.get()), want_sums[0], want_sums[0]);
    double const limit = !c.fp32 ? 3e-3 : engine.fp16() ? 5e-4 : 2e-3;
    bool const ok = same && guards && worst <= limit && el <= 1e-5 && forward <= 1e-5 && et <= 1e-4 && eb <= 1e-4;
    ok ? ++passed : ++failed;
    std::printf("%s R=%lld live=%lld foreign=%lld D=%d P=%zu %s t=%g b=%g%s%s%s%s%s ring=%d wide=%d lag=%d %s "
                "| dX%s | "
                "loss %.1e, forward alone %.1e, dt %.1e db %.1e | repeats %s, guards %s\n",
                ok ? "ok   " : "WRONG", (long long)c.rows, (long long)c.live, (long long)c.foreign, c.dims,
                c.ladder.size(), name_of(c.labels), c.t, c.b, c.fp32 ? " fp32" : "", c.self_pairs ? " self" : "",
                c.zero_rows ? " zeros" : "", c.ramp ? " ramp" : "", c.tuning.general ? " general" : "", c.tuning.ring,
                c.tuning.wide, c.tuning.lag,
                engine.packed_sums()   ? "fp16, packed sums"
                : engine.fp16()        ? "fp16"
                : engine.one_launch()  ? "one launch"
                : engine.small_items() ? "small items"
                                       : "bf16",
                bands, el, forward, et, eb, same ? "yes" : "NO", guards ? "hold" : "BROKEN");
    if (c.busy) std::printf("     %.3f ms where another kernel holds half of the multiprocessors\n", beside);
    std::fflush(stdout);
}

int main(int argc, char** argv) {
    std::string const mode = argc > 1 ? argv[1] : "all";
    std::vector<int> const article = {64, 128, 256, 512, 1024};
    std::vector<case_t> cases;
    struct tb_t {
        double t, b;
    };
    for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}})
        cases.push_back({512, 512, 0, 1024, article, labels_t::pairs, v.t, v.b, true});
    cases.push_back({2048, 2048, 0, 1024, article, labels_t::pairs, 10, -10, false});
    if (mode == "quick") cases.push_back({3072, 3000, 0, 1024, article, labels_t::mixed, 5, -1, true});
    if (mode == "all") {
        cases.push_back({512, 512, 0, 1024, article, labels_t::distinct, 10, -10, true});
        for (int64_t rows : {1, 2, 63, 64, 65, 127, 129, 1000})
            cases.push_back({rows, rows, 0, 1024, article, labels_t::pairs, 5, -1, true});
        for (int64_t rows : {1, 2, 63, 65, 129, 1000})
            cases.push_back({rows, rows, 0, 1024, article, labels_t::pairs, 10, -10, false});
        for (labels_t l : {labels_t::equal, labels_t::distinct, labels_t::mixed, labels_t::scattered})
            for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}, tb_t{100, -10}}) {
                case_t c = {1000, 1000, 0, 1024, article, l, v.t, v.b, true};
                bool const learnt = l == labels_t::equal && v.t == 100;  // a band's weights are all nearly nothing
                if (!learnt) cases.push_back(c);
                c.tuning.fp16 = false;  // fp32 gradients of bf16 weights, where these hold 2e-3
                if (l == labels_t::equal || l == labels_t::mixed) cases.push_back(c);
            }
        for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}, tb_t{100, -10}, tb_t{20, 5}, tb_t{1, -20}, tb_t{0.01, -5}})
            cases.push_back({1280, 1280, 0, 1024, article, labels_t::pairs, v.t, v.b, true});
        for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}})
            cases.push_back({4097, 4097, 0, 1024, article, labels_t::pairs, v.t, v.b, true});
        cases.push_back({4097, 3100, 0, 1024, article, labels_t::mixed, 5, -1, false});
        cases.push_back({1000, 700, 0, 1024, article, labels_t::pairs, 5, -1, false, true});  // ragged; self pairs
        cases.push_back({300, 0, 200, 1024, article, labels_t::pairs, 5, -1, false});         // nobody alive here
        cases.push_back({1000, 1000, 0, 1024, article, labels_t::pairs, 5, -1, true, false, true});  // zero rows
        cases.push_back({1000, 900, 1100, 1024, article, labels_t::scattered, 5, -1, true});  // another GPU's block
        cases.push_back({2100, 2100, 3000, 1024, article, labels_t::pairs, 10, -10, true});
        cases.push_back({1000, 1000, 0, 1024, {1024}, labels_t::pairs, 5, -1, true});  // ladders
        cases.push_back({1000, 1000, 0, 768, {64, 512}, labels_t::pairs, 5, -1, true});
        cases.push_back({1000, 1000, 0, 64, {64}, labels_t::mixed, 5, -1, true});
        cases.push_back({500, 500, 0, 4096, {64, 192, 448, 1024, 4096}, labels_t::pairs, 5, -1, false});
        cases.push_back({500,
                         500,
                         700,
                         1088,
                         {64, 128, 192, 256, 320, 384, 448, 512, 576, 640, 704, 768, 832, 896, 960, 1024},
                         labels_t::pairs,
                         5,
                         -1,
                         true});
        cases.push_back(
            {1200, 1200, 0, 1536, article, labels_t::pairs, 5, -1, false, false, false, true});  // unequal weights
        case_t c = {4000, 4000, 0, 1024, article, labels_t::pairs, 5, -1, true};
        for (sm90_tuning_t v : {sm90_tuning_t{1, 2, 1, false, false}, sm90_tuning_t{1, 3, 1, false, false},
                                sm90_tuning_t{2, 3, 1, true, false}, sm90_tuning_t{1, 4, 2, true, false},
                                sm90_tuning_t{1, 4, 2, true, true}}) {
            c.tuning = v;
            cases.push_back(c);
            c.tuning.fp16 = false;
            cases.push_back(c);
        }
    }
    if (mode == "variant") {  // the article's ladder, where a tuning has corners
        cases.clear();
        auto tuning = tuning_of(argc > 2 ? argv[2] : "");
        if (!tuning) return 2;
        if (!tuning->fp16) tuning->fp16 = false;
        auto const add = [&](case_t c) {
            c.tuning = *tuning;
            cases.push_back(c);
        };
        for (int64_t rows : {1, 65, 129, 1000}) add({rows, rows, 0, 1024, article, labels_t::pairs, 5, -1, true});
        for (tb_t v : {tb_t{10, -10}, tb_t{5, -1}})
            add({1300, 1300, 0, 1024, article, labels_t::mixed, v.t, v.b, true});
        add({1300, 1300, 0, 1024, article, labels_t::mixed, 100, -10, false});
        add({4097, 3100, 0, 1024, article, labels_t::pairs, 10, -10, false});
        add({2400, 2400, 0, 1024, article, labels_t::distinct, 10, -10, false});
        add({1000, 900, 1100, 1024, article, labels_t::scattered, 5, -1, false, false, true});
        for (tb_t v :
             {tb_t{10, -10}, tb_t{5, -1}, tb_t{100, -10}})  // bf16 weights exceed 2e-3 with fp32 gradients here
            add({1000, 1000, 0, 1024, article, labels_t::distinct, v.t, v.b, *tuning->fp16});
    }
    if (mode == "tiny") {  // for compute-sanitizer
        cases.clear();
        cases.push_back({300, 250, 200, 1024, article, labels_t::pairs, 10, -10, false});
        cases.push_back({130, 130, 0, 256, {64, 192}, labels_t::mixed, 5, -1, true});
        cases.push_back({1100, 1100, 0, 1024, article, labels_t::pairs, 10, -10, false});
        case_t c = cases[0];
        c.tuning.small_items = false;
        cases.push_back(c);
        c.tuning.fp16 = true;  // rows lie where gradients go
        cases.push_back(c);
    }
    if (mode == "race") {  // the least that has tiles on and off the diagonal, and several superblocks, for racecheck
        cases.clear();
        replays = 1;
        cases.push_back({130, 130, 0, 1024, article, labels_t::pairs, 10, -10, false});
        cases.push_back({130, 130, 0, 256, {64, 192}, labels_t::mixed, 5, -1, true});
        cases.push_back({1100, 1100, 0, 64, {64}, labels_t::pairs, 10, -10, false});
        case_t c = cases[0];
        c.tuning.small_items = false;
        cases.push_back(c);
        c.tuning.small_items = true, c.tuning.one_launch = false;
        cases.push_back(c);
    }
    if (mode == "few") {  // the step in one launch, for compute-sanitizer
        cases.clear();
        replays = 1;
        case_t c = {130, 130, 0, 1024, article, labels_t::pairs, 10, -10, false};
        cases.push_back(c);
        c.tuning.small_items = c.tuning.one_launch = true, c.tuning.narrow_tiles = false;
        cases.push_back(c);
    }
    if (mode == "busy") {  // kernels that hold half of the multiprocessors do not hold up a step in one launch
        cases.clear();
        for (int64_t rows : {130, 1000, 3000})
            cases.push_back({rows, rows, 0, 1024, article, labels_t::mixed, 10, -10, false});
        for (case_t& c : cases) c.busy = true;
    }
    if (mode == "large") {
        cases.clear();
        cases.push_back({16384, 16384, 0, 1024, article, labels_t::pairs, 5, -1, true});
        cases.push_back(
            {128, 128, 2200000, 1024, {1024}, labels_t::pairs, 10, -10, true});  // offsets past 2^31 elements
    }
    for (case_t const& c : cases) run(c);
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
