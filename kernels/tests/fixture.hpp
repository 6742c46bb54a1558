// A step in guarded memory, and the float64 oracle it is held to: plain loops over cells, from the formulas.
#pragma once
#include <cstring>
#include <limits>
#include <map>
#include <vector>

#include "scaling_contrasts.hpp"
#include "testing.hpp"

namespace fixture {

using namespace scaling_contrasts;

struct result_t {
    scalars_t scalars;
    double scale_terms = 0, bias_terms = 0;      ///< sums of absolute terms
    std::vector<std::vector<double>> gradients;  ///< of each set, all devices' rows, `[world_size * rows][dims]`
    /// info_nce: what its positives alone lead to at a slope of 1, which the rest cancels; empty: not minded
    std::vector<std::vector<double>> cancelling;
};

/// Embeddings of every set, `[world_size * rows][dims]`; dead rows are NaN. `zero_rows` get a zero first prefix.
struct data_t {
    std::vector<std::vector<bf16_t>> sets;
    std::vector<std::int32_t> labels;
    std::vector<std::int64_t> live;  ///< global numbers
};

inline data_t make_data(problem_t const& problem, std::vector<std::int64_t> const& zero_rows = {}) {
    data_t data;
    int const sets = sets_of(problem.loss);
    std::int64_t const total = problem.rows * problem.world_size;
    bf16_t const poison(std::numeric_limits<float>::quiet_NaN());
    for (std::int64_t row = 0; row < total; ++row) {
        data.labels.push_back(label_of(sets == 1 ? problem.labels : label_layout_t::distinct_k, row));
        if (row % problem.rows < problem.live_of(static_cast<int>(row / problem.rows))) data.live.push_back(row);
    }
    for (int set = 0; set < sets; ++set) {
        std::vector<bf16_t> x(static_cast<std::size_t>(total * problem.dims), poison);
        for (std::int64_t const row : data.live)
            fill_row(problem.seed, set, row, data.labels[static_cast<std::size_t>(row)], problem.dims,
                     x.data() + row * problem.dims);
        for (std::int64_t const row : zero_rows)
            std::fill_n(x.data() + row * problem.dims, problem.prefixes[0], bf16_t(0.0f));
        data.sets.push_back(std::move(x));
    }
    return data;
}

/// Dot products, norms and cosines of one prefix in float64.
struct cosines_t {
    std::vector<double> norms[2], grid;  ///< norms of the first and the last set; grid over live rows
};

/// Live rows of a set in float64, `[n][dims]`.
inline std::vector<double> widened(problem_t const& problem, data_t const& data, std::size_t set) {
    std::vector<double> rows;
    for (std::int64_t const row : data.live)
        for (int c = 0; c < problem.dims; ++c)
            rows.push_back(static_cast<double>(
                static_cast<float>(data.sets[set][static_cast<std::size_t>(row * problem.dims + c)])));
    return rows;
}

inline cosines_t find_cosines(problem_t const& problem, std::vector<double> const& first,
                              std::vector<double> const& last, int prefix) {
    auto const dims = static_cast<std::size_t>(problem.dims), n = first.size() / dims;
    auto dot = [&](std::vector<double> const& x, std::size_t i, std::vector<double> const& y, std::size_t j) {
        double const *const u = x.data() + i * dims, *const v = y.data() + j * dims;
        double sum = 0;
        for (int c = 0; c < prefix; ++c) sum += u[c] * v[c];
        return sum;
    };
    cosines_t out;
    for (std::size_t i = 0; i < n; ++i) {
        out.norms[0].push_back(std::sqrt(dot(first, i, first, i)));
        out.norms[1].push_back(std::sqrt(dot(last, i, last, i)));
    }
    out.grid.assign(n * n, 0);
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j)
            if (out.norms[0][i] >= 1e-12 && out.norms[1][j] >= 1e-12)
                out.grid[i * n + j] = dot(first, i, last, j) / (out.norms[0][i] * out.norms[1][j]);
    return out;
}

inline double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }
inline double sigmoid(double x) { return x > 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }

/// one_set_info_nce: row by row, each positive pair's own softmax (NT-Xent: over it and the negatives; SupCon: over all
/// other rows). A softmax less 1 is minus the sum of the other shares, which keeps its digits.
inline std::vector<double> find_group_slopes(problem_t const& problem, data_t const& data, cosines_t const& cosines,
                                             double weight, double& loss) {
    std::size_t const n = data.live.size();
    auto positive = [&](std::size_t i, std::size_t j) {
        return i != j && data.labels[static_cast<std::size_t>(data.live[i])] ==
                             data.labels[static_cast<std::size_t>(data.live[j])];
    };
    std::vector<double> counts(n, 0), slopes(n * n, 0);
    double pairs = 0, anchors = 0;
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j < n; ++j) counts[i] += positive(i, j);
        pairs += counts[i], anchors += counts[i] > 0;
    }
    bool const sup_con = problem.form == form_t::sup_con_k;
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t p = 0; p < n; ++p) {
            if (!positive(i, p)) continue;
            double const term = weight / (sup_con ? anchors * counts[i] : pairs);
            double rest = 0;  // of the softmax's denominator, over the positive's own exponential
            auto joins = [&](std::size_t j) { return j != i && j != p && (sup_con || !positive(i, j)); };
            auto share = [&](std::size_t j) {
                return std::exp(problem.scale * (cosines.grid[i * n + j] - cosines.grid[i * n + p]));
            };
            for (std::size_t j = 0; j < n; ++j)
                if (joins(j)) rest += share(j);
            loss += term * std::log1p(rest);
            for (std::size_t j = 0; j < n; ++j)
                if (joins(j)) slopes[i * n + j] += term * share(j) / (1 + rest);
            slopes[i * n + p] -= term * rest / (1 + rest);
        }
    return slopes;
}

/// dL/dlogit of every cell, with the loss added to `loss`.
inline std::vector<double> find_slopes(problem_t const& problem, data_t const& data, cosines_t const& cosines,
                                       double weight, double& loss) {
    std::size_t const n = data.live.size();
    double const mean = weight / static_cast<double>(n);
    std::vector<double> slopes(n * n, 0);
    if (problem.loss == loss_t::info_nce_k) {
        for (bool across : {false, true})
            for (std::size_t i = 0; i < n; ++i) {
                auto cell = [&](std::size_t j) { return across ? j * n + i : i * n + j; };
                auto share = [&](std::size_t j) {  // over the positive's own: digits stay, as above
                    return std::exp(problem.scale * (cosines.grid[cell(j)] - cosines.grid[cell(i)]));
                };
                double rest = 0;
                for (std::size_t j = 0; j < n; ++j)
                    if (j != i) rest += share(j);
                loss += mean / 2 * std::log1p(rest);
                for (std::size_t j = 0; j < n; ++j)
                    slopes[cell(j)] += mean / 2 * (j == i ? -rest : share(j)) / (1 + rest);
            }
        return slopes;
    }
    if (problem.loss == loss_t::one_set_info_nce_k) return find_group_slopes(problem, data, cosines, weight, loss);
    bool const one = sets_of(problem.loss) == 1;
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) {
            if (one && i == j && !problem.self_pairs) continue;
            bool const positive = one ? data.labels[static_cast<std::size_t>(data.live[i])] ==
                                            data.labels[static_cast<std::size_t>(data.live[j])]
                                      : i == j;
            double const z = positive ? 1 : -1, logit = problem.scale * cosines.grid[i * n + j] + problem.bias;
            loss += mean * softplus(-z * logit);
            slopes[i * n + j] = -z * mean * sigmoid(-z * logit);
        }
    return slopes;
}

/// `cancels`: with the terms that cancel.
inline result_t oracle(problem_t const& problem, data_t const& data, bool cancels = false) {
    result_t out;
    std::size_t const n = data.live.size(), sets = data.sets.size(), last_set = sets - 1;
    for (auto const& x : data.sets) out.gradients.emplace_back(x.size(), 0.0);
    if (cancels) out.cancelling = out.gradients;
    auto const first = widened(problem, data, 0), last = widened(problem, data, last_set);
    for (std::size_t p = 0; p < problem.prefixes.size(); ++p) {
        int const prefix = problem.prefixes[p];
        auto const cosines = find_cosines(problem, first, last, prefix);
        auto const slopes = find_slopes(problem, data, cosines, problem.weight_of(p), out.scalars.loss);
        for (std::size_t i = 0; i < n; ++i)
            for (std::size_t j = 0; j < n; ++j) {
                double const slope = slopes[i * n + j], cosine = cosines.grid[i * n + j];
                out.scalars.scale_gradient += slope * cosine, out.scale_terms += std::abs(slope * cosine);
                out.scalars.bias_gradient += slope, out.bias_terms += std::abs(slope);
                double const a = cosines.norms[0][i], b = cosines.norms[1][j];
                if (slope == 0 || a < 1e-12 || b < 1e-12) continue;
                double const of_both = problem.scale * slope / (a * b), of_row = of_both * cosine * b / a,
                             of_column = of_both * cosine * a / b;
                double const *const u = first.data() + i * static_cast<std::size_t>(problem.dims),
                                    *const v = last.data() + j * static_cast<std::size_t>(problem.dims);
                for (std::size_t set = 0; i == j && set < out.cancelling.size(); ++set)
                    for (int c = 0; c < prefix; ++c)
                        out.cancelling[set][static_cast<std::size_t>(data.live[i] * problem.dims + c)] +=
                            problem.scale * problem.weight_of(p) / static_cast<double>(n) / (a * b) *
                            (set == 0 ? v : u)[c];
                double *const du = out.gradients[0].data() + data.live[i] * problem.dims,
                              *const dv = out.gradients[last_set].data() + data.live[j] * problem.dims;
                for (int c = 0; c < prefix; ++c) du[c] += of_both * v[c] - of_row * u[c];
                for (int c = 0; c < prefix; ++c) dv[c] += of_both * u[c] - of_column * v[c];
            }
    }
    if (is_softmax(problem.loss)) out.scalars.bias_gradient = out.bias_terms = 0;
    return out;
}

/// Runs `steps` steps with NaN guards around every array and NaN in dead rows and in the gradients beforehand; checks
/// that guards stay, dead rows' gradients are zero, and that steps repeat bit for bit.
template <class stepper_t>
result_t run_with(problem_t const& problem, data_t const& data, int threads, std::string const& engine, int steps = 2) {
    constexpr std::size_t guard = 256;
    std::size_t const sets = data.sets.size(), share = static_cast<std::size_t>(problem.rows * problem.dims);
    bool const wide = problem.gradient_type == gradient_type_t::float32_k;
    std::size_t const element = wide ? 4 : 2;
    std::vector<std::vector<bf16_t>> inputs;
    std::vector<std::vector<std::byte>> gradients;
    std::vector<set_t> views;
    for (std::size_t device = 0; device < static_cast<std::size_t>(problem.world_size); ++device)
        for (std::size_t set = 0; set < sets; ++set) {
            std::vector<bf16_t> x(share + 2 * guard, bf16_t(std::numeric_limits<float>::quiet_NaN()));
            std::memcpy(x.data() + guard, data.sets[set].data() + device * share, share * 2);
            inputs.push_back(std::move(x));
            gradients.emplace_back((share + 2 * guard) * element, std::byte{0xff});  // 0xff..: a NaN in both types
        }
    for (std::size_t slot = 0; slot < inputs.size(); ++slot)
        views.push_back({inputs[slot].data() + guard,
                         data.labels.data() + slot / sets * static_cast<std::size_t>(problem.rows),
                         gradients[slot].data() + guard * element});
    stepper_t step(problem, views, threads, engine);
    result_t out;
    std::vector<std::vector<std::byte>> before;
    for (int i = 0; i < steps; ++i) {
        scalars_t const scalars = step.run();
        if (i > 0) {
            testing::expect(scalars.loss == out.scalars.loss && scalars.scale_gradient == out.scalars.scale_gradient,
                            "scalars repeat");
            testing::expect(before == gradients, "gradients repeat");
        }
        out.scalars = scalars, before = gradients;
    }
    for (std::size_t set = 0; set < sets; ++set) out.gradients.emplace_back();
    for (std::size_t slot = 0; slot < inputs.size(); ++slot) {
        auto const& bytes = gradients[slot];
        for (std::size_t i = 0; i < guard * element; ++i)
            testing::expect(bytes[i] == std::byte{0xff} && bytes[bytes.size() - 1 - i] == std::byte{0xff},
                            "guards around gradients stay");
        for (std::size_t i = 0; i < share; ++i) {
            std::byte const* const from = bytes.data() + (guard + i) * element;
            double value;
            if (wide) {
                float number;
                std::memcpy(&number, from, 4), value = static_cast<double>(number);
            } else {
                bf16_t number;
                std::memcpy(&number, from, 2), value = static_cast<double>(static_cast<float>(number));
            }
            out.gradients[slot % sets].push_back(value);
            bool const dead =
                static_cast<std::int64_t>(i) / problem.dims >= problem.live_of(static_cast<int>(slot / sets));
            if (dead || static_cast<int>(i % static_cast<std::size_t>(problem.dims)) >= problem.prefixes.back())
                testing::expect(value == 0, "dead rows and columns past the ladder are zero");
        }
    }
    return out;
}

inline result_t run(problem_t const& problem, data_t const& data, int threads, std::string const& engine,
                    int steps = 2) {
    return run_with<step_t>(problem, data, threads, engine, steps);
}

/// Worst band's ||error|| / ||reference||, over all rows. With terms that cancel, relative to at least 1e-4 of those
/// (docs/contracts.md, section 3).
inline double band_error(problem_t const& problem, std::vector<double> const& got, std::vector<double> const& want,
                         std::vector<double> const& cancelling = {}) {
    double worst = 0;
    for (std::size_t band = 0; band < problem.prefixes.size(); ++band) {
        int const begin = band == 0 ? 0 : problem.prefixes[band - 1];
        double error = 0, reference = 0, terms = 0;
        for (std::size_t i = 0; i < want.size(); ++i) {
            int const column = static_cast<int>(i % static_cast<std::size_t>(problem.dims));
            if (column < begin || column >= problem.prefixes[band]) continue;
            error += (got[i] - want[i]) * (got[i] - want[i]), reference += want[i] * want[i];
            if (!cancelling.empty()) terms += cancelling[i] * cancelling[i];
        }
        reference = std::max(reference, 1e-8 * terms);
        // One pair alone has no gradient but rounding: the inverse norms are about 1e-3. Pairs learnt at t = 100 have
        // gradients of 1e-20.
        double const ratio = reference > 1e-44 ? std::sqrt(error / reference) : std::sqrt(error) > 1e-8 ? 1.0 : 0.0;
        worst = std::max(worst, std::isnan(ratio) ? 1e30 : ratio);
    }
    return worst;
}

inline std::string describe(problem_t const& problem, std::string const& engine) {
    return std::string(name_of(problem.loss)) +
           (problem.loss == loss_t::one_set_info_nce_k ? std::string(" ") + name_of(problem.form) : "") +
           " R=" + std::to_string(problem.rows) + " x " + std::to_string(problem.world_size) +
           " P=" + std::to_string(problem.prefixes.size()) + " labels " +
           std::to_string(static_cast<int>(problem.labels)) + " t=" + std::to_string(problem.scale) +
           (problem.self_pairs ? " self" : "") + (problem.pairs_once ? " pairs once" : "") + " on " + engine;
}

/// Scalars to what fp32 sums lose, gradients to `limit`.
inline void compare_within(double limit, problem_t const& problem, result_t const& got, result_t const& want,
                           std::string const& engine) {
    std::string const what = describe(problem, engine);
    testing::expect_below(std::abs(got.scalars.loss - want.scalars.loss), 1e-5 * want.scalars.loss + 1e-9,
                          what + ": loss");
    testing::expect_below(std::abs(got.scalars.scale_gradient - want.scalars.scale_gradient),
                          1e-4 * want.scale_terms + 1e-9, what + ": dt");
    testing::expect_below(std::abs(got.scalars.bias_gradient - want.scalars.bias_gradient),
                          1e-4 * want.bias_terms + 1e-9, what + ": db");
    for (std::size_t set = 0; set < want.gradients.size(); ++set)
        testing::expect_below(band_error(problem, got.gradients[set], want.gradients[set],
                                         want.cancelling.empty() ? std::vector<double>{} : want.cancelling[set]),
                              limit, what + ": dX of set " + std::to_string(set));
}

/// Tolerances: fp32 logits are off by scale * 2^-24, which exp makes relative, and fp32 sums of 1e5 terms lose 1e-6.
/// bf16 weights round at 2^-9 = 2e-3 at worst, 1.1e-3 in the mean; bf16 gradients add as much, independently. `cancel`
/// is for t = 100, where the projection off the row cancels most of a weight and leaves its rounding.
inline void compare(problem_t const& problem, result_t const& got, result_t const& want, std::string const& engine,
                    double cancel = 1) {
    bool const rounded = engine == "cpu-avx512bf16", wide = problem.gradient_type == gradient_type_t::float32_k;
    compare_within(cancel * (wide ? (rounded ? 2e-3 : 1e-5 * std::max(1.0, problem.scale / 20)) : 3e-3), problem, got,
                   want, engine);
}

inline std::vector<std::string> usable_engines() {
    std::vector<std::string> names;
    for (auto const* engine : cpu::engines())
        if (engine->usable()) names.push_back(engine->name);
    return names;
}

}  // namespace fixture
