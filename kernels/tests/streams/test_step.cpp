// The default step of one box (box/box.cuh, its staging), on streams that run late and in any order (cuda_runtime.h):
// all losses, their passes and meetings, peers one by one and in groups, devices with dead rows or none alive. Each
// device's engine is loops.hpp; what all devices come to, step by step, is held to the float64 oracle of the whole batch.
#include <cuda_runtime.h>

#include <array>

#include "../testing.hpp"
#include "loops.hpp"
#include "scaling_contrasts/box/box.cuh"

using namespace scaling_contrasts;

namespace {

constexpr std::int64_t rows_k = 4;
constexpr int steps_k = 3;

/// Inputs of a step: those of another seed than the step before.
fixture::data_t inputs_of(problem_t problem, int k) {
    problem.seed += static_cast<std::uint32_t>(k);
    return fixture::make_data(problem);
}

/// A box and what it works on, in steps of which none is waited for.
class run_t {
  public:
    run_t(problem_t const& problem, gpu::meeting_t meeting)
        : problem_(problem), meeting_(meeting), domain_(problem.world_size), ledgers_(at(problem.world_size)) {
        for (int k = 0; k < steps_k; ++k) inputs_.push_back(inputs_of(problem, k));
        world_ = std::make_unique<loops::world_t>(problem, inputs_[0]);
        int const sets = sets_of(problem.loss);
        embeddings_.assign(at(problem.world_size * sets), std::vector<bf16_t>(at(problem.rows * problem.dims)));
        sums_.resize(at(problem.world_size));
        std::vector<gpu::box_t::device_t> devices(at(problem.world_size));
        for (int d = 0; d < problem.world_size; ++d) {
            auto& device = devices[at(d)];
            device.ordinal = meeting == gpu::meeting_t::flags_k ? d : 0;
            device.ledger = &ledgers_[at(d)];
            for (int set = 0; set < sets; ++set)
                device.sets.push_back({embeddings_[at(d * sets + set)].data(),
                                       sets == 1 ? inputs_[0].labels.data() + d * problem.rows : nullptr, nullptr});
            device.part = sums_[at(d)].data(), device.total = device.part + 3;
            auto step = std::make_unique<loops::step_t>(*world_, d, device.sets, device.part);
            steps_.push_back(step.get());
            device.step = std::move(step);
        }
        box_ = std::make_unique<gpu::box_t>(problem, std::move(devices), &domain_, meeting,
                                            devices_of(0, 1, problem.world_size));
        totals_.resize(at(steps_k * problem.world_size));
        for (int k = 0; k < steps_k; ++k) queue(k);
        box_->synchronize();
    }

    void compare(std::string const& what) const {
        for (int k = 0; k < steps_k; ++k) {
            fixture::result_t found;
            found.gradients.resize(at(sets_of(problem_.loss)));
            for (int d = 0; d < problem_.world_size; ++d) {
                testing::expect(steps_[at(d)]->wrong.empty(), what + ": " + steps_[at(d)]->wrong);
                auto const& share = steps_[at(d)]->steps.at(at(k));
                for (std::size_t set = 0; set < found.gradients.size(); ++set)
                    found.gradients[set].insert(found.gradients[set].end(), share.gradients[set].begin(),
                                                share.gradients[set].end());
                found.scalars = totals_[at(k * problem_.world_size + d)];
                testing::expect(same(found.scalars, totals_[at(k * problem_.world_size)]), what + ": equal sums");
            }
            fixture::compare_within(2e-6, problem_, found, fixture::oracle(problem_, inputs_[at(k)]),
                                    what + ", step " + std::to_string(k));
        }
    }

  private:
    static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
    static bool same(scalars_t const& a, scalars_t const& b) {
        return a.loss == b.loss && a.scale_gradient == b.scale_gradient && a.bias_gradient == b.bias_gradient;
    }
    /// As a network would: its last layers write embeddings in front of the step, an optimizer reads sums behind it.
    void queue(int k) {
        bool const by_events = meeting_ == gpu::meeting_t::events_k;
        int const sets = sets_of(problem_.loss);
        std::size_t const share = at(problem_.rows * problem_.dims);
        for (int i = 0; i < problem_.world_size * sets; ++i)
            streams::launch(box_->stream(by_events ? 0 : i / sets), [=, this] {
                auto const from =
                    inputs_[at(k)].sets[at(i % sets)].begin() + i / sets * static_cast<std::ptrdiff_t>(share);
                std::copy_n(from, share, embeddings_[at(i)].begin());
            });
        box_->queue();
        for (int d = 0; d < problem_.world_size; ++d)
            streams::launch(box_->stream(by_events ? 0 : d), [=, this] {
                auto const& sums = sums_[at(d)];
                totals_[at(k * problem_.world_size + d)] = {sums[3], sums[4], sums[5]};
            });
    }

    problem_t problem_;
    gpu::meeting_t meeting_;
    domain::domain_t domain_;
    std::vector<gpu::ledger_t> ledgers_;
    std::vector<fixture::data_t> inputs_;
    std::unique_ptr<loops::world_t> world_;
    std::vector<std::vector<bf16_t>> embeddings_;
    std::vector<std::array<double, 6>> sums_;
    std::vector<loops::step_t*> steps_;
    std::vector<scalars_t> totals_;
    std::unique_ptr<gpu::box_t> box_;
};

/// Live rows of each of so many devices; empty: all.
std::vector<std::vector<std::int64_t>> live_counts(int world) {
    std::vector<std::vector<std::int64_t>> counts = {{}};
    auto& ragged = counts.emplace_back();
    for (int d = 0; d < world; ++d) ragged.push_back(d % 3 == 1 ? 0 : rows_k - d % 3);
    return counts;
}

}  // namespace

int main() {
    using enum gpu::meeting_t;
    for (loss_t const loss :
         {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k, loss_t::one_set_info_nce_k})
        for (int const world : {2, 3, 5, 8})
            for (auto const& live : live_counts(world))
                for (int const group : {1, 3, 100})  // devices, of which a block has as many as there are peers at most
                    for (auto const meeting : {flags_k, events_k})
                        for (unsigned seed = 1; seed <= 3; ++seed) {
                            streams::seed(seed);
                            problem_t problem;
                            problem.loss = loss, problem.rows = rows_k, problem.world_size = world;
                            problem.live = live, problem.group_rows = group * rows_k;
                            problem.dims = 8, problem.prefixes = {8}, problem.scale = 5, problem.bias = -1;
                            problem.labels = label_layout_t::mixed_k;
                            run_t const run(problem, meeting);
                            run.compare((live.empty() ? "" : "ragged, ") + std::string("groups of ") +
                                        std::to_string(group) + (meeting == flags_k ? ", flags" : ", events") +
                                        ", seed " + std::to_string(seed));
                        }
    return testing::report();
}
