"""The configuration of a run: Hydra composes `configs/`; whatever it refuses is told in one line."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cases import ConfigurationError
from harness.configuration_checks import check
from harness.nodes import LOCAL_FIELDS

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = ROOT / "configs"
GROUPS = ("campaign", "protocol", "launch", "machine")
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
    def identity(self) -> dict[str, Any]:
        """Everything that decides what is measured and how."""
        return identity_of(self.values)

    @property
    def digest(self) -> str:
        """SHA-256 of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()

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
            check(each.values)
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
        check(values)
        return Configuration(values, self.overrides, self.machines)

    def on_nodes(self, machines: int) -> Configuration:
        """The same on so many machines."""
        values = self.values | {"launch": self.launch | {"nodes": machines}}
        return Configuration(values, self.overrides, machines)


def identity_of(values: Mapping[str, Any]) -> dict[str, Any]:
    """A composed tree without what does not make it another run."""
    kept = {key: value for key, value in values.items() if key not in NOT_IDENTITY}
    kept["launch"] = {key: value for key, value in values.get("launch", {}).items() if key not in LOCAL_FIELDS}
    return kept


def compose(overrides: Sequence[str] = (), config: str = "bench") -> Configuration:
    """`configs/bench.yaml` (or another primary file that begins with it) with its groups and these overrides.

    Raises ConfigurationError, one line, for anything that Hydra or the checks below refuse.
    """
    overrides = tuple(overrides)
    values = _compose(overrides, config)
    check(values)
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
    except (HydraException, OmegaConfBaseException, TypeError, ValueError, RecursionError) as problem:
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
    # The cause names the key inside of a mapping that was given whole.
    unknown = re.search(r"full_key: (\S+)", str(problem.__cause__)) or re.search(r"Could not override '([^']+)'", text)
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
