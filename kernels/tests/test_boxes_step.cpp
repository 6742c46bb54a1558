// The schedule over boxes (rails/step.hpp) with devices that only note what they are told, and are as slow as a test
// wants: what is queued while a message is not ready, what is taken in while another is awaited, and that a stuck
// device ends the run. The boxes are threads of this process, joined by TCP on the loopback.
#include <thread>

#include "fixture_boxes.hpp"
#include "scaling_contrasts/rails/step.hpp"
#include "testing.hpp"

using namespace scaling_contrasts;
using namespace scaling_contrasts::rails;

namespace {

constexpr std::size_t bytes_k = 4096;

/// One device. Its messages are ready `delay` seconds after they are staged; only then do they hold what they should.
class played_t final : public local_box_t {
  public:
    played_t(int box, double delay) : box_(box), delay_(delay) {}

    plan_t plan(int boxes, int box, bool) override {
        plan_t plan;
        auto& lanes = plan.lanes.emplace_back();
        for (auto const& [kind, bytes] :
             {std::pair(kind_t::embeddings_k, bytes_k), {kind_t::scalars_k, std::size_t{24}}})
            lanes[static_cast<std::size_t>(kind)] = make_lane({{nullptr, bytes}}, boxes, box, [this](std::size_t size) {
                return memory_.emplace_back(std::make_unique<std::byte[]>(size)).get();
            });
        return plan;
    }
    void start() override { note("start"); }
    void begin() override { note("begin"); }
    void own_blocks(pass_t) override { note("own blocks"); }
    void blocks_of(int box, pass_t) override { note("blocks of " + std::to_string(box)); }
    void close(pass_t) override { note("close"); }
    void finish() override { note("finish"); }

    void stage(int, kind_t kind, std::uint64_t step, std::vector<piece_t> const& source) override {
        note(std::string("stage ") + name_of(kind));
        staging_[{kind, step}] = {in_seconds(delay_), source[0]};
    }
    bool staged(int, kind_t kind, std::uint64_t step) override {
        auto const& [ready, source] = staging_.at({kind, step});
        if (steady_t::now() < ready) return false;
        if (kind == kind_t::embeddings_k) std::memset(source.data, value(box_, step), source.size);
        if (kind == kind_t::scalars_k) {
            scalars_t const part = {static_cast<double>(box_ + 1), static_cast<double>(step), 0};
            std::memcpy(source.data, &part, sizeof part);
        }
        return true;
    }
    void take(int peer, kind_t, std::byte const* landing) override {
        note("take " + std::to_string(peer));
        std::uint64_t const step = ++taken_[peer];
        for (std::size_t i = 0; i < bytes_k; ++i) intact = intact && landing[i] == std::byte{value(peer, step)};
    }

    std::string notes() const {
        std::string out;
        for (auto const& each : notes_) out += (out.empty() ? "" : ", ") + each;
        return out;
    }
    void forget() { notes_.clear(); }

    bool intact = true;

  private:
    static unsigned char value(int box, std::uint64_t step) {
        return static_cast<unsigned char>(16 * (box + 1) + step % 16);
    }
    void note(std::string const& text) { notes_.push_back(text); }

    int box_;
    double delay_;
    std::map<std::pair<kind_t, std::uint64_t>, std::pair<deadline_t, piece_t>> staging_;
    std::map<int, std::uint64_t> taken_;
    std::vector<std::string> notes_;
    std::vector<std::unique_ptr<std::byte[]>> memory_;
};

/// What a box says of its run.
struct told_t {
    std::string notes, failure;
    scalars_t scalars;
    bool intact = false;
};

/// `steps` steps of boxes that are as late as `delays` say; notes are of the last step.
std::vector<told_t> run(std::vector<double> const& delays, int steps, double patience_of_box_0 = 60) {
    boxes::meeting_point_t const point;
    std::vector<told_t> told(delays.size());
    std::vector<std::thread> threads;
    for (int box = 0; box < static_cast<int>(delays.size()); ++box)
        threads.emplace_back([&, box] {
            auto& mine = told[static_cast<std::size_t>(box)];
            try {
                mesh_t mesh(point.meeting(static_cast<int>(delays.size()), box), "x=1\n");
                mesh.set_wait_seconds(box == 0 ? patience_of_box_0 : 60);
                played_t local(box, delays[static_cast<std::size_t>(box)]);
                options_t options;
                options.transport = "tcp";
                problem_t problem;
                problem.world_size = static_cast<int>(delays.size());
                boxes_step_t step(mesh, options, problem, local);
                for (int i = 0; i < steps; ++i) {
                    local.forget();
                    step.run();
                }
                mine.notes = local.notes();
                mine.scalars = step.scalars();
                mine.intact = local.intact;
            } catch (std::exception const& problem) {
                mine.failure = problem.what();
            }
        });
    for (auto& thread : threads) thread.join();
    return told;
}

void check_nothing_waits_for_a_slow_device() {
    auto const told = run({0.05, 0.05}, 5);
    for (auto const& each : told) {
        std::string const other = &each == &told[0] ? "1" : "0";
        testing::expect(each.failure.empty() && each.intact, "every message is sent when it is ready: " + each.failure);
        testing::expect(each.notes == "start, stage embeddings, begin, own blocks, take " + other + ", blocks of " +
                                          other + ", close, finish, stage loss",
                        each.notes);
        testing::expect(each.scalars.loss == 3 && each.scalars.scale_gradient == 10, "both boxes' parts, of step 5");
    }
}

void check_what_has_come_is_taken_in() {
    auto const told = run({0, 0.3, 0}, 1);
    testing::expect(told[0].notes ==
                        "start, stage embeddings, begin, own blocks, take 2, take 1, blocks of 1, blocks of 2, "
                        "close, finish, stage loss",
                    "box 2's rows do not wait for box 1's, and are scored behind them: " + told[0].notes);
}

void check_a_stuck_device_ends_the_run() {
    auto const told = run({1e9, 0}, 1, 0.3);
    testing::expect(told[0].failure.find("this box: its own devices did not end their work") == 0, told[0].failure);
    testing::expect(told[1].failure.find("box 0 (127.0.0.1)") != std::string::npos, told[1].failure);
}

}  // namespace

int main() {
    check_nothing_waits_for_a_slow_device();
    check_what_has_come_is_taken_in();
    check_a_stuck_device_ends_the_run();
    return testing::report();
}
