"""Loops over rows, pairs, triplets and proxies: what `baselines/metric_reference.py` is held to."""

from __future__ import annotations

import math

Rows = list[list[float]]


def unit(row: list[float]) -> list[float]:
    norm = math.sqrt(math.fsum(v * v for v in row))
    return [v / norm for v in row]


def dot(a: list[float], b: list[float]) -> float:
    return math.fsum(v * w for v, w in zip(a, b, strict=True))


def distance(a: list[float], b: list[float]) -> float:
    return math.sqrt(math.fsum((v - w) ** 2 for v, w in zip(a, b, strict=True)))


def mean_above_zero(values: list[float]) -> float:
    kept = [value for value in values if value > 0]
    return math.fsum(kept) / len(kept) if kept else 0.0


def contrastive(rows: Rows, labels: list[int]) -> float:
    near, far = [], []
    for i in range(len(rows)):
        for j in range(len(rows)):
            if i != j and labels[i] == labels[j]:
                near.append(distance(rows[i], rows[j]))
            elif labels[i] != labels[j]:
                far.append(1.4 - distance(rows[i], rows[j]))
    return mean_above_zero(near) + mean_above_zero(far)


def multi_similarity(rows: Rows, labels: list[int]) -> float:
    total = 0.0
    for i in range(len(rows)):
        positives, negatives = 1.0, 1.0
        for j in range(len(rows)):
            if labels[i] != labels[j]:
                negatives += math.exp(50 * (dot(rows[i], rows[j]) - 0.5))
            elif i != j:
                positives += math.exp(-2 * (dot(rows[i], rows[j]) - 0.5))
        total += math.log(positives) / 2 + math.log(negatives) / 50
    return total / len(rows)


def triplet(rows: Rows, labels: list[int]) -> float:
    violations = []
    for a in range(len(rows)):
        for p in range(len(rows)):
            for n in range(len(rows)):
                if a != p and labels[a] == labels[p] and labels[a] != labels[n]:
                    violations.append(distance(rows[a], rows[p]) - distance(rows[a], rows[n]) + 0.2)
    return mean_above_zero(violations)


def mined_triplet(rows: Rows, labels: list[int]) -> float:
    n = len(rows)
    pairs = [(i, j, distance(rows[i], rows[j])) for i in range(n) for j in range(n) if i != j]
    positives = [(i, j, apart) for i, j, apart in pairs if labels[i] == labels[j] and apart > 0.2]
    negatives = [(i, j, apart) for i, j, apart in pairs if labels[i] != labels[j] and apart < 1.4]
    return mean_above_zero([near - far + 0.2 for a, _, near in positives for b, _, far in negatives if a == b])


def triplet_hard(rows: Rows, labels: list[int]) -> float:
    violations = []
    for a in range(len(rows)):
        positives = [distance(rows[a], rows[j]) for j in range(len(rows)) if j != a and labels[j] == labels[a]]
        negatives = [distance(rows[a], rows[j]) for j in range(len(rows)) if labels[j] != labels[a]]
        if positives and negatives:
            violations.append(max(positives) - min(negatives) + 0.2)
    return mean_above_zero(violations)


def arcface(rows: Rows, proxies: Rows, labels: list[int]) -> float:
    total = 0.0
    for row, label in zip(rows, labels, strict=True):
        logits = []
        for k, proxy in enumerate(proxies):
            cosine = dot(row, proxy)
            if k == label:
                angle = math.acos(cosine)
                cosine = math.cos(angle + 0.5) if angle <= math.pi - 0.5 else cosine - 0.5 * math.sin(0.5)
            logits.append(64 * cosine)
        total += math.log(math.fsum(math.exp(v) for v in logits)) - logits[label]
    return total / len(rows)


def proxy_anchor(rows: Rows, proxies: Rows, labels: list[int]) -> float:
    pull, push, present = 0.0, 0.0, 0
    for k, proxy in enumerate(proxies):
        own = [dot(row, proxy) for row, label in zip(rows, labels, strict=True) if label == k]
        others = [dot(row, proxy) for row, label in zip(rows, labels, strict=True) if label != k]
        present += bool(own)
        pull += math.log(1 + math.fsum(math.exp(-32 * (c - 0.1)) for c in own))
        push += math.log(1 + math.fsum(math.exp(32 * (c + 0.1)) for c in others))
    return pull / present + push / len(proxies)


def loss(case: dict, rows: Rows, proxies: Rows, labels: list[int]) -> float:
    """The case's loss of raw rows; proxies and labels by class for the proxy losses, else by the case's labels."""
    name = case["loss"].removeprefix("one_set_")
    weights = case["prefix_weights"] or [1 / len(case["prefixes"])] * len(case["prefixes"])
    total = 0.0
    for prefix, weight in zip(case["prefixes"], weights, strict=True):
        sets = [[unit(row[:prefix]) for row in rows]]
        if name in ("arcface", "proxy_anchor"):
            sets.append([unit(proxy[:prefix]) for proxy in proxies])
        total += weight * globals()[name](*sets, labels)
    return total
