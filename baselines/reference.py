"""The float64 reference: what every system's loss and gradients are held to.

Written from the definitions alone, with NumPy, independent of every system. Rows `x_i` (zero-based, global) have the
cosines `c_p(i, j)` of their first `p` columns, and the logit is `l = scale * c + bias`. With n live rows (or pairs) and
prefix weights w_p:

    one_set_sigmoid   L = sum_p w_p / n * sum_i sum_{j != i} softplus(-z_ij l_p(i, j)), z = +1 for equal labels,
                      else -1 (j = i joins as a positive with `self_pairs`)
    two_set_sigmoid   the same sum over images i and captions j, z = +1 on the diagonal (SigLIP, arXiv 2303.15343)
    info_nce          half the mean row-wise plus half the mean column-wise cross-entropy of scale * c, targets on the
                      diagonal (CLIP, arXiv 2103.00020); the bias is unused
    one_set_info_nce  with s = scale * c, a row's positives the other rows of its label, by the case's option `form`:
        nt_xent   mean over positive pairs (i, p) of -log(e^s_ip / (e^s_ip + sum over negatives of e^s_in))
                  (arXiv 2002.05709, for any number of positives); 0 where no row has a positive
        sup_con   mean over the rows i that have positives of the mean over them of -log(e^s_ip / sum_{a != i} e^s_ia)
                  (L_out of arXiv 2004.11362); a row without positives is a candidate and nothing else
                      the bias is unused

A prefix of norm below 1e-12 has cosine 0 and gradient 0. Prefixes are evaluated one by one, without shared work, on
purpose: the trick that saves it is what is being checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness import inputs

LOSSES = ("one_set_sigmoid", "two_set_sigmoid", "info_nce", "one_set_info_nce")
FORMS = ("nt_xent", "sup_con")
NORM_FLOOR = 1e-12
_BLOCK_CELLS = 1 << 21  # cells held at once: about 16 MiB a float64 temporary, whatever n is


@dataclass
class _Units:
    """One prefix of one set: unit rows (zero where the norm is below the floor) and inverse norms, float64."""

    unit: np.ndarray
    inverse_norm: np.ndarray


@dataclass
class _Sums:
    """Weighted sums over all cells and prefixes, and the sums of their absolute terms."""

    values: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("loss", "scale", "bias"), 0.0))
    absolute: dict[str, float] = field(default_factory=lambda: dict.fromkeys(("loss", "scale", "bias"), 0.0))

    def add(self, name: str, terms: np.ndarray, weight: float) -> None:
        self.values[name] += weight * float(terms.sum())
        self.absolute[name] += weight * float(np.abs(terms).sum())


# A cell function takes (left rows [k], cosines [k, n]) and returns the loss terms and d(loss)/d(logit), both [k, n],
# before the prefix weight. Rows are live row numbers of the left set; columns are all live rows of the right set.
_Cells = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def evaluate(case: Mapping[str, Any], sample_rows: Sequence[int] | None = None, scalars: bool = True) -> dict[str, Any]:
    """Loss and gradients of a case (docs/contracts.md, section 1), in float64.

    `sample_rows` are global row numbers, dead rows included, in any order; None means all `rows * world_size`.
    Gradients are `[len(sample_rows), dims]`; dead rows get zeros. With `scalars=False` the scalar results are None and,
    for the sigmoid losses, only the sampled rows' cells are visited: 64 rows of n = 65536 take seconds. The softmax
    losses always visit the whole grid, because a row's gradient needs every column's normaliser. Memory is linear in n.

    Returns loss, scale_gradient, bias_gradient (None for the softmax losses), loss_scale, scale_gradient_scale,
    bias_gradient_scale (sums of absolute terms, for relative errors) and gradients {"rows": ...} or
    {"images": ..., "captions": ...}. Raises ValueError for an unknown loss or form, or a row outside the world.
    """
    loss = case["loss"]
    if loss not in LOSSES:
        raise ValueError(f"the reference knows no loss {loss!r}; known: {', '.join(LOSSES)}")
    if loss == "one_set_info_nce" and case["options"].get("form") not in FORMS:
        raise ValueError(f"options.form is {case['options'].get('form')!r}; known: {', '.join(FORMS)}")
    total = case["rows"] * case["world_size"]
    wanted = np.arange(total) if sample_rows is None else np.asarray(sample_rows, dtype=np.int64)
    if wanted.size and (wanted.min() < 0 or wanted.max() >= total):
        raise ValueError(f"sample_rows must lie in 0 .. {total - 1}")

    live = live_rows(case)
    names, sets, labels = _live_sets(case, live)
    position = np.full(total, -1)
    position[live] = np.arange(len(live))
    live_wanted = position[wanted]

    gradients = {name: np.zeros((len(wanted), case["dims"])) for name in names}
    sums = _Sums()
    prefixes = case["prefixes"]
    weights = case.get("prefix_weights") or [1.0 / len(prefixes)] * len(prefixes)
    for prefix, weight in zip(prefixes, weights, strict=True):
        units = [_normalise(values, prefix) for values in sets]
        for side, name in enumerate(names):
            left, right = units[side], units[1 - side] if len(units) == 2 else units[side]
            cells = _cell_function(case, left, right, labels)
            # For one set, x_i is in cell (i, j) and in its mirror (j, i), which has the same value.
            factor = (2.0 if len(units) == 1 else 1.0) * weight * case["scale"]
            counted = sums if scalars and side == 0 else None
            kept = live_wanted >= 0
            rows = live_wanted[kept]
            if sample_rows is None:
                part = _sweep(left, right, rows, cells, counted, weight, case, want_gradient=True)
            else:
                part = _sweep(left, right, rows, cells, None, weight, case, want_gradient=True)
                if counted is not None:
                    _sweep(left, right, np.arange(len(live)), cells, counted, weight, case, want_gradient=False)
            gradients[name][np.flatnonzero(kept)[:, None], np.arange(prefix)] += factor * part
    return _results(loss, scalars, sums, gradients)


def live_rows(case: Mapping[str, Any]) -> np.ndarray:
    """Global numbers of the live rows, ascending: the first `live[r]` of each rank's `rows`, or all."""
    live = case.get("live") or [case["rows"]] * case["world_size"]
    return np.concatenate([rank * case["rows"] + np.arange(count) for rank, count in enumerate(live)])


def _results(loss: str, scalars: bool, sums: _Sums, gradients: dict[str, np.ndarray]) -> dict[str, Any]:
    def value(source: dict[str, float], name: str) -> float | None:
        return source[name] if scalars and not (name == "bias" and loss.endswith("info_nce")) else None

    return {
        "loss": value(sums.values, "loss"),
        "scale_gradient": value(sums.values, "scale"),
        "bias_gradient": value(sums.values, "bias"),
        "loss_scale": value(sums.absolute, "loss"),
        "scale_gradient_scale": value(sums.absolute, "scale"),
        "bias_gradient_scale": value(sums.absolute, "bias"),
        "gradients": gradients,
    }


def _live_sets(case: Mapping[str, Any], live: np.ndarray) -> tuple[list[str], list[np.ndarray], np.ndarray]:
    """Names, float32 values (exact) and labels of the live rows of each set."""
    names, sets = [], []
    labels = np.empty(0)
    for name, values, groups in inputs.case_rows(case, 0, case["rows"] * case["world_size"]):
        names.append(name)
        sets.append(values[live])
        labels = groups[live]
    return names, sets, labels


def _normalise(values: np.ndarray, prefix: int) -> _Units:
    head = values[:, :prefix].astype(np.float64)
    norm = np.sqrt((head * head).sum(axis=1))
    inverse = np.zeros_like(norm)
    np.divide(1.0, norm, out=inverse, where=norm >= NORM_FLOOR)
    head *= inverse[:, None]
    return _Units(head, inverse)


def _blocks(rows: np.ndarray, columns: int) -> Iterator[slice]:
    step = max(1, _BLOCK_CELLS // max(1, columns))
    for start in range(0, len(rows), step):
        yield slice(start, start + step)


def _sweep(
    left: _Units,
    right: _Units,
    rows: np.ndarray,
    cells: _Cells,
    sums: _Sums | None,
    weight: float,
    case: Mapping[str, Any],
    want_gradient: bool,
) -> np.ndarray:
    """Visit the cells (rows, all columns): add to `sums`, return sum_j g_ij * dc_ij/dx_i `[len(rows), prefix]`."""
    gradient = np.zeros((len(rows) if want_gradient else 0, left.unit.shape[1]))
    for block in _blocks(rows, len(right.unit)):
        chosen = rows[block]
        cosines = left.unit[chosen] @ right.unit.T
        terms, slopes = cells(chosen, cosines)
        if sums is not None:
            sums.add("loss", terms, weight)
            sums.add("scale", slopes * cosines, weight)
            sums.add("bias", slopes, weight)
        if want_gradient:
            # d c_ij / d x_i = (unit_j - c_ij unit_i) / |x_i|
            radial = (slopes * cosines).sum(axis=1)
            part = slopes @ right.unit - radial[:, None] * left.unit[chosen]
            gradient[block] = part * left.inverse_norm[chosen][:, None]
    return gradient


def _cell_function(case: Mapping[str, Any], left: _Units, right: _Units, labels: np.ndarray) -> _Cells:
    if case["loss"] == "info_nce":
        return _info_nce_cells(left, right, case["scale"])
    if case["loss"] == "one_set_info_nce":
        return _one_set_info_nce_cells(left, labels, case["scale"], case["options"]["form"])
    return _sigmoid_cells(case, labels)


def _sigmoid_cells(case: Mapping[str, Any], labels: np.ndarray) -> _Cells:
    scale, bias, n = case["scale"], case["bias"], len(labels)
    drop_self = case["loss"] == "one_set_sigmoid" and not case["self_pairs"]

    def cells(rows: np.ndarray, cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sign = np.where(labels[rows][:, None] == labels[None, :], 1.0, -1.0)
        u = -sign * (scale * cosines + bias)
        small = np.exp(-np.abs(u))
        terms = (np.maximum(u, 0.0) + np.log1p(small)) / n
        slopes = -sign * np.where(u >= 0.0, 1.0, small) / (1.0 + small) / n  # -z sigmoid(u)
        if drop_self:
            terms[np.arange(len(rows)), rows] = 0.0
            slopes[np.arange(len(rows)), rows] = 0.0
        return terms, slopes

    return cells


def _info_nce_cells(left: _Units, right: _Units, scale: float) -> _Cells:
    """Cells of the symmetric cross-entropy; a row's loss stands in its diagonal cell.

    Everything is taken relative to the diagonal logit, so that nothing cancels where the positives dominate: a row's
    loss is log1p of its other terms, and its diagonal slope minus their share.
    """
    n = len(left.unit)
    own = scale * (left.unit * right.unit).sum(axis=1)
    across = _others(left, right, own, scale)  # over the right set, for each left row
    down = _others(right, left, own, scale)

    def cells(rows: np.ndarray, cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits = scale * cosines
        slopes = np.exp(logits - own[rows][:, None]) / (1.0 + across[rows][:, None])
        slopes += np.exp(logits - own[None, :]) / (1.0 + down[None, :])
        diagonal = (np.arange(len(rows)), rows)
        slopes[diagonal] = -across[rows] / (1.0 + across[rows]) - down[rows] / (1.0 + down[rows])
        terms = np.zeros_like(logits)
        terms[diagonal] = (np.log1p(across[rows]) + np.log1p(down[rows])) / (2 * n)
        return terms, slopes / (2 * n)

    return cells


def _others(left: _Units, right: _Units, own: np.ndarray, scale: float) -> np.ndarray:
    """Sum over j != i of exp(l_ij - l_ii), for each row i of `left`."""
    result = np.empty(len(left.unit))
    rows = np.arange(len(left.unit))
    for block in _blocks(rows, len(right.unit)):
        terms = np.exp(scale * (left.unit[block] @ right.unit.T) - own[block][:, None])
        terms[np.arange(len(terms)), rows[block]] = 0.0
        result[block] = terms.sum(axis=1)
    return result


def _one_set_info_nce_cells(units: _Units, labels: np.ndarray, scale: float, form: str) -> _Cells:
    """Cells of NT-Xent and SupCon; a row's loss is spread over its positive cells.

    With N_i and P_i the sums of e^s over a row's negatives and positives, k_i positives and M pairs in all:
    NT-Xent   term of (i, p) log1p(N_i e^-s_ip) / M, slopes -f_ip / M and, on negatives, e^s_in / N_i * sum_p f_ip / M,
              where f_ip = N_i / (N_i + e^s_ip)
    SupCon    term of (i, p) (log1p(N_i / P_i) + log P_i - s_ip) / k_i / m over the m rows with k_i > 0, slopes
              e^s_ia / (N_i + P_i) / m, less 1 / k_i / m on positives

    A cell's slope is that of row i's loss alone, so the caller's doubling of one-set gradients does not hold: the
    slopes of both mirrored cells are added and halved here.
    """
    rows = np.arange(len(labels))
    positives, log_negatives, log_positives, shares = (np.zeros(len(labels)) for _ in range(4))

    def split(block: np.ndarray, cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        equal = labels[block][:, None] == labels[None, :]
        negative = ~equal
        equal[np.arange(len(block)), block] = False
        return scale * cosines, equal, negative

    for block in _blocks(rows, len(rows)):
        logits, equal, negative = split(rows[block], units.unit[block] @ units.unit.T)
        positives[block] = equal.sum(axis=1)
        log_negatives[block] = _log_sum(logits, negative)
        log_positives[block] = _log_sum(logits, equal)
        shares[block] = (_logistic(log_negatives[block][:, None] - logits) * equal).sum(axis=1)
    pairs, anchors = max(positives.sum(), 1.0), max((positives > 0).sum(), 1)
    each = np.divide(1.0, positives, out=np.zeros_like(positives), where=positives > 0)
    has = positives > 0

    def nt_xent(block: np.ndarray, logits: np.ndarray, negative: np.ndarray) -> np.ndarray:
        """Slopes of the losses of rows `block`, `[k, 1]` or `[1, k]`, at these logits."""
        pull = np.exp(logits - log_negatives[block]) * shares[block]
        return np.where(negative, pull, -_logistic(log_negatives[block] - logits)) / pairs

    def sup_con(block: np.ndarray, logits: np.ndarray, negative: np.ndarray) -> np.ndarray:
        whole = np.logaddexp(log_negatives[block], log_positives[block])
        lost = np.exp(log_negatives[block] - whole)  # what the positives lack to a sum of 1
        among = np.where(each[block] == 1.0, 1.0, np.exp(logits - log_positives[block]))
        return np.where(negative, np.exp(logits - whole), (among - each[block]) - among * lost) / anchors

    slopes_of = nt_xent if form == "nt_xent" else sup_con

    def cells(chosen: np.ndarray, cosines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logits, equal, negative = split(chosen, cosines)
        mine, theirs = chosen[:, None], rows[None, :]
        with np.errstate(over="ignore", invalid="ignore"):  # rows without positives, left out by `has`
            if form == "nt_xent":
                terms = np.logaddexp(0.0, log_negatives[mine] - logits) / pairs
            else:
                above = np.where(each[mine] == 1.0, 0.0, log_positives[mine] - logits)  # of one positive: 0 exactly
                terms = (np.logaddexp(0.0, (log_negatives - log_positives)[mine]) + above) * each[mine] / anchors
            slopes = np.where(has[mine], slopes_of(mine, logits, negative), 0.0)
            slopes += np.where(has[theirs], slopes_of(theirs, logits, negative), 0.0)
        slopes[np.arange(len(chosen)), chosen] = 0.0
        return np.where(equal, terms, 0.0), slopes / 2

    return cells


def _log_sum(logits: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """log of the sum of e^logit over each row's chosen cells; -inf where there are none."""
    top = np.max(logits, axis=1, where=chosen, initial=-1e300)
    with np.errstate(divide="ignore"):
        return top + np.log((np.exp(np.where(chosen, logits - top[:, None], -np.inf))).sum(axis=1))


def _logistic(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0.0, 1.0, small) / (1.0 + small)
