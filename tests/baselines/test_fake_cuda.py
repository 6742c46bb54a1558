"""PyTorch peers on fake CUDA tensors, which know their device but hold nothing: an operand left on the CPU is an error.

Forward passes alone: autograd wants a driver. Losses whose shapes depend on values (metric_learning's lists of pairs)
and what PyTorch compiles or captures are left to the gate on a GPU.
"""

from __future__ import annotations

import pytest

from baselines.interface import World
from tests.baselines import driver

SYSTEMS = ("open_clip", "disco_clip", "grad_cache", "torch_reference")
REGISTRY = driver.registry()


def variants(name: str) -> list[str]:
    found = REGISTRY[name]["variants"].items()
    return [variant for variant, data in found if not {"compile", "graph"} & set(data["options"])]


@pytest.mark.filterwarnings("ignore:CUDA is not available")  # autocast is then off
@pytest.mark.parametrize(("name", "variant"), [(name, variant) for name in SYSTEMS for variant in variants(name)])
def test_everything_is_on_the_device(name: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("open_clip")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from baselines import torch_runtime

    device = torch.device("cuda", 0)
    monkeypatch.setattr(torch_runtime, "_device", lambda case, world: device)
    monkeypatch.setattr(torch_runtime, "_cuda_meter", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "fake")
    adapter = driver.load(REGISTRY[name]["target"])
    case = {**driver.make_case(name, variant, rows=64), "device": "cuda"}
    if reason := adapter.unsupported(case):
        pytest.skip(reason)
    with FakeTensorMode(allow_non_fake_inputs=True):
        system = adapter(case, World())
        system.build()
        if name == "grad_cache":
            loss = system._ladder_loss([system.tower(leaf.float()) for leaf in system.leaves])
        else:
            loss = system.objective()
    assert loss.device == device and loss.dtype == torch.float32 and loss.requires_grad
