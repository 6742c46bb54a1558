"""Float64 reference of what one rank of CLIP's distributed loss computes, for systems that play a rank alone.

    two_set_rank_info_nce   with N = options.plays_rank_of ranks of R pairs, rank 0's part of info_nce: half the mean
                            over its R images of their cross-entropies against all N R captions, plus half the same of
                            its captions against all images, targets on the diagonal

The other ranks' rows are constants, so the gradients are those of this rank's own rows, through both places where each
of them stands: as the row that is scored, and among the candidates of the opposite direction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from baselines.reference import NORM_FLOOR
from harness import inputs

_BLOCK_CELLS = 1 << 22


def evaluate(case: Mapping[str, Any], sample_rows: Sequence[int] | None = None, scalars: bool = True) -> dict[str, Any]:
    """As `baselines.reference.evaluate`, for the R rows of rank 0."""
    rows, scale = case["rows"], case["scale"]
    everyone = {**case, "loss": "info_nce"}
    (_, images, _), (_, captions, _) = inputs.case_rows(everyone, 0, rows * int(case["options"]["plays_rank_of"]))
    prefixes = case["prefixes"]
    weights = case.get("prefix_weights") or [1.0 / len(prefixes)] * len(prefixes)
    gradients = {name: np.zeros((rows, case["dims"])) for name in ("images", "captions")}
    loss = slope = absolute = 0.0
    for prefix, weight in zip(prefixes, weights, strict=True):
        (left, left_norm), (right, right_norm) = _unit(images[:, :prefix]), _unit(captions[:, :prefix])
        of_left, of_right = np.zeros((rows, prefix)), np.zeros((rows, prefix))
        for scored, candidates, of_scored, of_candidates in (
            (left, right, of_left, of_right),
            (right, left, of_right, of_left),
        ):
            value, along, size = _direction(scored, candidates, rows, scale, of_scored, of_candidates)
            loss += weight * value
            slope += weight * along
            absolute += weight * size
        for name, unit, norm, part in (
            ("images", left, left_norm, of_left),
            ("captions", right, right_norm, of_right),
        ):
            own = unit[:rows]
            radial = (part * own).sum(axis=1, keepdims=True)
            gradients[name][:, :prefix] += weight * (part - radial * own) / norm[:rows]
    kept = slice(None) if sample_rows is None else np.asarray(sample_rows, dtype=np.int64)
    return {
        "loss": loss if scalars else None,
        "scale_gradient": slope if scalars else None,
        "bias_gradient": None,
        "loss_scale": abs(loss) if scalars else None,
        "scale_gradient_scale": absolute if scalars else None,
        "bias_gradient_scale": None,
        "gradients": {name: gradient[kept] for name, gradient in gradients.items()},
    }


def _unit(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values = rows.astype(np.float64)
    norm = np.maximum(np.sqrt((values * values).sum(axis=1, keepdims=True)), NORM_FLOOR)
    return values / norm, norm


def _direction(
    scored: np.ndarray,
    candidates: np.ndarray,
    rows: int,
    scale: float,
    of_scored: np.ndarray,
    of_candidates: np.ndarray,
) -> tuple[float, float, float]:
    """Half the mean cross-entropy of the first `rows` rows of `scored`; adds d/d(unit row) to the last two.

    Returns the loss, d(loss)/d(scale), and the sum of the latter's absolute terms.
    """
    loss = slope = absolute = 0.0
    step = max(1, _BLOCK_CELLS // len(candidates))
    for start in range(0, rows, step):
        block = slice(start, min(rows, start + step))
        cosines = scored[block] @ candidates.T
        own = (np.arange(len(cosines)), np.arange(block.start, block.stop))
        # Relative to the diagonal, so that nothing cancels where it dominates.
        terms = np.exp(scale * (cosines - cosines[own][:, None]))
        terms[own] = 0.0
        others = terms.sum(axis=1)
        slopes = terms / (1.0 + others)[:, None]
        slopes[own] = -others / (1.0 + others)
        slopes /= 2 * rows
        loss += float(np.log1p(others).sum()) / (2 * rows)
        slope += float((slopes * cosines).sum())
        absolute += float(np.abs(slopes * cosines).sum())
        of_scored[block] += scale * (slopes @ candidates)
        of_candidates += scale * (slopes[:, :rows].T @ scored[block])
    return loss, slope, absolute
