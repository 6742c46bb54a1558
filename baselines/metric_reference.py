"""Float64 oracles of the losses that only `configs/system/metric_learning.yaml` declares: their gate.

Written from the definitions with NumPy. `u_i` are unit rows, `c` cosines, `d = |u_i - u_j| = sqrt(2 - 2 c)` distances,
and positives of a row are the other rows of its label. Every sum over terms above zero is divided by how many they
are, the package's "average of nonzero losses"; where there are none it is 0.

    one_set_contrastive       mean of d > 0 over positive pairs plus mean of (1.4 - d) > 0 over negative pairs
    one_set_multi_similarity  mean over rows of log(1 + sum over positives of e^(-2 (c - 0.5))) / 2
                              + log(1 + sum over negatives of e^(50 (c - 0.5))) / 50
    one_set_triplet           mean over triplets (i, p, n) of d_ip - d_in + 0.2, where above zero
    one_set_mined_triplet     the same over triplets of mined pairs alone: d_ip above 0.2, d_in below 1.4
    one_set_triplet_hard      the same over one triplet a row: its farthest positive, its nearest negative
    one_set_arcface           mean over rows of the cross-entropy of 64 cos(u_i, proxy), the own class's angle enlarged
                              by 0.5 radians (where that stays below pi; else cos - 0.5 sin 0.5)
    one_set_proxy_anchor      over proxies: log(1 + sum over their rows of e^(-32 (c - 0.1))), mean over proxies with
                              rows, plus log(1 + sum over other rows of e^(32 (c + 0.1))), mean over all proxies

The proxy losses have `options.classes` classes; row i is of class `i mod classes`, whatever the case's labels are, and
proxy k is what `harness.inputs` gives for row k of set 1. There is neither scale nor bias: their gradients are None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness import inputs

NEGATIVE_MARGIN = 1.4
TRIPLET_MARGIN = 0.2
MINED_ABOVE, MINED_BELOW = 0.2, 1.4
ALPHA, BETA, BASE = 2.0, 50.0, 0.5
ARC_MARGIN, ARC_SCALE = 0.5, 64.0
ANCHOR_MARGIN, ANCHOR_ALPHA = 0.1, 32.0
_BLOCK_CELLS = 1 << 22

# What a loss's pass over a block of rows yields for each of its parts: the sum of terms, what it is divided by in the
# end, and d(sum)/d(cosine) `[k, n]` of the block's cells.
Parts = list[tuple[float, float, np.ndarray]]


def evaluate(case: Mapping[str, Any], sample_rows: Sequence[int] | None = None, scalars: bool = True) -> dict[str, Any]:
    """As `baselines.reference.evaluate`: loss, and the gradient of `sample_rows` (None: all rows).

    The proxy losses also return `proxies`, d(loss)/d(proxy) `[classes, dims]`. Raises ValueError for an unknown loss.
    """
    if case["loss"] not in _PAIRS and case["loss"] not in _PROXIES:
        known = ", ".join((*_PAIRS, *_PROXIES))
        raise ValueError(f"this reference knows no loss {case['loss']!r}; known: {known}")
    total = case["rows"] * case["world_size"]
    wanted = np.arange(total) if sample_rows is None else np.asarray(sample_rows, dtype=np.int64)
    ((_, rows, labels),) = inputs.case_rows(case, 0, total)
    prefixes = case["prefixes"]
    weights = case.get("prefix_weights") or [1.0 / len(prefixes)] * len(prefixes)
    loss, gradient, proxy_gradient = 0.0, np.zeros((total, case["dims"])), None
    if case["loss"] in _PROXIES:
        classes = int(case["options"]["classes"])
        labels = np.arange(total) % classes
        proxies = proxy_rows(case["seed"], classes, case["dims"])
        proxy_gradient = np.zeros(proxies.shape)
    for prefix, weight in zip(prefixes, weights, strict=True):
        if case["loss"] in _PAIRS:
            value, part = _pairs(_PAIRS[case["loss"]], rows[:, :prefix], labels)
        else:
            value, part, others = _PROXIES[case["loss"]](rows[:, :prefix], proxies[:, :prefix], labels)
            proxy_gradient[:, :prefix] += weight * others
        loss += weight * value
        gradient[:, :prefix] += weight * part
    return {
        "loss": loss if scalars else None,
        "scale_gradient": None,
        "bias_gradient": None,
        "loss_scale": abs(loss) if scalars else None,
        "scale_gradient_scale": None,
        "bias_gradient_scale": None,
        "gradients": {"rows": gradient[wanted]},
        "proxies": proxy_gradient,
    }


def proxy_rows(seed: int, classes: int, dims: int) -> np.ndarray:
    """The proxies of all classes, float32 `[classes, dims]`."""
    return inputs.embeddings(seed, 1, 0, np.arange(classes), dims)


def _unit(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    values = rows.astype(np.float64)
    norm = np.sqrt((values * values).sum(axis=1, keepdims=True))
    return values / np.maximum(norm, 1e-12), norm


def _through_norm(unit: np.ndarray, norm: np.ndarray, of_unit: np.ndarray) -> np.ndarray:
    """d(loss)/d(row) from d(loss)/d(unit row)."""
    return (of_unit - (of_unit * unit).sum(axis=1, keepdims=True) * unit) / np.maximum(norm, 1e-12)


def _blocks(rows: int, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK_CELLS // max(1, columns))
    for start in range(0, rows, step):
        yield slice(start, min(rows, start + step))


def _pairs(block_of: Callable[..., Parts], rows: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Loss and d(loss)/d(row) of a loss over cells (i, j) of one set."""
    unit, norm = _unit(rows)
    n = len(unit)
    sums, counts, gradients = [0.0, 0.0], [0.0, 0.0], [np.zeros(unit.shape), np.zeros(unit.shape)]
    for block in _blocks(n, n):
        chosen = np.arange(block.start, block.stop)
        equal = labels[chosen][:, None] == labels[None, :]
        negative = ~equal
        equal[np.arange(len(chosen)), chosen] = False
        for part, (total, count, slopes) in enumerate(block_of(unit[block] @ unit.T, equal, negative)):
            sums[part] += total
            counts[part] += count
            gradients[part][block] += slopes @ unit
            gradients[part] += slopes.T @ unit[block]
    divisors = [max(count, 1.0) for count in counts]
    of_unit = sum(gradient / divisor for gradient, divisor in zip(gradients, divisors, strict=True))
    loss = sum(total / divisor for total, divisor in zip(sums, divisors, strict=True))
    return loss, _through_norm(unit, norm, of_unit)


def _distances(cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances, and d(distance)/d(cosine), 0 where the distance is 0."""
    distance = np.sqrt(np.maximum(2.0 - 2.0 * cosines, 0.0))
    return distance, np.divide(-1.0, distance, out=np.zeros_like(distance), where=distance > 0)


def _contrastive(cosines: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Parts:
    distance, slope = _distances(cosines)
    near = positive & (distance > 0)
    close = negative & (distance < NEGATIVE_MARGIN)
    return [
        (float(distance[near].sum()), float(near.sum()), near * slope),
        (float((NEGATIVE_MARGIN - distance)[close].sum()), float(close.sum()), close * -slope),
    ]


def _log_one_plus(exponents: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(1 + sum of e^x over the chosen cells) of each row, and its slopes e^x / (1 + sum)."""
    x = np.where(chosen, exponents, -np.inf)
    top = np.maximum(x.max(axis=1, initial=0.0), 0.0)[:, None]
    terms = np.exp(x - top)
    total = np.exp(-top) + terms.sum(axis=1, keepdims=True)
    return (top + np.log(total))[:, 0], terms / total


def _multi_similarity(cosines: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Parts:
    pull, pull_slopes = _log_one_plus(-ALPHA * (cosines - BASE), positive)
    push, push_slopes = _log_one_plus(BETA * (cosines - BASE), negative)
    return [(float((pull / ALPHA + push / BETA).sum()), float(len(cosines)), push_slopes - pull_slopes)]


def _mined_triplet(cosines: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Parts:
    distance, _ = _distances(cosines)
    return _triplet(cosines, positive & (distance > MINED_ABOVE), negative & (distance < MINED_BELOW))


def _triplet(cosines: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Parts:
    distance, slope = _distances(cosines)
    total, count, slopes = 0.0, 0.0, np.zeros_like(distance)
    for i in range(len(distance)):
        p, n = np.flatnonzero(positive[i]), np.flatnonzero(negative[i])
        violation = distance[i, p][:, None] - distance[i, n][None, :] + TRIPLET_MARGIN
        active = violation > 0
        total += float(violation[active].sum())
        count += float(active.sum())
        slopes[i, p] += active.sum(axis=1) * slope[i, p]
        slopes[i, n] -= active.sum(axis=0) * slope[i, n]
    return [(total, count, slopes)]


def _triplet_hard(cosines: np.ndarray, positive: np.ndarray, negative: np.ndarray) -> Parts:
    distance, slope = _distances(cosines)
    rows = np.flatnonzero(positive.any(axis=1) & negative.any(axis=1))
    p = np.where(positive, distance, -np.inf).argmax(axis=1)[rows]
    n = np.where(negative, distance, np.inf).argmin(axis=1)[rows]
    violation = distance[rows, p] - distance[rows, n] + TRIPLET_MARGIN
    active = violation > 0
    slopes = np.zeros_like(distance)
    slopes[rows[active], p[active]] += slope[rows[active], p[active]]
    slopes[rows[active], n[active]] -= slope[rows[active], n[active]]
    return [(float(violation[active].sum()), float(active.sum()), slopes)]


def _arcface(rows: np.ndarray, proxies: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    (unit, norm), (centre, size) = _unit(rows), _unit(proxies)
    n, loss = len(unit), 0.0
    of_unit, of_centre = np.zeros(unit.shape), np.zeros(centre.shape)
    for block in _blocks(n, len(centre)):
        cosines = unit[block] @ centre.T
        own = (np.arange(len(cosines)), labels[block])
        angle = np.arccos(np.clip(cosines[own], -1.0, 1.0))
        inside = angle <= math.pi - ARC_MARGIN
        logits = ARC_SCALE * cosines
        shifted = np.where(inside, np.cos(angle + ARC_MARGIN), cosines[own] - ARC_MARGIN * math.sin(ARC_MARGIN))
        logits[own] = ARC_SCALE * shifted
        top = logits.max(axis=1, keepdims=True)
        terms = np.exp(logits - top)
        whole = terms.sum(axis=1, keepdims=True)
        loss += float((top + np.log(whole))[:, 0].sum() - logits[own].sum())
        slopes = terms / whole
        slopes[own] -= 1.0
        slopes *= ARC_SCALE / n
        # d cos(acos(c) + m) / dc = sin(acos(c) + m) / sin(acos(c))
        sine = np.maximum(np.sin(angle), 1e-300)
        slopes[own] *= np.where(inside, np.sin(angle + ARC_MARGIN) / sine, 1.0)
        of_unit[block] = slopes @ centre
        of_centre += slopes.T @ unit[block]
    return loss / n, _through_norm(unit, norm, of_unit), _through_norm(centre, size, of_centre)


def _proxy_anchor(rows: np.ndarray, proxies: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    (unit, norm), (centre, size) = _unit(rows), _unit(proxies)
    classes, present, loss = len(centre), len(np.unique(labels)), 0.0
    of_unit, of_centre = np.zeros(unit.shape), np.zeros(centre.shape)
    for block in _blocks(classes, len(unit)):
        cosines = centre[block] @ unit.T
        mine = np.arange(block.start, block.stop)[:, None] == labels[None, :]
        pull, pull_slopes = _log_one_plus(-ANCHOR_ALPHA * (cosines - ANCHOR_MARGIN), mine)
        push, push_slopes = _log_one_plus(ANCHOR_ALPHA * (cosines + ANCHOR_MARGIN), ~mine)
        loss += float(pull.sum()) / present + float(push.sum()) / classes
        slopes = ANCHOR_ALPHA * (push_slopes / classes - pull_slopes / present)
        of_unit += slopes.T @ centre[block]
        of_centre[block] = slopes @ unit
    return loss, _through_norm(unit, norm, of_unit), _through_norm(centre, size, of_centre)


_PAIRS = {
    "one_set_contrastive": _contrastive,
    "one_set_multi_similarity": _multi_similarity,
    "one_set_triplet": _triplet,
    "one_set_mined_triplet": _mined_triplet,
    "one_set_triplet_hard": _triplet_hard,
}
_PROXIES = {"one_set_arcface": _arcface, "one_set_proxy_anchor": _proxy_anchor}
