// A training step of the loss on the CPU, over 1 to 16 virtual devices that live in this process:
//   begin(device), score(device, peer) for every peer, finish(device), all_reduce()
// `run` is that schedule. Only owners of rows accumulate their gradients: a device scores its rows against each peer's.
// The softmax losses score twice: `gather(device, peer)` finds the log-sums first, `close_gather(device)` ends that.
// one_set_info_nce visits the cells of positive pairs in between: `gather_positives`, `close_positives`.
// With problem.pairs_once a block of two devices is scored by one of them: `score(device, device)`, then round by round
// (pairs.hpp) `score_pair(device, round)` and, once all have, `take_pair(device, round)`. Devices may live in other
// processes (rails/step.hpp): `arrive(device, ...)` takes their embeddings as candidates.
#pragma once
#include <cmath>
#include <memory>
#include <span>
#include <unordered_map>

#include "scaling_contrasts/cell.hpp"
#include "scaling_contrasts/cpu/block.hpp"
#include "scaling_contrasts/cpu/partial.hpp"
#include "scaling_contrasts/cpu/targets.hpp"
#include "scaling_contrasts/devices.hpp"
#include "scaling_contrasts/pairs.hpp"

namespace scaling_contrasts {

/// One set of embeddings of one device: what goes in, and where its gradient comes out.
struct set_t {
    bf16_t const* embeddings = nullptr;    ///< `[rows][dims]`, the first `live` rows count
    std::int32_t const* labels = nullptr;  ///< group of each row; null: global row (or pair) numbers, all different
    void* gradient = nullptr;              ///< `[rows][dims]`, float or bf16_t as problem.gradient_type says
};

class step_t {
  public:
    /// Throws std::invalid_argument for an impossible problem, failure_t for an engine this machine lacks,
    /// std::bad_alloc. `sets[device * sets_of(loss) + set]` must outlive the step; those of devices elsewhere need
    /// labels alone.
    step_t(problem_t const& problem, std::vector<set_t> sets, int threads = 1, std::string const& engine = "auto",
           devices_t own = {})
        : problem_(problem),
          sets_(std::move(sets)),
          own_(own),
          kernels_(cpu::pick(engine)),
          ladder_(make_ladder(problem)),
          two_(sets_of(problem.loss) == 2),
          sums_(static_cast<std::size_t>(problem.world_size)) {
        check();
        add_space(threads);
        for (int device = 0; device < problem_.world_size; ++device)
            for (int set = 0; set < set_count(); ++set) sides_.push_back(make_side(device, set));
        if (problem_.pairs_once && pair_rounds(problem_) > 0)
            for (int device = 0; device < problem_.world_size; ++device) partials_.emplace_back(ladder_, problem_.rows);
        if (problem_.loss == loss_t::one_set_info_nce_k) count_positives();
    }

    std::string engine() const { return kernels_.name; }
    void set_scale(double scale) { problem_.scale = scale; }
    void set_bias(double bias) { problem_.bias = bias; }

    /// Norms of the device's rows; clears what the last step left.
    void begin(int device);
    /// For a device elsewhere: takes the embeddings of its sets, `[rows][dims]`, and finds their norms.
    void arrive(int device, std::span<bf16_t const* const> embeddings);
    /// Softmax losses only: log-sums of the device's rows over the peer's candidates; of one_set_info_nce, over
    /// negatives.
    void gather(int device, int peer);
    /// Softmax losses only: the device has gathered from every peer; info_nce's loss follows.
    void close_gather(int device);
    /// one_set_info_nce only: the same over positives, once all devices have closed the first.
    void gather_positives(int device, int peer);
    void close_positives(int device);
    /// Softmax losses only: what peers must know of a device before they score against it, `statistics_size()` floats.
    std::size_t statistics_size() const;
    void write_statistics(int device, float* out) const;
    void read_statistics(int device, float const* in);
    /// Scores the device's rows against the peer's candidates.
    void score(int device, int peer);
    /// problem.pairs_once only: scores the device's block of the round for its own rows and for the peer's, whose part
    /// of the gradients is left for that one.
    void score_pair(int device, int round);
    /// Adds what was left for the device in that round.
    void take_pair(int device, int round);
    /// Gradients of the device's rows from what `score` accumulated.
    void finish(int device);
    /// One device's part of the loss, dL/dt and dL/db.
    scalars_t const& part(int device) const { return sums_[static_cast<std::size_t>(device)]; }
    /// Loss, dL/dt and dL/db over all devices.
    scalars_t all_reduce() const;

    /// A workspace and `threads` threads for each device: members above may then be called by a thread per device,
    /// where barriers stand between what one writes and another reads (cpu/concurrent.hpp).
    void separate(int threads) {
        spaces_.clear();
        pools_.clear();
        for (int device = 0; device < problem_.world_size; ++device) add_space(threads);
    }

    /// The whole step. `stage` is called with the name of each part that has just ended.
    scalars_t run() {
        return run([](char const*) {});
    }
    template <class stage_t>
    scalars_t run(stage_t&& stage) {
        int const devices = problem_.world_size;
        for (int device = 0; device < devices; ++device) begin(device);
        stage("norms");
        if (is_softmax(problem_.loss)) {
            for_each_block([this](int device, int peer) { gather(device, peer); });
            for (int device = 0; device < devices; ++device) close_gather(device);
        }
        if (problem_.loss == loss_t::one_set_info_nce_k) {
            for_each_block([this](int device, int peer) { gather_positives(device, peer); });
            for (int device = 0; device < devices; ++device) close_positives(device);
        }
        if (is_softmax(problem_.loss)) stage("sums of the softmaxes");
        if (problem_.pairs_once) {
            for (int device = 0; device < devices; ++device) score(device, device);
            for (int round = 1; round <= pair_rounds(problem_); ++round) {
                for (int device = 0; device < devices; ++device) score_pair(device, round);
                for (int device = 0; device < devices; ++device) take_pair(device, round);
            }
        } else if (!problem_.forward_only ||
                   problem_.loss != loss_t::info_nce_k) {  // whose loss follows from its log-sums
            for_each_block([this](int device, int peer) { score(device, peer); });
        }
        stage("scores and gradients");
        for (int device = 0; device < devices; ++device) finish(device);
        stage("rounding and scalars");
        return all_reduce();
    }

  private:
    int set_count() const { return two_ ? 2 : 1; }
    void add_space(int threads) {
        spaces_.push_back(std::make_unique<cpu::workspace_t>(kernels_, ladder_, true));
        pools_.push_back(std::make_unique<pool_t>(threads));
    }
    /// The device's, or the one that all share.
    std::size_t space_of(int device) const { return spaces_.size() > 1 ? static_cast<std::size_t>(device) : 0; }
    cpu::workspace_t& space(int device) { return *spaces_[space_of(device)]; }
    pool_t& pool(int device) { return *pools_[space_of(device)]; }
    cpu::side_t& side(int device, int set) { return sides_[static_cast<std::size_t>(device * set_count() + set)]; }
    cpu::side_t const& side(int device, int set) const {
        return sides_[static_cast<std::size_t>(device * set_count() + set)];
    }
    set_t const& set_of(int device, int set) const {
        return sets_[static_cast<std::size_t>(device * set_count() + set)];
    }

    /// Own block first, then the peers in ring order: the schedule of real devices.
    template <class visit_t>
    void for_each_block(visit_t&& visit) {
        for (int shift = 0; shift < problem_.world_size; ++shift)
            for (int device = 0; device < problem_.world_size; ++device)
                visit(device, (device + shift) % problem_.world_size);
    }

    std::vector<buffer_t<float> const*> statistics_of(cpu::side_t const& side) const {
        if (problem_.loss == loss_t::info_nce_k) return {&side.log_sums, &side.rest};
        return {&side.log_sums, &side.rest, &side.own, &side.negatives};
    }
    void check() const;
    void find_norms(int device, int set, bool clear);
    cpu::side_t make_side(int device, int set) const;
    cpu::block_t make_block(cpu::objective_t objective, bool counts_loss, bool symmetric, bool both) const;
    void visit(cpu::objective_t objective, int device, int peer);
    void count_positives();
    void close_negatives(int device);
    /// What means are over: live rows or pairs; of one_set_info_nce positive pairs, or rows that have positives.
    double mean_over() const {
        return problem_.loss == loss_t::one_set_info_nce_k ? anchors_ : static_cast<double>(problem_.live_rows());
    }
    void add_self_pairs(int device);
    void write_row(cpu::side_t const& side, std::int64_t row, void* out) const;

    problem_t problem_;
    std::vector<set_t> sets_;
    devices_t own_;
    cpu::kernels_t const& kernels_;
    cpu::packed_ladder_t ladder_;
    bool two_;
    double anchors_ = 1;
    std::vector<std::unique_ptr<cpu::workspace_t>> spaces_;  // one, or one for each device
    std::vector<std::unique_ptr<pool_t>> pools_;             // likewise
    std::vector<cpu::partial_t> partials_;                   // pairs_once: of each device, what it has for its peer
    std::vector<cpu::side_t> sides_;
    std::vector<scalars_t> sums_;
};

inline void step_t::check() const {
    int const devices = problem_.world_size;
    if (devices < 1 || (own_.count == 0 ? devices : own_.count) > max_devices_k)
        throw std::invalid_argument("world_size is " + std::to_string(devices) + "; give 1 to " +
                                    std::to_string(max_devices_k));
    if (own_.first < 0 || own_.count < 0 || own_.first + own_.count > devices)
        throw std::invalid_argument("devices " + std::to_string(own_.first) + " to " +
                                    std::to_string(own_.first + own_.count - 1) + " are not all among " +
                                    std::to_string(devices));
    if (problem_.rows < 1)
        throw std::invalid_argument("rows is " + std::to_string(problem_.rows) + "; it must be at least 1");
    if (!problem_.live.empty() && static_cast<int>(problem_.live.size()) != devices)
        throw std::invalid_argument(std::to_string(problem_.live.size()) + " live counts for " +
                                    std::to_string(devices) + " devices; give one each");
    for (int device = 0; device < devices; ++device)
        if (problem_.live_of(device) < 0 || problem_.live_of(device) > problem_.rows)
            throw std::invalid_argument("live of device " + std::to_string(device) + " is " +
                                        std::to_string(problem_.live_of(device)) + "; it must be 0 to " +
                                        std::to_string(problem_.rows));
    if (problem_.live_rows() == 0)
        throw std::invalid_argument("live is 0 on every device; at least one row must be live");
    if (auto const reason = problem_.pairs_once ? pairs_unsupported(problem_) : ""; !reason.empty())
        throw failure_t(status_t::unsupported_k, reason);
    if (problem_.self_pairs && problem_.loss != loss_t::one_set_sigmoid_k)
        throw std::invalid_argument("self_pairs is for one_set_sigmoid alone; leave it out");
    if (sets_.size() != static_cast<std::size_t>(devices * set_count()))
        throw std::invalid_argument(std::to_string(sets_.size()) + " sets for " + std::to_string(devices) +
                                    " devices of " + std::to_string(set_count()));
}

inline cpu::side_t step_t::make_side(int device, int set) const {
    set_t const& from = set_of(device, set);
    cpu::side_t side;
    side.x = {from.embeddings, problem_.live_of(device), problem_.dims};
    side.padded = cpu::round_up(side.x.rows, cpu::block_k);
    auto const statistics = static_cast<std::size_t>(ladder_.count * side.padded);
    side.labels = buffer_t<std::int32_t>(static_cast<std::size_t>(side.padded));
    for (std::int64_t i = 0; i < side.x.rows; ++i)
        side.labels[static_cast<std::size_t>(i)] =
            from.labels && !two_ ? from.labels[i] : static_cast<std::int32_t>(device * problem_.rows + i);
    side.inverse_norms = buffer_t<float>(statistics);
    side.sums = buffer_t<float>(statistics);
    if (is_softmax(problem_.loss)) {
        side.greatest = buffer_t<float>(statistics);
        side.rest = buffer_t<float>(statistics);
        side.own = buffer_t<float>(statistics);
        side.log_sums = buffer_t<float>(statistics);
    }
    if (problem_.loss == loss_t::one_set_info_nce_k) {
        side.negatives = buffer_t<float>(statistics);
        side.each = buffer_t<float>(static_cast<std::size_t>(side.padded));
    }
    if (!own_.hold(device) || problem_.forward_only) return side;  // no gradient
    if (problem_.gradient_type == gradient_type_t::float32_k && ladder_.panels_are_columns()) {
        side.accumulator = static_cast<float*>(from.gradient);
        side.accumulator_stride = problem_.dims;
    } else {
        side.accumulator_stride = ladder_.panels() * cpu::panel_k;
        side.own_accumulator = buffer_t<float>(static_cast<std::size_t>(side.x.rows * side.accumulator_stride));
        side.accumulator = side.own_accumulator.data();
    }
    return side;
}

/// Each row's positives over all devices, and how many terms the mean is over.
inline void step_t::count_positives() {
    std::unordered_map<std::int32_t, std::int64_t> groups;
    for (auto const& side : sides_)
        for (std::int64_t i = 0; i < side.x.rows; ++i) ++groups[side.labels[static_cast<std::size_t>(i)]];
    std::int64_t pairs = 0, rows = 0;
    for (auto& side : sides_)
        for (std::int64_t i = 0; i < side.x.rows; ++i) {
            std::int64_t const positives = groups[side.labels[static_cast<std::size_t>(i)]] - 1;
            side.each[static_cast<std::size_t>(i)] = positives ? 1.0f / static_cast<float>(positives) : 0.0f;
            pairs += positives, rows += positives > 0;
        }
    anchors_ = static_cast<double>(std::max<std::int64_t>(1, problem_.form == form_t::nt_xent_k ? pairs : rows));
}

inline void step_t::begin(int device) {
    sums_[static_cast<std::size_t>(device)] = {};
    for (int set = 0; set < set_count(); ++set) {
        cpu::side_t& s = side(device, set);
        s.sums.zero();
        s.rest.zero();
        for (std::size_t i = 0; i < s.greatest.size(); ++i) s.greatest[i] = -1e30f;
        find_norms(device, set, true);
    }
}

inline void step_t::arrive(int device, std::span<bf16_t const* const> embeddings) {
    for (int set = 0; set < set_count(); ++set) {
        cpu::side_t& s = side(device, set);
        s.x.data = embeddings[static_cast<std::size_t>(set)];
        find_norms(device, set, false);
    }
}

/// Inverse norms of every prefix of every row; `clear`: and a gradient of zero.
inline void step_t::find_norms(int device, int set, bool clear) {
    cpu::side_t& s = side(device, set);
    auto const width = static_cast<std::size_t>(ladder_.panels() * cpu::panel_k);
    int const parts = static_cast<int>((s.x.rows + cpu::task_k - 1) / cpu::task_k);
    pool(device).run(parts, [&](int part) {
        std::int64_t const end = std::min<std::int64_t>(s.x.rows, (part + 1) * cpu::task_k);
        for (std::int64_t row = part * cpu::task_k; row < end; ++row) {
            if (clear && !problem_.forward_only)
                std::memset(s.accumulator + row * s.accumulator_stride, 0, width * sizeof(float));
            float square = 0;
            for (int p = 0; p < ladder_.count; ++p) {
                band_t const band = ladder_.bands[static_cast<std::size_t>(p)];
                square += kernels_.square_sum(s.x.row(row), band.begin, band.end);
                float const norm = std::sqrt(square);
                s.inverse_norms[static_cast<std::size_t>(p * s.padded + row)] =
                    norm < least_norm_k ? 0.0f : 1.0f / norm;
            }
        }
    });
}

inline cpu::block_t step_t::make_block(cpu::objective_t objective, bool counts_loss, bool symmetric, bool both) const {
    bool const info_nce = problem_.loss == loss_t::info_nce_k;
    cpu::block_t block = {objective,
                          problem_.form,
                          symmetric,
                          both,
                          problem_.forward_only,
                          static_cast<float>(problem_.scale * log2e_k),
                          is_softmax(problem_.loss) ? 0.0f : static_cast<float>(problem_.bias * log2e_k),
                          {},
                          {}};
    for (int p = 0; p < ladder_.count; ++p) {
        double const weight =
            static_cast<double>(ladder_.weights[static_cast<std::size_t>(p)]) / mean_over() * (info_nce ? 0.5 : 1.0);
        // A row of one set meets each other row twice, as row and as candidate; one that serves both is scored once.
        block.gradient_coefficient[static_cast<std::size_t>(p)] = static_cast<float>(weight * (two_ ? 1.0 : 2.0));
        block.loss_coefficient[static_cast<std::size_t>(p)] = static_cast<float>(!counts_loss    ? 0
                                                                                 : both && !two_ ? 2 * weight
                                                                                                 : weight);
    }
    return block;
}

inline void step_t::visit(cpu::objective_t objective, int device, int peer) {
    bool const own = device == peer;
    auto& sums = sums_[static_cast<std::size_t>(device)];
    auto block = [&](cpu::side_t& rows, cpu::side_t& candidates, bool counts_loss) {
        if (rows.x.rows == 0 || candidates.x.rows == 0) return;
        cpu::score_block(kernels_, pool(device), ladder_, space(device), rows, candidates,
                         make_block(objective, counts_loss, own && !two_, own), sums);
    };
    if (!two_) return block(side(device, 0), side(peer, 0), true);
    block(side(device, 0), side(peer, 1), true);
    if (!own) block(side(device, 1), side(peer, 0), false);
}

inline void step_t::score(int device, int peer) {
    visit(problem_.loss == loss_t::info_nce_k           ? cpu::objective_t::info_nce_k
          : problem_.loss == loss_t::one_set_info_nce_k ? cpu::objective_t::groups_k
                                                        : cpu::objective_t::sigmoid_k,
          device, peer);
}

inline void step_t::score_pair(int device, int round) {
    pair_t const pair = pair_of(problem_, device, round, cpu::task_k);
    cpu::side_t& rows = side(device, 0);
    cpu::side_t& candidates =
        partials_[static_cast<std::size_t>(device)].open(side(pair.peer, set_count() - 1), pair.candidates);
    cpu::block_t block = make_block(cpu::objective_t::sigmoid_k, true, false, true);
    block.first_row = pair.first_row;
    if (candidates.x.rows)
        cpu::score_block(kernels_, pool(device), ladder_, space(device), rows, candidates, block,
                         sums_[static_cast<std::size_t>(device)]);
}

inline void step_t::take_pair(int device, int round) {
    partials_[static_cast<std::size_t>(source_of(problem_, device, round))].add_to(side(device, set_count() - 1),
                                                                                   pool(device));
}

inline void step_t::gather(int device, int peer) {
    visit(problem_.loss == loss_t::info_nce_k ? cpu::objective_t::statistics_k : cpu::objective_t::negatives_k, device,
          peer);
}

inline void step_t::gather_positives(int device, int peer) { visit(cpu::objective_t::positives_k, device, peer); }

/// log2 of each row's sum over negatives; the running sums start anew, for the positives.
inline void step_t::close_negatives(int device) {
    cpu::side_t& s = side(device, 0);
    for (std::size_t at = 0; at < s.greatest.size(); ++at) {
        s.negatives[at] = s.rest[at] > 0 ? s.greatest[at] + std::log2(s.rest[at]) : -1e30f;
        s.greatest[at] = -1e30f, s.rest[at] = 0;
    }
}

/// From the sums over positives: what weighs the negatives, and SupCon's part of the loss that is a row's, not a
/// cell's.
inline void step_t::close_positives(int device) {
    cpu::side_t& s = side(device, 0);
    double sum = 0;
    for (int p = 0; p < ladder_.count; ++p)
        for (std::int64_t row = 0; row < s.x.rows; ++row) {
            auto const at = static_cast<std::size_t>(p * s.padded + row);
            bool const has = s.each[static_cast<std::size_t>(row)] > 0;
            // the logarithms of sums in double: at t = 100 a float of their size has 1e-5 to spare
            double const negatives = static_cast<double>(s.negatives[at]);
            double const positives =
                has ? static_cast<double>(s.greatest[at]) + std::log2(static_cast<double>(s.rest[at])) : -1e30;
            s.own[at] = static_cast<float>(positives);
            if (problem_.form == form_t::nt_xent_k) {
                s.log_sums[at] = static_cast<float>(negatives - positives);  // without positives 1e30: no weight
                continue;
            }
            double const ratio = std::exp2(negatives - positives);  // may be infinite
            double const loss = ratio > 1e300 ? (negatives - positives) * std::log(2.0) : std::log1p(ratio);
            s.rest[at] = has ? static_cast<float>(ratio > 1e300 ? 1 : ratio / (1 + ratio)) : 0.0f;
            s.log_sums[at] = has ? static_cast<float>(positives + loss / std::log(2.0)) : 1e30f;
            if (has) sum += static_cast<double>(ladder_.weights[static_cast<std::size_t>(p)]) * loss;
        }
    sums_[static_cast<std::size_t>(device)] = {problem_.form == form_t::nt_xent_k ? 0 : sum / mean_over(), 0, 0};
}

inline void step_t::close_gather(int device) {
    if (problem_.loss == loss_t::one_set_info_nce_k) return close_negatives(device);
    // Each row's loss is log(1 + rest / own) in the exponentials' terms: exact also where the positive dominates.
    double sum = 0;
    for (int set = 0; set < 2; ++set) {
        cpu::side_t& s = side(device, set);
        for (int p = 0; p < ladder_.count; ++p)
            for (std::int64_t row = 0; row < s.x.rows; ++row) {
                auto const at = static_cast<std::size_t>(p * s.padded + row);
                double const below = static_cast<double>(s.greatest[at]) - static_cast<double>(s.own[at]);
                double const rest = static_cast<double>(s.rest[at]), whole = rest + std::exp2(-below);
                double const log_whole = below == 0 ? std::log1p(rest) : std::log(whole);
                sum += static_cast<double>(ladder_.weights[static_cast<std::size_t>(p)]) *
                       (below * std::log(2.0) + log_whole);
                s.log_sums[at] = s.greatest[at] + static_cast<float>(log_whole / std::log(2.0));
                s.rest[at] = static_cast<float>(rest / whole);
            }
    }
    sums_[static_cast<std::size_t>(device)] = {sum / (2.0 * static_cast<double>(problem_.live_rows())), 0, 0};
}

inline std::size_t step_t::statistics_size() const {
    auto const arrays = statistics_of(sides_[0]).size() * static_cast<std::size_t>(set_count());
    return arrays * static_cast<std::size_t>(ladder_.count * problem_.rows);
}

/// `[set][array][prefix][rows]`; dead rows are skipped.
inline void step_t::write_statistics(int device, float* out) const {
    for (int set = 0; set < set_count(); ++set)
        for (auto const* values : statistics_of(side(device, set)))
            for (int p = 0; p < ladder_.count; ++p, out += problem_.rows)
                std::copy_n(values->data() + p * side(device, set).padded, side(device, set).x.rows, out);
}

inline void step_t::read_statistics(int device, float const* in) {
    for (int set = 0; set < set_count(); ++set)
        for (auto const* values : statistics_of(side(device, set)))
            for (int p = 0; p < ladder_.count; ++p, in += problem_.rows)
                std::copy_n(in, side(device, set).x.rows,
                            const_cast<float*>(values->data()) + p * side(device, set).padded);
}

/// Cells (i, i): cosine 1 whatever the row, so they have no gradient but dt and db.
inline void step_t::add_self_pairs(int device) {
    cpu::side_t const& s = side(device, 0);
    auto& sums = sums_[static_cast<std::size_t>(device)];
    for (int p = 0; p < ladder_.count; ++p) {
        double const weight = static_cast<double>(ladder_.weights[static_cast<std::size_t>(p)]) /
                              static_cast<double>(problem_.live_rows());
        for (std::int64_t row = 0; row < s.x.rows; ++row) {
            double const cosine = s.inverse_norms[static_cast<std::size_t>(p * s.padded + row)] > 0 ? 1 : 0;
            double const logit = problem_.scale * cosine + problem_.bias;
            double const e = std::exp(-std::abs(logit));
            double const slope = -(logit > 0 ? e : 1.0) / (1.0 + e);
            sums.loss += weight * (std::max(-logit, 0.0) + std::log1p(e));
            sums.bias_gradient += weight * slope;
            sums.scale_gradient += weight * slope * cosine;
        }
    }
}

inline void step_t::write_row(cpu::side_t const& s, std::int64_t row, void* out) const {
    float toward[max_prefixes_k + 1] = {};  // suffix sums, as the weights
    for (int p = ladder_.count - 1; p >= 0; --p) {
        auto const at = static_cast<std::size_t>(p * s.padded + row);
        toward[p] = toward[p + 1] + s.sums[at] * s.inverse_norms[at] * s.inverse_norms[at];
    }
    kernels_.write_row(ladder_, s.accumulator + row * s.accumulator_stride, s.x.row(row), toward,
                       static_cast<float>(problem_.scale), problem_.gradient_type, out);
}

inline void step_t::finish(int device) {
    auto& sums = sums_[static_cast<std::size_t>(device)];
    cpu::side_t const& first = side(device, 0);
    double pull = 0;
    for (int p = 0; p < ladder_.count; ++p)
        for (std::int64_t row = 0; row < first.x.rows; ++row)
            pull += static_cast<double>(first.sums[static_cast<std::size_t>(p * first.padded + row)]);
    sums.scale_gradient += two_ ? pull : pull / 2;
    if (problem_.self_pairs) add_self_pairs(device);
    if (is_softmax(problem_.loss)) sums.bias_gradient = 0;
    if (problem_.forward_only) {
        sums.scale_gradient = sums.bias_gradient = 0;
        return;
    }

    for (int set = 0; set < set_count(); ++set) {
        cpu::side_t const& s = side(device, set);
        std::size_t const element =
            problem_.gradient_type == gradient_type_t::float32_k ? sizeof(float) : sizeof(bf16_t);
        std::size_t const row_bytes = static_cast<std::size_t>(problem_.dims) * element;
        auto* const out = static_cast<std::byte*>(set_of(device, set).gradient);
        int const parts = static_cast<int>((problem_.rows + cpu::task_k - 1) / cpu::task_k);
        pool(device).run(parts, [&](int part) {
            std::int64_t const end = std::min<std::int64_t>(problem_.rows, (part + 1) * cpu::task_k);
            for (std::int64_t row = part * cpu::task_k; row < end; ++row) {
                std::byte* const to = out + static_cast<std::size_t>(row) * row_bytes;
                if (row < s.x.rows) write_row(s, row, to);
                else std::memset(to, 0, row_bytes);
            }
        });
    }
}

inline scalars_t step_t::all_reduce() const {
    scalars_t all;
    for (auto const& sums : sums_) {
        all.loss += sums.loss;
        all.scale_gradient += sums.scale_gradient;
        all.bias_gradient += sums.bias_gradient;
    }
    return all;
}

}  // namespace scaling_contrasts
