"""Capacity: what each kind of end is called, what is kept, and whole runs with systems whose capacity is a formula."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from harness import capacity, capacity_search, launch, machine, plan, progress, records, watch
from harness.__main__ import main
from harness.capacity_search import judge
from harness.cases import ConfigurationError
from harness.events import Events
from harness.machine import Gpu, Machine
from harness.store import Store
from tests.harness.conftest import PREDICT, ROOT

MIB = 1 << 20
BUDGET = 70 * MIB
SMALL = (
    f"capacity.memory_bytes={BUDGET} capacity.start_rows=256 capacity.step_rows=64 capacity.ceiling_rows=4096 "
    "capacity.launch_limit=2m dims=32 prefixes=[8,32] device=cpu systems=null"
).split()


def arguments(bench, *overrides):
    given = {override.partition("=")[0] for override in overrides}
    small = [override for override in SMALL if override.partition("=")[0] not in given]
    places = [f"registry={bench.registry}", f"results={bench.results}", f"machine.lock_folder={bench.folder}/lock"]
    return [*small, *places, *overrides]


def command(bench, *overrides):
    return [sys.executable, "-m", "harness", "capacity", *arguments(bench, *overrides)]


def run(bench, *overrides):
    return subprocess.run(command(bench, *overrides), cwd=ROOT, capture_output=True, text=True, timeout=300)


def found(bench):
    (path,) = bench.results.glob("measured/*/capacity/*/capacity.csv")
    return path.parent, {row["variant"]: row for row in records.read_capacity(path)}


def sized(bench, variants):
    bench.system("sized", variants, target="tests.harness.capacity_systems:Sized")


# Whole runs in real processes


def test_the_capacity_of_real_processes_is_the_formula_s(bench):
    sized(bench, {"linear": {"per_row": 256 << 10}, "quadratic": {"per_cell": 256}, "hungry": {"grow": True}})
    bench.system("absent", {"gone": {}}, requires=["no_such_package"])
    done = run(bench)
    assert done.returncode == 0, done.stdout + done.stderr
    folder, rows = found(bench)
    for variant, truth in (("linear", BUDGET / (256 << 10)), ("quadratic", math.sqrt(BUDGET / 256))):
        row = rows[variant]
        low, high = int(row["largest_rows"]), int(row["failing_rows"])
        slack = 0.03 * truth  # 2 MiB of what a process holds beside the arrays
        assert row["status"] == "ok", row
        assert low <= truth + slack and high >= truth - slack and high - low <= 64, (low, truth, high)
        assert (row["largest_launches"], row["failing_launches"], row["failing_outcome"]) == ("3", "3", "out_of_memory")
        held = (256 << 10) * low if variant == "linear" else 256 * low * low
        assert int(row["device_used_bytes"]) == pytest.approx(held, abs=3 * MIB)
        assert int(row["predicted_bytes"]) == 12 * low * low + 24 * low * 32
        assert int(row["limit_bytes"]) == BUDGET
    # 12 R^2 + 768 R <= BUDGET, solved by hand
    assert int(rows["linear"]["predicted_rows"]) == math.floor((-768 + math.sqrt(768**2 + 48 * BUDGET)) / 24)
    hungry = rows["hungry"]
    assert (hungry["status"], hungry["largest_rows"], hungry["failing_rows"]) == ("out_of_memory", "", "64")
    assert hungry["reason"].startswith("ended when its processes had grown by")
    assert rows["gone"]["status"] == "unsupported" and "no_such_package" in rows["gone"]["reason"]
    assert sorted(path.name for path in folder.iterdir()) == [
        "attempts.jsonl",
        "capacity.csv",
        "environment.json",
        "logs",
    ]
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["finished"] is True and environment["memory_budget_bytes"] == BUDGET
    assert len((folder / "attempts.jsonl").read_text().splitlines()) == sum(
        int(row["launches"]) for row in rows.values()
    )
    assert "predicted R" in done.stdout and "4 rows in" in done.stdout


def test_a_hang_ends_at_its_limit(bench):
    sized(bench, {"hang": {"fault": "hang"}})
    assert run(bench, "capacity.launch_limit=3s").returncode == 0
    _, rows = found(bench)
    row = rows["hang"]
    assert (row["status"], row["failing_outcome"], row["launches"]) == ("timeout", "timeout", "1")
    assert row["reason"] == "R=256 took longer than capacity.launch_limit=3s: time ended the search, not memory"


def test_an_interrupt_keeps_what_was_found(bench):
    sized(bench, {"slow": {"sleep_seconds": 0.3}, "waiting": {}})
    process = subprocess.Popen(command(bench), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not [1 for path in bench.results.glob("measured/*/capacity/*/attempts.jsonl") if path.read_text()]:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    folder, rows = found(bench)
    assert (rows["slow"]["status"], rows["waiting"]["status"]) == ("interrupted", "interrupted")
    assert int(rows["slow"]["largest_rows"]) >= 256 and rows["waiting"]["reason"] == "not begun"
    assert json.loads((folder / "environment.json").read_text())["finished"] is False
    assert not (folder / "work").exists() and launch.marked_processes(folder) == []
    assert "interrupted" in out


# The kinds of end, with launches that are played


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


# Limits, and bad input


def outcome(status="ok"):
    return launch.Outcome(status, "why" if status != "ok" else "", Events(ROOT), 1.0)


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        ((outcome(), "", {"device_used_bytes": 100}, 100), "ok"),
        ((outcome(), "", {"device_used_bytes": 101}, 100), "out_of_memory"),
        ((outcome(), "", {"allocated_peak_bytes": 101, "device_used_bytes": 5}, 100), "out_of_memory"),
        ((outcome(), "", {"allocated_peak_bytes": None, "device_used_bytes": None}, 100), "ok"),
        ((outcome(), "", None, 100), "crashed"),
        ((outcome("crashed"), "over the budget", None, 100), "out_of_memory"),
        ((outcome("timeout"), "", None, 100), "timeout"),
    ],
)
def test_what_counts_as_fitting(arguments, want):
    assert judge(*arguments)[0] == want


def test_limits_are_per_rank(bench):
    gpus = (Gpu(0, "big", 9.0, 1000), Gpu(1, "small", 9.0, 800))
    here = Machine(2, 10_000, "c", "c", gpus=gpus)
    chosen = capacity.compose(["capacity.memory_share=0.5"])
    assert capacity.rank_limit(chosen, here, "cuda", 2) == 720, "90% of the smaller GPU"
    assert capacity.rank_limit(chosen, here, "cuda", 1) == 900
    assert capacity.rank_limit(chosen, here, "cpu", 2) == 2500, "half of main memory, shared by two ranks"


def test_the_watch_ends_a_launch_before_the_machine_is_full(bench, monkeypatch):
    monkeypatch.setattr(watch, "available_bytes", lambda: 5)
    folder = bench.folder / "work"
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(sleeper, env={launch.FOLDER_VARIABLE: str(folder)})
    with watch.Watch(folder, None, reserve_bytes=10) as guard:
        assert process.wait(timeout=30) == -signal.SIGKILL
    assert guard.reason == "ended when the machine had only 5 B left (10 B are kept free)"


def test_the_budget_counts_growth_since_the_imports(tmp_path):
    before = watch.resident_bytes(os.getpid())
    events = [{"event": "start", "pid": os.getpid()}, {"event": "ready", "rss_bytes": before}]
    (tmp_path / "events.0.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    guard = watch.Watch(tmp_path, before // 2, reserve_bytes=0)
    guard.find_ranks()
    assert guard.broken() == "", "what the imports hold is not the launch's"
    held = np.ones(before, dtype=np.uint8)
    assert guard.broken().startswith("ended when its processes had grown by")
    del held


def test_available_memory_is_less_than_all():
    assert 0 < watch.available_bytes() <= machine.memory_bytes()


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rows=[8]"], "rows cannot be set here"),
        (["budget=3m"], "set capacity.total_limit"),
        (["capacity.start=1"], "known: capacity.start_rows"),
        (["capacity.start_rows=0"], "capacity.start_rows is 0"),
        (["capacity.start_rows=9000"], "above capacity.ceiling_rows"),
        (["capacity.gpu_share=2"], "a share from 0 to 1"),
        (["capacity.launch_limit=soon"], "such as 10m"),
        (["capacity.memory_bytes=1000000000000000"], "exceed the"),
        (["systems=[nobody]"], "unknown system 'nobody'"),
        (["results=/proc/results"], "cannot write"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(bench, capsys, overrides, words):
    sized(bench, {"a": {}})
    assert main(["capacity", *arguments(bench, *overrides)]) == 2
    said = capsys.readouterr()
    assert words in said.err and said.err.count("\n") == 1 and said.err.startswith("harness capacity: ")
    assert not bench.results.exists()


def test_listing_runs_nothing(bench, capsys):
    sized(bench, {"a": {}})
    assert main(["capacity", *arguments(bench, "list=true")]) == 0
    assert "predicted R" in capsys.readouterr().out and not bench.results.exists()


def test_the_prediction_does_not_stop_a_search(bench):
    sized(bench, {"a": {}})
    chosen = capacity.compose(arguments(bench, "machine.memory_bytes=1000"))
    here = plan.apply_overrides(machine.detect(), chosen.machine)
    (search,) = capacity.enumerate_searches(chosen, here, "cpu")
    assert search.unsupported is None, "bench calls this unsupported; here the measurement decides"


def test_a_damaged_file_names_the_column(tmp_path):
    path = tmp_path / "capacity.csv"
    records.write_capacity(path, [{"schema_version": 1, "system": "a", "largest_rows": 5}])
    assert records.read_capacity(path)[0]["largest_rows"] == "5"
    path.write_text(path.read_text().replace("largest_rows", "biggest_rows"))
    with pytest.raises(records.RecordError, match="'largest_rows' is missing"):
        records.read_capacity(path)
    with pytest.raises(KeyError):
        records.write_capacity(path, [{"speed": 1}])


def test_configuration_errors_are_of_the_known_kind():
    with pytest.raises(ConfigurationError):
        capacity.compose(["capacity.confirmations=-1"])


def test_a_variant_s_own_formula_is_the_one_that_predicts(bench, capsys):
    """Two variants of one system, the second with half the bytes per element: it holds twice the rows."""
    linear = {"bytes_per_cell": 0.0, "bytes_per_element": 1000.0}
    light = {"loss": "one_set_sigmoid", "options": {}, "predict": {"bytes_per_element": 500.0}}
    bench.system("probe", {"whole": {}, "light": light}, predict=PREDICT | linear)
    assert main(["capacity", *arguments(bench, "capacity.memory_bytes=64000000", "list=true")]) == 0
    shown = capsys.readouterr().out
    # 64,000,000 bytes over 32 columns of 1000 and of 500 bytes
    lines = {line.split()[0]: line.split() for line in shown.splitlines() if line.startswith("probe:")}
    assert "2000" in lines["probe:whole"] and "4000" in lines["probe:light"]
