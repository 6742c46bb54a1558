"""The configuration of a run: Hydra composes `configs/`, this module checks it and speaks in one-line errors."""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cases import LOSSES, STATES, ConfigurationError
from harness.inputs import LABEL_LAYOUTS
from harness.nodes import LOCAL_FIELDS, QUEUES, SOURCES

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
GROUPS = ("campaign", "protocol", "launch", "machine")
DTYPES = ("bfloat16", "float32")
PART_FIELDS = (
    *("systems", "losses", "states", "rows", "world_sizes"),
    *("dims", "prefixes", "prefix_weights", "labels", "self_pairs", "dtype", "gradient_dtype"),
)
# Where results go and what is shown: changing these does not make it another run.
NOT_IDENTITY = ("list", "resume", "allow_busy", "results", "budget")


@dataclass(frozen=True)
class Configuration:
    """A composed and checked configuration. `values` is the resolved tree, `overrides` what the user typed.

    `machines` is how many this run really has: more than one only for a command that launches across nodes.
    """

    values: dict[str, Any]
    overrides: tuple[str, ...] = ()
    machines: int = 1

    def __getattr__(self, name: str) -> Any:
        try:
            return self.values[name]
        except KeyError:
            raise AttributeError(name) from None

    def path(self, name: str) -> Path:
        """A configured path; relative ones start at the repository."""
        return ROOT / self.values[name]

    @property
    def digest(self) -> str:
        """SHA-256 of everything that decides what is measured and how."""
        kept = {key: value for key, value in self.values.items() if key not in NOT_IDENTITY}
        kept["launch"] = {key: value for key, value in self.launch.items() if key not in LOCAL_FIELDS}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    @property
    def rounds_apart(self) -> int:
        """Launches of a case beside its check: the protocol's rounds, less the one that the check's process times."""
        return self.protocol["rounds"] - self.protocol["together"]

    def matrices(self) -> list[Configuration]:
        """Itself, or one for each of its `parts`, with that part's fields in place of its own.

        Raises ConfigurationError for a part that is none, and for a field on the command line that the parts set.
        """
        parts = self.values.get("parts") or [{}]
        if not isinstance(parts, list) or not all(isinstance(part, dict) for part in parts):
            raise ConfigurationError(f"parts is {parts!r}; give a list of mappings, such as parts=[{{rows:[256]}}]")
        typed = {override.partition("=")[0] for override in self.overrides}
        for name in (name for part in parts for name in part):
            if name not in PART_FIELDS:
                raise ConfigurationError(f"parts set {name!r}; they may set {', '.join(PART_FIELDS)}")
            if name in typed:
                raise ConfigurationError(f"the parts of campaign {self.campaign} set {name}; give parts=[...] instead")
        found = [Configuration(self.values | part, self.overrides, self.machines) for part in parts]
        for each in found:
            _check(each.values)
        return found

    def for_device(self, device: str) -> Configuration:
        """Fields left null filled from `on_cpu` or `on_cuda`, except those that the user has set to null."""
        values, filling = dict(self.values), self.values["on_" + device] or {}
        typed = {override.partition("=")[0] for override in self.overrides}
        if not isinstance(filling, dict):
            raise ConfigurationError(f"on_{device} is {filling!r}; give fields, such as on_{device}.rows=[256]")
        for name, value in filling.items():
            if name not in values:
                raise ConfigurationError(f"on_{device}.{name} is no field; known: {', '.join(sorted(values))}")
            if values[name] is None and name not in typed:
                values[name] = value
        _check(values)
        return Configuration(values, self.overrides, self.machines)

    def on_nodes(self, machines: int) -> Configuration:
        """The same on so many machines."""
        values = self.values | {"launch": self.launch | {"nodes": machines}}
        return Configuration(values, self.overrides, machines)


def compose(overrides: Sequence[str] = (), config: str = "bench") -> Configuration:
    """`configs/bench.yaml` (or another primary file that begins with it) with its groups and these overrides.

    Raises ConfigurationError, one line, for anything that Hydra or the checks below refuse.
    """
    overrides = tuple(overrides)
    values = _compose(overrides, config)
    _check(values)
    _name_protocol(values["protocol"])
    return Configuration(values, overrides)


def _compose(overrides: tuple[str, ...], config: str) -> dict[str, Any]:
    try:
        from hydra import compose as hydra_compose  # half a second of imports: only when a configuration is wanted
        from hydra import initialize_config_dir
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as problem:
        raise ConfigurationError(
            f"{problem.name} is not installed for {sys.executable}; install it there (hydra-core), "
            "or remove .venv if it is what broke, and run make setup"
        ) from None

    for override in overrides:
        _check_override(override)
    try:
        with initialize_config_dir(str(CONFIGS), version_base=None):
            return OmegaConf.to_container(hydra_compose(config, list(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException, TypeError, ValueError) as problem:
        raise ConfigurationError(_one_line(problem, overrides, config)) from None


def _check_override(override: str) -> None:
    name, equals, value = override.partition("=")
    if not equals or not re.fullmatch(r"[a-z_][a-z0-9_.]*", name):
        raise ConfigurationError(f"{override!r} is not an override; write field=value, such as rows=[256,1024]")
    if name in GROUPS and value not in (known := options(name)):
        raise ConfigurationError(f"unknown {name} {value!r}; known: {', '.join(known)}")


def options(group: str) -> list[str]:
    """Names of the files in a group's folder."""
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))


def _one_line(problem: Exception, overrides: Sequence[str], config: str) -> str:
    text = str(problem)
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        return f"unknown field {unknown[1]!r}; known: {', '.join(_fields(unknown[1], config))}"
    first = text.strip().splitlines()[0] if text.strip() else type(problem).__name__
    return f"cannot read the configuration ({' '.join(overrides)}): {first}"


def _fields(name: str, config: str) -> list[str]:
    """The fields beside an unknown one: of its group for `protocol.x`, else the top level and the groups."""
    import yaml

    group = name.partition(".")[0]
    if group in GROUPS and "." in name and (files := sorted((CONFIGS / group).glob("*.yaml"))):
        return [f"{group}.{field}" for field in yaml.safe_load(files[0].read_text())]
    top = {}
    for file in dict.fromkeys(("bench", config)):
        top |= yaml.safe_load((CONFIGS / f"{file}.yaml").read_text())
    if config != "bench" and group == config and "." in name:
        return [f"{group}.{field}" for field in top[group]]
    return sorted((set(top) - {"defaults"}) | set(GROUPS))


def _name_protocol(protocol: dict[str, Any]) -> None:
    """A protocol whose lengths were overridden is `custom`, so that it is never taken for the named one.

    What stands in every row (the number of rounds, retries, the caches' state) and the range that is too noisy may vary
    under the name.
    """
    import yaml

    path = CONFIGS / "protocol" / f"{protocol['name']}.yaml"
    stored = yaml.safe_load(path.read_text()) if path.is_file() else {}
    free = dict.fromkeys(("rounds", "maximum_range", "retries", "cache"))
    if stored | free != protocol | free:
        protocol["name"] = "custom"


def _check(values: dict[str, Any]) -> None:
    for name in ("states", "dims", "prefixes"):
        if values[name] is None:
            raise ConfigurationError(f"{name} is null; leave it out for the usual one, or give a value")
    _names(values, "losses", None)
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
    for name in ("list", "resume", "allow_busy", "self_pairs"):
        if not isinstance(values[name], bool):
            raise ConfigurationError(f"{name} is {values[name]!r}; give true or false")
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
    _one_of("protocol.together", protocol["together"], (True, False))
    _integer("protocol.retries", protocol["retries"], 0, optional=False)
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


def _names(values: dict[str, Any], field: str, known: Sequence[str] | None) -> None:
    """A list of names, or null. `known` None: whoever reads the registry checks them."""
    given = values[field]
    if given is None:
        return
    if not isinstance(given, list) or not given:
        raise ConfigurationError(f"{field} is {given!r}; give a list, such as {field}=[{(known or LOSSES)[0]}]")
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
