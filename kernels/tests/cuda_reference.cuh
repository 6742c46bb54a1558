// The losses in float64 by plain loops on the GPU, written from the formulas of the loss and nothing else: the oracle
// of cuda_checks. Keeps every cell of every prefix, so it is for small sizes.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "scaling_contrasts/gpu/memory.cuh"

namespace reference {

using scaling_contrasts::bf16_t;
using scaling_contrasts::loss_t;
using scaling_contrasts::problem_t;
using scaling_contrasts::sets_of;
namespace gpu = scaling_contrasts::gpu;

struct result_t {
    double loss = 0, scale = 0, bias = 0;    // loss, dL/dt, dL/db
    double scale_terms = 0, bias_terms = 0;  // sums of the absolute values of their terms
    std::vector<double> gradient[2];         // [N][dims], dead rows included
};

struct grid_t {
    bf16_t const* x[2];                  // the two sides' rows
    int const* label;                    // null: the row's number
    int const* live;                     // 1 or 0
    double* inverse[2];                  // [P][N]: inverse norms, 0 below a norm of 1e-12
    double *cosine, *slope, *cell_loss;  // [P][N][N]
    double *row_log, *column_log;        // [P][N]: log of the sum over all
    double *row_rest, *column_rest;      // [P][N]: sum over negatives of e^(l - l of the positive)
    int rows, dims, prefixes, ends[16];
    double weight[16], t, b;
    bool one_set, nce, self_pairs, grouped, sup_con;
    double pairs, anchors;  // one_set_info_nce: positive pairs, rows that have positives
};

static __global__ void norms(grid_t g) {
    int const i = blockIdx.x * blockDim.x + threadIdx.x, side = blockIdx.y;
    if (i >= g.rows || !g.live[i]) return;
    double sum = 0;
    for (int p = 0, c = 0; p < g.prefixes; ++p) {
        for (; c < g.ends[p]; ++c) {
            double const v = static_cast<float>(g.x[side][std::int64_t(i) * g.dims + c]);
            sum += v * v;
        }
        g.inverse[side][std::int64_t(p) * g.rows + i] = sqrt(sum) < 1e-12 ? 0 : 1 / sqrt(sum);
    }
}

__device__ inline bool counts(grid_t const& g, int i, int j) {
    return g.live[i] && g.live[j] && !(g.one_set && i == j && !g.self_pairs);
}
__device__ inline bool positive(grid_t const& g, int i, int j) { return g.label ? g.label[i] == g.label[j] : i == j; }

static __global__ void cosines(grid_t g) {
    int const j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (j >= g.rows) return;
    double dot = 0;
    for (int p = 0, c = 0; p < g.prefixes; ++p) {
        std::int64_t const cell = (std::int64_t(p) * g.rows + i) * g.rows + j;
        g.cosine[cell] = g.slope[cell] = g.cell_loss[cell] = 0;
        if (!counts(g, i, j)) continue;
        for (; c < g.ends[p]; ++c)
            dot += double(static_cast<float>(g.x[0][std::int64_t(i) * g.dims + c])) *
                   double(static_cast<float>(g.x[1][std::int64_t(j) * g.dims + c]));
        g.cosine[cell] = dot * g.inverse[0][std::int64_t(p) * g.rows + i] * g.inverse[1][std::int64_t(p) * g.rows + j];
    }
}

/// info_nce: log-sum-exp over columns of each row (side 0), over rows of each column (side 1).
static __global__ void log_sums(grid_t g) {
    int const i = blockIdx.x * blockDim.x + threadIdx.x, p = blockIdx.y, side = blockIdx.z;
    if (i >= g.rows || !g.live[i]) return;
    auto logit = [&](int j) {
        return g.t * g.cosine[(std::int64_t(p) * g.rows + (side ? j : i)) * g.rows + (side ? i : j)];
    };
    double const own = logit(i);
    double rest = 0;
    for (int j = 0; j < g.rows; ++j)
        if (g.live[j] && j != i) rest += exp(logit(j) - own);
    (side ? g.column_rest : g.row_rest)[std::int64_t(p) * g.rows + i] = rest;
    (side ? g.column_log : g.row_log)[std::int64_t(p) * g.rows + i] = own + log1p(rest);
}

/// one_set_info_nce, one thread a row and prefix: each positive pair's own softmax, over it and the negatives (NT-Xent)
/// or all other rows (SupCon), one after the other.
static __global__ void group_slopes(grid_t g) {
    int const i = blockIdx.x * blockDim.x + threadIdx.x, p = blockIdx.y;
    if (i >= g.rows || !g.live[i]) return;
    std::int64_t const row = (std::int64_t(p) * g.rows + i) * g.rows;
    auto logit = [&](int j) { return g.t * g.cosine[row + j]; };
    auto positive_of_row = [&](int j) { return g.live[j] && j != i && g.label[i] == g.label[j]; };
    double count = 0;
    for (int j = 0; j < g.rows; ++j) count += positive_of_row(j);
    for (int k = 0; k < g.rows; ++k) {
        if (!positive_of_row(k)) continue;
        double const term = g.weight[p] / (g.sup_con ? g.anchors * count : g.pairs);
        auto joins = [&](int j) { return g.live[j] && j != i && j != k && (g.sup_con || !positive_of_row(j)); };
        double rest = 0;
        for (int j = 0; j < g.rows; ++j)
            if (joins(j)) rest += exp(logit(j) - logit(k));
        g.cell_loss[row + k] = term * log1p(rest);
        for (int j = 0; j < g.rows; ++j)
            if (joins(j)) g.slope[row + j] += term * exp(logit(j) - logit(k)) / (1 + rest);
        g.slope[row + k] -= term * rest / (1 + rest);
    }
}

/// A one-set gradient takes both mirrored cells at once: the mean of their slopes.
static __global__ void mean_of_mirrored(grid_t g) {
    int const j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, p = blockIdx.z;
    if (j >= g.rows || j >= i) return;
    std::int64_t const plane = std::int64_t(p) * g.rows;
    double &one = g.slope[(plane + i) * g.rows + j], &two = g.slope[(plane + j) * g.rows + i];
    one = two = (one + two) / 2;
}

/// Loss and dL/dlogit of every cell, but for 1/n.
static __global__ void slopes(grid_t g) {
    int const j = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y, p = blockIdx.z;
    if (j >= g.rows || !counts(g, i, j)) return;
    std::int64_t const cell = (std::int64_t(p) * g.rows + i) * g.rows + j;
    double const l = g.t * g.cosine[cell] + (g.nce ? 0 : g.b);
    if (g.nce) {
        double const row = g.row_log[std::int64_t(p) * g.rows + i], column = g.column_log[std::int64_t(p) * g.rows + j];
        double const row_rest = g.row_rest[std::int64_t(p) * g.rows + i],
                     column_rest = g.column_rest[std::int64_t(p) * g.rows + j];
        // the positive's slope, softmax - 1, by what the negatives have, which keeps its digits where the softmax is
        // near 1
        g.slope[cell] =
            g.weight[p] * 0.5 *
            (i == j ? -row_rest / (1 + row_rest) - column_rest / (1 + column_rest) : exp(l - row) + exp(l - column));
        g.cell_loss[cell] = i == j ? g.weight[p] * 0.5 * (log1p(row_rest) + log1p(column_rest)) : 0;
    } else {
        double const z = positive(g, i, j) ? 1 : -1, y = -z * l;  // softplus(y)
        g.cell_loss[cell] = g.weight[p] * (fmax(y, 0.0) + log1p(exp(-fabs(y))));
        g.slope[cell] = g.weight[p] * -z * (y > 0 ? 1 / (1 + exp(-y)) : exp(y) / (1 + exp(y)));
    }
}

/// Sums over one row of a prefix: loss, slope * cosine, |slope * cosine|, slope, |slope|.
static __global__ void row_sums(grid_t g, double* out) {
    int const i = blockIdx.x * blockDim.x + threadIdx.x, p = blockIdx.y;
    if (i >= g.rows) return;
    double sum[5] = {};
    for (int j = 0; j < g.rows; ++j) {
        std::int64_t const cell = (std::int64_t(p) * g.rows + i) * g.rows + j;
        double const s = g.slope[cell], c = g.cosine[cell];
        sum[0] += g.cell_loss[cell], sum[1] += s * c, sum[2] += fabs(s * c), sum[3] += s, sum[4] += fabs(s);
    }
    for (int k = 0; k < 5; ++k) out[(std::int64_t(p) * g.rows + i) * 5 + k] = sum[k];
}

/// d/dx of side `side`, of the sum of all cells: row i, column c.
static __global__ void gradients(grid_t g, int side, double* out) {
    int const c = blockIdx.x * blockDim.x + threadIdx.x, i = blockIdx.y;
    if (c >= g.dims) return;
    double sum = 0;
    for (int p = 0; p < g.prefixes && g.live[i]; ++p) {
        double const inverse = g.inverse[side][std::int64_t(p) * g.rows + i];
        if (c >= g.ends[p] || inverse == 0) continue;
        double const own = double(static_cast<float>(g.x[side][std::int64_t(i) * g.dims + c])) * inverse;
        for (int j = 0; j < g.rows; ++j) {
            std::int64_t const cell = (std::int64_t(p) * g.rows + (side ? j : i)) * g.rows + (side ? i : j);
            double const s = g.slope[cell], other_inverse = g.inverse[1 - side][std::int64_t(p) * g.rows + j];
            if (s == 0 || other_inverse == 0 || (g.one_set && i == j))
                continue;  // a self pair's cosine is 1 whatever x
            double const other =
                double(static_cast<float>(g.x[1 - side][std::int64_t(j) * g.dims + c])) * other_inverse;
            sum += s * (other - g.cosine[cell] * own) * inverse;
        }
    }
    out[std::int64_t(i) * g.dims + c] = sum;
}

/// Everything of the global mean loss. `x`: device pointers, [N][dims] for each set; `labels`, `live`: of all N rows.
inline result_t evaluate(problem_t const& problem, double t, double b, bf16_t const* const (&x)[2],
                         std::vector<int> const& labels, std::vector<int> const& live) {
    int const n_rows = static_cast<int>(problem.rows * problem.world_size),
              prefixes = static_cast<int>(problem.prefixes.size());
    bool const one_set = sets_of(problem.loss) == 1, grouped = problem.loss == loss_t::one_set_info_nce_k;
    double pairs = 0, anchors = 0;
    for (std::size_t i = 0; grouped && i < labels.size(); ++i) {
        double count = 0;
        for (std::size_t j = 0; j < labels.size(); ++j) count += i != j && live[i] && live[j] && labels[i] == labels[j];
        pairs += count, anchors += count > 0;
    }
    gpu::ledger_t ledger;
    std::int64_t const cells = std::int64_t(prefixes) * n_rows * n_rows, statistics = std::int64_t(prefixes) * n_rows;
    gpu::buffer_t<double> cosine(ledger, cells), slope(ledger, cells), cell_loss(ledger, cells),
        norm_0(ledger, statistics), norm_1(ledger, statistics), row_log(ledger, statistics),
        column_log(ledger, statistics), row_rest(ledger, statistics), column_rest(ledger, statistics),
        sums(ledger, statistics * 5), gradient(ledger, std::int64_t(n_rows) * problem.dims);
    gpu::buffer_t<int> label(ledger, n_rows), alive(ledger, n_rows);
    gpu::check(cudaMemcpy(label.data(), labels.data(), n_rows * 4, cudaMemcpyHostToDevice), "copying labels");
    gpu::check(cudaMemcpy(alive.data(), live.data(), n_rows * 4, cudaMemcpyHostToDevice), "copying live");
    grid_t g = {{x[0], one_set ? x[0] : x[1]},
                one_set ? label.data() : nullptr,
                alive.data(),
                {norm_0.data(), norm_1.data()},
                cosine.data(),
                slope.data(),
                cell_loss.data(),
                row_log.data(),
                column_log.data(),
                row_rest.data(),
                column_rest.data(),
                n_rows,
                problem.dims,
                prefixes,
                {},
                {},
                t,
                b,
                one_set,
                problem.loss == loss_t::info_nce_k,
                problem.self_pairs,
                grouped,
                problem.form == scaling_contrasts::form_t::sup_con_k,
                std::max(pairs, 1.0),
                std::max(anchors, 1.0)};
    for (int p = 0; p < prefixes; ++p) g.ends[p] = problem.prefixes[p], g.weight[p] = problem.weight_of(p);
    unsigned const blocks = (n_rows + 63) / 64, rows = n_rows, planes = prefixes;
    norms<<<dim3(blocks, 2), 64>>>(g);
    cosines<<<dim3(blocks, rows), 64>>>(g);
    if (g.nce) log_sums<<<dim3(blocks, planes, 2), 64>>>(g);
    if (grouped) {
        group_slopes<<<dim3(blocks, planes), 64>>>(g);
        mean_of_mirrored<<<dim3(blocks, rows, planes), 64>>>(g);
    } else slopes<<<dim3(blocks, rows, planes), 64>>>(g);
    row_sums<<<dim3(blocks, planes), 64>>>(g, sums.data());
    std::vector<double> host(statistics * 5);
    gpu::check(cudaMemcpy(host.data(), sums.data(), sums.bytes(), cudaMemcpyDeviceToHost), "summing rows");
    double n = 0;
    for (int alive_row : live) n += alive_row;
    if (grouped) n = 1;  // its means are in the terms
    result_t result;
    for (std::size_t i = 0; i < host.size(); i += 5) {
        result.loss += host[i] / n, result.scale += host[i + 1] / n, result.scale_terms += host[i + 2] / n;
        result.bias += host[i + 3] / n, result.bias_terms += host[i + 4] / n;
    }
    if (g.nce || grouped) result.bias = result.bias_terms = 0;
    for (int side = 0; side < (one_set ? 1 : 2); ++side) {
        gradients<<<dim3((problem.dims + 63) / 64, rows), 64>>>(g, side, gradient.data());
        result.gradient[side].resize(static_cast<std::size_t>(gradient.size()));
        gpu::check(cudaMemcpy(result.gradient[side].data(), gradient.data(), gradient.bytes(), cudaMemcpyDeviceToHost),
                   "gradients");
        for (double& v : result.gradient[side]) v *= t * (one_set ? 2 : 1) / n;  // one set: cell (j, i) mirrors (i, j)
    }
    return result;
}

}  // namespace reference
