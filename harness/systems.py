"""The registry of systems: one YAML file each in `configs/system/` (docs/contracts.md, section 4)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cases import LOSSES, STATES, STATUSES, Case, ConfigurationError
from harness.cost import OPTIONAL_PREDICT_KEYS, PREDICT_KEYS

LAUNCHERS = ("torchrun", "single", "native", "published")
_KEYS = (
    "name",
    "target",
    "launcher",
    "requires",
    "package",
    "devices",
    "minimum_capability",
    "losses",
    "variants",
    "predict",
)
_VARIANT_KEYS = (
    "loss",
    "options",
    "expected_status",
    "expected_from_rows",
    "because",
    "devices",
    "world_sizes",
    "predict",
    "by_name_only",
)
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True)
class Variant:
    """One way to run a system. `world_sizes` None means any number of ranks; `predict` overrides the system's keys.

    `by_name_only`: left out unless it is asked for as `system:variant`, for what is no peer of the others.
    """

    name: str
    loss: str
    options: dict[str, Any] = field(default_factory=dict)
    expected_statuses: Mapping[str, str] = field(default_factory=dict)  # by state; a state that is absent expects ok
    world_sizes: tuple[int, ...] | None = None
    predict: Mapping[str, float] = field(default_factory=dict)
    by_name_only: bool = False
    because: str = ""  # why another status than ok is expected: it stands in the row, after what the gate found
    devices: tuple[str, ...] = DEVICES  # of the system's, those that this variant runs on
    expected_from_rows: int = 0  # of all ranks: `expected_statuses` are of cases with as many or more, fewer expect ok

    def expected_status(self, case: Case) -> str:
        """The status that a case should end with."""
        few = case.rows * case.world_size < self.expected_from_rows
        return "ok" if few else self.expected_statuses.get(case.state, "ok")


@dataclass(frozen=True)
class System:
    """One file of the registry."""

    name: str
    target: str | None
    launcher: str
    requires: tuple[str, ...]
    package: str | None
    devices: tuple[str, ...]
    minimum_capability: float
    variants: dict[str, Variant]
    predict: dict[str, float]
    references: Mapping[str, str] = field(default_factory=dict)  # module:function by declared loss, its gate

    @property
    def runs_here(self) -> bool:
        """Whether there is anything to launch: published rows have no code."""
        return self.launcher != "published"


def load(folder: Path) -> dict[str, System]:
    """All systems of a folder by name, in alphabetical order. Raises ConfigurationError naming file and key."""
    import yaml

    systems = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        try:
            data = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, yaml.YAMLError) as problem:
            raise ConfigurationError(f"{path}: not readable as YAML ({str(problem).splitlines()[0]})") from None
        systems[path.stem] = _system(path, data)
    if not systems:
        raise ConfigurationError(f"{folder} holds no system; there must be a <name>.yaml for each")
    return systems


def _system(path: Path, data: Any) -> System:
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}: must be a mapping with {', '.join(_KEYS)}")
    for key in data:
        if key not in _KEYS:
            raise ConfigurationError(f"{path}: unknown key {key!r}; known: {', '.join(_KEYS)}")
    if data.get("name") != path.stem:
        raise ConfigurationError(f"{path}: name is {data.get('name')!r}; it must be the file's, {path.stem!r}")
    launcher = data.get("launcher")
    if launcher not in LAUNCHERS:
        raise ConfigurationError(f"{path}: launcher is {launcher!r}; known: {', '.join(LAUNCHERS)}")
    if launcher in ("torchrun", "single") and ":" not in str(data.get("target")):
        raise ConfigurationError(f"{path}: target is {data.get('target')!r}; give module:Class")
    variants = _typed(path, "variants", data, dict)
    references = _references(path, data)
    known = (*LOSSES, *references)
    return System(
        name=path.stem,
        target=data.get("target"),
        launcher=launcher,
        requires=tuple(_typed(path, "requires", data, list)),
        package=data.get("package"),
        devices=_devices(path, data),
        minimum_capability=_number(path, "minimum_capability", data.get("minimum_capability", 8.0)),
        variants={str(n): _variant(f"{path}: variant {n!r}", str(n), each, known) for n, each in variants.items()},
        predict=_predict(path, data),
        references=references,
    )


def _references(path: Path, data: Mapping[str, Any]) -> dict[str, str]:
    """The losses that a system computes beyond the design's, each with its float64 reference and its definition."""
    references = {}
    for name, declared in _typed(path, "losses", data, dict).items():
        where = f"{path}: loss {name!r}"
        if not str(name).startswith(("one_set_", "two_set_")) or name in LOSSES:
            raise ConfigurationError(
                f"{where} must begin with one_set_ or two_set_, and be none of {', '.join(LOSSES)}"
            )
        if not isinstance(declared, dict) or set(declared) != {"reference", "computes"}:
            raise ConfigurationError(f"{where} must give reference (module:function) and computes (what it is)")
        if ":" not in str(declared["reference"]):
            raise ConfigurationError(f"{where}: reference is {declared['reference']!r}; give module:function")
        references[str(name)] = declared["reference"]
    return references


def _variant(where: str, name: str, data: Any, losses: Sequence[str]) -> Variant:
    if not isinstance(data, dict) or data.get("loss") not in losses:
        loss = data.get("loss") if isinstance(data, dict) else data
        raise ConfigurationError(f"{where} has loss {loss!r}; known: {', '.join(losses)}")
    for key in data:
        if key not in _VARIANT_KEYS:
            raise ConfigurationError(f"{where} has an unknown key {key!r}; known: {', '.join(_VARIANT_KEYS)}")
    sizes = data.get("world_sizes")
    if sizes is not None and not (isinstance(sizes, list) and all(type(size) is int and size > 0 for size in sizes)):
        raise ConfigurationError(f"{where}: world_sizes is {sizes!r}; give a list of whole numbers, or null for any")
    options, expected = _typed(where, "options", data, dict), _expected(where, data.get("expected_status"))
    by_name = data.get("by_name_only", False)
    if not isinstance(by_name, bool):
        raise ConfigurationError(f"{where}: by_name_only is {by_name!r}; give true or false")
    because = data.get("because", "")
    if not isinstance(because, str):
        raise ConfigurationError(f"{where}: because is {because!r}; give a text")
    from_rows = data.get("expected_from_rows", 0)
    if type(from_rows) is not int or from_rows < 0:
        raise ConfigurationError(f"{where}: expected_from_rows is {from_rows!r}; give a whole number of rows")
    return Variant(
        name,
        data["loss"],
        options,
        expected,
        tuple(sizes) if sizes else None,
        _predict(where, data),
        by_name,
        because,
        _devices(where, data),
        from_rows,
    )


def _expected(where: str, given: Any) -> dict[str, str]:
    """`expected_status` by state: one status stands for every state, a mapping for the states that it names."""
    by_state = given if isinstance(given, dict) else dict.fromkeys(STATES, given or "ok")
    for state, status in by_state.items():
        if state not in STATES:
            raise ConfigurationError(f"{where} expects a status in state {state!r}; known: {', '.join(STATES)}")
        if status not in STATUSES:
            raise ConfigurationError(f"{where} expects status {status!r}; known: {', '.join(STATUSES)}")
    return by_state


def _predict(where: Path | str, data: Mapping[str, Any]) -> dict[str, float]:
    predict, known = _typed(where, "predict", data, dict), (*PREDICT_KEYS, *OPTIONAL_PREDICT_KEYS)
    for key in predict:
        if key not in known:
            raise ConfigurationError(f"{where}: predict has an unknown key {key!r}; known: {', '.join(known)}")
    return {key: _number(where, f"predict.{key}", value) for key, value in predict.items()}


def _devices(where: Path | str, data: Mapping[str, Any]) -> tuple[str, ...]:
    devices = _typed(where, "devices", data, list) or list(DEVICES)
    for device in devices:
        if device not in DEVICES:
            raise ConfigurationError(f"{where}: devices holds {device!r}; known: {', '.join(DEVICES)}")
    return tuple(devices)


def _typed(where: Path | str, key: str, data: Mapping[str, Any], kind: type) -> Any:
    """A list or mapping of the file; absent or null is an empty one. Raises ConfigurationError for anything else."""
    value = kind() if data.get(key) is None else data[key]
    if not isinstance(value, kind):
        raise ConfigurationError(f"{where}: {key} is {value!r}; give a {'list' if kind is list else 'mapping'}")
    return value


def _number(where: Path | str, key: str, value: Any) -> float:
    """A number; YAML takes `1e5` for text, so text that reads as one is accepted."""
    try:
        number = float("" if isinstance(value, bool) else value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise ConfigurationError(f"{where}: {key} is {value!r}; give a number, 0 or more")
    return number


def select(
    registry: Mapping[str, System], names: Sequence[str] | None, losses: Sequence[str] | None = None
) -> list[tuple[System, Variant]]:
    """The variants that `names` (`system` or `system:variant`; None: all that run) mean, limited to `losses`.

    Raises ConfigurationError for unknown names, with the known ones.
    """
    if names is not None and (not isinstance(names, list) or not names):
        raise ConfigurationError(f"systems is {names!r}; give a list, such as systems=[native,open_clip:bidir]")
    runnable = [name for name, system in registry.items() if system.runs_here]
    known = dict.fromkeys([*LOSSES, *(loss for name in runnable for loss in registry[name].references)])
    for loss in losses or ():
        if loss not in known:
            raise ConfigurationError(f"unknown losses {loss!r}; known: {', '.join(known)}")
    chosen: dict[tuple[str, str], tuple[System, Variant]] = {}
    for text in runnable if names is None else names:
        name, _, variant = str(text).partition(":")
        if name not in runnable:
            raise ConfigurationError(f"unknown system {name!r}; known: {', '.join(runnable)}")
        system = registry[name]
        if variant and variant not in system.variants:
            raise ConfigurationError(f"unknown variant {text!r}; known: {', '.join(_titles(system))}")
        usual = [each for each in system.variants.values() if not each.by_name_only]
        for each in [system.variants[variant]] if variant else usual:
            if losses is None or each.loss in losses:
                chosen[name, each.name] = system, each
    if not chosen:
        offered = sorted({variant.loss for name in runnable for variant in registry[name].variants.values()})
        raise ConfigurationError(
            f"none of these systems computes {', '.join(losses or ['a loss'])}; losses offered: {', '.join(offered)}"
        )
    return list(chosen.values())


def _titles(system: System) -> list[str]:
    return [f"{system.name}:{variant}" for variant in system.variants]
