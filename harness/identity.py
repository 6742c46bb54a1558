"""What a node says of itself when it joins, and whether two nodes would measure the same thing."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from harness import environment
from harness.cases import CONTRACT_VERSION
from harness.configuration import NOT_IDENTITY, Configuration
from harness.machine import Machine
from harness.nodes import LOCAL_FIELDS, Place
from harness.plan import Planned


def hello(
    place: Place, chosen: Configuration, here: Machine, planned: Sequence[Planned], device: str
) -> dict[str, Any]:
    """The node's introduction: who it is, what it would measure, what it cannot run."""
    facts = environment.describe(here, [each.system.package for each in planned])
    cases = json.dumps(sorted(each.case.case_id for each in planned))
    return {
        "host": socket.gethostname(),
        "rank": place.rank,
        "contract": CONTRACT_VERSION,
        "nodes": place.nodes,
        "configuration": _shared(chosen.values),
        "device": device,
        "devices": len(here.gpus) if device == "cuda" else None,
        "cases": hashlib.sha256(cases.encode()).hexdigest(),
        "unsupported": {each.case.case_id: each.unsupported for each in planned if each.unsupported},
        "facts": facts,
    }


def _shared(values: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration without what belongs to one node: folders, names, how it was reached. Flat."""
    kept = {}
    for name, value in values.items():
        if name in NOT_IDENTITY or name == "machine":
            continue
        if isinstance(value, dict):
            kept |= {f"{name}.{key}": each for key, each in value.items() if (name, key) not in _LOCAL}
        else:
            kept[name] = value
    return kept


_LOCAL = {("launch", name) for name in (*LOCAL_FIELDS, "nodes", "source")}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """What keeps these two nodes from measuring together, the first thing found, in words; empty when nothing does.

    `one` is node 0. Both are introductions as `hello` makes them.
    """
    ours, theirs = one["facts"], other["facts"]
    pairs = [("version of the contract", one["contract"], other["contract"])]
    pairs += [("number of nodes", one["nodes"], other["nodes"])]
    pairs += [("revision", _revision(ours["git"]), _revision(theirs["git"]))]
    mine, yours = one["configuration"], other["configuration"]
    pairs += [(name, mine.get(name), yours.get(name)) for name in sorted(set(mine) | set(yours))]
    pairs += [(what, one[what], other[what]) for what in ("device", "devices")]
    packages, installed = ours["packages"], theirs["packages"]
    names = sorted(set(packages) | set(installed))
    pairs += [(f"package {name}", packages.get(name, "none"), installed.get(name, "none")) for name in names]
    pairs += [("list of cases", one["cases"][:12], other["cases"][:12])]
    for what, here, there in pairs:
        if here != there:
            return f"{what} is {json.dumps(there)[:80]} there, {json.dumps(here)[:80]} on node 0"
    return ""


def _revision(git: Mapping[str, Any]) -> str:
    changes = git.get("changes_sha256") or ""
    return str(git.get("revision"))[:12] + (f" with changes {changes[:8]}" if git.get("dirty") else "")
