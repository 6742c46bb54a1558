import dataclasses
import json

import numpy as np
import pytest

from harness import summary
from harness.cases import Case
from harness.events import Events
from harness.plan import Planned
from harness.systems import System, Variant

CASE = Case("s", "two_set_sigmoid", "v", rows=10, dims=64, prefixes=(64,))
PLANNED = Planned(
    CASE, System("s", "m:C", "single", (), None, ("cpu",), 8.0, {}, {}), Variant("v", "two_set_sigmoid"), 1.0, 1
)


def a_round(*ranks, first=1.0):
    """`ranks`: seconds of each block of 10 steps."""
    blocks = [[rank, block, 10, seconds] for rank, times in enumerate(ranks) for block, seconds in enumerate(times)]
    return {"status": "ok", "reason": "", "blocks": blocks, "first_step_seconds": first}


def test_a_sample_is_the_slowest_rank_s_block():
    assert summary.samples_of(a_round([1.0, 4.0], [2.0, 3.0])["blocks"]) == [0.2, 0.4]


def test_statistics_by_hand():
    found = summary.timing([a_round([1.0, 2.0, 6.0], first=9.0), a_round([2.0, 2.0, 2.0], first=3.0)])
    assert found.best_seconds == pytest.approx(0.1)
    assert found.median_seconds == pytest.approx(0.2)
    assert found.mean_seconds == pytest.approx(0.25)  # process means 0.3 and 0.2
    assert (found.mean_low_seconds, found.mean_high_seconds) == (pytest.approx(0.2), pytest.approx(0.3))
    assert (found.rounds, found.samples, found.steps_per_block) == (2, 6, 10)
    assert summary.timing([]) is None


def events_of(tmp_path, *memories):
    for rank, fields in enumerate(memories):
        lines = [{"event": "memory", **fields}, {"event": "end", "status": "ok", "reason": ""}]
        text = "\n".join(map(json.dumps, lines))
        (tmp_path / f"events.{rank}.jsonl").write_text(text + "\n")
    return Events.read(tmp_path)


def test_memory_is_the_largest_rank_s_and_step_peak_leaves_out_inputs_and_gradients(tmp_path):
    figures = summary.memory_figures(
        events_of(
            tmp_path,
            {"allocated_peak_bytes": 900, "input_bytes": 100, "gradient_bytes": 200, "device_used_bytes": None},
            {"allocated_peak_bytes": 1000, "input_bytes": 100, "gradient_bytes": 200, "device_used_bytes": 50},
        ),
        CASE,
    )
    assert figures == {
        "allocated_peak_bytes": 1000,
        "step_peak_bytes": 700,
        "device_used_bytes": 50,
        "allocator_driver_difference_bytes": -950,
    }


MB = 1 << 20


@pytest.mark.parametrize(
    ("peak", "used", "second", "remarks"),
    [
        (100 * MB, 140 * MB, 120 * MB, []),  # contexts and pools on top: as it should be
        (100 * MB, 97 * MB, None, []),  # within 2% and 2 MiB
        (100 * MB, 95 * MB, None, ["the allocator counts 100.0 MiB, the driver sees only 95.0 MiB"]),
        (100 * MB, None, 60 * MB, ["the program's analysis says 100.0 MiB, its allocator had at most 60.0 MiB"]),
        (None, 50 * MB, 10 * MB, []),
    ],
)
def test_counts_of_memory_that_contradict_each_other_are_a_remark(tmp_path, peak, used, second, remarks):
    fields = {"allocated_peak_bytes": peak, "device_used_bytes": used, "allocator_peak_bytes": second}
    assert summary.memory_remarks(events_of(tmp_path, fields)) == remarks


def test_a_worker_may_add_a_note_to_its_row(tmp_path):
    lines = [
        {"event": "first_step", "seconds": 1.0, "note": "2 blocks of 128 rows"},
        {"event": "first_step", "seconds": 1},
    ]
    (tmp_path / "events.0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert summary.worker_notes(Events.read(tmp_path)) == ["2 blocks of 128 rows"]


def test_the_row_tells_the_form_of_a_loss_that_has_several():
    case = dataclasses.replace(PLANNED.case, loss="one_set_info_nce", options={"form": "sup_con"})
    assert row(CHECK, [a_round([1.0])] * 3, planned=dataclasses.replace(PLANNED, case=case))["form"] == "sup_con"
    assert row(CHECK, [a_round([1.0])] * 3)["form"] == ""


def test_unknown_sizes_of_inputs_come_from_the_shape(tmp_path):
    fields = {"allocated_peak_bytes": 10000, "input_bytes": None, "gradient_bytes": None, "device_used_bytes": None}
    figures = summary.memory_figures(events_of(tmp_path, fields), CASE)
    assert figures["step_peak_bytes"] == 10000 - 2 * 10 * 64 * 2 - 2 * 10 * 64 * 2
    unknown = summary.memory_figures(events_of(tmp_path, dict.fromkeys(fields)), CASE)
    assert set(unknown.values()) == {None}


PROTOCOL = {"rounds": 3, "maximum_range": 0.2, "retries": 2}


def row(check, rounds, interrupted="", planned=PLANNED, not_begun=""):
    return summary.row(planned, check, rounds, {"run_id": "r"}, PROTOCOL, interrupted, not_begun)


CHECK = {"status": "ok", "reason": "", "errors": {"loss": 1e-6}, "loss_value": 3.0, "memory": {}, "notes": ["a note"]}


def test_a_row_tells_how_far_a_case_has_got():
    assert row(None, []) is None
    assert row(CHECK, []) is None, "checked but not timed: nothing to tell yet"
    whole = row(CHECK, [a_round([1.0])] * 3)
    assert (whole["status"], whole["reason"], whole["loss_error"]) == ("ok", "a note", 1e-6)
    assert row(CHECK, [a_round([1.0])])["reason"] == "1 of 3 rounds; a note"
    half = row(CHECK, [a_round([1.0])], "interrupted in round 2")
    assert (half["status"], half["reason"], half["rounds"]) == ("interrupted", "interrupted in round 2", 1)


def test_a_case_that_was_never_timed_is_a_row_once_the_run_is_over():
    left_out = row(CHECK, [], not_begun="time budget ended before this case")
    assert (left_out["status"], left_out["reason"]) == ("interrupted", "time budget ended before this case")
    assert "best_seconds" not in left_out
    assert row(CHECK, [a_round([1.0])], not_begun="time budget ended")["status"] == "ok", "it was timed, if not in full"


def means(*seconds):
    """Rounds of one block of ten steps each, with these process means."""
    return [a_round([10 * value]) for value in seconds]


def test_process_means_too_far_apart_are_too_noisy_and_the_reason_says_by_how_much():
    # (1.2 - 0.9) / 1.0 = 30%
    noisy = row(CHECK, means(0.9, 1.2, 0.9))
    assert noisy["status"] == "too_noisy"
    assert noisy["reason"] == (
        "process means range over 30.0% of their mean, more than 20%, after 0 of 2 retries; a note"
    )
    assert (noisy["retries"], noisy["mean_seconds"]) == (0, pytest.approx(1.0))
    calm = row(CHECK, means(0.95, 1.1, 0.95))
    assert (calm["status"], calm["reason"]) == ("ok", "a note"), "15% is within 20%"


def test_the_last_rounds_count_whatever_they_say():
    whole = row(CHECK, means(2.0, 1.0, 1.05, 1.01, 0.98))
    assert (whole["status"], whole["retries"], whole["rounds"]) == ("ok", 2, 3)
    assert whole["round_mean_seconds"] == pytest.approx((1.05, 1.01, 0.98))
    assert whole["best_seconds"] == pytest.approx(0.98)
    late = row(CHECK, means(1.0, 1.0, 1.0, 2.0, 1.0))
    assert late["status"] == "too_noisy", "calm rounds before do not count either"
    assert "after 2 of 2 retries" in late["reason"]


def test_no_limit_or_one_round_is_never_too_noisy():
    free = PROTOCOL | {"maximum_range": None}
    assert summary.row(PLANNED, CHECK, means(1.0, 2.0, 3.0), {}, free)["status"] == "ok"
    assert row(CHECK, means(1.0))["status"] == "ok"


def test_failed_rows_hold_no_times():
    wrong = row(CHECK | {"status": "wrong", "reason": "loss off"}, [])
    assert (wrong["status"], wrong["reason"], wrong["loss_error"]) == ("wrong", "loss off", 1e-6)
    later = row(CHECK, [a_round([1.0]), {"status": "timeout", "reason": "late", "blocks": []}])
    assert later["status"] == "timeout"
    assert "best_seconds" not in later


def test_an_unsupported_case_is_a_row():
    reason = row(None, [], planned=Planned(**{**vars(PLANNED), "unsupported": "no GPU"}))
    assert (reason["status"], reason["reason"], reason["system"]) == ("unsupported", "no GPU", "s")


def test_torn_lines_end_a_rank_s_events(tmp_path):
    (tmp_path / "events.0.jsonl").write_text('{"event": "start"}\n{"event": "blo')
    found = Events.read(tmp_path)
    assert [event["event"] for event in found.ranks[0]] == ["start"]
    assert found.ended() is None


@pytest.mark.parametrize(
    ("ends", "want"),
    [
        (["ok", "ok"], ("ok", "")),
        (["ok", "crashed"], ("crashed", "crashed 1")),
        (["crashed", "out_of_memory"], ("out_of_memory", "out_of_memory 1")),
        (["ok", None], None),
        (["nonfinite", None], ("nonfinite", "nonfinite 0")),
    ],
)
def test_ranks_are_put_together(tmp_path, ends, want):
    for rank, status in enumerate(ends):
        line = f'{{"event": "end", "status": "{status}", "reason": "{status} {rank}"}}\n' if status else ""
        (tmp_path / f"events.{rank}.jsonl").write_text(line)
    assert Events.read(tmp_path).ended() == want


def test_gradients_are_put_together_by_rank(tmp_path):
    for rank in (0, 1):
        np.save(tmp_path / f"g{rank}.npy", np.full((2, 3), rank, dtype=np.float32))
        event = {
            "event": "check",
            "name": "own",
            "rows": [2 * rank, 2 * rank + 1],
            "gradients": {"rows": f"g{rank}.npy"},
        }
        (tmp_path / f"events.{rank}.jsonl").write_text(json.dumps(event) + "\n")
    rows, values = Events.read(tmp_path).gradients("own")["rows"]
    assert rows.tolist() == [0, 1, 2, 3]
    assert values[:, 0].tolist() == [0, 0, 1, 1]


def test_an_expected_wrong_row_keeps_its_status_and_gets_its_times():
    check = CHECK | {"status": "wrong", "reason": "dX off", "expected": True}
    timed = row(check, [a_round([1.0])] * 3)
    assert (timed["status"], timed["reason"], timed["best_seconds"]) == ("wrong", "dX off", 0.1)
    assert row(check, [])["status"] == "wrong", "not timed yet"
    failed = row(check, [a_round([1.0]), {"status": "crashed", "reason": "gone", "blocks": []}])
    assert failed["status"] == "crashed", "a failure that is not the expected one counts"
    surprise = row(check | {"expected": False}, [a_round([1.0])])
    assert surprise["status"] == "wrong" and "best_seconds" not in surprise


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
