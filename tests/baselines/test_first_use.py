"""What compiling is counted, with compilers that are played."""

import sys
from collections import defaultdict
from types import SimpleNamespace

import pytest

from baselines.interface import World
from baselines.torch_reference import TorchReference
from harness.cases import Case


@pytest.fixture
def compilers(monkeypatch):
    """Triton's listeners and torch.compile's counters, as a system finds them: `triton(seconds)`, `dynamo(seconds)`."""
    compilation, autotuning = SimpleNamespace(listener=None), SimpleNamespace(listener=None)
    spent = defaultdict(list)
    utilities = SimpleNamespace(compilation_time_metrics=spent)
    knobs = SimpleNamespace(compilation=compilation, autotuning=autotuning)
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", utilities)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(knobs=knobs))

    def triton(seconds):
        compilation.listener(times=SimpleNamespace(total=seconds * 1e6), src=None)

    return SimpleNamespace(
        triton=triton,
        autotune=lambda seconds: autotuning.listener(duration=seconds),
        dynamo=spent["_compile.compile_inner"].append,
    )


def built(prepare):
    case = Case("torch_reference", "one_set_sigmoid", "eager", 8, dims=8, prefixes=(8,)).to_json()

    class System(TorchReference):
        def prepare(self):
            super().prepare()
            prepare()

    system = System(case, World(0, 1, 0))
    system.build()
    return system


def test_kernels_that_a_captured_graph_needs_count_and_a_trial_of_torch_compile_does_not(compilers):
    def prepare():
        compilers.triton(2.0)
        compilers.dynamo(5.0)

    system = built(prepare)
    compilers.triton(0.25)
    compilers.dynamo(0.5)
    compilers.autotune(4.0)
    assert system.first_use() == {"compile_seconds": 2.75, "autotune_seconds": 4.0}


def test_triton_is_heard_where_a_system_imports_it_when_it_is_prepared(compilers, monkeypatch):
    triton = sys.modules["triton"]
    monkeypatch.delitem(sys.modules, "triton")
    system = built(lambda: monkeypatch.setitem(sys.modules, "triton", triton))
    compilers.triton(3.0)
    assert system.first_use() == {"compile_seconds": 3.0, "autotune_seconds": None}
