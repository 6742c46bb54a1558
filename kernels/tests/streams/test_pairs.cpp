// Pairs of devices scored once by one box (box/pair_phases.cuh, its staging), on streams that run late and in any order
// (cuda_runtime.h). The engine is a stand-in that adds up whole numbers: each live row of a device must meet each live
// row of all devices, of the other set where there are two, of this very step, once. The sums that are expected are
// written down below from that sentence.
#include <cuda_runtime.h>

#include <array>

#include "../fixture.hpp"
#include "../testing.hpp"
#include "scaling_contrasts/box/box.cuh"

using namespace scaling_contrasts;

namespace {

constexpr std::int64_t rows_k = 150;  // a cut at 128 leaves both halves some
constexpr int steps_k = 5;

/// What a device's set holds in step `k`: a small whole number.
float value_of(int device, int set, int k) { return static_cast<float>(1 + (device * 7 + set * 5 + k * 3) % 11); }

/// Adds up what its rows meet, and leaves for the partner what the partner's rows have met.
class adder_t final : public gpu::device_step_t {
  public:
    adder_t(problem_t const& problem, gpu::box_t::device_t const& device, int number)
        : problem_(problem), own_(device.sets), out_(device.part), number_(number) {}

    void begin(cudaStream_t stream) override {
        streams::launch(stream, [this] { met_ = cells_ = 0; });
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            right = right && block.device == number_;
            std::int64_t const live = problem_.live_of(number_), cells = live * live;
            for (int set = 0; set < sets(); ++set) add(value(block.embeddings[set], 0, live), cells);
        });
    }
    void score_pair(gpu::candidates_t const& block, pair_t const& pair, std::byte* partial,
                    cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            right = right && block.device == pair.peer;
            std::int64_t const live = problem_.live_of(number_);
            std::int64_t const cells = (live - pair.first_row) * pair.candidates;
            add(value(block.embeddings[sets() - 1], 0, pair.candidates), cells);
            float const mine = value(own_[0].embeddings, pair.first_row, live);
            auto* const left = reinterpret_cast<float*>(partial);
            left[0] = mine, left[1] = static_cast<float>(cells), left[2] = static_cast<float>(pair.candidates);
        });
    }
    void take_pair(std::byte const* partial, std::int64_t rows, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            auto const* const left = reinterpret_cast<float const*>(partial);
            right = right && left[2] == static_cast<float>(rows);
            add(left[0], static_cast<std::int64_t>(left[1]));
        });
    }
    void finish(cudaStream_t stream) override {
        streams::launch(stream, [this] {
            out_[0] = met_, out_[1] = cells_, out_[2] = 1;
            steps.push_back({met_, cells_, 1});
        });
    }
    std::int64_t launches() const override { return 1; }

    bool right = true;             ///< blocks were whole, and the ones that were asked for
    std::vector<scalars_t> steps;  ///< what each came to

  private:
    int sets() const { return sets_of(problem_.loss); }
    void add(float value, std::int64_t cells) {
        met_ += static_cast<double>(value) * static_cast<double>(cells), cells_ += static_cast<double>(cells);
    }
    /// What rows from `first` to `end` hold, all of them; 0 of none.
    float value(bf16_t const* rows, std::int64_t first, std::int64_t end) {
        if (first >= end) return 0;
        auto const held = static_cast<float>(rows[first * problem_.dims]);
        for (std::int64_t i = first * problem_.dims; i < end * problem_.dims; ++i)
            right = right && static_cast<float>(rows[i]) == held;
        return held;
    }

    problem_t problem_;
    std::vector<gpu::set_t> own_;
    double* out_;
    int number_;
    double met_ = 0, cells_ = 0;
};

/// What a device's part of step k is.
scalars_t expected(problem_t const& problem, int device, int k) {
    int const sets = sets_of(problem.loss);
    double met = 0, rows = 0;
    for (int other = 0; other < problem.world_size; ++other) {
        auto const live = static_cast<double>(problem.live_of(other));
        rows += live * sets;
        for (int set = 0; set < sets; ++set) met += live * static_cast<double>(value_of(other, set, k));
    }
    auto const own = static_cast<double>(problem.live_of(device));
    return {own * met, own * rows, 1};
}

bool same(scalars_t const& a, scalars_t const& b) {
    return a.loss == b.loss && a.scale_gradient == b.scale_gradient && a.bias_gradient == b.bias_gradient;
}

/// What is wrong, or nothing.
std::string run(problem_t const& problem, gpu::meeting_t meeting) {
    int const world = problem.world_size, sets = sets_of(problem.loss);
    auto const at = [](int i) { return static_cast<std::size_t>(i); };
    std::vector<gpu::ledger_t> ledgers(at(world));
    std::vector<std::vector<bf16_t>> embeddings(at(world * sets), std::vector<bf16_t>(at(int(rows_k) * problem.dims)));
    std::vector<std::array<double, 6>> sums(ledgers.size());
    std::vector<gpu::box_t::device_t> devices(ledgers.size());
    std::vector<adder_t*> adders;
    for (int d = 0; d < world; ++d) {
        auto& device = devices[at(d)];
        device.ordinal = meeting == gpu::meeting_t::flags_k ? d : 0;
        device.ledger = &ledgers[at(d)];
        for (int set = 0; set < sets; ++set)
            device.sets.push_back({embeddings[at(d * sets + set)].data(), nullptr, nullptr});
        device.part = sums[at(d)].data(), device.total = device.part + 3;
        auto step = std::make_unique<adder_t>(problem, device, d);
        adders.push_back(step.get());
        device.step = std::move(step);
    }
    domain::domain_t const domain(world);
    gpu::box_t box(problem, std::move(devices), &domain, meeting, devices_of(0, 1, world));
    for (int k = 0; k < steps_k; ++k) {  // none is waited for
        for (int i = 0; i < world * sets; ++i)
            streams::launch(box.stream(meeting == gpu::meeting_t::events_k ? 0 : i / sets), [&, i, k] {
                std::ranges::fill(embeddings[at(i)], bf16_t(value_of(i / sets, i % sets, k)));
            });
        box.queue();
    }
    box.synchronize();
    scalars_t all;
    for (int d = 0; d < world; ++d) {
        auto const& adder = *adders[at(d)];
        if (!adder.right) return "device " + std::to_string(d) + " met a block that was not whole, or not the one";
        for (int k = 0; k < steps_k; ++k)
            if (auto const found = adder.steps.at(at(k)), want = expected(problem, d, k); !same(found, want))
                return "device " + std::to_string(d) + ", step " + std::to_string(k) + ": " +
                       std::to_string(found.loss) + " of " + std::to_string(found.scale_gradient) +
                       " cells, expected " + std::to_string(want.loss) + " of " + std::to_string(want.scale_gradient);
        auto const last = expected(problem, d, steps_k - 1);
        all.loss += last.loss, all.scale_gradient += last.scale_gradient, all.bias_gradient += 1;
    }
    for (auto const& sum : sums)
        if (!same({sum[3], sum[4], sum[5]}, all)) return "the scalars are not the sums over devices";
    return "";
}

}  // namespace

int main() {
    for (loss_t const loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k})
        for (int const world : {2, 3, 4, 5, 8})
            for (bool const ragged : {false, true})
                for (auto const meeting : {gpu::meeting_t::flags_k, gpu::meeting_t::events_k})
                    for (unsigned seed = 1; seed <= 5; ++seed) {
                        streams::seed(seed);
                        problem_t problem;
                        problem.loss = loss, problem.rows = rows_k, problem.dims = 2, problem.world_size = world;
                        problem.pairs_once = true;
                        for (int d = 0; ragged && d < world; ++d)
                            problem.live.push_back(d % 3 == 1 ? d / 3 : rows_k - d);
                        std::string const wrong = run(problem, meeting);
                        testing::expect(wrong.empty(), fixture::describe(problem, "the box") + ", seed " +
                                                           std::to_string(seed) + ": " + wrong);
                    }
    return testing::report();
}
