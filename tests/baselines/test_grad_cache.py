"""GradCache: the tower is exact, pieces do not change the gradient, and naive accumulation is small batches' loss."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import reference
from baselines.interface import Outputs, World
from tests.baselines import driver

torch = pytest.importorskip("torch")

FLOAT32 = {"dtype": "float32", "gradient_dtype": "float32", "options": {"precision": "fp32"}}
SHAPE = {"rows": 48, "scale": 5.0, "bias": -1.0}


def one_step(variant: str) -> tuple[dict, Outputs, object]:
    """Case, results and system after one float32 step."""
    case = driver.make_case("grad_cache", variant, **SHAPE, **FLOAT32)
    system = driver.load("baselines.grad_cache:GradCache")(case, World())
    system.build()
    system.step()
    return case, system.outputs(), system


def test_the_tower_returns_embeddings_bit_for_bit() -> None:
    from baselines.grad_cache import identity_tower

    values = torch.arange(-254.0, 255.0).reshape(1, 509)
    assert torch.equal(identity_tower(509, torch.device("cpu"))(values), values)


def test_pieces_do_not_change_any_gradient() -> None:
    """Neither the embeddings' (against the reference) nor the tower's weights' (against the step in one piece)."""
    _, _, whole = one_step("whole")
    for variant in ("whole", "cached_4", "cached_16"):
        case, outputs, system = one_step(variant)
        driver.within(case, [outputs], loss=1e-5, gradients=1e-4, scale_gradient=1e-5)
        for one, other in zip(whole.tower.parameters(), system.tower.parameters(), strict=True):
            assert torch.linalg.norm(one.grad - other.grad) <= 1e-4 * torch.linalg.norm(one.grad)


def test_naive_accumulation_is_the_mean_of_small_batches() -> None:
    """Its first micro-batch's gradients are those of a batch of that size, divided by the number of micro-batches."""
    case, outputs, _ = one_step("naive_4")
    small = reference.evaluate({**case, "rows": 12})
    for name, expected in small["gradients"].items():
        found = 4 * outputs.gradients[name][:12]
        assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected)
    errors = driver.errors(case, [outputs])
    assert errors["loss"] > 0.1 and errors["gradients"] > 0.1


def test_what_does_not_split_is_refused() -> None:
    adapter = driver.load("baselines.grad_cache:GradCache")
    case = driver.make_case("grad_cache", "cached_16", rows=40)
    assert "do not split into 16" in adapter.unsupported(case)
    with pytest.raises(ValueError, match="cached, naive"):
        adapter({**case, "options": {"method": "guess", "accumulation": 2}}, World())
