"""The options of `python -m harness regress`: configs/regress/, profiles, and what the command line says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import regress_conditions as conditions
from harness.cases import ConfigurationError

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "regress"
FORMATS = ("text", "markdown", "json")
_PATHS = ("base", "new", "junit", "results")
_FLAGS = ("relative", "confirm")
USAGE = """usage: python -m harness regress base=<rows.csv or folder> [new=<rows.csv or folder>] [field=value ...]

Without `new`, the cases of BASE are measured afresh on this machine.
  python -m harness regress base=old/rows.csv allow=[driver] format=markdown junit=regress.xml
  python -m harness regress profile=shared_machine base=a.csv new=b.csv peer=open_clip:gather
  python -m harness regress --selftest                 how often planted slowdowns are caught, and false alarms
profiles: {profiles}
fields: {fields}
may be allowed to differ: {allowable}
exit status: 0 nothing got worse, 1 slower or memory grew or a status got worse, 2 cannot compare"""


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """configs/regress/default.yaml, then `profile=`, then `field=value`. Raises ConfigurationError, one line."""
    import yaml

    given = {}
    for argument in argv:
        name, equals, value = argument.removeprefix("--").partition("=")  # --allow=driver, --relative
        if not equals and name not in _FLAGS:
            raise ConfigurationError(f"{argument!r} is not field=value; try base=<rows.csv>")
        given[name] = value if equals else "true"
    options = yaml.safe_load((CONFIGS / "default.yaml").read_text(encoding="utf-8"))
    known = dict(options)
    profile = given.pop("profile", None)
    if profile is not None:
        if profile not in _profiles():
            raise ConfigurationError(f"unknown profile {profile!r}; known: {', '.join(_profiles())}")
        options |= yaml.safe_load((CONFIGS / f"{profile}.yaml").read_text(encoding="utf-8"))
    if given.get("new") == "":
        raise ConfigurationError("new is empty; name a result CSV or a run folder, or leave it out to measure afresh")
    for name, text in given.items():
        if name not in known:
            raise ConfigurationError(f"unknown field {name!r}; known: profile, {', '.join(known)}")
        # File names are taken as they stand; anything else is YAML, as on Hydra's command line.
        options[name] = (text or None) if name in (*_PATHS, "peer") else _value(name, text)
    _check(options, known)
    return options


def _value(name: str, text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ConfigurationError(f"{name}={text} cannot be read; write {name}=value or {name}=[a,b]") from None


def _check(options: dict[str, Any], known: Mapping[str, Any]) -> None:
    if not options["base"]:
        raise ConfigurationError("base is missing; give base=<rows.csv, or a folder with one>")
    if isinstance(options["allow"], str):
        options["allow"] = options["allow"].split(",")
    for name in options["allow"] or ():
        if name == "protocol":
            raise ConfigurationError("protocol may never differ: quick and standard are not comparable")
        if name not in conditions.ALLOWABLE:
            raise ConfigurationError(f"unknown condition {name!r} in allow; known: {', '.join(conditions.ALLOWABLE)}")
    options["allow"] = tuple(options["allow"] or ())
    if options["format"] not in FORMATS:
        raise ConfigurationError(f"unknown format {options['format']!r}; known: {', '.join(FORMATS)}")
    if not isinstance(options["overrides"], list):
        raise ConfigurationError(f"overrides is {options['overrides']!r}; give a list, such as [allow_busy=true]")
    options["overrides"] = [str(override) for override in options["overrides"]]
    for name in _FLAGS:
        if not isinstance(options[name], bool):
            raise ConfigurationError(f"{name} is {options[name]!r}; give true or false")
    for name, default in known.items():
        value = options[name]
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise ConfigurationError(f"{name} is {value!r}; give a number, at least 0")
    if options["relative"] and not options["peer"]:
        raise ConfigurationError("relative=true needs peer=<system[:variant[:loss]]>, measured in both runs")


def _profiles() -> list[str]:
    return sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem != "default")


def usage() -> str:
    """What `--help` prints."""
    import yaml

    fields = yaml.safe_load((CONFIGS / "default.yaml").read_text(encoding="utf-8"))
    return USAGE.format(
        profiles=", ".join(_profiles()), fields=", ".join(fields), allowable=", ".join(conditions.ALLOWABLE)
    )
