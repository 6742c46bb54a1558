"""The regression check against planted slowdowns under noise like that of measurements: caught, and no false alarms."""

import random

import pytest

from harness import regress
from harness.records import COLUMNS
from tests.harness.regress_rows import timed


def simulated(generator, step, noise, slow_ranks=1.0, ranks=4):
    """A row as the protocol makes it: 5 processes x 3 blocks, each sample the slowest rank, process means over blocks.

    `noise` is the relative standard deviation from process to process; a block adds a third of it on every rank.
    """
    means = []
    for _ in range(5):
        process = generator.gauss(1.0, noise)
        blocks = []
        for _ in range(3):
            times = [step * process * generator.gauss(1.0, noise / 3) for _ in range(ranks)]
            times[-1] *= slow_ranks
            blocks.append(max(times))
        means.append(sum(blocks) / 3)
    return timed(means)


def verdict_of(base, new):
    settings = regress.Settings()
    texts = [{name: str(row.get(name, "")) for name in COLUMNS} for row in (base, new)]
    return regress.verdicts.compare(*texts, settings).verdict


@pytest.mark.parametrize("slow_rank_only", [False, True])
@pytest.mark.parametrize(("slowdown", "least_share"), [(1.10, 0.95), (1.30, 0.99)])
def test_planted_slowdowns_are_caught(slowdown, least_share, slow_rank_only):
    generator = random.Random(7)
    caught = 0
    for _ in range(400):
        base = simulated(generator, 0.01, 0.008)
        if slow_rank_only:
            new = simulated(generator, 0.01, 0.008, slow_ranks=slowdown)
        else:
            new = simulated(generator, 0.01 * slowdown, 0.008)
        caught += verdict_of(base, new) == "slower"
    assert caught >= least_share * 400


@pytest.mark.parametrize("noise", [0.001, 0.004, 0.008, 0.03, 0.1])
def test_false_alarms_are_under_one_percent(noise):
    generator = random.Random(11)
    alarms = 0
    for _ in range(1500):
        verdict = verdict_of(simulated(generator, 0.01, noise), simulated(generator, 0.01, noise))
        alarms += verdict in ("slower", "faster")
    assert alarms < 15


def test_a_three_percent_slowdown_is_never_called_faster():
    generator = random.Random(13)
    found = [verdict_of(simulated(generator, 0.01, 0.004), simulated(generator, 0.0103, 0.004)) for _ in range(400)]
    assert "faster" not in found and found.count("slower") > 100
