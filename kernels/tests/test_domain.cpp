// Barriers and sums over ranks that run at the same time, a thread each; the whole step with a thread per device; a
// peer that never arrives. Built twice: plain, and with ThreadSanitizer where the compiler has it.
#include <atomic>

#include "fixture.hpp"
#include "scaling_contrasts/cpu/concurrent.hpp"

using namespace fixture;
using namespace scaling_contrasts::domain;

namespace {

int const worlds_k[] = {1, 2, 3, 5, 8};

float value(int rank, std::size_t i, int round) {
    auto const word =
        static_cast<std::uint32_t>(i * 2654435761u) + static_cast<std::uint32_t>(rank * 40503 + round * 977);
    return (static_cast<float>(scaling_contrasts::mix(word) >> 8) / 8388608.0f - 1.0f) * (word & 1 ? 1.0f : 1e-3f);
}

/// What plain additions in the order of ranks give.
std::vector<float> want(int world, std::size_t count, int round) {
    std::vector<float> sums(count);
    for (std::size_t i = 0; i < count; ++i)
        for (int rank = 0; rank < world; ++rank) sums[i] += value(rank, i, round);
    return sums;
}

void check_sums(int world) {
    thread_domain_t domain(world, 4096);
    std::vector<std::vector<four_t>> data;
    std::vector<four_t*> all;
    constexpr std::size_t count = 1001;
    for (int rank = 0; rank < world; ++rank) data.emplace_back((count + 3) / 4);
    for (auto& each : data) all.push_back(each.data());
    std::vector<int> wrong(static_cast<std::size_t>(world));
    domain.run([&](int rank) {
        auto const& m = domain.member(rank);
        auto* own = reinterpret_cast<float*>(all[static_cast<std::size_t>(rank)]);
        auto hold = [&](float const* got, std::vector<float> const& sums) {
            wrong[static_cast<std::size_t>(rank)] += std::memcmp(got, sums.data(), sums.size() * sizeof(float)) != 0;
        };
        for (int round = 0; round < 40; ++round) {
            // one_shot thrice in a row, of different lengths, so that inboxes are written while others still read
            for (std::size_t n : {std::size_t(3), std::size_t(17), std::size_t(1000)}) {
                std::vector<float> mine(n), sums(n);
                for (std::size_t i = 0; i < n; ++i) mine[i] = value(rank, i, round);
                one_shot(thread_place_t(), m, mine.data(), sums.data(), n);
                hold(sums.data(), want(world, n, round));
            }
            for (std::size_t i = 0; i < count; ++i) own[i] = value(rank, i, round);
            two_shot<0>(thread_place_t(), m, all.data(), (count + 3) / 4);
            hold(own, want(world, count, round));
            meet(thread_place_t(), m, phase_t::embeddings_k);
        }
    });
    for (int rank = 0; rank < world; ++rank)
        testing::expect(wrong[static_cast<std::size_t>(rank)] == 0,
                        std::to_string(world) + " ranks: sums of rank " + std::to_string(rank));
}

/// Slices cover everything once, whatever the length.
void check_slices() {
    for (int world = 1; world <= max_devices_k; ++world)
        for (std::size_t count : {0u, 1u, 2u, 7u, 16u, 17u, 1000u}) {
            std::size_t next = 0;
            for (int rank = 0; rank < world; ++rank) {
                auto const slice = slice_of(rank, world, count);
                testing::expect(slice.begin == next || slice.begin == slice.end, "slices follow one another");
                next = std::max(next, slice.end);
            }
            testing::expect(next == count, "slices cover all");
        }
}

/// A rank that comes too late is named, and finds that the others have stopped: what it still writes is nobody's to
/// read, and it waits for none of them.
void check_late() {
    thread_domain_t domain(3, 64, 1.0);
    std::atomic<int> stopped = 0;
    std::string message;
    auto const begin = std::chrono::steady_clock::now();
    try {
        domain.run([&](int rank) {
            domain.meet(rank, phase_t::embeddings_k);
            while (rank == 1 && stopped < 2) std::this_thread::yield();
            try {
                domain.meet(rank, phase_t::pair_scored_k);
                domain.meet(rank, phase_t::pair_taken_k);
            } catch (stopped_t) {
                ++stopped;
                throw;
            }
        });
    } catch (failure_t const& reason) {
        message = reason.what();
    }
    testing::expect(message.find("for rank 1,") != std::string::npos &&
                        message.find("(gradients of a round of pairs, round 2)") != std::string::npos,
                    "the late rank is named: " + message);
    testing::expect(stopped == 3, "all stop");
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    testing::expect(seconds > 0.9, "after the deadline");
}

/// The same of a step, whose devices here have no patience, and one of them nearly all the work.
void check_impatient() {
#if defined(__SANITIZE_THREAD__)
    constexpr std::int64_t rows = 200;  // takes as long
#else
    constexpr std::int64_t rows = 1000;
#endif
    problem_t problem;
    problem.rows = rows, problem.world_size = 3, problem.live = {1, rows, 1};
    data_t const data = make_data(problem);
    std::vector<std::vector<bf16_t>> gradients(3, std::vector<bf16_t>(rows * 1024));
    std::vector<set_t> views;
    for (std::size_t device = 0; device < 3; ++device)
        views.push_back({data.sets[0].data() + device * rows * 1024, nullptr, gradients[device].data()});
    concurrent_step_t step(problem, views, 1, "auto", 1e-9);
    for (int time = 0; time < 2; ++time) {  // and it stays so
        std::string message;
        try {
            step.run();
        } catch (failure_t const& reason) {
            testing::expect(reason.status == status_t::timeout_k, "a late device is a timeout");
            message = reason.what();
        }
        testing::expect(message.find(" ms for rank ") != std::string::npos &&
                            message.find(", which did not arrive (") != std::string::npos,
                        "a late device is named: " + message);
    }
}

/// A rank that throws ends the others' waiting at once, and is what the caller hears of.
void check_throw() {
    thread_domain_t domain(3, 64, 600);
    for (int time = 0; time < 2; ++time) {
        std::string message;
        try {
            domain.run([&](int rank) {
                if (rank == 1 && time == 0) throw std::runtime_error("rank 1 is broken");
                domain.meet(rank, phase_t::embeddings_k);
            });
        } catch (std::exception const& reason) {
            message = reason.what();
        }
        testing::expect(message == (time ? "a device failed in an earlier step" : "rank 1 is broken"),
                        "who threw is told: " + message);
    }
}

/// The round counter passes 2^32 without anybody noticing.
void check_wrap() {
    thread_domain_t domain(3);
    std::vector<double> got(3);
    for (int rank = 0; rank < 3; ++rank) domain.member(rank).state->round = 0xfffffffeu;
    for (int rank = 0; rank < 3; ++rank)
        for (int peer = 0; peer < 3; ++peer) domain.member(rank).flags[rank][peer] = 0xfffffffeu;
    domain.run([&](int rank) {
        for (int round = 0; round < 5; ++round) {
            double const mine = rank + round;
            one_shot(thread_place_t(), domain.member(rank), &mine, &got[static_cast<std::size_t>(rank)], 1);
        }
    });
    for (double each : got) testing::expect(each == 0 + 1 + 2 + 3 * 4, "sums across the wrap of the counter");
}

void check_missing() {
    thread_domain_t domain(3, 64, 0.05);
    std::string message;
    auto const begin = std::chrono::steady_clock::now();
    try {
        domain.run([&](int rank) {
            meet(thread_place_t(), domain.member(rank), phase_t::embeddings_k);
            if (rank == 1) return;  // leaves
            for (int i = 0; i < 20; ++i) meet(thread_place_t(), domain.member(rank), phase_t::log_sums_k);
        });
    } catch (failure_t const& problem) {
        testing::expect(problem.status == status_t::timeout_k, "a missing peer is a timeout");
        message = problem.what();
    }
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    testing::expect(message.find("rank 0 waited ") == 0 && message.find("for rank 1,") != std::string::npos &&
                        message.find("log-sums of the first pass, round 2") != std::string::npos,
                    "the missing peer is named: " + message);
    testing::expect(seconds < 5, "one deadline, not twenty");  // 20 in vain would be 1 s and more on each rank
}

void check_step(loss_t loss, std::int64_t rows, std::vector<std::int64_t> live, bool pairs_once = false) {
    problem_t problem;
    problem.pairs_once = pairs_once;
    problem.loss = loss, problem.rows = rows, problem.dims = 96, problem.prefixes = {32, 80};
    problem.world_size = static_cast<int>(live.size()), problem.live = live;
    problem.scale = 5, problem.bias = -1, problem.gradient_type = gradient_type_t::float32_k;
    problem.labels = label_layout_t::mixed_k;
    data_t const data = make_data(problem);
    result_t const expected = oracle(problem, data);
    auto engines = usable_engines();
#if defined(__SANITIZE_THREAD__)
    engines.resize(1);  // all share the schedule
#endif
    for (std::string const& engine : engines) {
        result_t const got = run_with<concurrent_step_t>(problem, data, 2 * problem.world_size, engine);
        compare(problem, got, expected, engine);
        result_t const turns = run(problem, data, 1, engine, 1);
        testing::expect(got.gradients == turns.gradients && got.scalars.loss == turns.scalars.loss &&
                            got.scalars.scale_gradient == turns.scalars.scale_gradient,
                        describe(problem, engine) + ": at once or in turns, same bits");
    }
}

}  // namespace

int main() {
    check_slices();
    for (int world : worlds_k) check_sums(world);
    check_wrap();
    check_missing();
    check_late();
    check_impatient();
    check_throw();
    for (loss_t loss :
         {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k, loss_t::one_set_info_nce_k}) {
        check_step(loss, 37, {37});
        check_step(loss, 33, {33, 33});
        check_step(loss, 21, {21, 0, 13});
        check_step(loss, 19, {19, 19, 1, 19, 18});
        check_step(loss, 9, {9, 9, 9, 9, 9, 9, 9, 5});
    }
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k}) {
        check_step(loss, 37, {37}, true);
        check_step(loss, 150, {97, 150}, true);
        check_step(loss, 21, {21, 0, 13}, true);
        check_step(loss, 19, {19, 19, 1, 19, 18}, true);
        check_step(loss, 70, {70, 70, 0, 66, 70, 70, 70, 5}, true);
    }
    return testing::report();
}
