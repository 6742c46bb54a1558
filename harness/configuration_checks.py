"""What the fields of a configuration may be. Every refusal is a ConfigurationError of one line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from harness.cases import LOSSES, STATES, ConfigurationError
from harness.inputs import LABEL_LAYOUTS
from harness.nodes import QUEUES, SOURCES

DTYPES = ("bfloat16", "float32")
MOST_ROUNDS = 1000  # more are a slip of the finger


def check(values: dict[str, Any]) -> None:
    """Raise ConfigurationError for the first field of a composed configuration that cannot be."""
    for name in ("states", "dims", "prefixes"):
        if values[name] is None:
            raise ConfigurationError(f"{name} is null; leave it out for the usual one, or give a value")
    _names(values, "losses", None)
    _names(values, "same_batch", None, "'native:one_set'")
    _names(values, "states", tuple(STATES))
    for name, known in (("labels", LABEL_LAYOUTS), ("dtype", DTYPES), ("gradient_dtype", DTYPES)):
        _one_of(name, values[name], known)
    if values["device"] is not None:
        _one_of("device", values["device"], ("cpu", "cuda"))
    for name in ("rows", "nodes", "world_sizes", "prefixes", "live"):
        _integers(name, values[name], 0 if name == "live" else 1)
    for name in ("dims", "devices_per_node"):
        _integer(name, values[name], 1)
    if not _is_integer(values["seed"]) or not 0 <= values["seed"] < 1 << 32:
        raise ConfigurationError(f"seed is {values['seed']!r}; give a whole number from 0 to 2^32 - 1")
    for name in ("list", "allow_busy", "self_pairs"):
        if not isinstance(values[name], bool):
            raise ConfigurationError(f"{name} is {values[name]!r}; give true or false")
    if not isinstance(values["resume"], (bool, str)) or values["resume"] == "":
        raise ConfigurationError(f"resume is {values['resume']!r}; give true, false, a run's id or its folder")
    weights = values["prefix_weights"]
    if weights is not None and not (isinstance(weights, list) and all(_is_number(weight) for weight in weights)):
        raise ConfigurationError(f"prefix_weights is {weights!r}; give a list of numbers")
    for name in ("results", "registry", "reference", "binary"):
        if not isinstance(values[name], str) or not values[name]:
            raise ConfigurationError(f"{name} is {values[name]!r}; give a path, in quotes if it is a number")
    if ":" not in values["reference"]:
        raise ConfigurationError(f"reference is {values['reference']!r}; give module:function")
    _check_protocol(values["protocol"])
    _check_surroundings(values["launch"], values["machine"])
    seconds(values["budget"], "budget")


def _check_protocol(protocol: dict[str, Any]) -> None:
    for name in ("rounds", "warmup_steps", "blocks", "steps_per_block"):
        _integer(f"protocol.{name}", protocol[name], 2 if name == "steps_per_block" else 1, optional=False)
    for name in ("warmup_seconds", "max_block_seconds"):
        if not _is_number(protocol[name]) or protocol[name] < 0:
            raise ConfigurationError(f"protocol.{name} is {protocol[name]!r}; give seconds, 0 or more")
    _one_of("protocol.cache", protocol["cache"], ("warm", "cold"))
    for name in ("together", "one_step"):
        _one_of(f"protocol.{name}", protocol[name], (True, False))
    if protocol["one_step"] and protocol["cache"] == "cold":
        raise ConfigurationError("protocol.one_step times a process's first step, as it comes; leave out cache=cold")
    _integer("protocol.retries", protocol["retries"], 0, optional=False)
    for name in ("rounds", "retries"):
        if protocol[name] > MOST_ROUNDS:
            raise ConfigurationError(f"protocol.{name} is {protocol[name]}; give at most {MOST_ROUNDS}")
    limit = protocol["maximum_range"]
    if limit is not None and (not _is_number(limit) or limit <= 0):
        raise ConfigurationError(f"protocol.maximum_range is {limit!r}; give a share above 0, such as 0.2, or null")


def _check_surroundings(launch: dict[str, Any], machine: dict[str, Any]) -> None:
    _integer("launch.nodes", launch["nodes"], 1)
    _one_of("launch.source", launch["source"], SOURCES)
    if launch["queue"] is not None:
        _one_of("launch.queue", launch["queue"], QUEUES)
    if not isinstance(launch["queue_options"], dict):
        raise ConfigurationError(
            f"launch.queue_options is {launch['queue_options']!r}; give submitit's parameters, such as "
            "launch.queue_options={slurm_partition:gpu,timeout_min:240}"
        )
    _integer("launch.follower_status", launch["follower_status"], 0)
    for name in ("lost_seconds", "wait_seconds"):
        if not _is_number(launch[name]) or launch[name] < (2 if name == "lost_seconds" else 0):
            least = "2 or more: nodes beat once a second" if name == "lost_seconds" else "0 or more"
            raise ConfigurationError(f"launch.{name} is {launch[name]!r}; give seconds, {least}")
    deadline, grace = launch["deadline_seconds"], launch["grace_seconds"]
    if deadline is not None and not (_is_number(deadline) and deadline > 0):
        raise ConfigurationError(f"launch.deadline_seconds is {deadline!r}; give seconds above 0, or null")
    if not _is_number(grace) or grace < 0:
        raise ConfigurationError(f"launch.grace_seconds is {grace!r}; give seconds, 0 or more")
    for name in ("cores", "memory_bytes"):
        _integer(f"machine.{name}", machine[name], 1)
    folder, lock_folder = machine["name"], machine["lock_folder"]
    if folder is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", str(folder)):
        raise ConfigurationError(f"machine.name is {folder!r}; it names a folder: letters, digits, dots and hyphens")
    if lock_folder is not None and not isinstance(lock_folder, str):
        raise ConfigurationError(f"machine.lock_folder is {lock_folder!r}; give a path")


def _names(values: dict[str, Any], field: str, known: Sequence[str] | None, example: str = LOSSES[0]) -> None:
    """A list of names, or null. `known` None: whoever reads the registry checks them."""
    given = values[field]
    if given is None:
        return
    if not isinstance(given, list) or not given:
        raise ConfigurationError(
            f"{field} is {given!r}; give a list, such as {field}=[{known[0] if known else example}]"
        )
    for name in given if known else ():
        _one_of(field, name, known)


def _one_of(field: str, value: Any, known: Sequence[str]) -> None:
    if value not in known:
        raise ConfigurationError(f"unknown {field} {value!r}; known: {', '.join(known)}")


def _integers(field: str, given: Any, least: int) -> None:
    if given is None:
        return
    if not isinstance(given, list) or not given or not all(_is_integer(value) and value >= least for value in given):
        raise ConfigurationError(f"{field} is {given!r}; give a list of whole numbers from {least} up, such as [256]")


def _integer(field: str, value: Any, least: int, optional: bool = True) -> None:
    if not (value is None and optional) and not (_is_integer(value) and value >= least):
        raise ConfigurationError(f"{field} is {value!r}; give a whole number, at least {least}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def seconds(value: Any, field: str) -> float | None:
    """`90`, `90s`, `10m` or `2h` as seconds; None stays None. Raises ConfigurationError."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value).strip())
    if not match:
        raise ConfigurationError(f"{field} is {value!r}; give seconds, or a number with s, m or h, such as 10m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
