// Checks of the domain on GPUs: sums over ranks to the bit, and a peer that never arrives. Times, where asked for.
//   cuda_box_checks [--times] [--ranks N]
// Ranks are the visible GPUs; with one GPU, or with --ranks N, N ranks share GPU 0, whose kernels are then kept small
// enough to run at the same time. Never creates a multicast object. Exit status 1 if a check failed.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "scaling_contrasts/domain/domain.cuh"
#include "scaling_contrasts/gpu/graph.cuh"

using namespace scaling_contrasts;

namespace {

int failures = 0, expectations = 0;
void expect(bool holds, std::string const& what) {
    ++expectations;
    if (!holds) ++failures, std::printf("FAIL %s\n", what.c_str());
}

/// Rank r's value i: of mixed signs and sizes, so that the order of additions shows in the last bits.
float value(int rank, std::size_t i, int round) {
    auto const word =
        static_cast<std::uint32_t>(i * 2654435761u + std::size_t(rank) * 40503u + std::size_t(round) * 977u);
    return (static_cast<float>(word >> 8) / 8388608.0f - 1.0f) * (word & 1 ? 1.0f : 1e-3f);
}

struct team_t {
    std::vector<int> ordinals;
    std::vector<std::unique_ptr<gpu::stream_t>> streams;
    std::vector<std::unique_ptr<gpu::event_t>> events;

    explicit team_t(std::vector<int> of) : ordinals(std::move(of)) {
        for (int const ordinal : ordinals) {
            gpu::use_device(ordinal);
            streams.push_back(std::make_unique<gpu::stream_t>());
        }
    }
    int world() const { return static_cast<int>(ordinals.size()); }
    template <class work_t>
    void each(work_t&& work) {
        for (int rank = 0; rank < world(); ++rank) {
            gpu::use_device(ordinals[static_cast<std::size_t>(rank)]);
            work(rank, static_cast<cudaStream_t>(*streams[static_cast<std::size_t>(rank)]));
        }
    }
    void wait() {
        each([](int, cudaStream_t stream) { gpu::check(cudaStreamSynchronize(stream), "running"); });
    }
};

domain::domain_settings_t settings_of(std::size_t data_bytes, int blocks) {
    domain::domain_settings_t s;
    s.fabric = domain::fabric_t::peer_k;
    s.data_bytes = data_bytes;
    s.blocks = blocks;
    s.deadline_seconds = 5;
    return s;
}

/// Sums of every length, three rounds each, against the same additions on the host.
void check_sums(team_t& team, int blocks) {
    domain::domain_t domain(team.ordinals, settings_of(std::size_t(4) << 20, blocks));
    int round = 0;
    for (auto const schedule :
         {domain::schedule_t::one_shot_k, domain::schedule_t::two_shot_k, domain::schedule_t::one_shot_k})
        for (std::size_t const count : {1u, 3u, 5u, 1024u, 4099u, 60001u, 1000003u}) {
            if (schedule == domain::schedule_t::one_shot_k && count * 4 + 16 > domain.inbox_bytes()) continue;
            for (int repeat = 0; repeat < 3; ++repeat, ++round) {
                std::vector<float> want(count), got(count);
                for (std::size_t i = 0; i < count; ++i) {
                    want[i] = value(0, i, round);
                    for (int rank = 1; rank < team.world(); ++rank) want[i] += value(rank, i, round);
                }
                team.each([&](int rank, cudaStream_t) {
                    for (std::size_t i = 0; i < count; ++i) got[i] = value(rank, i, round);
                    gpu::check(cudaMemcpy(domain.data(rank), got.data(), count * 4, cudaMemcpyHostToDevice), "inputs");
                });
                team.each([&](int rank, cudaStream_t stream) { domain.all_reduce(rank, count, schedule, stream); });
                team.wait();
                domain.require_all_met();
                team.each([&](int rank, cudaStream_t) {
                    gpu::check(cudaMemcpy(got.data(), domain.data(rank), count * 4, cudaMemcpyDeviceToHost), "sums");
                    expect(std::memcmp(got.data(), want.data(), count * 4) == 0,
                           std::string(domain::name_of(schedule)) + " of " + std::to_string(count) + " over " +
                               std::to_string(team.world()) + ", rank " + std::to_string(rank));
                });
            }
        }
    // scalars in double, one after the other without a pause, so that inboxes alternate
    std::vector<gpu::buffer_t<double>> in, out;
    gpu::ledger_t ledger;
    team.each([&](int rank, cudaStream_t) {
        in.emplace_back(ledger, 3);
        out.emplace_back(ledger, 3);
        double const values[3] = {1.0 / (rank + 3), double(rank), 1e-9};
        gpu::check(cudaMemcpy(in.back().data(), values, sizeof values, cudaMemcpyHostToDevice), "scalars");
    });
    for (int i = 0; i < 50; ++i)
        team.each([&](int rank, cudaStream_t stream) {
            domain.one_shot(rank, in[rank].data(), out[rank].data(), 3, stream);
        });
    team.wait();
    double want[3] = {};
    for (int rank = 0; rank < team.world(); ++rank) want[0] += 1.0 / (rank + 3), want[1] += rank, want[2] += 1e-9;
    team.each([&](int rank, cudaStream_t) {
        double got[3];
        gpu::check(cudaMemcpy(got, out[rank].data(), sizeof got, cudaMemcpyDeviceToHost), "scalars");
        expect(std::memcmp(got, want, sizeof got) == 0, "three doubles, rank " + std::to_string(rank));
    });
}

/// The last rank stays away: the others end within the deadline, and the record names it.
void check_missing(team_t& team) {
    auto settings = settings_of(1 << 16, 2);
    settings.deadline_seconds = 0.05;
    domain::domain_t domain(team.ordinals, settings);
    auto const begin = std::chrono::steady_clock::now();
    team.each([&](int rank, cudaStream_t stream) {
        if (rank + 1 < team.world())
            for (int i = 0; i < 3; ++i) domain.all_reduce(rank, 4096, domain::schedule_t::two_shot_k, stream);
    });
    team.wait();
    double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::string message;
    try {
        domain.require_all_met();
    } catch (failure_t const& problem) {
        message = problem.what();
    }
    std::printf("missing peer: \"%s\" after %.3f s\n", message.c_str(), seconds);
    expect(message.find("rank 0 waited") == 0, "a missing peer is reported");
    expect(message.find("for rank " + std::to_string(team.world() - 1) + ",") != std::string::npos,
           "the missing peer is named");
    expect(message.find("inputs of a two-shot all-reduce") != std::string::npos, "the phase is named");
    expect(seconds < 2, "within the deadline");
}

/// Best of three runs of `steps` all-reduces captured into one graph a rank, per all-reduce.
double time_one(team_t& team, domain::domain_t& domain, std::size_t count, domain::schedule_t schedule, int steps) {
    std::vector<std::unique_ptr<gpu::graph_t>> graphs;
    team.each([&](int rank, cudaStream_t stream) {
        graphs.push_back(std::make_unique<gpu::graph_t>());
        graphs.back()->capture(stream, [&] {
            for (int i = 0; i < steps; ++i) domain.all_reduce(rank, count, schedule, stream);
        });
    });
    double best = 1e30;
    for (int run = 0; run < 4; ++run) {
        team.wait();
        auto const begin = std::chrono::steady_clock::now();
        team.each([&](int rank, cudaStream_t stream) { graphs[rank]->replay(stream); });
        team.wait();
        double const seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / steps;
        if (run) best = std::min(best, seconds);
    }
    domain.require_all_met();
    return best;
}

void time_all(team_t& team) {
    auto settings = settings_of(std::size_t(1) << 30, 0);
    settings.inbox_bytes = 4 << 20;
    for (int const blocks : {0, 8, 16, 32, 64, 128}) {
        settings.blocks = blocks;
        domain::domain_t domain(team.ordinals, settings);
        for (std::size_t bytes = 4096; bytes <= std::size_t(1) << 30; bytes *= 4)
            for (auto const schedule : {domain::schedule_t::one_shot_k, domain::schedule_t::two_shot_k}) {
                if (schedule == domain::schedule_t::one_shot_k && (bytes > settings.inbox_bytes || blocks)) continue;
                if (blocks && bytes < 65536) continue;
                int const steps = bytes < (1u << 22) ? 200 : bytes < (1u << 27) ? 20 : 4;
                double const seconds = time_one(team, domain, bytes / 4, schedule, steps);
                double const bus = double(bytes) / seconds * 2 * (team.world() - 1) / team.world() / 1e9;
                std::printf("%-9s blocks %3d %10zu bytes: %9.2f us, bus %7.1f GB/s\n", domain::name_of(schedule),
                            blocks, bytes, seconds * 1e6, bus);
            }
    }
    domain::domain_t domain(team.ordinals, settings_of(1 << 16, 0));
    std::printf("3 floats: %.2f us in a graph of 200\n",
                1e6 * time_one(team, domain, 3, domain::schedule_t::one_shot_k, 200));
}

}  // namespace

int main(int count, char** words) {
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);  // ranks of one GPU: no two of their streams share a queue
    int gpus = 0, ranks = 0;
    bool times = false;
    for (int i = 1; i < count; ++i) {
        if (std::string(words[i]) == "--times") times = true;
        if (std::string(words[i]) == "--ranks" && i + 1 < count) ranks = std::atoi(words[++i]);
    }
    try {
        gpu::check(cudaGetDeviceCount(&gpus), "counting devices");
        bool const shared = ranks > 0 || gpus < 2;
        for (int const world : shared ? std::vector<int>{ranks ? ranks : 3} : std::vector<int>{gpus}) {
            std::vector<int> ordinals;
            for (int rank = 0; rank < world; ++rank) ordinals.push_back(shared ? 0 : rank);
            team_t team(ordinals);
            check_sums(team, shared ? 4 : 0);
            check_missing(team);
            if (times && !shared) time_all(team);
        }
    } catch (failure_t const& problem) {
        expect(false, problem.what());
    }
    std::printf("%d expectations, %d failed\n", expectations, failures);
    return failures == 0 && expectations > 0 ? 0 : 1;
}
