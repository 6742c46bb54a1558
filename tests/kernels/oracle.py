"""Float64 oracle of the losses, from their formulas alone: dense grids, no ladder tricks, no symmetry.

With cosines C = N_a N_b^T of unit rows N = X / |X| and a grid of slopes G = dL/dlogit, the gradient of the rows is
(I - n n^T) / |x| applied to t * G N_b. Everything is the global mean over live rows (docs/contracts.md).
"""

from __future__ import annotations

import numpy as np


def softplus(x):
    """log(1 + e^x), without overflow."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def sigmoid(x):
    """1 / (1 + e^-x), without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x > 0, 1, e) / (1 + e)


def _unit(x):
    norms = np.linalg.norm(x, axis=1)
    inverse = np.where(norms < 1e-12, 0, 1 / np.maximum(norms, 1e-300))
    return x * inverse[:, None], inverse


def _pull_back(g_cosine, own, inverse, others):
    """Gradient of rows from dL/dcosine `[rows, others]`."""
    direct = g_cosine @ others
    return inverse[:, None] * (direct - own * np.sum(direct * own, axis=1)[:, None])


def _grouped(logits, positive, counted, form):
    """NT-Xent (each positive pair against itself and the negatives; mean over pairs) or SupCon (against all other rows;
    mean over a row's pairs, then over rows that have any): loss and slopes, one softmax per positive pair."""
    slopes, losses = np.zeros_like(logits), []
    each = positive.sum(1)
    pairs, anchors = max(each.sum(), 1), max((each > 0).sum(), 1)
    for i, p in np.argwhere(positive):
        others = counted[i] & ~positive[i] if form == "nt_xent" else counted[i].copy()
        others[p] = False
        shares = np.where(others, np.exp(logits[i] - logits[i, p]), 0)
        weight = 1 / pairs if form == "nt_xent" else 1 / (anchors * each[i])
        losses.append(weight * np.log1p(shares.sum()))
        slopes[i] += weight * shares / (1 + shares.sum())
        slopes[i, p] -= weight * shares.sum() / (1 + shares.sum())
    return sum(losses), slopes


def evaluate(case, sets, labels):
    """Loss, dt, db, gradients and the sums of absolute terms of dt and db.

    `sets` are float64 `[n, dims]` of live rows; `labels` the groups of the one set's rows (ignored for two sets).
    """
    n, scale, bias = len(sets[0]), case["scale"], case["bias"]
    prefixes = case["prefixes"]
    weights = case.get("prefix_weights") or [1 / len(prefixes)] * len(prefixes)
    out = {"loss": 0.0, "dt": 0.0, "db": 0.0, "dt_terms": 0.0, "db_terms": 0.0}
    gradients = [np.zeros_like(x) for x in sets]
    one = len(sets) == 1
    positive = labels[:, None] == labels[None, :] if one else np.eye(n, dtype=bool)
    counted = ~np.eye(n, dtype=bool) if one and not case.get("self_pairs") else np.ones((n, n), dtype=bool)
    for p, w in zip(prefixes, weights, strict=True):
        units, inverses = zip(*(_unit(x[:, :p]) for x in sets), strict=True)
        a, b = units[0], units[-1]
        cosine = a @ b.T
        if case["loss"] == "info_nce":
            logits = scale * cosine
            row_max, column_max = logits.max(1), logits.max(0)
            row_log = row_max + np.log(np.exp(logits - row_max[:, None]).sum(1))
            column_log = column_max + np.log(np.exp(logits - column_max[None, :]).sum(0))
            loss = (np.mean(row_log - np.diag(logits)) + np.mean(column_log - np.diag(logits))) / 2
            rows, columns = np.exp(logits - row_log[:, None]), np.exp(logits - column_log[None, :])
            # softmax - 1 at the positive is minus the sum of the others: no cancellation where it is nearly 1
            np.fill_diagonal(rows, 0)
            np.fill_diagonal(columns, 0)
            slopes = (rows + columns - np.diag(rows.sum(1) + columns.sum(0))) / (2 * n)
        elif case["loss"] == "one_set_info_nce":
            loss, slopes = _grouped(scale * cosine, positive & counted, counted, case["form"])
        else:
            logits = scale * cosine + bias
            sign = np.where(positive, 1, -1)
            loss = np.sum(softplus(-sign * logits)[counted]) / n
            slopes = np.where(counted, -sign * sigmoid(-sign * logits), 0) / n
        out["loss"] += w * loss
        out["dt"] += w * np.sum(slopes * cosine)
        out["dt_terms"] += w * np.sum(np.abs(slopes * cosine))
        out["db"] += w * np.sum(slopes)
        out["db_terms"] += w * np.sum(np.abs(slopes))
        pulls = scale * w * slopes
        if one:
            gradients[0][:, :p] += _pull_back(pulls + pulls.T, a, inverses[0], a)
        else:
            gradients[0][:, :p] += _pull_back(pulls, a, inverses[0], b)
            gradients[1][:, :p] += _pull_back(pulls.T, b, inverses[1], a)
    return out | {"gradients": gradients}


def worst_band_error(got, want, prefixes):
    """Largest of ||got - want|| / ||want|| over the ladder's bands; columns past it must be exactly zero."""
    assert not np.any(got[:, prefixes[-1] :])
    errors = []
    for begin, end in zip([0, *prefixes[:-1]], prefixes, strict=True):
        reference = np.linalg.norm(want[:, begin:end])
        error = np.linalg.norm(got[:, begin:end].astype(np.float64) - want[:, begin:end])
        # A reference that cancels to nothing (n = 1, say) leaves rounding alone to compare.
        errors.append(error / reference if reference > 1e-300 else float(error > 1e-7))
    return max(errors)
