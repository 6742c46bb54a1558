"""Measuring the cases of stored rows again: what `regress` does when it is given one file only."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import bench, command, configuration, environment, lock, machine, plan, systems
from harness.cases import Case, ConfigurationError
from harness.support import Support
from harness.systems import System, Variant

_OF_THE_RUN = ("name", "rounds", "cache", "maximum_range", "retries")  # of a protocol: what is no length of it
_INTEGERS = ("rows", "dims", "seed", "world_size", "nodes")
_FLOATS = ("scale", "bias")
_TEXTS = ("system", "loss", "variant", "state", "dtype", "gradient_dtype", "device", "labels")


def measure_rows(
    rows: Sequence[Mapping[str, str]],
    rounds: int = 5,
    overrides: Sequence[str] = (),
    recorded: Mapping[str, Any] | None = None,
) -> Path:
    """Measure the cases of these rows on this machine, with their protocol; returns the run's folder.

    Progress goes to stderr, because the caller's answer goes to stdout.

    `rows` are as `records.read_rows` gives them; `recorded` is the protocol in their environment.json, if there is
    one; `overrides` are of configs/bench.yaml, say `results=...`. Published rows are left out. Raises
    ConfigurationError when no row names a system of the registry, when rows have several protocols or cache states, or
    a protocol whose lengths are not those of today, or when somebody else measures.
    """
    protocol = _protocol(rows, recorded or {})
    chosen = configuration.compose([*protocol, f"protocol.rounds={rounds}", "budget=null", *overrides])
    _refuse_other_lengths(rows[0]["protocol"], recorded or {}, chosen.protocol)
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


def _protocol(rows: Sequence[Mapping[str, str]], recorded: Mapping[str, Any]) -> list[str]:
    """The overrides that choose the rows' protocol: its name, or the lengths of a `custom` one, and their caches."""
    names, states = (sorted({row[column] for row in rows}) for column in ("protocol", "cache_state"))
    if len(names) != 1 or not (names[0] in configuration.options("protocol") or recorded):
        raise ConfigurationError(
            f"protocols {', '.join(names)}: rows of one protocol can be measured again, if it is a named one or "
            "their environment.json holds its lengths"
        )
    if len(states) != 1:
        raise ConfigurationError(f"cache states {', '.join(states)}: rows of one can be measured again")
    lengths = [f"protocol.{name}={json.dumps(value)}" for name, value in recorded.items() if name not in _OF_THE_RUN]
    named = names[0] in configuration.options("protocol")
    return [*([f"protocol={names[0]}"] if named else lengths), f"protocol.cache={states[0] or 'warm'}"]


def _refuse_other_lengths(name: str, recorded: Mapping[str, Any], protocol: Mapping[str, Any]) -> None:
    """Raise ConfigurationError where what would be measured could not be compared: a protocol's lengths may change."""
    other = [each for each in recorded if each not in _OF_THE_RUN and recorded[each] != protocol.get(each)]
    if other:
        told = ", ".join(f"{each} {recorded[each]}, now {protocol.get(each)}" for each in other)
        raise ConfigurationError(f"the protocol {name} has changed since ({told}); measure BASE again first")


def here(rows: Sequence[Mapping[str, str]], overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What a run of these rows on this machine would say in its environment.json, as far as conditions go."""
    chosen = configuration.compose(overrides)
    registry = systems.load(chosen.path("registry"))
    this = plan.apply_overrides(machine.detect(), chosen.machine)
    packages = [system.package for system in (registry.get(row["system"]) for row in rows) if system]
    return environment.describe(this, packages) | {
        "before": environment.moment(this),
        "variables": command.recorded_environment(),
    }


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
