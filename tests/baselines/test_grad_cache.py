"""GradCache: the tower is exact, pieces do not change the gradient, and naive accumulation is small batches' loss."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from baselines.interface import Outputs, World
from harness import inputs
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


@functools.cache
def two_ranks() -> dict[str, tuple[dict, list[Outputs]]]:
    """By variant, case and results of a float32 step on two ranks, all in one start."""
    variants = list(driver.registry()["grad_cache"]["variants"])
    cases = [driver.make_case("grad_cache", variant, **SHAPE, **FLOAT32, world_size=2) for variant in variants]
    return dict(zip(variants, zip(cases, driver.run_ranks(cases), strict=True), strict=True))


def clip_loss(case: dict, images: np.ndarray, captions: np.ndarray) -> tuple[float, list[np.ndarray]]:
    """CLIP's loss of these rows alone over the case's ladder and its gradients, by autograd in float64."""
    leaves = [torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in (images, captions)]
    targets, total = torch.arange(len(images)), 0.0
    for prefix in case["prefixes"]:
        one, other = (torch.nn.functional.normalize(leaf[:, :prefix], dim=-1) for leaf in leaves)
        logits = case["scale"] * one @ other.T
        sides = [torch.nn.functional.cross_entropy(grid, targets) for grid in (logits, logits.T)]
        total = total + sum(sides) / 2 / len(case["prefixes"])
    total.backward()
    return float(total.detach()), [leaf.grad.numpy() for leaf in leaves]


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


@pytest.mark.parametrize("pieces", [4, 16])
def test_naive_accumulation_is_the_mean_of_small_batches(pieces: int) -> None:
    """Every micro-batch's gradients are those of a batch of its rows alone, divided by the number of micro-batches."""
    case, outputs, _ = one_step(f"naive_{pieces}")
    rows, everyone = 48 // pieces, list(inputs.case_rows(case, 0, 48))
    losses = []
    for piece in range(pieces):
        part = slice(piece * rows, (piece + 1) * rows)
        loss, gradients = clip_loss(case, *(values[part] for _, values, _ in everyone))
        losses.append(loss)
        for name, expected in zip(("images", "captions"), gradients, strict=True):
            found = pieces * outputs.gradients[name][part]
            assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected)
    assert outputs.loss == pytest.approx(np.mean(losses), rel=1e-5)
    errors = driver.errors(case, [outputs])
    assert errors["loss"] > 0.1 and errors["gradients"] > 0.1


@pytest.mark.parametrize("pieces", [1, 4, 16])
def test_cached_pieces_on_two_ranks_are_the_whole_batch(pieces: int) -> None:
    """With the other rank's rows among the negatives, in float32."""
    case, outputs = two_ranks()[f"cached_{pieces}" if pieces > 1 else "whole"]
    driver.within(case, outputs, loss=1e-5, gradients=1e-4, scale_gradient=1e-5)


@pytest.mark.parametrize("pieces", [4, 16])
def test_naive_accumulation_on_two_ranks_meets_the_other_rank_s_piece_alone(pieces: int) -> None:
    case, outputs = two_ranks()[f"naive_{pieces}"]
    rows, everyone = 48 // pieces, inputs.case_rows(case, 0, 96)
    both = [np.concatenate([values[:rows], values[48 : 48 + rows]]) for _, values, _ in everyone]
    _, gradients = clip_loss(case, *both)
    for name, expected in zip(("images", "captions"), gradients, strict=True):
        found = pieces * driver.whole_gradients(outputs)[name][[*range(rows), *range(48, 48 + rows)]]
        assert np.linalg.norm(found - expected) <= 1e-4 * np.linalg.norm(expected)
    errors = driver.errors(case, outputs)
    assert errors["loss"] > 0.1 and errors["gradients"] > 0.1


def test_what_does_not_split_is_refused() -> None:
    adapter = driver.load("baselines.grad_cache:GradCache")
    case = driver.make_case("grad_cache", "cached_16", rows=40)
    assert "do not split into 16" in adapter.unsupported(case)
    with pytest.raises(ValueError, match="cached, naive"):
        adapter({**case, "options": {"method": "guess", "accumulation": 2}}, World())
