// Checks of the GPU engines against the float64 oracle of cuda_reference.cuh, on the GPU that is here. Prints one line
// a check with its errors, and last 'N passed, N failed'. Exit status 1 if any failed, 77 without a GPU.
//   cuda_checks [--engine sm80|sm90] [--only TEXT]
// --engine sm90: one_set_info_nce by that engine; its other losses have sm90_checks.cu and two_set_checks.cu.
#include <array>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "cuda_bench.cuh"
#include "offload_bench.cuh"
#include "scaling_contrasts/gpu/graph.cuh"

using namespace scaling_contrasts;
using namespace checks;

namespace {

int passed = 0, failed = 0;
std::string only;
bool sm90 = false;

void report(std::string const& name, bool ok, std::string const& detail) {
    std::printf("%s %s  %s\n", ok ? "ok  " : "FAIL", name.c_str(), detail.c_str());
    std::fflush(stdout);
    ++(ok ? passed : failed);
}

template <class... values_t>
std::string text(char const* format, values_t... values) {
    char line[512];
    std::snprintf(line, sizeof line, format, values...);
    return line;
}

/// Largest error over the bands, of both sets; infinite where something is not finite or ought to be zero and is not.
double band_error(problem_t const& p, std::vector<std::vector<float>> const& gradients,
                  reference::result_t const& expected) {
    double worst = 0;
    for (int set = 0; set < sets_of(p.loss); ++set) {
        auto const& got = gradients[static_cast<std::size_t>(set)];
        auto const& want = expected.gradient[set];
        int begin = 0;
        for (std::size_t band = 0; band <= p.prefixes.size(); ++band) {
            int const end = band < p.prefixes.size() ? p.prefixes[band] : p.dims;
            double error = 0, norm = 0;
            for (std::size_t row = 0; row < want.size() / p.dims; ++row)
                for (int c = begin; c < end; ++c) {
                    double const e = got[row * p.dims + c] - want[row * p.dims + c];
                    error += e * e, norm += want[row * p.dims + c] * want[row * p.dims + c];
                }
            double const relative =
                error == 0 ? 0
                           : std::sqrt(error / (norm + 1e-44));  // below 1e-22, about fp32's least, nothing is compared
            worst = std::isfinite(relative) ? std::max(worst, relative) : INFINITY;
            begin = end;
        }
    }
    return worst;
}

/// One comparison with the oracle. fp32 gradients have weights of two bf16 parts, made of slopes
/// of 10 significant bits: at most 1e-3 each. bf16 gradients are made of weights
/// rounded to bf16, 1.1e-3 to 2.6e-3 by where in a binade the weights lie, and add their own 1.6e-3. SupCon's slopes
/// have signs, and so one bit less.
bool agrees(problem_t const& p, reference::result_t const& want, std::vector<double> const& got,
            std::vector<std::vector<float>> const& gradients, bool guards_intact, std::string& detail) {
    auto relative = [](double error, double scale) {
        return error == 0 ? 0 : std::isfinite(error) ? std::fabs(error) / (std::fabs(scale) + 1e-22) : INFINITY;
    };
    double const loss = relative(got[0] - want.loss, want.loss),
                 scale = relative(got[1] - want.scale, want.scale_terms),
                 bias = relative(got[2] - want.bias, want.bias_terms), rows = band_error(p, gradients, want);
    bool const is_float = p.gradient_type == gradient_type_t::float32_k, grouped = p.loss == loss_t::one_set_info_nce_k;
    bool const signed_slopes = grouped && p.form == form_t::sup_con_k;
    bool const few =
        p.live_rows() < 16 || (grouped && p.scale > 50);  // weights make a row's gradient, a few at t = 100
    double const tolerance = is_float ? (signed_slopes ? 2e-3 : 1e-3) : few ? 4.5e-3 : 3.2e-3;
    detail = text("loss %.1e  dt %.1e  db %.1e  dX %.2e%s", loss, scale, bias, rows,
                  guards_intact ? "" : "  GUARDS OVERWRITTEN");
    return loss < 1e-5 && scale < 1e-4 && bias < 1e-4 && rows < tolerance && guards_intact;
}
bool agrees(bench_t const& bench, double t, double b, std::string& detail) {
    auto const& p = bench.description().problem;
    std::vector<std::vector<float>> gradients;
    for (int set = 0; set < sets_of(p.loss); ++set) gradients.push_back(bench.gradient(static_cast<std::size_t>(set)));
    return agrees(p, bench.reference(t, b), bench.scalars(), gradients, bench.guards_intact(), detail);
}

std::string describe(case_t const& c) {
    auto const& p = c.problem;
    char const* layouts[] = {"pairs", "distinct", "equal", "mixed"};
    std::string ladder;
    for (int prefix : p.prefixes) ladder += (ladder.empty() ? "" : ",") + std::to_string(prefix);
    bool const grouped = p.loss == loss_t::one_set_info_nce_k;
    return text("%s%s%s R=%lld%s D=%d [%s] t=%g b=%g%s%s%s%s%s", name_of(p.loss), grouped ? " " : "",
                grouped ? name_of(p.form) : "", static_cast<long long>(p.rows),
                p.world_size > 1 ? (" x " + std::to_string(p.world_size)).c_str() : "", p.dims, ladder.c_str(), p.scale,
                p.bias, sets_of(p.loss) == 1 ? (std::string(" ") + layouts[int(p.labels)]).c_str() : "",
                p.self_pairs ? " self" : "", p.live.empty() ? "" : " ragged",
                p.gradient_type == gradient_type_t::float32_k ? " fp32" : " bf16", c.zero_rows ? " zeros" : "") +
           (c.side_limit ? " side " + std::to_string(c.side_limit) : "") + (c.name.empty() ? "" : " " + c.name);
}

/// Runs `body` under a name, unless --only leaves it out; what it throws is a failure.
void check(std::string const& name, std::function<bool(std::string&)> const& body) {
    if (name.find(only) == std::string::npos) return;
    std::string detail;
    bool ok = false;
    try {
        ok = body(detail);
    } catch (std::exception const& problem) {
        detail = problem.what();
    }
    report(name, ok, detail);
}

/// A case as the sm90 engine takes it: it has no fp32 gradients of one_set_info_nce.
case_t by_sm90(case_t c) {
    c.sm90 = true;
    c.problem.gradient_type = gradient_type_t::bfloat16_k;
    c.name += " sm90";
    return c;
}

/// Values, guards, and that a second step gives the same bits.
void check_case(case_t c) {
    if (sm90) c = by_sm90(c);
    check(describe(c), [&](std::string& detail) {
        bench_t bench(c);
        bench.run();
        bool ok = agrees(bench, c.problem.scale, c.problem.bias, detail);
        auto const scalars = bench.scalars();
        std::vector<std::vector<std::uint16_t>> bits;
        for (int set = 0; set < sets_of(c.problem.loss); ++set) bits.push_back(bench.gradient_bits(set));
        bench.run();
        bool same = scalars == bench.scalars();
        for (int set = 0; set < sets_of(c.problem.loss); ++set) same &= bits[set] == bench.gradient_bits(set);
        if (!same) detail += "  SECOND STEP DIFFERS";
        return ok && same;
    });
}

std::vector<int> const article_k = {64, 128, 256, 512, 1024};

void check_shapes() {
    std::vector<std::vector<int>> const ladders = {article_k, {1024}, {256, 1024}};
    double const states[3][2] = {{5, -1}, {10, -10}, {100, -10}};
    label_layout_t const layouts[4] = {label_layout_t::pairs_k, label_layout_t::mixed_k, label_layout_t::equal_k,
                                       label_layout_t::distinct_k};
    int turn = 0;
    for (auto const loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k})
        for (std::int64_t const rows : {1, 2, 63, 64, 65, 127, 129, 1000, 4097})
            for (std::size_t ladder = 0; ladder < (rows > 4000 ? 2 : ladders.size()); ++ladder, ++turn) {
                case_t c;
                c.problem.loss = loss;
                c.problem.rows = rows;
                c.problem.prefixes = ladders[ladder];
                c.problem.scale = states[turn % 3][0];
                c.problem.bias = states[turn % 3][1];
                c.problem.labels = layouts[turn % 4];
                c.problem.self_pairs = turn % 5 == 0;
                c.problem.gradient_type = turn % 2 ? gradient_type_t::float32_k : gradient_type_t::bfloat16_k;
                check_case(c);
            }
}

/// Every (t, b) with every label layout, fp32 gradients.
void check_states() {
    for (auto const& [t, b] :
         std::vector<std::pair<double, double>>{{10, -10}, {5, -1}, {100, -10}, {1, -20}, {20, 5}, {0, -1}})
        for (auto const layout :
             {label_layout_t::pairs_k, label_layout_t::distinct_k, label_layout_t::equal_k, label_layout_t::mixed_k})
            for (bool const self : {false, true}) {
                case_t c;
                c.problem.rows = 300;
                c.problem.scale = t;
                c.problem.bias = b;
                c.problem.labels = layout;
                c.problem.self_pairs = self;
                c.problem.gradient_type = gradient_type_t::float32_k;
                check_case(c);
            }
}

/// one_set_info_nce: both forms at every layout of labels and size, alone and on several devices, in one superblock and
/// many.
void check_groups() {
    double const states[3] = {5, 10, 100};
    int turn = 0;
    for (auto const form : {form_t::nt_xent_k, form_t::sup_con_k})
        for (auto const layout :
             {label_layout_t::pairs_k, label_layout_t::distinct_k, label_layout_t::equal_k, label_layout_t::mixed_k}) {
            case_t c;
            c.problem.loss = loss_t::one_set_info_nce_k;
            c.problem.form = form;
            c.problem.labels = layout;
            for (std::int64_t const rows : {1, 2, 63, 64, 65, 127, 129, 1000})
                for (auto const& ladder : {article_k, std::vector<int>{1024}, std::vector<int>{256, 1024}}) {
                    case_t shaped = c;
                    shaped.problem.rows = rows;
                    shaped.problem.prefixes = ladder;
                    shaped.problem.scale = states[(turn + turn / 3) % 3];  // every ladder meets every one
                    shaped.problem.gradient_type =
                        ++turn % 2 ? gradient_type_t::float32_k : gradient_type_t::bfloat16_k;
                    shaped.side_limit = turn % 4 ? 0 : 256;
                    check_case(shaped);
                }
            for (auto const& live :
                 std::vector<std::vector<std::int64_t>>{{260, 133}, {7, 0, 150}, {150, 1, 131, 150}}) {
                case_t devices = c;
                devices.problem.rows = 260;
                devices.problem.live = live;
                devices.problem.world_size = static_cast<int>(live.size());
                devices.problem.gradient_type = gradient_type_t::float32_k;
                devices.side_limit = live.size() > 2 ? 128 : 0;
                devices.zero_rows = live.size() == 3;
                check_case(devices);
            }
        }
}

/// Odd ladders and widths, prefix weights, zero rows, ragged batches, several superblocks, several devices.
void check_forms() {
    struct form_t {
        int dims;
        std::vector<int> prefixes;
        std::vector<double> weights;
    };
    std::vector<form_t> const forms = {
        {64, {64}, {}},
        {16, {16}, {2}},
        {192, {16, 48, 192}, {0.5, 0.1, 0.4}},
        {768, {768}, {}},
        {1040, {96, 160, 1008}, {}},
        {4096, {64, 1024, 4096}, {}},
        {320, {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 240, 272, 320}, {}}};
    for (auto const loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        case_t c;
        c.problem.loss = loss;
        c.problem.scale = 5;
        c.problem.bias = -1;
        c.problem.gradient_type = gradient_type_t::float32_k;
        for (auto const& form : forms) {
            case_t shaped = c;
            shaped.problem.rows = 200;
            shaped.problem.dims = form.dims;
            shaped.problem.prefixes = form.prefixes;
            shaped.problem.prefix_weights = form.weights;
            check_case(shaped);
        }
        case_t zeros = c;
        zeros.problem.rows = 150;
        zeros.zero_rows = true;
        check_case(zeros);
        case_t ragged = c;
        ragged.problem.rows = 260;
        ragged.problem.live = {133};
        check_case(ragged);
        ragged.problem.live = {0};
        ragged.problem.world_size = 2;
        ragged.problem.live = {7, 0};
        check_case(ragged);
        case_t many = c;
        many.problem.rows = 1000;
        for (int const side : {128, 256, 384}) {
            many.side_limit = side;
            check_case(many);
        }
        case_t devices = c;
        devices.problem.rows = 150;
        devices.problem.world_size = 3;
        devices.problem.labels = label_layout_t::mixed_k;
        check_case(devices);
        devices.problem.live = {150, 1, 131};
        devices.side_limit = 128;
        check_case(devices);
    }
}

/// Streamed from the host's memory in blocks far smaller than the batch: the oracle's answer, and the same bits twice.
void check_offload() {
    for (auto const loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k})
        for (auto const& [rows, live, block_rows] : std::vector<std::array<std::int64_t, 3>>{{100, 100, 128},
                                                                                             {256, 256, 128},
                                                                                             {300, 300, 128},
                                                                                             {1000, 1000, 256},
                                                                                             {1000, 610, 128},
                                                                                             {1000, 77, 128}})
            for (auto const type : {gradient_type_t::float32_k, gradient_type_t::bfloat16_k}) {
                case_t c;
                c.problem.loss = loss;
                c.problem.rows = rows;
                if (live != rows) c.problem.live = {live};
                c.problem.scale = rows == 300 ? 100 : 5;
                c.problem.bias = -1;
                c.problem.prefixes = rows == 256 ? std::vector<int>{768} : article_k;
                if (rows == 256) c.problem.dims = 768;
                c.problem.labels = label_layout_t::mixed_k;
                c.problem.gradient_type = type;
                c.name = "offload by " + std::to_string(block_rows);
                check(describe(c), [&](std::string& detail) {
                    bench_t const bench(c);
                    offload_bench_t streamed(c.problem, block_rows);
                    streamed.run();
                    auto const want = bench.reference(c.problem.scale, c.problem.bias);
                    auto const scalars = streamed.scalars();
                    auto const gradients = streamed.gradients();
                    bool const ok = agrees(c.problem, want, scalars, gradients, true, detail);
                    streamed.run();
                    bool const same = scalars == streamed.scalars() && gradients == streamed.gradients();
                    if (!same) detail += "  SECOND STEP DIFFERS";
                    return ok && same;
                });
            }
}

/// A captured step must follow t, b and the embeddings as they change.
void check_graphs(std::vector<loss_t> const& losses) {
    for (auto const loss : losses) {
        case_t c;
        c.problem.loss = loss;
        c.problem.rows = 500;
        c.side_limit = 256;
        c.name = "graph";
        if (sm90) c = by_sm90(c);
        check(describe(c), [&](std::string& detail) {
            bench_t bench(c);
            bench.run();
            gpu::graph_t graph;
            graph.capture(bench.stream(), [&] { bench.queue(); });
            bool ok = true;
            int seed = 1;
            for (auto const& [t, b] : std::vector<std::pair<double, double>>{{10, -10}, {5, -1}, {100, -10}}) {
                bench.set_parameters(t, b);
                bench.fill(seed++);
                graph.replay(bench.stream());
                bench.wait();
                std::string one;
                if (!agrees(bench, t, b, one)) ok = false;
                detail += one + "; ";
            }
            return ok;
        });
    }
}

/// Rows past 2^31 elements: the last rows of 2.2 million against 64 candidates on another device.
void check_offsets() {
    check("offsets past 2^31 elements", [](std::string& detail) {
        problem_t p;
        p.rows = 2'200'000;
        p.world_size = 2;
        p.live = {p.rows, 64};
        p.scale = 5;
        p.bias = -1;
        p.gradient_type = gradient_type_t::float32_k;
        p.labels = label_layout_t::distinct_k;
        gpu::ledger_t ledger;
        gpu::buffer_t<bf16_t> x(ledger, p.rows * p.dims), y(ledger, 64 * p.dims);
        gpu::buffer_t<std::int32_t> labels(ledger, p.rows), other_labels(ledger, 64);
        gpu::buffer_t<float> gradient(ledger, p.rows * p.dims), parameters(ledger, 2);
        gpu::buffer_t<double> out(ledger, 6);
        gpu::fill_rows(p, 0, 0, p.rows, x.data(), labels.data(), nullptr);
        gpu::fill_rows(p, 0, p.rows, 64, y.data(), other_labels.data(), nullptr);
        float const values[2] = {5, -1};
        gpu::check(cudaMemcpy(parameters.data(), values, sizeof values, cudaMemcpyHostToDevice), "parameters");
        sm80::input_t const mine[1] = {{x.data(), labels.data(), gradient.data()}};
        sm80::engine_t engine(p, 0, mine, parameters.data(), parameters.data() + 1, out.data(), ledger);
        engine.begin(nullptr);
        engine.score({1, {y.data()}, other_labels.data(), {}}, nullptr);
        engine.finish(nullptr);
        gpu::check(cudaDeviceSynchronize(), "running");
        // the oracle: plain loops on the host, for a few rows
        auto value = [&](std::int64_t row, int c) {
            auto const key = static_cast<std::uint32_t>(row);
            return double(input_value(row_key(p.seed, group_stream_k, key), row_key(p.seed, 0, key),
                                      static_cast<std::uint32_t>(c)));
        };
        double error = 0, norm = 0;
        for (std::int64_t const row : {std::int64_t(0), p.rows / 2, std::int64_t(2'097'152), p.rows - 2, p.rows - 1}) {
            std::vector<double> xi(p.dims), want(p.dims);
            for (int c = 0; c < p.dims; ++c) xi[c] = value(row, c);
            for (int j = 0; j < 64; ++j) {
                double dot = 0, a = 0, b = 0;
                std::vector<double> xj(p.dims);
                for (int c = 0; c < p.dims; ++c) xj[c] = value(p.rows + j, c);
                for (int q = 0, c = 0; q < 5; ++q) {
                    for (; c < p.prefixes[q]; ++c) dot += xi[c] * xj[c], a += xi[c] * xi[c], b += xj[c] * xj[c];
                    double const cosine = dot / std::sqrt(a * b), g = 0.2 / (1 + std::exp(-(5 * cosine - 1)));
                    for (int k = 0; k < p.prefixes[q]; ++k)
                        want[k] +=
                            2 * 5.0 / double(p.live_rows()) * g * (xj[k] / std::sqrt(a * b) - cosine * xi[k] / a);
                }
            }
            std::vector<float> got(p.dims);
            gpu::check(cudaMemcpy(got.data(), gradient.data() + row * p.dims, got.size() * 4, cudaMemcpyDeviceToHost),
                       "row");
            for (int c = 0; c < p.dims; ++c)
                error += (got[c] - want[c]) * (got[c] - want[c]), norm += want[c] * want[c];
        }
        detail = text("dX %.2e", std::sqrt(error / norm));
        return std::sqrt(error / norm) < 1e-3;
    });
}

}  // namespace

int main(int count, char** words) {
    for (int i = 1; i + 1 < count; i += 2) {
        if (std::strcmp(words[i], "--only") == 0) only = words[i + 1];
        if (std::strcmp(words[i], "--engine") == 0) sm90 = std::strcmp(words[i + 1], "sm90") == 0;
    }
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        return std::printf("no CUDA device here: nothing checked\n"), 77;
    cudaDeviceProp properties;
    gpu::check(cudaGetDeviceProperties(&properties, 0), "asking for the device");
    std::printf("%s, compute capability %d.%d\n", properties.name, properties.major, properties.minor);
    if (sm90 && !(properties.major == 9 && bench::sm90_built()))
        return std::printf("the sm90 engine is not built, or does not run here: nothing checked\n"), 77;
    check_groups();
    if (sm90) {
        check_graphs({loss_t::one_set_info_nce_k});
    } else {
        check_shapes();
        check_states();
        check_forms();
        check_offload();
        check_graphs(
            {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k, loss_t::one_set_info_nce_k});
        check_offsets();
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed ? 1 : 0;
}
