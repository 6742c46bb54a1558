"""The gate of all-reduces, which are measured in the place of a loss (`one_set_all_reduce`): the sums in float64.

Rank r holds the case's rows r*R .. r*R+R-1. After a step each rank holds, in the place of its i-th row, the sum over
ranks of their i-th rows; that is what the gate takes for the gradient of rows. There is no loss, scale or bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness import inputs


def evaluate(case: Mapping[str, Any], sample_rows: Sequence[int] | None = None, scalars: bool = True) -> dict[str, Any]:
    """As `baselines.reference.evaluate`: float64 sums `[rows asked for, dims]` as gradients, all else None."""
    size, world_size = case["rows"], case["world_size"]
    wanted = np.arange(size * world_size) if sample_rows is None else np.asarray(sample_rows, dtype=np.int64)
    places = wanted % size
    sums = np.zeros((len(wanted), case["dims"]))
    for rank in range(world_size):
        for at, place in enumerate(places):
            ((_, row, _),) = inputs.case_rows(case, rank * size + int(place), 1)
            sums[at] += row[0]
    nothing = dict.fromkeys(
        ("loss", "scale_gradient", "bias_gradient", "loss_scale", "scale_gradient_scale", "bias_gradient_scale")
    )
    return nothing | {"gradients": {"rows": sums}}
