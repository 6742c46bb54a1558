"""The search: what each kind of end is called, and what is kept, with launches that are played."""

import itertools

import pytest

from harness import capacity, capacity_search, launch, machine, progress
from harness.events import Events
from harness.store import Store
from tests.harness.capacity_bench import MIB, arguments, sized


@pytest.fixture
def played(bench, monkeypatch):
    """Searches whose launches are a function `rows -> (status, reason, bytes)`, each taking `seconds` by the clock."""
    clock = [0.0]
    monkeypatch.setattr(capacity_search.time, "monotonic", lambda: clock[0])

    def play(behaviour, *overrides, seconds=1.0, variants=None, checks=None):
        def started(system, case, folder, binary, grace, check_interrupt):
            status, reason, used = behaviour(case["rows"])
            took = min(seconds, case["deadline_seconds"])
            clock[0] += took
            if took < seconds:
                status, reason = "timeout", "no end in time"
            event = {"event": "memory", "device_used_bytes": used}
            return launch.Outcome(status, reason, Events(folder, {0: [event] if status == "ok" else []}), took)

        monkeypatch.setattr(capacity_search.launch, "launch", started)
        sized(bench, variants or {"a": {}})
        chosen = capacity.compose(arguments(bench, *overrides)).for_device("cpu")
        searches = capacity.enumerate_searches(chosen, machine.detect(), "cpu")
        store = Store(bench.folder / "run")
        quiet = progress.Progress(open(bench.folder / "said", "w"))
        capacity_search.Searcher(chosen, machine.detect(), store, quiet, lambda: None).run(searches, lambda: None)
        return [search.row({}) for search in searches]

    return play


def linear(rows):
    return "ok", "", rows * MIB // 10


def test_over_the_limit_is_out_of_memory_with_the_figures(played):
    (row,) = played(linear)
    assert (row["status"], row["largest_rows"], row["failing_rows"]) == ("ok", 640, 704), "700 rows fill the budget"
    assert row["failing_reason"] == "used 70.4 MiB, over the limit of 70.0 MiB"
    assert row["device_used_bytes"] == 64 * MIB


@pytest.mark.parametrize(
    ("status", "reason"),
    [("out_of_memory", "can't allocate memory"), ("crashed", "killed by SIGSEGV"), ("nonfinite", "")],
)
def test_failing_launches_keep_their_own_outcome(played, status, reason):
    (row,) = played(lambda rows: ("ok", "", 1) if rows <= 1000 else (status, reason, None))
    assert (row["status"], row["largest_rows"], row["failing_rows"]) == ("ok", 960, 1024)
    assert (row["failing_outcome"], row["failing_reason"], row["failing_failed"]) == (status, reason, 3)


def test_a_system_that_never_runs_has_its_failure_as_status(played):
    (row,) = played(lambda rows: ("crashed", "no such engine", None))
    assert (row["status"], row["reason"], row["largest_rows"]) == ("crashed", "no such engine", None)
    assert row["status"] not in capacity.ANSWERS


def test_an_adapter_that_refuses_is_unsupported_at_once(played):
    (row,) = played(lambda rows: ("unsupported", "told so", None))
    assert (row["status"], row["reason"], row["launches"]) == ("unsupported", "told so", 0)


def test_the_ceiling(played):
    (row,) = played(lambda rows: ("ok", "", 1), "capacity.ceiling_rows=1000")
    assert (row["status"], row["largest_rows"], row["failing_rows"]) == ("ceiling_reached", 1000, None)
    assert (row["largest_launches"], row["launches"]) == (3, 5)


def test_a_launch_that_is_too_long_is_a_timeout_and_ends_the_search(played):
    (row,) = played(lambda rows: ("ok", "", 1) if rows <= 512 else ("timeout", "no end in time", None))
    assert (row["status"], row["largest_rows"], row["failing_rows"]) == ("timeout", 512, 1024)
    assert row["launches"] == 3, "each further one would cost the whole limit"


def test_the_total_limit_is_shared_and_cuts_no_case_short_as_its_own_fault(played):
    rows = played(linear, "capacity.total_limit=15s", seconds=4.0, variants={"a": {}, "b": {}})
    assert [row["status"] for row in rows] == ["time_limit_reached"] * 2
    assert [row["largest_rows"] for row in rows] == [256, 256], "7.5 s each: one whole launch, one cut short"
    assert [row["failing_rows"] for row in rows] == [None, None], "a launch cut short says nothing about its R"


def test_launches_that_disagree_are_told(played):
    calls = itertools.count()
    flaky = lambda rows: ("crashed", "a fluke", None) if next(calls) == 1 else linear(rows)  # noqa: E731
    (row,) = played(flaky)
    assert (row["status"], row["largest_rows"], row["failing_rows"]) == ("ok", 640, 704)
    (row,) = played(lambda rows: ("ok", "", 71 * MIB if rows == 640 and next(calls) % 3 == 0 else rows * MIB // 10))
    assert row["largest_rows"] == 640 and (row["largest_launches"], row["largest_fitted"]) == (3, 2)
    assert row["reason"] == "launches of R=640 disagree; their majority counts"
