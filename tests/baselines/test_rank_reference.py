"""What one rank of CLIP's loss computes, against the whole loss: its loss is a mean over parts, its gradient a sum."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import rank_reference
from baselines.interface import World
from harness import inputs
from harness.cases import Case
from tests.baselines import driver, oracle

RANKS, ROWS = 3, 3
CASE = Case(
    "x", "two_set_rank_info_nce", "x", ROWS, dims=7, prefixes=(4, 7), prefix_weights=(0.4, 1.1), scale=6.0,
    options={"plays_rank_of": RANKS},
).to_json()  # fmt: skip


def loops(images: list, captions: list, scale: float) -> float:
    """Cell by cell: the first ROWS rows of each side against all rows of the other."""
    total = 0.0
    for prefix, weight in zip(CASE["prefixes"], CASE["prefix_weights"], strict=True):
        for scored, candidates in ((images, captions), (captions, images)):
            for i in range(ROWS):
                logits = [scale * oracle.cosine(scored[i][:prefix], row[:prefix]) for row in candidates]
                total += weight * (np.log(sum(np.exp(v) for v in logits)) - logits[i]) / (2 * ROWS)
    return total


def test_reference_equals_loops_and_numerical_derivatives() -> None:
    sets = [v.astype(float).tolist() for _, v, _ in inputs.case_rows({**CASE, "loss": "info_nce"}, 0, ROWS * RANKS)]
    result = rank_reference.evaluate(CASE)
    assert result["loss"] == pytest.approx(loops(*sets, 6.0), rel=1e-12)
    assert result["scale_gradient"] == pytest.approx(oracle.derivative(lambda t: loops(*sets, t), 6.0, 1e-3), rel=1e-8)
    for values, gradient in zip(sets, result["gradients"].values(), strict=True):
        numerical = np.zeros_like(gradient)
        for i in range(ROWS):
            for column in range(CASE["dims"]):
                centre = values[i][column]

                def shifted(value: float, row=values[i], column=column) -> float:
                    row[column] = value
                    return loops(*sets, 6.0)

                numerical[i, column] = oracle.derivative(shifted, centre, 0.03)
                values[i][column] = centre
        np.testing.assert_allclose(gradient, numerical, rtol=0, atol=1e-7 * np.abs(numerical).max())


def test_blocks_and_samples_do_not_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rank_reference.evaluate(CASE)
    monkeypatch.setattr(rank_reference, "_BLOCK_CELLS", 10)
    sampled = rank_reference.evaluate(CASE, [2, 0])
    assert sampled["loss"] == pytest.approx(whole["loss"], rel=1e-12)
    for name, gradient in whole["gradients"].items():
        np.testing.assert_allclose(sampled["gradients"][name], gradient[[2, 0]], rtol=1e-10)


@pytest.mark.parametrize("ranks", [4, 8])
def test_open_clip_plays_a_rank(ranks: int) -> None:
    pytest.importorskip("open_clip")
    case = driver.make_case("open_clip", f"clip_rank_of_{ranks}", rows=24, scale=1 / 0.07, dtype="float32",
                            gradient_dtype="float32")  # fmt: skip
    system = driver.load("baselines.open_clip:OpenClip")(case, World())
    system.build()
    system.step()
    driver.within(case, [system.outputs()], loss=1e-5, gradients=1e-4, scale_gradient=1e-5)
    assert system.memory()["input_bytes"] == 2 * 24 * 96 * 4 + 2 * 24 * (ranks - 1) * (16 + 48 + 96) * 4
