// Every task runs exactly once, for many short loops in a row.
#include "scaling_contrasts/threads.hpp"
#include "testing.hpp"

int main() {
    for (int threads : {1, 2, 3, 8}) {
        scaling_contrasts::pool_t pool(threads);
        testing::expect(pool.threads() == threads, "threads");
        for (int round = 0; round < 300; ++round) {
            std::vector<std::atomic<int>> runs(static_cast<std::size_t>(round % 23));
            pool.run(static_cast<int>(runs.size()), [&](int i) { runs[static_cast<std::size_t>(i)].fetch_add(1); });
            for (auto const& count : runs) testing::expect(count == 1, "once each");
        }
    }
    return testing::report();
}
