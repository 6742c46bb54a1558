"""What counts as fitting, limits per rank, and the watch that ends a launch before the machine is full."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from harness import capacity, launch, machine, plan, watch
from harness.capacity_search import judge
from harness.events import Events
from harness.machine import Gpu, Machine
from tests.harness.capacity_bench import MIB, arguments, sized
from tests.harness.conftest import ROOT


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
    guard = watch.Watch(tmp_path, 16 * MIB, reserve_bytes=0)
    guard.find_ranks()
    assert guard.broken() == "", "what the imports hold is not the launch's"
    held = np.ones(64 * MIB, dtype=np.uint8)
    assert guard.broken().startswith("ended when its processes had grown by")
    del held


def test_available_memory_is_less_than_all():
    assert 0 < watch.available_bytes() <= machine.memory_bytes()


def test_the_prediction_does_not_stop_a_search(bench):
    sized(bench, {"a": {}})
    chosen = capacity.compose(arguments(bench, "machine.memory_bytes=1000"))
    here = plan.apply_overrides(machine.detect(), chosen.machine)
    (search,) = capacity.enumerate_searches(chosen, here, "cpu")
    assert search.unsupported is None, "bench calls this unsupported; here the measurement decides"
