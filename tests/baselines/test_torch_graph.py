"""Steps that are captured once and replayed, as far as a machine without a GPU can tell: what is captured, and when."""

from __future__ import annotations

import types

import pytest

from baselines.interface import World
from tests.baselines import driver

pytest.importorskip("torch")
pytest.importorskip("open_clip")


@pytest.mark.parametrize("variant", ["bidir_graph", "clip_global_graph"])
def test_the_eager_step_is_captured_once_and_replayed(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = driver.load("baselines.open_clip:OpenClip")
    captured, replayed = [], []

    def capture(self, step):
        captured.append(step)
        return types.SimpleNamespace(replay=lambda: replayed.append(step()))

    monkeypatch.setattr(adapter, "captured", capture)
    case = driver.make_case("open_clip", variant, scale=5.0, bias=-1.0)
    system = adapter(case, World())
    system.build()
    for _ in range(3):
        system.step()
    driver.within(case, [system.outputs()])
    assert (len(captured), len(replayed)) == (1, 3)
    for changes in ({}, {"device": "cuda", "world_size": 2}):
        assert "one NVIDIA GPU" in adapter.unsupported({**case, **changes})
    assert adapter.unsupported({**case, "device": "cuda"}) is None
