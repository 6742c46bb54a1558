"""A second, slower oracle for the reference itself: Python loops over cells, and numerical differentiation."""

from __future__ import annotations

import math

Rows = list[list[float]]


def softplus(x: float) -> float:
    return x + math.log1p(math.exp(-x)) if x > 0 else math.log1p(math.exp(x))


def cosine(a: list[float], b: list[float]) -> float:
    norm_a = math.sqrt(math.fsum(v * v for v in a))
    norm_b = math.sqrt(math.fsum(v * v for v in b))
    if norm_a < 1e-12 or norm_b < 1e-12:
        return 0.0
    return math.fsum(v * w for v, w in zip(a, b, strict=True)) / (norm_a * norm_b)


def loss(case: dict, sets: list[Rows], labels: list[int], scale: float, bias: float) -> float:
    """The case's loss for live rows `sets`, straight from the definitions."""
    left, right = sets[0], sets[-1]
    n = len(left)
    prefixes = case["prefixes"]
    weights = case.get("prefix_weights") or [1 / len(prefixes)] * len(prefixes)
    total = []
    for prefix, weight in zip(prefixes, weights, strict=True):
        logits = [[scale * cosine(x[:prefix], y[:prefix]) for y in right] for x in left]
        if case["loss"] == "info_nce":
            rows = [math.log(math.fsum(math.exp(v) for v in row)) - row[i] for i, row in enumerate(logits)]
            columns = [math.log(math.fsum(math.exp(row[j]) for row in logits)) - logits[j][j] for j in range(n)]
            total.append(weight * 0.5 * (math.fsum(rows) + math.fsum(columns)) / n)
            continue
        if case["loss"] == "one_set_info_nce":
            total.append(weight * _one_set_info_nce(case["options"]["form"], logits, labels))
            continue
        cells = []
        for i in range(n):
            for j in range(n):
                if case["loss"] == "one_set_sigmoid" and i == j and not case["self_pairs"]:
                    continue
                sign = 1.0 if labels[i] == labels[j] else -1.0
                cells.append(softplus(-sign * (logits[i][j] + bias)))
        total.append(weight * math.fsum(cells) / n)
    return math.fsum(total)


def _one_set_info_nce(form: str, logits: list[list[float]], labels: list[int]) -> float:
    """NT-Xent or SupCon of a grid of logits, cell by cell."""
    by_row = []
    for i, row in enumerate(logits):
        others = [j for j in range(len(row)) if j != i]
        positives = [j for j in others if labels[j] == labels[i]]
        negatives = [math.exp(row[j]) for j in others if labels[j] != labels[i]]
        everyone = math.fsum(math.exp(row[j]) for j in others)
        by_row.append([
            -math.log(math.exp(row[p]) / (math.fsum([math.exp(row[p]), *negatives]) if form == "nt_xent" else everyone))
            for p in positives
        ])  # fmt: skip
    if form == "nt_xent":
        pairs = [term for terms in by_row for term in terms]
        return math.fsum(pairs) / max(len(pairs), 1)
    anchors = [math.fsum(terms) / len(terms) for terms in by_row if terms]
    return math.fsum(anchors) / max(len(anchors), 1)


def derivative(function, at: float, step: float) -> float:
    """Fourth-order central difference of a function of one number."""
    near = function(at + step) - function(at - step)
    far = function(at + 2 * step) - function(at - 2 * step)
    return (8 * near - far) / (12 * step)
