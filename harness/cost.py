"""What a step costs by counting: cells, pairs, FLOPs, bytes on the wire, and predictions. Pure functions.

Every formula is derived in docs/metrics.md. Notation: G ranks, R rows (or pairs) per rank, N = G * R, n live rows over
all ranks, D the widest prefix of the ladder. Records store seconds, bytes and counts; rates are derived here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LADDERS = ("one_pass", "descending", "per_prefix")
PREDICT_KEYS = (
    "bytes_per_cell",
    "bytes_per_element",
    "startup_seconds",
    "cpu_flops_per_second",
    "cuda_flops_per_second",
    "step_overhead_seconds",
)
OPTIONAL_PREDICT_KEYS = ("cpu_fixed_bytes", "cuda_fixed_bytes")


def is_one_set(loss: str) -> bool:
    """Whether a loss scores one set against itself (`one_set_sigmoid`, `one_set_info_nce`)."""
    return loss.startswith("one_set")


def covered_cells(live_rows: int) -> int:
    """Cells of the whole grid, `n * n`: each (row, candidate) once, whoever computes it, however often."""
    return live_rows * live_rows


def distinct_pairs(loss: str, live_rows: int) -> int:
    """Pairs that carry information: unordered pairs `n (n - 1) / 2` of one set, all `n * n` cells of two sets."""
    return live_rows * (live_rows - 1) // 2 if is_one_set(loss) else live_rows * live_rows


def image_caption_pairs(loss: str, live_rows: int) -> float:
    """Batch in image-caption pairs: in one set an image and its caption are two rows, `n / 2`; in two sets `n`."""
    return live_rows / 2 if is_one_set(loss) else float(live_rows)


def joules_per_million_cells(joules_per_step: float, live_rows: int) -> float:
    """Energy of a step, all ranks together, over its covered cells in millions."""
    return joules_per_step / (covered_cells(live_rows) / 1e6)


def nominal_flops(loss: str, live_rows: int, dims: int) -> int:
    """FLOPs of the whole job by the formula, all ranks together: `4 n n D` (one set) or `6 n n D` (two sets, info_nce).

    Two FLOPs per multiply-add. One set: the scores, and one gradient product, because the owner of row i differentiates
    both mirrored cells. Two sets: the scores and one gradient product for each set.
    """
    return (4 if is_one_set(loss) else 6) * live_rows * live_rows * dims


def nominal_flops_per_rank(loss: str, live_rows: int, dims: int, world_size: int) -> float:
    """`nominal_flops` over the ranks; with every row live, `4 R N D` or `6 R N D`."""
    return nominal_flops(loss, live_rows, dims) / world_size


def executed_flops_per_rank(
    loss: str,
    rows: int,
    world_size: int,
    prefixes: Sequence[int],
    ladder: str = "one_pass",
    own_block_once: bool = False,
) -> int:
    """FLOPs of the products a rank really runs, every row live.

    `ladder`: `one_pass` scores all prefixes in one product of width D, and one of width D gives each gradient;
    `descending` scores D and then takes every band but the first off again, `2 D - p_1` of width, gradients of width D;
    `per_prefix` runs separate products of every prefix, forward and backward: sum(P) of width each.
    `own_block_once` (one set only): cells (i, j) and (j, i) of the block a rank scores against itself share one score,
    which saves `R R * width`. The softmax losses score twice: sums first, weights second. Raises ValueError for an
    unknown ladder, or `own_block_once` with two sets.
    """
    if ladder not in LADDERS:
        raise ValueError(f"unknown ladder {ladder!r}; known: {', '.join(LADDERS)}")
    if own_block_once and not is_one_set(loss):
        raise ValueError(f"own_block_once needs a symmetric grid, and {loss} has two sets")
    widest, total = prefixes[-1], sum(prefixes)
    score_width = {"one_pass": widest, "descending": 2 * widest - prefixes[0], "per_prefix": total}[ladder]
    gradient_width = total if ladder == "per_prefix" else widest
    cells = rows * rows * world_size
    gradient_products = 1 if is_one_set(loss) else 2
    scores = 2 * cells * score_width - (rows * rows * score_width if own_block_once else 0)
    passes = 2 if loss.endswith("info_nce") else 1
    return passes * scores + 2 * gradient_products * cells * gradient_width


def fraction_of_peak(flops_per_rank: float, seconds: float, matmul_flops_per_second: float) -> float:
    """Executed FLOPs per second over the matmul rate that was measured in the same run, on the same device."""
    return flops_per_rank / seconds / matmul_flops_per_second


def wire_bytes_per_rank(loss: str, rows: int, world_size: int, dims: int, element_bytes: int = 2) -> int:
    """Least bytes of embeddings and embedding gradients that a rank receives in a step.

    One set: every other rank's rows once, `(N - R) D`. Two sets: every other rank's captions, and what they computed of
    this rank's caption gradients comes home, `(N - R) D` each way. The three summed scalars are left out.
    """
    foreign = (world_size - 1) * rows * dims * element_bytes
    return foreign if is_one_set(loss) else 2 * foreign


def rail_bytes_per_rank(loss: str, rows: int, nodes: int, dims: int, element_bytes: int = 2) -> int:
    """Least bytes that a rank sends over its own port between machines: its rows once to each other machine; with two
    sets, its captions and the gradients it computed for a counterpart's captions."""
    once = (nodes - 1) * rows * dims * element_bytes
    return once if is_one_set(loss) else 2 * once


def predict_seconds(case: Any, predict: Mapping[str, float]) -> float:
    """Predicted seconds of one step: overhead plus nominal FLOPs of a rank over the system's rate.

    `case` is a `harness.cases.Case` or its JSON object; `predict` the mapping of docs/contracts.md section 4. The rates
    are effective ones, at the usual ladder. `cuda_flops_per_second` is one device's; `cpu_flops_per_second` is the
    whole machine's, and the ranks of a machine share it. Raises ValueError when a key is missing or a rate is not
    positive.
    """
    loss, rows, world_size, nodes, device, prefixes = _shape(case)
    rate = _positive(predict, "cuda_flops_per_second" if device == "cuda" else "cpu_flops_per_second")
    if device != "cuda":
        rate /= world_size // nodes
    flops = nominal_flops_per_rank(loss, rows * world_size, prefixes[-1], world_size)
    return _known(predict, "step_overhead_seconds") + flops / rate


def predict_bytes(case: Any, predict: Mapping[str, float]) -> int:
    """Predicted peak bytes of one rank: `bytes_per_cell` of its R x N cells, `bytes_per_element` of its R x dims
    elements (inputs and gradients of all its sets counted in), and what it takes whatever R on the case's device, if
    that is known. Raises ValueError when a key is missing."""
    rows, world_size, dims = (int(_field(case, name)) for name in ("rows", "world_size", "dims"))
    cells = rows * rows * world_size
    fixed = predict.get(f"{_field(case, 'device')}_fixed_bytes", 0.0)
    return round(_known(predict, "bytes_per_cell") * cells + _known(predict, "bytes_per_element") * rows * dims + fixed)


def _shape(case: Any) -> tuple[str, int, int, int, str, Sequence[int]]:
    names = ("loss", "rows", "world_size", "nodes", "device", "prefixes")
    return tuple(_field(case, name) for name in names)


def _field(case: Any, name: str) -> Any:
    return case[name] if isinstance(case, Mapping) else getattr(case, name)


def _known(predict: Mapping[str, float], name: str) -> float:
    if predict.get(name) is None:
        raise ValueError(f"predict lacks {name}; a system's YAML must give all of {', '.join(PREDICT_KEYS)}")
    return float(predict[name])


def _positive(predict: Mapping[str, float], name: str) -> float:
    value = _known(predict, name)
    if value <= 0:
        raise ValueError(f"predict.{name} is {value}; it must be positive")
    return value
