import dataclasses
import json

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


def test_an_expected_wrong_row_keeps_its_status_and_gets_its_times():
    check = CHECK | {"status": "wrong", "reason": "dX off", "expected": True}
    timed = row(check, [a_round([1.0])] * 3)
    assert (timed["status"], timed["reason"], timed["best_seconds"]) == ("wrong", "dX off", 0.1)
    assert row(check, [])["status"] == "wrong", "not timed yet"
    failed = row(check, [a_round([1.0]), {"status": "crashed", "reason": "gone", "blocks": []}])
    assert failed["status"] == "crashed", "a failure that is not the expected one counts"
    surprise = row(check | {"expected": False}, [a_round([1.0])])
    assert surprise["status"] == "wrong" and "best_seconds" not in surprise
