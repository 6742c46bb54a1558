"""`python -m baselines.declarations`: what every system declares, as results/peers/declarations.csv.

Reports read results alone, so the declarations of `configs/system/` and of the adapters are written there; a test fails
while the file differs from them.
"""

from __future__ import annotations

import csv
import importlib
import io
import sys
from pathlib import Path
from typing import Any

import yaml

from baselines.interface import Declaration
from harness.inputs import sets_of

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "results" / "peers" / "declarations.csv"
DEFINITIONS = {
    "one_set_sigmoid": "sigmoid loss of one labelled set, every pair of rows (docs/metrics.md)",
    "two_set_sigmoid": "SigLIP's loss of images against captions (arXiv 2303.15343)",
    "info_nce": "CLIP's loss: half of each direction's cross-entropy (arXiv 2103.00020)",
    "one_set_info_nce nt_xent": "NT-Xent: mean over positive pairs (arXiv 2002.05709)",
    "one_set_info_nce sup_con": "SupCon: mean over rows of the mean over their positives (arXiv 2004.11362)",
}
# What the native binary says of itself when it starts (tests/kernels/test_protocol.py holds the two together).
NATIVE = {
    sets: Declaration(
        sets,
        negatives="global",
        normalisation="in the step; a prefix of norm below 1e-12 has cosine 0",
        notes="one process drives all devices",
    )
    for sets in (1, 2)
}
COLUMNS = (
    "system",
    "variants",
    "loss",
    "computes",
    "sets",
    "negatives",
    "normalisation",
    "loss_factor",
    "feature_gradient_factor",
    "scalar_gradient_factor",
    "scale_gradient",
    "bias_gradient",
    "notes",
    "package",
)


def rows() -> list[dict[str, str]]:
    """One row per system, loss and declaration, with the variants that share it. Imports every adapter."""
    found: dict[tuple, dict[str, str]] = {}
    for path in sorted((ROOT / "configs" / "system").glob("*.yaml")):
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        for variant, settings in data["variants"].items():
            options = settings.get("options") or {}
            declared = _declared(data, settings["loss"], options)
            if declared is None:
                continue
            row = _row(data, settings["loss"], options, declared)
            found.setdefault(tuple(row.values()), row | {"variants": ""})["variants"] += f" {variant}"
    return [row | {"variants": row["variants"].strip()} for row in found.values()]


def _declared(data: dict[str, Any], loss: str, options: dict[str, Any]) -> Declaration | None:
    """What a variant's adapter declares, or the native loss; None of what is neither."""
    if data["target"]:
        module, _, name = data["target"].partition(":")
        adapter = getattr(importlib.import_module(module), name)
        return adapter.declared(options) if hasattr(adapter, "declared") else adapter.declares
    if data["launcher"] == "native" and loss not in (data.get("losses") or {}):
        return NATIVE[sets_of(loss)]
    return None


def _row(data: dict[str, Any], loss: str, options: dict[str, Any], declared: Any) -> dict[str, str]:
    own = (data.get("losses") or {}).get(loss)
    title = " ".join(filter(None, [loss, options.get("form")]))
    yardstick, forward = options.get("check") == "none", options.get("forward_only", False)
    yields = {name: name in declared.scalars and not (yardstick or forward) for name in ("scale", "bias")}
    yields["bias"] &= loss.endswith("_sigmoid")
    return {
        "system": data["name"],
        "variants": "",
        "loss": "none" if yardstick else title,
        "computes": "two plain products, no loss" if yardstick else own["computes"] if own else DEFINITIONS[title],
        "sets": str(declared.sets),
        "negatives": declared.negatives,
        "normalisation": declared.normalisation,
        "loss_factor": _factor(declared.loss_scale),
        "feature_gradient_factor": "" if forward else _factor(declared.gradient_scale),
        "scalar_gradient_factor": _factor(declared.scalar_scale) if yields["scale"] else "",
        "scale_gradient": ("log of scale" if declared.scale_parameter == "log_scale" else "scale")
        if yields["scale"]
        else "none",
        "bias_gradient": "bias" if yields["bias"] else "none",
        "notes": "; ".join(filter(None, [declared.notes, "the loss alone, no gradients" if forward else ""])),
        "package": data["package"] or "",
    }


def _factor(declared: str | float) -> str:
    return declared if isinstance(declared, str) else f"{declared:g}"


def text() -> str:
    """The file's contents."""
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows())
    return out.getvalue()


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}", file=sys.stderr)
