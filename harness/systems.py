"""The registry of systems: one YAML file each in `configs/system/` (docs/contracts.md, section 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.cases import LOSSES, STATUSES, ConfigurationError

LAUNCHERS = ("torchrun", "single", "native", "published")
_KEYS = (
    "name",
    "target",
    "launcher",
    "requires",
    "package",
    "devices",
    "minimum_capability",
    "variants",
    "predict",
)
_VARIANT_KEYS = ("loss", "options", "expected_status", "world_sizes")


@dataclass(frozen=True)
class Variant:
    """One way to run a system. `world_sizes` None means any number of ranks."""

    name: str
    loss: str
    options: dict[str, Any] = field(default_factory=dict)
    expected_status: str = "ok"
    world_sizes: tuple[int, ...] | None = None


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
    variants = {name: _variant(path, name, value) for name, value in (data.get("variants") or {}).items()}
    return System(
        name=path.stem,
        target=data.get("target"),
        launcher=launcher,
        requires=tuple(data.get("requires") or ()),
        package=data.get("package"),
        devices=tuple(data.get("devices") or ("cpu", "cuda")),
        minimum_capability=float(data.get("minimum_capability") or 8.0),
        variants=variants,
        predict=dict(data.get("predict") or {}),
    )


def _variant(path: Path, name: str, data: Any) -> Variant:
    where = f"{path}: variant {name!r}"
    if not isinstance(data, dict) or data.get("loss") not in LOSSES:
        loss = data.get("loss") if isinstance(data, dict) else data
        raise ConfigurationError(f"{where} has loss {loss!r}; known: {', '.join(LOSSES)}")
    for key in data:
        if key not in _VARIANT_KEYS:
            raise ConfigurationError(f"{where} has an unknown key {key!r}; known: {', '.join(_VARIANT_KEYS)}")
    expected = data.get("expected_status") or "ok"
    if expected not in STATUSES:
        raise ConfigurationError(f"{where} expects status {expected!r}; known: {', '.join(STATUSES)}")
    world_sizes = data.get("world_sizes")
    return Variant(
        name, data["loss"], dict(data.get("options") or {}), expected, tuple(world_sizes) if world_sizes else None
    )


def select(
    registry: Mapping[str, System], names: Sequence[str] | None, losses: Sequence[str] | None = None
) -> list[tuple[System, Variant]]:
    """The variants that `names` (`system` or `system:variant`; None: all that run) mean, limited to `losses`.

    Raises ConfigurationError for unknown names, with the known ones.
    """
    if names is not None and (not isinstance(names, list) or not names):
        raise ConfigurationError(f"systems is {names!r}; give a list, such as systems=[native,open_clip:bidir]")
    runnable = [name for name, system in registry.items() if system.runs_here]
    chosen: dict[tuple[str, str], tuple[System, Variant]] = {}
    for text in runnable if names is None else names:
        name, _, variant = str(text).partition(":")
        if name not in runnable:
            raise ConfigurationError(f"unknown system {name!r}; known: {', '.join(runnable)}")
        system = registry[name]
        if variant and variant not in system.variants:
            raise ConfigurationError(f"unknown variant {text!r}; known: {', '.join(_titles(system))}")
        for each in [system.variants[variant]] if variant else system.variants.values():
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
