"""Conditions of timed blocks in a row: clocks, power, energy, skew, and the costs of first use."""

import json
from types import SimpleNamespace

import pytest

from harness import run, summary
from harness.events import Events
from tests.harness.test_summary import CHECK, row


def sensed(clock_low, clock_high, power, reasons=(), energy=None, load=1.0):
    """A round of one block of ten steps in a second."""
    block = [0, 0, 10, 1.0, clock_low, clock_high, power, list(reasons), energy, load]
    return {"status": "ok", "reason": "", "blocks": [block]}


def test_conditions_are_extremes_means_and_medians():
    rounds = [
        sensed(1900, 1980, 500.0, load=1.0) | {"first_step_seconds": 9.0, "compile_seconds": 4.0},
        sensed(1800, 1970, 700.0, ["sw_power_cap"], load=5.0) | {"first_step_seconds": 3.0, "compile_seconds": None},
    ]
    found = summary.conditions(rounds)
    assert (found["clock_low_mhz"], found["clock_high_mhz"], found["power_watts"]) == (1800, 1980, 600.0)
    assert (found["throttle_reasons"], found["load_average"]) == (["sw_power_cap"], 5.0)
    assert (found["first_step_seconds"], found["compile_seconds"], found["autotune_seconds"]) == (6.0, 4.0, None)


def test_clocks_that_fell_are_a_remark_and_wandering_cpu_clocks_are_none():
    fell = row(CHECK, [sensed(1200, 1980, 500.0, ["hw_thermal_slowdown"])] * 3)
    assert (fell["status"], fell["reason"]) == ("ok", "a note; clocks fell to 1200 of 1980 MHz (hw_thermal_slowdown)")
    assert row(CHECK, [sensed(1900, 1980, 500.0, ["sw_power_cap"])] * 3)["reason"] == "a note"
    assert row(CHECK, [sensed(800, 3700, None)] * 3)["reason"] == "a note"
    assert row(CHECK, [sensed(None, None, None)] * 3)["reason"] == "a note"


def spans(tmp_path, *ranks):
    """`ranks`: per rank `(event, steps, seconds, joules)` of each warm-up and block."""
    for rank, events in enumerate(ranks):
        lines = [
            {"event": event, "block": 0, "steps": steps, "seconds": seconds, "energy_joules": joules}
            for event, steps, seconds, joules in events
        ]
        (tmp_path / f"events.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Events.read(tmp_path)


def test_energy_is_over_all_steps_and_summed_over_ranks(tmp_path):
    one = [("warm_up", 20, 1.0, 400.0), ("block", 10, 0.5, 260.0)]  # 660 J in 30 steps: 22 J a step
    two = [("warm_up", 20, 1.0, 500.0), ("block", 10, 0.5, 190.0)]  # 690 J in 30 steps: 23 J a step
    assert summary.energy_of(spans(tmp_path, one, two)) == pytest.approx(45.0)


@pytest.mark.parametrize(
    "events",
    [
        [("warm_up", 20, 0.1, 40.0), ("block", 10, 0.05, 26.0)],  # too short for a counter
        [("warm_up", 20, 1.0, None), ("block", 10, 0.5, None)],  # no counter
        [("warm_up", 20, 1.0, 0.0), ("block", 10, 0.5, 0.0)],  # one that stands still
        [],
    ],
)
def test_energy_that_was_not_counted_is_not_known(tmp_path, events):
    assert summary.energy_of(spans(tmp_path, events)) is None


def test_skew_lies_between_the_fastest_and_the_slowest_rank(tmp_path):
    def events(rank, *lines):
        (tmp_path / f"events.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Events.read(tmp_path)

    blocks = [[{"event": "block", "block": i, "steps": 10, "seconds": s} for i, s in enumerate(each)] for each in
              ([1.0, 2.0], [1.5, 1.9])]  # fmt: skip
    assert summary.skew_of(events(0, *blocks[0])) is None
    # 0.5 s and 0.1 s over ten steps
    assert summary.skew_of(events(1, *blocks[1])) == pytest.approx((0.05 + 0.01) / 2)
    told = events(0, *blocks[0], {"event": "figures", "start_skew_seconds": 2e-6, "start_wait_seconds": 9e-6})
    assert summary.skew_of(told) == 2e-6, "the box knows better"
    rounds = [{"blocks": [[0, 0, 10, 1.0]], "skew_seconds": skew} for skew in (3e-6, 1e-6, 2e-6)]
    assert summary.conditions(rounds)["skew_seconds"] == 2e-6


def test_a_round_keeps_what_the_box_tells_of_its_end(tmp_path):
    told = {"event": "figures", "end_wait_seconds": 4e-6, "differing_repetitions": 0.0}
    (tmp_path / "events.0.jsonl").write_text(json.dumps(told) + "\n")
    record = run._timed(SimpleNamespace(status="ok", reason="", seconds=1.0, events=Events.read(tmp_path)))
    assert (record["end_wait_seconds"], record["differing_repetitions"]) == (4e-6, 0)
    rounds = [record, record | {"end_wait_seconds": 6e-6, "differing_repetitions": 3.0}]
    found = summary.conditions(rounds)
    assert found["end_wait_seconds"] == pytest.approx(5e-6)
    assert found["differing_repetitions"] == 3, "one round that differs is one too many"
    silent = summary.conditions([{"blocks": [], "end_wait_seconds": None}])
    assert silent["end_wait_seconds"] is None and silent["differing_repetitions"] is None


def test_first_use_costs_are_the_slowest_rank_s(tmp_path):
    def events(rank, collective, compiling):
        lines = [
            {"event": "first_collective", "seconds": collective},
            {"event": "first_step", "seconds": 2.0 * collective},
            {"event": "first_use", "compile_seconds": compiling, "autotune_seconds": None},
        ]
        (tmp_path / f"events.{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Events.read(tmp_path)

    alone = summary.first_use_of(events(0, 0.5, 3.0))
    assert alone["first_collective_seconds"] is None, "one process: its barrier is no collective"
    assert summary.first_use_of(events(1, 0.7, 1.0)) == {
        "first_step_seconds": 1.4,
        "compile_seconds": 3.0,
        "autotune_seconds": None,
        "first_collective_seconds": 0.7,
    }
