// N virtual devices compute what one does, ragged or not, whether a pair of devices is scored twice or once; threads do
// not change a bit.
#include <array>

#include "fixture.hpp"
#include "scaling_contrasts/box/blocks.hpp"

using namespace fixture;

namespace {

void check_devices(loss_t loss, std::int64_t rows, std::vector<std::int64_t> live, bool self_pairs = false,
                   form_t form = form_t::nt_xent_k, bool pairs_once = false) {
    problem_t problem;
    problem.pairs_once = pairs_once;
    problem.loss = loss, problem.form = form, problem.rows = rows, problem.dims = 96, problem.prefixes = {32, 80};
    problem.world_size = static_cast<int>(live.size()), problem.live = live;
    problem.scale = 5, problem.bias = -1, problem.gradient_type = gradient_type_t::float32_k;
    problem.labels = label_layout_t::mixed_k, problem.self_pairs = self_pairs;
    data_t const data = make_data(problem);
    result_t const want = oracle(problem, data);
    for (auto const& engine : usable_engines()) {
        result_t const got = run(problem, data, 2, engine);
        compare(problem, got, want, engine);
        result_t const alone = run(problem, data, 1, engine, 1);
        testing::expect(alone.gradients == got.gradients && alone.scalars.loss == got.scalars.loss,
                        "one thread or two, same bits");
    }
}

/// Every peer is in one block, next to its neighbour, and there are no more blocks than need be.
void check_blocks() {
    for (int devices = 1; devices <= 16; ++devices)
        for (int device = 0; device < devices; ++device)
            for (int most : {1, 2, 3, 4, 7, 15}) {
                int next = 1;
                auto const blocks = peer_blocks(peers_behind(devices, device), devices, most);
                for (auto const& block : blocks) {
                    testing::expect(block.devices >= 1 && block.devices <= most, "a block has one to most peers");
                    testing::expect(block.first == (device + next) % devices, "blocks follow one another");
                    next += block.devices;
                }
                testing::expect(next == devices, "blocks hold all peers");
                testing::expect(static_cast<int>(blocks.size()) == (devices - 1 + most - 1) / most, "few blocks");
            }
    // one box's share of devices 0 to 7: its ring of four ends where the next box begins
    auto const blocks = peer_blocks({3, 0, 1}, 8, 4);
    testing::expect(blocks.size() == 2 && blocks[0].devices == 1 && blocks[1].devices == 2, "no block leaves its box");
    problem_t problem;
    auto rows = [&](int world, std::int64_t each, std::vector<std::int64_t> live = {}) {
        problem.world_size = world, problem.rows = each, problem.live = std::move(live);
        return candidate_rows(problem);
    };
    testing::expect(rows(1, 100) == 100 && rows(2, 100) == 100 && rows(4, 100) == 300, "all peers of few rows");
    testing::expect(rows(8, 2048) == 8192 && rows(8, 3000) == 6000 && rows(8, 16384) == 16384, "whole peers");
    testing::expect(rows(4, 100, {100, 99, 100, 100}) == 100, "no gaps in a block");
    problem.group_rows = 16384;
    testing::expect(rows(8, 2048) == 7 * 2048, "as many as are asked for");
}

/// Every cell of every block is scored by exactly one device, and as many by each as by any other.
void check_cover(loss_t loss, int world, std::int64_t rows, std::vector<std::int64_t> live) {
    problem_t problem;
    problem.loss = loss, problem.world_size = world, problem.rows = rows, problem.live = live;
    std::map<std::array<std::int64_t, 4>, int> cells;  // device and row, device and candidate
    std::vector<std::int64_t> scored(static_cast<std::size_t>(world));
    for (int device = 0; device < world; ++device)
        for (int round = 1; round <= pair_rounds(problem); ++round) {
            auto const pair = pair_of(problem, device, round, 4);
            testing::expect(source_of(problem, pair.peer, round) == device, "who is scored for knows by whom");
            testing::expect(pair.first_row % 4 == 0, "rows begin at a unit");
            for (std::int64_t i = pair.first_row; i < problem.live_of(device); ++i)
                for (std::int64_t j = 0; j < pair.candidates; ++j) {
                    bool const swap = sets_of(loss) == 1 && pair.peer < device;
                    ++cells[swap ? std::array<std::int64_t, 4>{pair.peer, j, device, i}
                                 : std::array<std::int64_t, 4>{device, i, pair.peer, j}];
                    ++scored[static_cast<std::size_t>(device)];
                }
        }
    std::int64_t want = 0;
    for (int a = 0; a < world; ++a)
        for (int b = 0; b < world; ++b)
            if (sets_of(loss) == 2 ? a != b : a < b) want += problem.live_of(a) * problem.live_of(b);
    std::string const what = std::to_string(world) + " devices of " + std::to_string(rows);
    testing::expect(static_cast<std::int64_t>(cells.size()) == want, what + ": all cells are scored");
    for (auto const& [cell, times] : cells) testing::expect(times == 1, what + ": a cell is scored once");
    if (!live.empty()) return;
    auto const [least, most] = std::minmax_element(scored.begin(), scored.end());
    testing::expect(*least == *most, what + ": all score alike");
}

void check_pairs() {
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k}) {
        for (int world : {1, 2, 3, 4, 5, 8, 16}) check_cover(loss, world, 8, {});
        check_cover(loss, 2, 9, {3, 9});
        check_cover(loss, 4, 9, {0, 9, 5, 1});
        check_devices(loss, 37, {37}, false, {}, true);
        check_devices(loss, 150, {97, 150}, false, {}, true);  // halves of several tiles
        check_devices(loss, 300, {300, 20}, false, {}, true);  // and superblocks
        check_devices(loss, 21, {21, 0, 13}, false, {}, true);
        check_devices(loss, 19, {19, 19, 1, 19, 18}, false, {}, true);
        check_devices(loss, 70, {70, 70, 0, 66, 70, 70, 70, 5}, false, {}, true);
    }
    check_devices(loss_t::one_set_sigmoid_k, 21, {21, 0, 13}, true, {}, true);
    for (bool forward : {false, true}) {
        problem_t problem;
        problem.loss = forward ? loss_t::one_set_sigmoid_k : loss_t::info_nce_k;
        problem.forward_only = forward, problem.pairs_once = true;
        try {
            step_t(problem, std::vector<set_t>(static_cast<std::size_t>(sets_of(problem.loss))));
            testing::expect(false, "pairs are not scored once where they cannot be");
        } catch (failure_t const& reason) {
            testing::expect(reason.status == status_t::unsupported_k, "which is unsupported");
        }
    }
}

}  // namespace

int main() {
    for (loss_t loss : {loss_t::one_set_sigmoid_k, loss_t::two_set_sigmoid_k, loss_t::info_nce_k}) {
        check_devices(loss, 37, {37});
        check_devices(loss, 33, {33, 33});
        check_devices(loss, 21, {21, 0, 13});
        check_devices(loss, 19, {19, 19, 1, 19, 18});
        check_devices(loss, 9, {9, 9, 9, 9, 9, 9, 9, 5});
    }
    check_devices(loss_t::one_set_sigmoid_k, 21, {21, 0, 13}, true);
    for (form_t form : {form_t::nt_xent_k, form_t::sup_con_k})
        for (std::vector<std::int64_t> const& live :
             {std::vector<std::int64_t>{37}, {33, 33}, {21, 0, 13}, {9, 9, 1, 8}})
            check_devices(loss_t::one_set_info_nce_k, live[0], live, false, form);
    check_pairs();
    check_blocks();
    return testing::report();
}
