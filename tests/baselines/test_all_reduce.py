"""The all-reduce through PyTorch as a whole run times it: checked, then timed, on two gloo ranks."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


def test_it_is_checked_and_timed(tmp_path):
    overrides = [
        "campaign=collectives", "device=cpu", "systems=[torch_all_reduce:nccl]", "rows=[2]", "world_sizes=[2]",
        "dims=64", "prefixes=[64]", "protocol=survey", "protocol.blocks=1", "protocol.warmup_seconds=0",
        f"results={tmp_path}", f"machine.lock_folder={tmp_path}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "harness", "bench", *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.rglob("rows.csv")
    with path.open() as file:
        (row,) = csv.DictReader(file)
    assert row["status"] == "ok", row["reason"]
    assert float(row["best_seconds"]) > 0
    assert float(row["embedding_gradient_error"]) < 1e-6  # two ranks' floats added once


@pytest.fixture
def system():
    """The adapter as it is before it builds anything, of symmetric memory in a graph."""
    pytest.importorskip("torch")
    from baselines.torch_all_reduce import TorchAllReduce

    made = TorchAllReduce.__new__(TorchAllReduce)
    made.options, made.device = {"backend": "one_shot", "graph": True}, "cpu"
    return made


def test_graphs_of_ten_steps_and_of_one(system, monkeypatch):
    import torch

    class Graph:
        def __init__(self, steps):
            self.steps = steps

        def replay(self):
            queued.append(self.steps)

    queued = []
    monkeypatch.setattr(system, "_reduce", lambda: queued.append("eager"), raising=False)
    system.pending, system.steps, system.graphs = 0, 0, {1: Graph(1), 10: Graph(10)}
    system.device = torch.device("cpu")
    for _ in range(1 + 10 + 10 + 2):
        system.step()
    system.synchronize()
    assert queued == ["eager", 10, 10, 1, 1]


def test_symmetric_memory_that_is_not_what_it_was_is_unsupported(system, monkeypatch):
    import torch
    from torch.distributed import _symmetric_memory as symmetric

    from baselines import torch_all_reduce

    rows = torch.zeros(2, 4)

    def refused(reason):
        with pytest.raises(torch_all_reduce.Unsupported, match=reason):
            system._symmetric(rows)

    def changed(*_, **__):
        raise TypeError("empty() takes no such thing\nand more")

    monkeypatch.setattr(symmetric, "empty", changed)
    refused(r"symmetric memory of PyTorch \S+: empty\(\) takes no such thing$")
    monkeypatch.delattr(symmetric, "empty")
    refused("has no attribute 'empty'")
    monkeypatch.setitem(torch_all_reduce.OPERATORS, "one_shot", "no_such_all_reduce")
    refused(r"PyTorch \S+ has no symm_mem.no_such_all_reduce")


def test_memory_that_runs_out_is_not_called_unsupported(system, monkeypatch):
    import torch
    from torch.distributed import _symmetric_memory as symmetric

    def full(*_, **__):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(symmetric, "empty", full)
    with pytest.raises(torch.OutOfMemoryError):
        system._symmetric(torch.zeros(2, 4))


CASE = {"world_size": 2, "gradient_dtype": "float32", "device": "cuda"}
MULTIMEM = CASE | {"options": {"backend": "multimem", "graph": True}}
FORBIDDING = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


@pytest.fixture
def allowed(monkeypatch):
    """An environment in which nothing is said of multicast, put back afterwards."""
    for name in FORBIDDING:
        monkeypatch.setenv(name, "")
    return monkeypatch


@pytest.mark.parametrize("name", FORBIDDING)
def test_the_switch_is_not_reached_where_multicast_is_forbidden(system, allowed, name):
    assert type(system).unsupported(MULTIMEM) is None
    allowed.setenv(name, FORBIDDING[name])
    reason = type(system).unsupported(MULTIMEM)
    assert reason == f"sums in the switch need multicast, and {name}={FORBIDDING[name]} is set"
    for backend in ("nccl", "one_shot", "two_shot"):
        assert type(system).unsupported(CASE | {"options": {"backend": backend, "graph": True}}) is None


@pytest.mark.parametrize(("backend", "multicast"), [("multimem", ""), ("one_shot", "1"), ("two_shot", "1")])
def test_symmetric_memory_gets_a_multicast_object_for_multimem_alone(system, allowed, backend, multicast):
    import torch
    from torch.distributed import _symmetric_memory as symmetric

    from baselines import torch_all_reduce

    def meet(*_):
        said.append(os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"])

    def failing(*_):
        said.append("reached")
        raise RuntimeError("no such multicast")

    said = []
    system.options = {"backend": backend, "graph": True}
    operators = dict.fromkeys(torch_all_reduce.OPERATORS.values(), failing)
    allowed.setattr(torch.ops, "symm_mem", SimpleNamespace(**operators))
    group = SimpleNamespace(WORLD=SimpleNamespace(group_name="0"))
    allowed.setattr(torch_all_reduce.distributed, "group", group)
    allowed.setattr(symmetric, "empty", lambda count, **_: torch.ones(count))
    allowed.setattr(symmetric, "rendezvous", meet)
    with pytest.raises(torch_all_reduce.Unsupported, match="no such multicast"):
        system._symmetric(torch.zeros(2, 4))
    assert said == [multicast, "reached"]
