"""The search against true capacities that are given, with luck and without."""

import random

import pytest

from harness.capacity_bisection import Bounds, endpoints, fits, next_rows

BOUNDS = Bounds(start_rows=256, ceiling_rows=1 << 20, step_rows=128, step_share=0.05, confirmations=2)


def search(truth, bounds=BOUNDS, flukes=()):
    """Launches by R when `truth` rows are what fits; the launches numbered in `flukes` say the opposite."""
    seen, order = {}, []
    while (rows := next_rows(seen, bounds)) is not None:
        seen.setdefault(rows, []).append((rows <= truth) != (len(order) in flukes))
        order.append(rows)
        assert len(order) < 100, "it must end"
    return seen, order


@pytest.mark.parametrize("truth", [256, 300, 511, 512, 3000, 12345, 16384, 700_001, (1 << 20) - 1])
def test_the_endpoints_enclose_the_truth_as_closely_as_asked(truth):
    seen, order = search(truth)
    low, high = endpoints(seen)
    assert low <= truth < high
    assert high - low <= max(128, 0.05 * low)
    assert len(seen[low]) == len(seen[high]) == 3, "both endpoints in two more processes"
    assert all(len(launches) == 1 for rows, launches in seen.items() if rows not in (low, high))
    assert order[:2] == [256, 512]
    assert all(rows % 128 == 0 for rows in order)
    doublings = max(truth // 256, 1).bit_length() + 1
    assert len(order) <= doublings + 8 + 4


def test_a_small_truth_is_looked_for_below_the_start():
    seen, order = search(200)
    assert endpoints(seen) == (128, 256)
    assert order == [256, 128, 128, 128, 256, 256]


def test_nothing_fits():
    seen, order = search(0)
    assert endpoints(seen) == (0, 128)
    assert order == [256, 128, 128, 128]


def test_the_ceiling_ends_the_doubling_and_is_confirmed():
    seen, order = search(10**9, Bounds(256, 1000, 128, 0.05, 2))
    assert order == [256, 512, 1000, 1000, 1000]
    assert endpoints(seen) == (1000, None)


def test_the_middle_is_a_round_number_where_there_is_one():
    assert next_rows({1000: [True], 2000: [False]}, BOUNDS) == 1408
    assert next_rows({1000: [True], 1020: [False]}, Bounds(1000, 2000, 1, 0.0, 2)) == 1010


def test_a_finer_step_finds_the_row():
    seen, _ = search(777, Bounds(1, 5000, 1, 0.0, 2))
    assert endpoints(seen) == (777, 778)


@pytest.mark.parametrize("seed", range(40))
def test_one_fluke_never_moves_the_answer(seed):
    luck = random.Random(seed)
    truth = luck.randrange(256, 100_000)
    seen, _ = search(truth, flukes={luck.randrange(12)})
    low, high = endpoints(seen)
    assert low <= truth < high
    assert high - low <= max(128, 0.05 * low)
    assert len(seen[low]) == len(seen[high]) == 3


def test_a_majority_decides_and_a_tie_does_not_fit():
    assert fits([True, False, True]) and not fits([False, True, False]) and not fits([True, False])
