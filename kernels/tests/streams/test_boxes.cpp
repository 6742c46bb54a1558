// Boxes of GPUs (box/boxes.cuh, the box, its staging) over TCP, on streams that run late and in any order
// (cuda_runtime.h). Each box is a thread. The engine is a stand-in that adds up whole numbers: every device must meet
// every other one's rows, labels and log-sums of this very step, once in each pass. The sums that are expected are
// written down below from that sentence.
#include <cuda_runtime.h>

#include <array>
#include <thread>

#include "../fixture_boxes.hpp"
#include "../testing.hpp"
#include "scaling_contrasts/box/boxes.cuh"
#include "scaling_contrasts/rails/step.hpp"

using namespace scaling_contrasts;

namespace {

constexpr std::int64_t rows_k = 4;
constexpr int dims_k = 8, steps_k = 7;

/// What all cells of a device's set hold in step `k`: a small whole number.
float value_of(int device, int set, int k) { return static_cast<float>(1 + (device * 7 + set * 5 + k * 3) % 11); }
std::int32_t label_of_row(std::int64_t row) { return static_cast<std::int32_t>(row * 10 + 3); }
/// Devices differ in how many log-sums they have.
std::int64_t log_sums_of(int device) { return 5 + device % 3; }

/// Adds up what it is shown.
class adder_t final : public gpu::device_step_t {
  public:
    adder_t(problem_t const& problem, int device, double* out) : problem_(problem), device_(device), out_(out) {
        for (auto& each : log_sums_) each.assign(static_cast<std::size_t>(log_sums_of(device)), -1);
    }
    void begin(cudaStream_t stream) override {
        streams::launch(stream, [this] { gathered_ = positives_ = scored_ = met_ = 0; });
    }
    bool gathers() const override { return is_softmax(problem_.loss); }
    bool gathers_positives() const override { return problem_.loss == loss_t::one_set_info_nce_k; }
    bool takes_groups() const override { return problem_.loss == loss_t::one_set_sigmoid_k; }
    void gather(gpu::candidates_t const& block, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            for_rows(block, [&](int device, int, double value) { gathered_ += (device + 1) * value; });
        });
    }
    void close_gather(cudaStream_t stream) override {
        streams::launch(stream, [this] {
            for (std::size_t set = 0; set < 2; ++set)
                log_sums_[set].assign(log_sums_[set].size(),
                                      static_cast<float>(gathered_ + device_ + 100.0 * double(set)));
        });
    }
    void gather_positives(gpu::candidates_t const& block, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            right = right && block.log_sums[0];  // the sm80 engine looks at them, whatever they hold
            for_rows(block, [&](int, int, double value) { positives_ += value; });
        });
    }
    void score(gpu::candidates_t const& block, cudaStream_t stream) override {
        streams::launch(stream, [=, this] {
            for_rows(block, [&](int device, int set, double value) {
                if (!gathers()) return void(scored_ += value);
                float const* const sums = block.log_sums[set];
                for (std::int64_t i = 1; i < log_sums_of(device); ++i) right = right && sums[i] == sums[0];
                scored_ += value * static_cast<double>(sums[0]);
            });
            met_ += block.devices;
        });
    }
    void finish(cudaStream_t stream) override {
        streams::launch(stream, [this] {
            out_[0] = scored_, out_[1] = gathered_ + positives_, out_[2] = met_;
            steps.push_back({scored_, gathered_ + positives_, met_});
        });
    }
    float const* log_sums(int set) const override { return log_sums_[static_cast<std::size_t>(set)].data(); }
    std::int64_t log_sum_count(int device) const override { return gathers() ? log_sums_of(device) : 0; }
    std::int64_t launches() const override { return 1; }

    bool right = true;             ///< blocks were whole, and their labels the right ones
    std::vector<scalars_t> steps;  ///< what each came to

  private:
    template <class visit_t>
    void for_rows(gpu::candidates_t const& block, visit_t&& visit) {
        for (int member = 0; member < block.devices; ++member) {
            std::int64_t const first = member * rows_k;
            for (int set = 0; set < sets_of(problem_.loss); ++set) {
                bf16_t const* const rows = block.embeddings[set] + first * dims_k;
                auto const value = static_cast<float>(rows[0]);
                for (std::int64_t i = 0; i < rows_k * dims_k; ++i)
                    right = right && static_cast<float>(rows[i]) == value;
                visit(block.device + member, set, static_cast<double>(value));
            }
            for (std::int64_t i = 0; block.labels && i < rows_k; ++i)
                right = right && block.labels[first + i] == label_of_row((block.device + member) * rows_k + i);
        }
    }

    problem_t problem_;
    int device_;
    double* out_;
    double gathered_ = 0, positives_ = 0, scored_ = 0, met_ = 0;
    std::array<std::vector<float>, 2> log_sums_;
};

struct case_t {
    loss_t loss;
    int boxes, each;
    gpu::meeting_t meeting;
    unsigned seed;
};

/// What a device's part of step k is, the same for all.
scalars_t expected(case_t const& c, int k) {
    int const world = c.boxes * c.each, sets = sets_of(c.loss);
    double gathered = 0, positives = 0, scored = 0;
    for (int device = 0; device < world; ++device)
        for (int set = 0; set < sets; ++set) {
            double const value = static_cast<double>(value_of(device, set, k));
            if (is_softmax(c.loss)) gathered += (device + 1) * value;
            if (c.loss == loss_t::one_set_info_nce_k) positives += value;
        }
    for (int device = 0; device < world; ++device)
        for (int set = 0; set < sets; ++set)
            scored += static_cast<double>(value_of(device, set, k)) *
                      (is_softmax(c.loss) ? gathered + device + 100 * set : 1);
    return {scored, gathered + positives, static_cast<double>(world)};
}

std::string text(scalars_t const& sums) {
    return std::to_string(sums.loss) + " " + std::to_string(sums.scale_gradient) + " " +
           std::to_string(sums.bias_gradient);
}
bool same(scalars_t const& a, scalars_t const& b) {
    return a.loss == b.loss && a.scale_gradient == b.scale_gradient && a.bias_gradient == b.bias_gradient;
}

/// One box of a case, on this thread: what is wrong, or nothing.
std::string run_box(case_t const& c, rails::mesh_t& mesh) {
    int const box = mesh.box();
    streams::seed(c.seed + unsigned(box));
    problem_t problem;
    problem.loss = c.loss, problem.rows = rows_k, problem.dims = dims_k, problem.world_size = c.boxes * c.each;
    devices_t const own = devices_of(box, c.boxes, problem.world_size);
    std::vector<gpu::ledger_t> ledgers(static_cast<std::size_t>(c.each));
    std::vector<std::vector<bf16_t>> embeddings;  // [lane][set]
    std::vector<std::vector<std::int32_t>> labels;
    std::vector<std::array<double, 6>> sums(ledgers.size());
    std::vector<gpu::box_t::device_t> devices(ledgers.size());
    std::vector<adder_t*> adders;
    int const sets = sets_of(c.loss);
    for (int i = 0; i < c.each * sets; ++i) embeddings.emplace_back(std::size_t(rows_k * dims_k));
    for (int lane = 0; lane < c.each; ++lane) {
        auto& device = devices[std::size_t(lane)];
        auto& mine = labels.emplace_back();
        for (std::int64_t i = 0; i < rows_k; ++i) mine.push_back(label_of_row((own.first + lane) * rows_k + i));
        device.ordinal = c.meeting == gpu::meeting_t::flags_k ? lane : 0;
        device.ledger = &ledgers[std::size_t(lane)];
        for (int set = 0; set < sets; ++set)
            device.sets.push_back(
                {embeddings[std::size_t(lane * sets + set)].data(), sets == 1 ? mine.data() : nullptr, nullptr});
        device.part = sums[std::size_t(lane)].data();
        device.total = device.part + (c.each > 1 ? 3 : 0);
        auto step = std::make_unique<adder_t>(problem, own.first + lane, device.part);
        adders.push_back(step.get());
        device.step = std::move(step);
    }
    domain::domain_t const domain(c.each);
    gpu::box_t gpus(problem, std::move(devices), &domain, c.meeting, own);
    gpu::boxes_t local(problem, gpus, own, ledgers, "auto");
    rails::options_t options;
    options.transport = "tcp", options.sockets = 1;
    rails::boxes_step_t step(mesh, options, problem, local);
    for (int k = 0; k < steps_k; ++k) {
        bool const by_events = gpus.meeting() == gpu::meeting_t::events_k;  // a step follows what is in stream 0
        for (int i = 0; i < c.each * sets; ++i)                             // as a network's last layer would
            streams::launch(gpus.stream(by_events ? 0 : i / sets), [&, i, k] {
                std::ranges::fill(embeddings[std::size_t(i)], bf16_t(value_of(own.first + i / sets, i % sets, k)));
            });
        step.run();
        if (k != 2 && k != steps_k - 1)
            continue;  // else nothing is waited for: the next step is queued behind this one
        scalars_t const found = step.scalars(), want = expected(c, k);
        double const world = problem.world_size;
        if (!same(found, {world * want.loss, world * want.scale_gradient, world * want.bias_gradient}))
            return "step " + std::to_string(k) + ": all devices " + text(found) + ", expected of each " + text(want);
    }
    gpus.synchronize();
    for (auto const* adder : adders)
        for (int k = 0; k < steps_k; ++k)
            if (scalars_t const found = adder->steps.at(std::size_t(k)); !adder->right || !same(found, expected(c, k)))
                return "step " + std::to_string(k) + ": " + text(found) + ", expected " + text(expected(c, k)) +
                       (adder->right ? "" : "; a block was not whole");
    return "";
}

/// Cases of as many boxes, each a thread that keeps its connections from case to case.
void check(std::vector<case_t> const& cases) {
    boxes::meeting_point_t const point;
    int const boxes = cases[0].boxes;
    std::vector<std::vector<std::string>> problems(std::size_t(boxes),
                                                   std::vector<std::string>(cases.size(), "not run"));
    std::vector<std::thread> threads;
    for (int box = 0; box < boxes; ++box)
        threads.emplace_back([&, box] {
            auto& mine = problems[std::size_t(box)];
            std::size_t at = 0;
            try {
                rails::mesh_t mesh(point.meeting(boxes, box), "case=1\n");
                for (; at < cases.size(); ++at) mine[at] = run_box(cases[at], mesh);
            } catch (std::exception const& problem) {
                mine[at] = problem.what();
            }
        });
    for (auto& thread : threads) thread.join();
    for (auto const& box : problems)
        for (std::size_t i = 0; i < cases.size(); ++i)
            testing::expect(box[i].empty(), std::string(name_of(cases[i].loss)) + ", " + std::to_string(boxes) +
                                                " boxes of " + std::to_string(cases[i].each) + ", seed " +
                                                std::to_string(cases[i].seed) + ": " + box[i]);
}

}  // namespace

int main() {
    using enum gpu::meeting_t;
    std::vector<case_t> two, three;
    for (loss_t const loss :
         {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k, loss_t::one_set_info_nce_k})
        for (unsigned seed = 1; seed <= 40; seed += 10) {
            two.push_back({loss, 2, 1, flags_k, seed});
            two.push_back({loss, 2, 3, flags_k, seed});
            two.push_back({loss, 2, 2, events_k, seed});
            three.push_back({loss, 3, 2, flags_k, seed});
        }
    check(two);
    check(three);
    return testing::report();
}
