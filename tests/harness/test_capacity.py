"""Capacity: whole runs in real processes with systems whose capacity is a formula, bad input, the file's columns."""

import json
import math
import signal
import subprocess
import sys
import time

import pytest

from harness import capacity, launch, records
from harness.__main__ import main
from harness.cases import ConfigurationError
from tests.harness.capacity_bench import BUDGET, MIB, arguments, sized
from tests.harness.conftest import PREDICT, ROOT


def command(bench, *overrides):
    return [sys.executable, "-m", "harness", "capacity", *arguments(bench, *overrides)]


def run(bench, *overrides):
    return subprocess.run(command(bench, *overrides), cwd=ROOT, capture_output=True, text=True, timeout=300)


def found(bench):
    (path,) = bench.results.glob("measured/*/capacity/*/capacity.csv")
    return path.parent, {row["variant"]: row for row in records.read_capacity(path)}


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


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["rows=[8]"], "rows cannot be set here"),
        (["capacity=null"], "capacity is None; set its fields"),
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


def test_a_system_measured_for_the_same_batch_too_is_searched_once(bench, capsys):
    sized(bench, {"one": {}, "two": {"loss": "two_set_sigmoid", "options": {}}})
    assert main(["capacity", *arguments(bench, "list=true", "same_batch=['sized:one']")]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["sized:one", "sized:two"]


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
