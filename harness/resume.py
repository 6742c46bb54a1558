"""Why an unfinished run is not continued: what it recorded against what would be measured now, field by field."""

from __future__ import annotations

import glob
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.cases import ConfigurationError
from harness.configuration import Configuration, identity_of

FACTS = (
    "host",
    "gpus",
    "python",
    "packages",
    "git",
)  # of environment.json: what must be equal beside the configuration
Difference = tuple[str, str, str]  # field, the run's value, today's


def find(name: str, results: Path) -> Path:
    """The run folder that `resume=` names, by its path or its id. Raises ConfigurationError when there is none."""
    found = [Path(name)] if (Path(name) / "environment.json").is_file() else []
    found += sorted(path.parent for path in results.glob(f"measured/*/*/{glob.escape(name)}/environment.json"))
    if not found:
        raise ConfigurationError(f"resume={name} names no run folder, and no run below {results / 'measured'}")
    return found[0]


def differences(recorded: Mapping[str, Any], chosen: Configuration, facts: Mapping[str, Any]) -> list[Difference]:
    """What differs between a run's environment.json and this command on this machine. Empty: only the cases may."""
    before = _flat(identity_of(recorded.get("configuration") or {})) | _flat(_facts(recorded))
    now = _flat(chosen.identity) | _flat(_facts(facts))
    fields = [*before, *(field for field in now if field not in before)]
    pairs = ((field, before.get(field, "none"), now.get(field, "none")) for field in fields)
    return [each for each in pairs if each[1] != each[2]]


def refusal(folder: Path, found: list[Difference]) -> str:
    """Why a run that was asked for is not continued, one line a difference."""
    lines = [f"{folder.name} cannot be continued: what it measures is not what this command would measure here"]
    lines += [f"  {field}: {before} -> {now}" for field, before, now in found]
    lines += [] if found else ["  its list of cases or its other machines: the configuration is the same"]
    return "\n".join([*lines, "give the run's own fields, revision and machine, or leave resume out to start anew"])


def _facts(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in FACTS}


def _flat(value: Any, name: str = "") -> dict[str, str]:
    """`{"protocol.blocks": "3", ...}`: mappings by their keys joined with dots, all else as short JSON."""
    if not isinstance(value, Mapping):
        return {name: json.dumps(value)[:120]}
    flat: dict[str, str] = {}
    for key, each in value.items():
        flat |= _flat(each, f"{name}.{key}" if name else str(key))
    return flat
