// A device's share of a step for the box on streams that run late: the losses by loops in float64, each pass over the
// blocks that it is shown, and nothing but those. Log-sums are handed on in float32, as the engines do.
#pragma once
#include <cuda_runtime.h>

#include <limits>

#include "../fixture.hpp"
#include "scaling_contrasts/box/device_step.cuh"

namespace loops {

using namespace scaling_contrasts;

/// What belongs to no device: which rows are positives of each other, and how many live rows and pairs there are.
struct world_t {
    problem_t problem;
    std::vector<std::int32_t> labels;
    double rows = 0, pairs = 0;

    world_t(problem_t const& problem, fixture::data_t const& data)
        : problem(problem), labels(data.labels), rows(static_cast<double>(data.live.size())) {
        for (std::int64_t const i : data.live)
            for (std::int64_t const j : data.live) pairs += i != j && label(i) == label(j);
    }
    std::int32_t label(std::int64_t row) const { return labels[static_cast<std::size_t>(row)]; }
};

/// What a device's step came to.
struct share_t {
    scalars_t scalars;
    std::vector<std::vector<double>> gradients;  // of each set, [rows][dims]
};

class step_t final : public gpu::device_step_t {
  public:
    step_t(world_t const& world, int number, std::vector<gpu::set_t> own, double* out)
        : world_(world), problem_(world.problem), own_(std::move(own)), out_(out), number_(number) {
        for (auto& each : log_sums_) each.resize(static_cast<std::size_t>(2 * problem_.rows));
    }

    std::vector<share_t> steps;  ///< each one that is over
    std::string wrong;           ///< what a block was not; empty: all right

    bool gathers() const override { return is_softmax(problem_.loss); }
    bool gathers_positives() const override { return problem_.loss == loss_t::one_set_info_nce_k; }
    bool takes_groups() const override { return !gathers(); }
    float const* log_sums(int set) const override { return log_sums_[at(set)].data(); }
    std::int64_t log_sum_count(int) const override { return gathers() ? 2 * problem_.rows : 0; }
    std::int64_t launches() const override { return 1; }

    void begin(cudaStream_t stream) override {
        streams::launch(stream, [this] {
            share_ = {};
            for (int set = 0; set < sets(); ++set) {
                share_.gradients.emplace_back(at(problem_.rows * problem_.dims));
                sums_[at(set)].assign(at(2 * problem_.rows), 0);
                log_sums_[at(set)].assign(at(2 * problem_.rows), std::numeric_limits<float>::quiet_NaN());
            }
            kept_.clear();
        });
    }
    /// Sums over all candidates of a row, or over its negatives where rows have labels.
    void gather(gpu::candidates_t const& block, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            for_cells(block, [&](cell_t const& cell) {
                if (!gathers_positives() || cell.negative) sums_[cell.set][at(cell.row)] += std::exp(cell.logit);
            });
        });
    }
    void close_gather(cudaStream_t stream) override {
        streams::launch(stream, [this] { close(0); });
    }
    void gather_positives(gpu::candidates_t const& block, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            for_cells(block, [&](cell_t const& cell) {
                if (!cell.positive) return;
                double const rest = sums_[0][at(cell.row)];
                share_.scalars.loss += std::log1p(rest / std::exp(cell.logit)) / world_.pairs;
                sums_[0][at(problem_.rows + cell.row)] += 1 / (std::exp(cell.logit) + rest);
            });
        });
    }
    void close_positives(cudaStream_t stream) override {
        streams::launch(stream, [this] { close(problem_.rows); });
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            for_cells(block, [&](cell_t const& cell) { score_cell(block, cell); });
            if (block.stays) kept_.push_back({block, check_sum(block)});
        });
    }
    void finish(cudaStream_t stream) override {
        streams::launch(stream, [this] {
            for (auto const& [block, before] : kept_)
                if (check_sum(block) != before) wrong = "rows that were to stay are gone";
            out_[0] = share_.scalars.loss, out_[1] = share_.scalars.scale_gradient;
            out_[2] = share_.scalars.bias_gradient;
            steps.push_back(share_);
        });
    }

  private:
    /// A cell of own row `row` and candidate `column` of the block.
    struct cell_t {
        std::size_t set;  // the row's
        std::int64_t row, column;
        bool positive, negative;
        double cosine, logit;
        bf16_t const *u, *v;
        double u_norm, v_norm;
    };

    static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
    int sets() const { return sets_of(problem_.loss); }
    bf16_t const* row_of(bf16_t const* rows, std::int64_t row) const { return rows + row * problem_.dims; }
    double dot(bf16_t const* u, bf16_t const* v) const {
        double sum = 0;
        for (int c = 0; c < problem_.dims; ++c)
            sum += static_cast<double>(static_cast<float>(u[c])) * static_cast<double>(static_cast<float>(v[c]));
        return sum;
    }

    /// Live rows of both sides: of one set with the block's rows, of two with those of the other set.
    template <class visit_t>
    void for_cells(gpu::candidates_t const& block, visit_t&& visit) {
        std::int64_t const live = live_of(problem_, block);
        for (int set = 0; set < sets(); ++set)
            for (std::int64_t row = 0; row < problem_.live_of(number_); ++row)
                for (std::int64_t column = 0; column < live; ++column) {
                    int const device = (block.device + static_cast<int>(column / problem_.rows)) % problem_.world_size;
                    std::int64_t const mine = number_ * problem_.rows + row,
                                       other = device * problem_.rows + column % problem_.rows;
                    if (sets() == 1 && block.labels[column] != world_.label(other)) wrong = "another row's label";
                    bool const same = sets() == 1 ? world_.label(mine) == world_.label(other) : mine == other;
                    bool const itself = sets() == 1 && mine == other;
                    bf16_t const *const u = row_of(own_[at(set)].embeddings, row),
                                        *const v = row_of(block.embeddings[sets() - 1 - set], column);
                    double const a = std::sqrt(dot(u, u)), b = std::sqrt(dot(v, v)), cosine = dot(u, v) / (a * b);
                    visit(cell_t{at(set), row, column, same && !itself, !same, cosine,
                                 problem_.scale * cosine + (gathers() ? 0 : problem_.bias), u, v, a, b});
                }
    }
    void close(std::int64_t first) {
        for (int set = 0; set < sets(); ++set)
            for (std::int64_t i = first; i < first + problem_.rows; ++i)
                log_sums_[at(set)][at(i)] = static_cast<float>(std::log(sums_[at(set)][at(i)]));
    }

    void score_cell(gpu::candidates_t const& block, cell_t const& cell) {
        double const mean = 1 / world_.rows;
        bool const first = cell.set == 0;  // a cell of two sets is counted by its image's device
        double forth = 0, back = 0;        // slopes of the cell, and of its mirror image where there is one
        if (problem_.loss == loss_t::info_nce_k) {
            double const own = static_cast<double>(log_sums_[cell.set][at(cell.row)]),
                         other = static_cast<double>(block.log_sums[1 - cell.set][cell.column]);
            forth = mean / 2 * (std::exp(cell.logit - own) + std::exp(cell.logit - other) - (cell.positive ? 2 : 0));
            if (first && cell.positive) share_.scalars.loss += mean / 2 * (own + other - 2 * cell.logit);
        } else if (problem_.loss == loss_t::one_set_info_nce_k) {
            forth = group_slope(cell, log_sums_[0].data(), cell.row);
            back = group_slope(cell, block.log_sums[0], cell.column);
        } else if (cell.positive || cell.negative) {
            double const z = cell.positive ? 1 : -1;
            forth = -z * mean * fixture::sigmoid(-z * cell.logit);
            if (sets() == 1) back = forth;
            if (first) share_.scalars.loss += mean * fixture::softplus(-z * cell.logit);
        }
        if (first) share_.scalars.scale_gradient += forth * cell.cosine;
        if (first && !gathers()) share_.scalars.bias_gradient += forth;
        double* const gradient = share_.gradients[cell.set].data() + cell.row * problem_.dims;
        double const all = problem_.scale * (forth + back);
        for (int c = 0; c < problem_.dims; ++c)
            gradient[c] +=
                all * (static_cast<double>(static_cast<float>(cell.v[c])) / (cell.u_norm * cell.v_norm) -
                       cell.cosine * static_cast<double>(static_cast<float>(cell.u[c])) / (cell.u_norm * cell.u_norm));
    }
    /// NT-Xent, by a row's log-sums: of its negatives, and of 1 / (positive + negatives) over its positives.
    double group_slope(cell_t const& cell, float const* log_sums, std::int64_t row) const {
        if (!cell.positive && !cell.negative) return 0;
        auto const negatives = static_cast<double>(log_sums[row]),
                   positives = static_cast<double>(log_sums[problem_.rows + row]);
        if (cell.negative) return std::exp(cell.logit + positives) / world_.pairs;
        return -1 / (1 + std::exp(cell.logit - negatives)) / world_.pairs;
    }

    /// Of a block's rows, so that it is seen when they change.
    std::uint64_t check_sum(gpu::candidates_t const& block) const {
        std::uint64_t sum = 0;
        for (int set = 0; set < sets(); ++set)
            for (std::int64_t i = 0; i < live_of(problem_, block) * problem_.dims; ++i)
                sum = sum * 31 + block.embeddings[set][i].bits;
        return sum;
    }

    world_t const& world_;
    problem_t problem_;
    std::vector<gpu::set_t> own_;
    double* out_;
    int number_;
    share_t share_;
    std::vector<double> sums_[2];  // of each row, then of each row's positives
    std::vector<float> log_sums_[2];
    std::vector<std::pair<gpu::candidates_t, std::uint64_t>> kept_;
};

}  // namespace loops
