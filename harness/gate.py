"""The correctness gate: every system is held to the float64 reference before it is timed."""

from __future__ import annotations

import importlib
import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.cases import Case, ConfigurationError
from harness.events import Events

OUTPUTS = ("loss", "embedding_gradient", "scale_gradient", "bias_gradient")

# (who, dtype of embeddings or of returned gradients, whichever is coarser) -> output -> (tolerance, reason)
TOLERANCES = {
    ("peer", "bfloat16"): {
        "loss": (5e-3, "logits in bf16 are spaced 0.0625 near -10, which shifts each softplus by up to 3%"),
        "embedding_gradient": (2e-2, "weights and products rounded to bf16 (2^-9) per prefix, summed over prefixes"),
        "scale_gradient": (2e-3, "per-cell errors of 3% average out over the sum of absolute terms"),
        "bias_gradient": (2e-3, "as for the scale"),
    },
    ("peer", "float32"): {
        "loss": (1e-4, "fp32 sums over n*n cells; the cell itself is exact to 1e-6"),
        "embedding_gradient": (1e-3, "TF32-free fp32 products, sums over n candidates"),
        "scale_gradient": (1e-4, "fp32 sums over n*n cells"),
        "bias_gradient": (1e-4, "fp32 sums over n*n cells"),
    },
    ("native", "bfloat16"): {
        "loss": (1e-5, "fp32 accumulation from exact bf16 inputs; the softplus polynomial is good to 1e-5"),
        "embedding_gradient": (3e-3, "one rounding to bf16 on output (2^-9 = 2e-3 at worst) beside weights in 16 bits"),
        "scale_gradient": (1e-4, "fp32 partial sums, one per tile"),
        "bias_gradient": (1e-4, "fp32 partial sums, one per tile"),
    },
    ("native", "float32"): {
        "loss": (1e-5, "as with bf16 gradients"),
        "embedding_gradient": (2e-3, "fp32 output; weights still enter the second product in 16 bits"),
        "scale_gradient": (1e-4, "as with bf16 gradients"),
        "bias_gradient": (1e-4, "as with bf16 gradients"),
    },
}
SMALL_ROWS = 64
SAMPLED_ROWS = 64
FEW_ROWS = 16  # of all ranks: below, limits of 16-bit arithmetic take errors to average out that need not
# The reference visits every cell for scalars (always for softmax losses): about ten seconds on two cores at this size.
AFFORDABLE_PRODUCTS = 4.0e10
# Elements of one set, all of which it makes and normalises even for a few rows' gradients: a minute, and gigabytes.
AFFORDABLE_ELEMENTS = 1 << 28
# The softmax losses' weights p - 1 cancel: fp32 keeps seven digits of p, so of a gradient that is 1e-4 of its terms it
# keeps three. Below that, errors are taken relative to 1e-4 of the terms: at scale 100 wide prefixes lead to 1e-12.
CANCELLATION_FLOOR = 1e-4
INPUT_DEVIATION = 73.9  # standard deviation of the synthetic embeddings: sqrt(4 * (128^2 - 1) / 12)
NONFINITE = "NaN or infinity"
NEGATIVES = {"scale": 5.0, "bias": -1.0}  # where negatives, not positives, carry the gradient


@dataclass
class Verdict:
    """What the gate found: errors by output (None: not checked), `failure` empty when all are within tolerance."""

    errors: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(OUTPUTS))
    failure: str = ""
    nonfinite: bool = False
    loss_value: float | None = None
    notes: list[str] = field(default_factory=list)
    checks: list[dict[str, Any]] = field(default_factory=list)


def tolerances(case: Case, launcher: str) -> dict[str, tuple[float, str]]:
    """The row of TOLERANCES for a case. Code of this repository is held tighter than its peers."""
    who = "native" if launcher == "native" else "peer"
    coarse = "bfloat16" if "bfloat16" in (case.dtype, case.gradient_dtype) and who == "peer" else case.gradient_dtype
    return TOLERANCES[who, coarse]


def checks_of(case: Case) -> tuple[list[dict[str, Any]], list[str]]:
    """The checks of a case (docs/contracts.md, section 1) and remarks about what they leave out.

    A variant whose options say `check: none` computes no loss: a yardstick, such as two plain matrix products.
    """
    if case.options.get("check") == "none":
        return [], ["not checked: it computes no loss"]
    rows = min(case.rows, SMALL_ROWS)
    small: dict[str, Any] = {"rows": rows}
    if case.live is not None:
        small["live"] = _small_live(case, rows)
    own: dict[str, Any] = {"name": "own"}
    notes = []
    most = case.options.get("check_rows", case.rows)  # of a reference that visits more than the case's own cells
    if (not _affordable(case, case.rows) or most < case.rows) and not case.loss.endswith("_sigmoid"):
        reduced = case.rows
        while reduced > rows and (reduced > most or not _affordable(case, reduced)):
            reduced //= 2
        own |= {"rows": reduced} | ({"live": [min(n, reduced) for n in case.live]} if case.live else {})
        notes.append(f"own: checked at R={reduced}, because the reference needs {case.loss}'s whole grid")
    elif not _affordable(case, case.rows):
        notes.append("own: loss, dt, db not checked at this size, the reference would visit every cell")
        reduced = case.rows
        while reduced > rows and reduced * case.world_size * case.dims > AFFORDABLE_ELEMENTS:
            reduced //= 2
        if reduced < case.rows:
            own |= {"rows": reduced} | ({"live": [min(n, reduced) for n in case.live]} if case.live else {})
            notes = [f"own: checked at R={reduced}, dX alone, because the reference makes all rows"]
    own["sample_rows"] = sample_rows(own.get("rows", case.rows), case.world_size, own.get("live", case.live))
    checks = [
        {"name": "small", **small, "sample_rows": None},
        {"name": "negatives", **small, **NEGATIVES, "sample_rows": None},
        own,
    ]
    return checks, notes


def is_softmax(loss: str) -> bool:
    """Whether a row's gradient needs normalisers over the whole grid, and no bias: `info_nce`, `one_set_info_nce`."""
    return loss.endswith("info_nce")


def _small_live(case: Case, rows: int) -> list[int]:
    """Live counts of the small check; ragged where the case is."""
    return [min(live, rows) if live < case.rows else rows for live in case.live or ()]


def _affordable(case: Case, rows: int) -> bool:
    n = rows * case.world_size
    return n * n * sum(case.prefixes) <= AFFORDABLE_PRODUCTS


def sample_rows(rows: int, world_size: int, live: Sequence[int] | None, wanted: int = SAMPLED_ROWS) -> list[int]:
    """About `wanted` global row numbers: both ends of every rank's live rows, its first dead row, the rest spread."""
    chosen = set()
    each = max(2, wanted // world_size)
    for rank in range(world_size):
        count = rows if live is None else live[rank]
        first = rank * rows
        if count:
            spread = np.linspace(0, count - 1, num=min(each, count))
            chosen.update(first + round(float(offset)) for offset in spread)
        if count < rows:
            chosen.add(first + count)
    return sorted(chosen)


class Gate:
    """Judges launches; keeps the reference's answers, which all systems of a loss and shape share."""

    def __init__(self, reference: str) -> None:
        self._target = reference
        self._answers: dict[str, dict[str, Any]] = {}

    def judge(
        self,
        case: Case,
        launcher: str,
        checks: Sequence[Mapping[str, Any]],
        events: Events,
        reference: str | None = None,
    ) -> Verdict:
        """Compare all checks of a launch with the reference. The worst error of each output counts.

        `reference` (module:function) stands in for the gate's own where a system's YAML declares the loss.
        """
        verdict = Verdict()
        limits = tolerances(case, launcher)
        failures = []
        for check in checks:
            changed = case.to_json() | {k: v for k, v in check.items() if k not in ("name", "sample_rows")}
            scalars = _affordable(case, changed["rows"])
            answer = self._answer(changed, check.get("sample_rows"), scalars, reference or self._target)
            errors, problem = compare(answer, events, check, changed)
            verdict.checks.append({"name": check["name"], "errors": errors, "scalars": scalars})
            verdict.nonfinite |= problem == NONFINITE
            for output, error in errors.items():
                if error is None:
                    continue
                verdict.errors[output] = max(error, verdict.errors[output] or 0.0)
                limit = limits[output][0]
                if not error <= limit:
                    failures.append(f"{output} off by {error:.2g} in check {check['name']} (limit {limit:.0e})")
            if problem:
                failures.append(f"{problem} in check {check['name']}")
            if check["name"] == "own" and "rows" not in check:
                verdict.loss_value = _scalar(events, "own", "loss_value")[0]
        verdict.failure = "; ".join(failures[:3])
        n = case.rows * case.world_size if case.live is None else sum(case.live)
        if failures and n < FEW_ROWS and limits is not TOLERANCES["peer", "float32"]:
            verdict.failure += f"; with {n} rows in all, rounding to 16 bits alone may pass these limits"
        return verdict

    def _answer(self, case: dict[str, Any], rows: Sequence[int] | None, scalars: bool, target: str) -> dict[str, Any]:
        ignored = ("system", "variant", "options", "gradient_dtype", "state", "contract", "device", "nodes")
        # The one option that changes what a loss of the design is; a declared loss may have any.
        kept_options = case["options"].get("form") if target == self._target else case["options"]
        kept = {k: v for k, v in case.items() if k not in ignored}
        key = json.dumps([target, kept, kept_options, rows, scalars], sort_keys=True)
        if key not in self._answers:
            self._answers[key] = load_reference(target)(case, rows, scalars)
        return self._answers[key]


def load_reference(target: str) -> Callable[..., Mapping[str, Any]]:
    """What `module:function` names. Raises ConfigurationError when there is no such module or function."""
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as problem:
        raise ConfigurationError(f"reference is {target!r}, which cannot be loaded ({problem})") from None


def compare(
    answer: Mapping[str, Any], events: Events, check: Mapping[str, Any], case: Mapping[str, Any]
) -> tuple[dict[str, float | None], str]:
    """Errors of one check by output, and what is missing altogether (empty when nothing is).

    Loss: relative. Scalar gradients: relative to the sum of their absolute terms. dX: worst band of all sets. Every
    rank must report the same scalars, so the worst rank counts. A scalar's gradient that the system declares it does
    not yield is not asked for. With the option `forward_only` there is the loss alone.
    """
    errors: dict[str, float | None] = dict.fromkeys(OUTPUTS)
    forward = bool((case.get("options") or {}).get("forward_only"))
    declared = next((event.get("declares") or {} for _, event in events.of("start")), {}).get("scalars")
    undeclared = {f"{name}_gradient" for name in ("scale", "bias") if declared is not None and name not in declared}
    for output, field_name, reference, unit in (
        ("loss", "loss_value", answer["loss"], answer["loss"]),
        ("scale_gradient", "scale_gradient", answer["scale_gradient"], answer["scale_gradient_scale"]),
        ("bias_gradient", "bias_gradient", answer["bias_gradient"], answer["bias_gradient_scale"]),
    ):
        if reference is None or output in undeclared or (forward and output != "loss"):
            continue
        values = _scalar(events, check["name"], field_name)
        if not values or None in values:
            return errors, f"{output} is missing"
        if not all(map(math.isfinite, values)):
            return errors, NONFINITE
        errors[output] = max(_relative(abs(value - reference), abs(unit)) for value in values)
    if forward:
        return errors, ""
    observed = events.gradients(check["name"])
    wanted = check.get("sample_rows")
    wanted = np.arange(case["rows"] * case["world_size"]) if wanted is None else np.asarray(wanted)
    worst = 0.0
    for name, reference in answer["gradients"].items():
        if name not in observed:
            return errors, f"the gradient of {name} is missing"
        rows, gradient = observed[name]
        order = np.argsort(rows, kind="stable")
        if not np.array_equal(rows[order], np.sort(wanted)):
            return errors, f"the gradient of {name} has {len(rows)} rows, {len(wanted)} were asked for, each once"
        if gradient.shape[1:] != reference.shape[1:]:
            return errors, f"the gradient of {name} has shape {list(gradient.shape)}"
        if not np.isfinite(gradient).all():
            return errors, NONFINITE
        aligned = gradient[order][np.argsort(np.argsort(wanted, kind="stable"))]
        worst = max(worst, band_error(aligned, reference, case["prefixes"], cancellation_units(case, len(reference))))
    errors["embedding_gradient"] = worst
    return errors, ""


def cancellation_units(case: Mapping[str, Any], rows: int) -> list[float]:
    """Least unit of each band's error: 0, but for the softmax losses CANCELLATION_FLOOR of the positives' terms.

    A positive's term of dX is `t w_p / n` over the norm `INPUT_DEVIATION sqrt(p)` of a row's prefix, spread evenly over
    p columns; prefixes that reach the band add up, and `rows` rows add in quadrature.
    """
    prefixes = case["prefixes"]
    if not is_softmax(case["loss"]):
        return [0.0] * len(prefixes)
    weights = case.get("prefix_weights") or [1.0 / len(prefixes)] * len(prefixes)
    n = sum(case["live"]) if case.get("live") else case["rows"] * case["world_size"]
    units = []
    for start, stop in itertools.pairwise([0, *prefixes]):
        reaching = [(p, w) for p, w in zip(prefixes, weights, strict=True) if p >= stop]
        terms = sum(case["scale"] * w / (n * INPUT_DEVIATION * p) for p, w in reaching) * math.sqrt(stop - start)
        units.append(CANCELLATION_FLOOR * terms * math.sqrt(rows))
    return units


def band_error(
    gradient: np.ndarray, reference: np.ndarray, prefixes: Sequence[int], least_units: Sequence[float] | None = None
) -> float:
    """Worst ||error|| / ||reference|| over the bands between prefixes; past the last one anything but 0 is infinite."""
    edges = [0, *prefixes, reference.shape[1]]
    units = [*(least_units or [0.0] * len(prefixes)), 0.0]
    worst = 0.0
    for (start, stop), least in zip(itertools.pairwise(edges), units, strict=True):
        if start < stop:
            error = np.linalg.norm(gradient[:, start:stop].astype(np.float64) - reference[:, start:stop])
            worst = max(worst, _relative(float(error), max(least, float(np.linalg.norm(reference[:, start:stop])))))
    return worst


def _relative(error: float, unit: float) -> float:
    if error == 0.0:
        return 0.0
    known = unit > 0.0 and math.isfinite(unit) and not math.isnan(error)
    return error / unit if known else math.inf


def _scalar(events: Events, check: str, name: str) -> list[float | None]:
    return [event.get(name) for _, event in events.of("check") if event["name"] == check]
