// One step of an engine on the emulated GPU, against the float64 oracle of fixture.hpp.
#pragma once
#include <functional>
#include <memory>

#include "cuda_steps.cuh"
#include "fixture.hpp"

namespace emulated {

using namespace scaling_contrasts;
using make_step_t = std::function<std::unique_ptr<gpu::device_step_t>(bench::step_inputs_t const&)>;

/// The step of one device, in memory that is NaN where nothing was written; gradients of every set, widened.
inline fixture::result_t run(problem_t const& problem, fixture::data_t const& data, make_step_t const& make,
                             int side_limit = 0) {
    gpu::ledger_t ledger;
    bool const wide = problem.gradient_type == gradient_type_t::float32_k;
    std::size_t const sets = data.sets.size(), cells = static_cast<std::size_t>(problem.rows * problem.dims);
    std::vector<gpu::buffer_t<bf16_t>> embeddings;
    std::vector<gpu::buffer_t<std::byte>> gradients;
    gpu::buffer_t<std::int32_t> labels(ledger, problem.rows);
    gpu::buffer_t<float> scalars(ledger, 2);
    gpu::buffer_t<double> out(ledger, 3);
    std::memcpy(labels.data(), data.labels.data(), static_cast<std::size_t>(problem.rows) * 4);
    scalars.data()[0] = static_cast<float>(problem.scale), scalars.data()[1] = static_cast<float>(problem.bias);
    std::vector<gpu::set_t> views;
    for (std::size_t set = 0; set < sets; ++set) {
        embeddings.emplace_back(ledger, static_cast<std::int64_t>(cells));
        gradients.emplace_back(ledger, static_cast<std::int64_t>(cells * (wide ? 4 : 2)));
        std::memcpy(embeddings[set].data(), data.sets[set].data(), cells * 2);
        views.push_back({embeddings[set].data(), sets == 1 ? labels.data() : nullptr, gradients[set].data()});
    }
    auto const step = make({problem, 0, views, scalars.data(), scalars.data() + 1, out.data(), ledger, side_limit});
    gpu::candidates_t own;
    for (std::size_t set = 0; set < sets; ++set) own.embeddings[set] = embeddings[set].data();
    own.labels = views[0].labels;
    cudaStream_t const stream = {};
    step->begin(stream);
    if (step->gathers()) {
        step->gather(own, stream);
        step->close_gather(stream);
    }
    if (step->gathers_positives()) {
        step->gather_positives(own, stream);
        step->close_positives(stream);
    }
    for (std::size_t set = 0; set < sets; ++set) own.log_sums[set] = step->log_sums(static_cast<int>(set));
    step->score(own, stream);
    step->finish(stream);

    fixture::result_t result;
    result.scalars = {out.data()[0], out.data()[1], out.data()[2]};
    for (std::size_t set = 0; set < sets; ++set) {
        result.gradients.emplace_back();
        for (std::size_t i = 0; i < cells; ++i) {
            float number;
            if (wide) std::memcpy(&number, gradients[set].data() + i * 4, 4);
            else number = static_cast<float>(reinterpret_cast<bf16_t const*>(gradients[set].data())[i]);
            result.gradients.back().push_back(number);
            auto const row = static_cast<std::int64_t>(i) / problem.dims;
            auto const column = static_cast<int>(static_cast<std::int64_t>(i) % problem.dims);
            if (row >= problem.live_of(0) || column >= problem.prefixes.back())
                testing::expect(number == 0, "dead rows and columns past the ladder are zero");
        }
    }
    return result;
}

/// A case: run with every timing, compared every time. `limit`: of the gradients' error, worst band.
inline void check(double limit, problem_t const& problem, make_step_t const& make, std::string const& engine,
                  int side_limit = 0, std::vector<std::int64_t> const& zero_rows = {}) {
    auto const data = fixture::make_data(problem, zero_rows);
    auto const want = fixture::oracle(problem, data);
    for (auto timing : {emulation::timing_t::eager_k, emulation::timing_t::late_k, emulation::timing_t::shuffled_k}) {
        emulation::options().timing = timing;
        std::string const name = engine + (timing == emulation::timing_t::eager_k  ? ", eager"
                                           : timing == emulation::timing_t::late_k ? ", late"
                                                                                   : ", shuffled");
        try {
            fixture::compare_within(limit, problem, run(problem, data, make, side_limit), want, name);
        } catch (std::exception const& error) {
            testing::expect(false, fixture::describe(problem, name) + ": " + error.what());
        }
    }
}

}  // namespace emulated
