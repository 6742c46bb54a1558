// One step of an engine on emulated GPUs, against the float64 oracle of fixture.hpp.
#pragma once
#include <functional>
#include <memory>

#include "cuda_steps.cuh"
#include "fixture.hpp"

namespace emulated {

using namespace scaling_contrasts;
using make_step_t = std::function<std::unique_ptr<gpu::device_step_t>(bench::step_inputs_t const&)>;

/// One device's arrays, which are NaN where nothing was written, and its engine.
struct device_t {
    gpu::ledger_t ledger;
    std::vector<gpu::buffer_t<bf16_t>> embeddings;
    std::vector<gpu::buffer_t<std::byte>> gradients;
    gpu::buffer_t<std::int32_t> labels;
    gpu::buffer_t<float> scalars;
    gpu::buffer_t<double> out;
    std::unique_ptr<gpu::device_step_t> step;

    device_t(problem_t const& problem, fixture::data_t const& data, int number, make_step_t const& make, int side_limit)
        : labels(ledger, problem.rows), scalars(ledger, 2), out(ledger, 3) {
        auto const rows = static_cast<std::size_t>(problem.rows), cells = rows * static_cast<std::size_t>(problem.dims),
                   first = static_cast<std::size_t>(number);
        std::int64_t const bytes = problem.gradient_type == gradient_type_t::float32_k ? 4 : 2;
        std::memcpy(labels.data(), data.labels.data() + first * rows, rows * 4);
        scalars.data()[0] = static_cast<float>(problem.scale), scalars.data()[1] = static_cast<float>(problem.bias);
        std::vector<gpu::set_t> views;
        for (auto const& set : data.sets) {
            embeddings.emplace_back(ledger, static_cast<std::int64_t>(cells));
            gradients.emplace_back(ledger, static_cast<std::int64_t>(cells) * bytes);
            std::memcpy(embeddings.back().data(), set.data() + first * cells, cells * 2);
            views.push_back(
                {embeddings.back().data(), data.sets.size() == 1 ? labels.data() : nullptr, gradients.back().data()});
        }
        step = make({problem, number, views, scalars.data(), scalars.data() + 1, out.data(), ledger, side_limit});
    }
    gpu::candidates_t block(int number) const {
        gpu::candidates_t candidates;
        candidates.device = number;
        for (std::size_t set = 0; set < embeddings.size(); ++set) {
            candidates.embeddings[set] = embeddings[set].data();
            candidates.log_sums[set] = step->log_sums(static_cast<int>(set));
        }
        candidates.labels = embeddings.size() == 1 ? labels.data() : nullptr;
        return candidates;
    }
    double gradient(std::size_t set, std::size_t i, bool wide) const {
        if (!wide) return static_cast<float>(reinterpret_cast<bf16_t const*>(gradients[set].data())[i]);
        return reinterpret_cast<float const*>(gradients[set].data())[i];
    }
};

/// The rows of one device or several, one behind the other, as staging.cuh fetches them: another block's follow.
struct group_t {
    std::vector<gpu::buffer_t<bf16_t>> embeddings;
    gpu::buffer_t<std::int32_t> labels;
    gpu::candidates_t candidates;

    group_t(problem_t const& problem, std::vector<std::unique_ptr<device_t>> const& devices, peer_block_t const& block,
            gpu::ledger_t& ledger)
        : labels(ledger, block.devices * problem.rows) {
        candidates.device = block.first, candidates.devices = block.devices;
        std::int64_t const cells = problem.rows * problem.dims;
        for (int set = 0; set < sets_of(problem.loss); ++set) {
            embeddings.emplace_back(ledger, block.devices * cells);
            candidates.embeddings[set] = embeddings.back().data();
        }
        for (int member = 0; member < block.devices; ++member) {
            auto const& from = *devices[static_cast<std::size_t>((block.first + member) % problem.world_size)];
            for (std::size_t set = 0; set < embeddings.size(); ++set)
                std::memcpy(embeddings[set].data() + member * cells, from.embeddings[set].data(),
                            static_cast<std::size_t>(cells) * 2);
            if (embeddings.size() == 1)
                std::memcpy(labels.data() + member * problem.rows, from.labels.data(),
                            static_cast<std::size_t>(problem.rows) * 4);
        }
        if (embeddings.size() == 1) candidates.labels = labels.data();
        auto const& first = *devices[static_cast<std::size_t>(block.first)];
        for (int set = 0; block.devices == 1 && set < sets_of(problem.loss); ++set)
            candidates.log_sums[set] = first.step->log_sums(set);
    }
    void forget() {
        for (auto& set : embeddings) std::memset(set.data(), 0xff, static_cast<std::size_t>(set.bytes()));  // NaN
    }
};

/// Own blocks, then round by round what one device scores for two, as box.cuh queues it.
inline void score_pairs(problem_t const& problem, std::vector<std::unique_ptr<device_t>>& devices) {
    cudaStream_t const stream = {};
    std::vector<gpu::buffer_t<std::byte>> partials;
    for (int number = 0; number < problem.world_size; ++number) {
        auto& device = *devices[static_cast<std::size_t>(number)];
        partials.emplace_back(device.ledger, device.step->partial_bytes());
        device.step->score(device.block(number), stream);
    }
    constexpr int unit = gpu::device_step_t::pair_unit_k;
    for (int round = 1; round <= pair_rounds(problem); ++round) {
        for (int number = 0; number < problem.world_size; ++number) {
            pair_t const pair = pair_of(problem, number, round, unit);
            auto const at = static_cast<std::size_t>(number);
            devices[at]->step->score_pair(devices[static_cast<std::size_t>(pair.peer)]->block(pair.peer), pair,
                                          partials[at].data(), stream);
        }
        for (int number = 0; number < problem.world_size; ++number) {
            int const source = source_of(problem, number, round);
            devices[static_cast<std::size_t>(number)]->step->take_pair(
                partials[static_cast<std::size_t>(source)].data(), pair_of(problem, source, round, unit).candidates,
                stream);
        }
    }
}

/// A step of all devices, one after the other between the places where they wait for each other.
inline fixture::result_t run(problem_t const& problem, fixture::data_t const& data, make_step_t const& make,
                             int side_limit) {
    std::vector<std::unique_ptr<device_t>> devices;
    for (int number = 0; number < problem.world_size; ++number)
        devices.push_back(std::make_unique<device_t>(problem, data, number, make, side_limit));
    cudaStream_t const stream = {};
    auto every = [&](auto const& call) {
        for (auto& device : devices) call(*device->step);
    };
    auto against_every_block = [&](auto const& call) {  // own block first
        auto const most =
            static_cast<int>(devices[0]->step->takes_groups() ? candidate_rows(problem) / problem.rows : 1);
        for (int number = 0; number < problem.world_size; ++number) {
            auto& device = *devices[static_cast<std::size_t>(number)];
            call(*device.step, device.block(number));
            for (auto const& block : peer_blocks(peers_behind(problem.world_size, number), problem.world_size, most)) {
                group_t staged(problem, devices, block, device.ledger);
                call(*device.step, staged.candidates);
                staged.forget();
            }
        }
    };
    every([&](auto& step) { step.begin(stream); });
    if (devices[0]->step->gathers()) {
        against_every_block([&](auto& step, auto const& block) { step.gather(block, stream); });
        every([&](auto& step) { step.close_gather(stream); });
    }
    if (devices[0]->step->gathers_positives()) {
        against_every_block([&](auto& step, auto const& block) { step.gather_positives(block, stream); });
        every([&](auto& step) { step.close_positives(stream); });
    }
    if (problem.pairs_once) score_pairs(problem, devices);
    else against_every_block([&](auto& step, auto const& block) { step.score(block, stream); });
    every([&](auto& step) { step.finish(stream); });

    fixture::result_t result;
    result.gradients.resize(data.sets.size());
    auto const cells = static_cast<std::size_t>(problem.rows * problem.dims);
    for (std::size_t number = 0; number < devices.size(); ++number) {
        auto const& device = *devices[number];
        result.scalars.loss += device.out.data()[0];
        result.scalars.scale_gradient += device.out.data()[1], result.scalars.bias_gradient += device.out.data()[2];
        bool untouched = true;
        for (std::size_t set = 0; set < data.sets.size(); ++set)
            for (std::size_t i = 0; i < cells; ++i) {
                double const value = device.gradient(set, i, problem.gradient_type == gradient_type_t::float32_k);
                result.gradients[set].push_back(value);
                auto const row = static_cast<std::int64_t>(i) / problem.dims;
                auto const column = static_cast<int>(static_cast<std::int64_t>(i) % problem.dims);
                untouched = untouched && std::isnan(value);
                if (problem.forward_only) continue;
                if (row >= problem.live_of(static_cast<int>(number)) || column >= problem.prefixes.back())
                    testing::expect(value == 0, "dead rows and columns past the ladder are zero");
            }
        if (problem.forward_only) testing::expect(untouched, "a forward pass writes no gradient");
    }
    return result;
}

inline char const* name_of(emulation::timing_t timing) {
    return timing == emulation::timing_t::eager_k  ? "eager"
           : timing == emulation::timing_t::late_k ? "late"
                                                   : "shuffled";
}

/// A case: run with every timing, compared every time. `limit`: of the gradients' error, worst band. `side_limit`: of
/// sm80's and sm100's superblocks; 0: the engine's choice. `zero_rows`: get a zero first prefix. `cancels`: terms that
/// cancel are minded.
inline void check(double limit, problem_t const& problem, make_step_t const& make, std::string const& engine,
                  int side_limit = 0, std::vector<std::int64_t> const& zero_rows = {}, bool cancels = false) {
    auto const data = fixture::make_data(problem, zero_rows);
    auto const want = fixture::oracle(problem, data, cancels);
    for (auto timing : {emulation::timing_t::eager_k, emulation::timing_t::late_k, emulation::timing_t::shuffled_k}) {
        emulation::options().timing = timing;
        std::string const name = engine + ", " + name_of(timing);
        try {
            fixture::compare_within(limit, problem, run(problem, data, make, side_limit), want, name);
        } catch (std::exception const& error) {
            testing::expect(false, fixture::describe(problem, name) + ": " + error.what());
        }
    }
}

/// A problem of one device, or of one device for each live count.
inline problem_t make_problem(loss_t loss, std::int64_t rows, std::vector<std::int64_t> live, std::vector<int> prefixes,
                              int dims) {
    problem_t problem;
    problem.loss = loss, problem.rows = rows, problem.prefixes = std::move(prefixes), problem.dims = dims;
    problem.world_size = static_cast<int>(live.size()), problem.live = std::move(live);
    return problem;
}

}  // namespace emulated
