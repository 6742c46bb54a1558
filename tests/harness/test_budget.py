"""A time budget: what it drops, what it leaves out, and that the same command goes on with it."""

import json
import re

from harness import records
from tests.harness.conftest import PREDICT


def test_the_budget_drops_and_says_so(bench):
    bench.system("probe", {"a": {}})
    done = bench.run("rows=[8,40000]", "budget=1m")
    assert done.returncode == 0
    title = "probe:a one_set_sigmoid R=40000 init on cpu"
    assert f"dropped, over the budget of 1m: {title}" in done.stdout
    assert json.loads((bench.runs()[0] / "environment.json").read_text())["dropped"] == [title]
    rows = {row["rows"]: row for row in records.read_rows(bench.runs()[0] / "rows.csv")}
    assert rows["8"]["status"] == "ok"
    assert (rows["40000"]["status"], rows["40000"]["best_seconds"]) == ("interrupted", "")
    assert rows["40000"]["reason"].startswith("time budget ended before this case")


def test_what_the_budget_left_out_is_done_when_the_command_is_given_again(bench):
    bench.system("probe", {"a": {}}, predict=PREDICT | {"startup_seconds": 10.0})
    again = ["rows=[8,16]", "budget=40s"]  # each is predicted to take 30 s: one fits
    assert bench.run(*again).returncode == 0
    (folder,) = bench.runs()
    first = {row["rows"]: row for row in records.read_rows(folder / "rows.csv")}
    assert [first[rows]["status"] for rows in ("8", "16")] == ["ok", "interrupted"]
    done = bench.run(*again)
    assert done.returncode == 0 and f"continuing {folder}" in done.stdout
    assert bench.runs() == [folder]
    second = {row["rows"]: row for row in records.read_rows(folder / "rows.csv")}
    assert [second[rows]["status"] for rows in ("8", "16")] == ["ok", "ok"]
    assert second["8"] == first["8"], "what is finished is not measured again"
    assert not (folder / "state").exists()


def seconds_left(line: str) -> float:
    """The seconds left that a line of progress tells, below a minute."""
    return float(line.partition(" elapsed, ")[2].partition(" s left")[0])


def test_a_budget_that_turns_out_too_small_leaves_out_rounds_not_rows(bench):
    bench.system("probe", {"a": {"sleep_seconds": 0.3}})  # predicted to be quick, and is not
    done = bench.run("budget=10s", "protocol.rounds=5", "protocol.warmup_steps=2")
    assert done.returncode == 0, done.stderr
    row = bench.rows()["a"]
    assert 1 <= int(row["rounds"]) < 5
    assert row["reason"] == f"{row['rounds']} of 5 rounds"
    assert re.search(r"left out, round \d is over the budget: 1 cases \(probe:a one_set_sigmoid R=8", done.stdout)
    left = [seconds_left(line) for line in done.stdout.splitlines() if " left  " in line]
    assert left and max(left) <= 10, "no more time is left than the budget has"
