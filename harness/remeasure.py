"""Measuring the cases of stored rows again: what `regress` does when it is given one file only."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import bench, configuration, lock, machine, plan, systems
from harness.cases import Case, ConfigurationError
from harness.support import Support
from harness.systems import System, Variant

_INTEGERS = ("rows", "dims", "seed", "world_size", "nodes")
_FLOATS = ("scale", "bias")
_TEXTS = ("system", "loss", "variant", "state", "dtype", "gradient_dtype", "device", "labels")


def measure_rows(rows: Sequence[Mapping[str, str]], rounds: int = 5, overrides: Sequence[str] = ()) -> Path:
    """Measure the cases of these rows on this machine, with their protocol; returns the run's folder.

    Progress goes to stderr, because the caller's answer goes to stdout.

    `rows` are as `records.read_rows` gives them; `overrides` are of configs/bench.yaml, say `results=...`. Published
    rows are left out. Raises ConfigurationError when no row names a system of the registry, when rows have several
    protocols, or when somebody else measures.
    """
    protocols = sorted({row["protocol"] for row in rows})
    if len(protocols) != 1 or protocols[0] not in configuration.options("protocol"):
        raise ConfigurationError(f"protocols {', '.join(protocols)}: rows of one named protocol can be measured again")
    chosen = configuration.compose([f"protocol={protocols[0]}", f"protocol.rounds={rounds}", "budget=null", *overrides])
    chosen.values["campaign"] = "regress"
    here = plan.apply_overrides(machine.detect(), chosen.machine)
    registry = systems.load(chosen.path("registry"))
    support = Support(here, chosen.path("binary"))
    planned = []
    for row in rows:
        found = find(row, registry)
        if found:
            case = case_of(row, found[1])
            planned.append(plan.plan_case(case, *found, chosen.protocol, here, support))
    if not planned:
        raise ConfigurationError("none of these rows names a system that can be measured here")
    device = planned[0].case.device
    if device == "cuda" and not chosen.allow_busy:
        bench.refuse_busy(here)
    parent = chosen.path("results") / "measured" / here.slug(device) / chosen.campaign
    with lock.measuring("regress", chosen.machine["lock_folder"]):
        code, folder = bench.measure(chosen, here, planned, parent, sys.stderr)
    if code == bench.INTERRUPTED:
        raise KeyboardInterrupt
    return folder


def find(row: Mapping[str, str], registry: Mapping[str, System]) -> tuple[System, Variant] | None:
    """The system and variant of a row, or None when the registry has nothing to launch for it."""
    system = registry.get(row["system"])
    if system is None or not system.runs_here or row["variant"] not in system.variants:
        return None
    return system, system.variants[row["variant"]]


def case_of(row: Mapping[str, str], variant: Variant) -> Case:
    """The case of a row. Columns of later versions that a row leaves empty take their defaults."""
    fields: dict[str, Any] = {name: row[name] for name in _TEXTS if row[name]}
    fields |= {name: int(row[name]) for name in _INTEGERS}
    fields |= {name: float(row[name]) for name in _FLOATS}
    for name, kind in (("prefixes", int), ("live", int), ("prefix_weights", float)):
        if row[name]:
            fields[name] = tuple(kind(text) for text in row[name].split())
    return Case(**fields, self_pairs=row["self_pairs"] == "true", options=variant.options)
