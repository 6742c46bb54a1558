"""What may be compared: how cases are named and matched, which conditions must agree, which cells must be numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.records import RecordError

Row = Mapping[str, str]

# What a case is called. Rows of one name are the same case measured twice, if their conditions agree.
NAME = (
    "system",
    "loss",
    "variant",
    "state",
    "rows",
    "world_size",
    "nodes",
    "device",
    "labels",
    "live",
    "self_pairs",
    "form",
    "bytes",
)
# condition -> the columns that hold it. `protocol` may never differ: quick and standard are not comparable.
ROW_CONDITIONS = {
    "device_name": ("device_name",),
    "protocol": ("protocol",),
    "seed": ("seed",),
    "inputs": ("inputs_sha256",),
    "dims": ("dims",),
    "prefixes": ("prefixes", "prefix_weights"),
    "dtype": ("dtype", "gradient_dtype"),
    "scale": ("scale", "bias"),
    "threads": ("threads",),
    "versions": ("system_version",),
    "cache": ("cache_state",),
}
RUN_CONDITIONS = ("driver", "power_limit", "versions", "vectors", "variables")
_NOT_BESIDE = {"cpu": ("driver", "power_limit"), "cuda": ("vectors",)}  # what is no part of a case on this device
CONDITIONS = (*ROW_CONDITIONS, *(name for name in RUN_CONDITIONS if name not in ROW_CONDITIONS))
ALLOWABLE = tuple(name for name in CONDITIONS if name != "protocol")
# Of environment.json's `protocol`: what decides which steps are timed. Rounds and cache states stand in every row.
LENGTHS = ("warmup_steps", "warmup_seconds", "blocks", "steps_per_block", "max_block_seconds", "together", "one_step")
# Variables that say where something lies, or label an image, and not what it does.
_PLACES = re.compile(r"CUDA_VISIBLE_DEVICES|.*_(HOME|DIR|VERSION)")
UNKNOWN = "not recorded"

ALLOCATOR_COLUMNS = ("allocated_peak_bytes", "step_peak_bytes")
DEVICE_COLUMN = "device_used_bytes"
# The larger the worse. Noise and interruption say nothing about the code: they make a case ambiguous instead.
SEVERITY = {"ok": 0, "unsupported": 1, "out_of_memory": 1, "timeout": 1, "nonfinite": 2, "wrong": 2, "crashed": 2}


def name_of(row: Row) -> tuple[str, ...]:
    """The case's name as a key."""
    return tuple(row[column] for column in NAME)


def title(row: Row) -> str:
    """The case's name for people: what differs from the usual is spelled out."""
    text = f"{row['system']}:{row['variant']} {row['loss']} R={row['rows']} {row['state']}"
    text += f" {row['world_size']}x {row['device']}" + (f" on {row['nodes']} boxes" if row["nodes"] != "1" else "")
    extra = [f"{name}={row[name]}" for name in ("form", "bytes", "live", "labels") if row[name] not in ("", "pairs")]
    return " ".join([text, *extra])


def pairs(base: Sequence[Row], new: Sequence[Row], allow: Iterable[str] = ()) -> tuple[list, list[Row], list[Row]]:
    """(matched pairs, rows only in base, rows only in new). Of one name, rows whose conditions agree pair up first."""
    left: dict[tuple, list[Row]] = {}
    for row in new:
        left.setdefault(name_of(row), []).append(row)
    matched, missing = [], []
    for row in sorted(
        base, key=lambda each: not any(agree(each, other, allow) for other in left.get(name_of(each), ()))
    ):
        candidates = left.get(name_of(row), [])
        chosen = next(
            (other for other in candidates if agree(row, other, allow)), candidates[0] if candidates else None
        )
        if chosen is None:
            missing.append(row)
        else:
            candidates.remove(chosen)
            matched.append((row, chosen))
    order = {id(row): place for place, row in enumerate(base)}
    matched.sort(key=lambda pair: order[id(pair[0])])
    missing.sort(key=lambda row: order[id(row)])
    return matched, missing, [row for row in new if any(row is other for other in left[name_of(row)])]


def agree(base: Row, new: Row, allow: Iterable[str] = ()) -> bool:
    """Whether every condition that is not allowed to differ is equal."""
    return not list(row_differences(base, new, allow))


def row_differences(base: Row, new: Row, allow: Iterable[str] = ()) -> Iterable[tuple[str, str, str]]:
    """(condition, base's value, new's value) for each condition that differs and may not.

    An empty cell is not known, which differs from what is known where both rows have times.
    """
    timed = base["status"] == new["status"] == "ok"
    for condition, columns in ROW_CONDITIONS.items():
        if condition in allow and condition != "protocol":
            continue
        for column in columns:
            if base[column] != new[column] and (timed or (base[column] and new[column])):
                yield condition, f"{column} {base[column] or UNKNOWN}", f"{column} {new[column] or UNKNOWN}"


def run_conditions(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What an environment.json knows of the conditions of a whole run. Raises where it is not as a run writes it."""
    found: dict[str, Any] = {}
    if flags := (environment.get("host") or {}).get("vector_flags"):
        found["vectors"] = " ".join(flags)
    gpus = (environment.get("before") or {}).get("gpus") or []
    for name, field_name in (("driver", "driver_version"), ("power_limit", "power.limit")):
        values = sorted({str(gpu[field_name]) for gpu in gpus if gpu.get(field_name)})
        if values:
            found[name] = ", ".join(values)
    packages = dict(environment.get("packages") or {})
    if environment.get("python"):
        packages["python"] = environment["python"]
    if packages:
        found["versions"] = packages
    if "variables" in environment:
        given = dict(environment["variables"])
        found["variables"] = {name: value for name, value in given.items() if not _PLACES.fullmatch(name)}
    return found


def run_differences(
    base: Mapping[str, Any], new: Mapping[str, Any], allow: Iterable[str] = (), devices: Iterable[str] = ("cpu", "cuda")
) -> Iterable[tuple[str, str, str]]:
    """As row_differences, for what holds for a whole run of cases on these devices. What a side does not know differs.

    Packages that only one side records are not_recorded()'s: which ones a run looks at depends on its systems.
    """
    one, other = run_conditions(base), run_conditions(new)
    for condition in _beside(devices):
        if condition in allow:
            continue
        before, after = one.get(condition), other.get(condition)
        if before is None or after is None:
            known = "recorded" if condition in ("versions", "variables") else before or after
            yield condition, *(UNKNOWN if side is None else known for side in (before, after))
        elif condition == "versions":
            for package in sorted({*before} & {*after}):
                if before[package] != after[package]:
                    yield condition, f"{package} {before[package]}", f"{package} {after[package]}"
        elif condition == "variables":
            for name in sorted({*before} | {*after}):
                if before.get(name) != after.get(name):
                    yield (
                        condition,
                        *(f"{name}={side[name]}" if name in side else f"{name} unset" for side in (before, after)),
                    )
        elif before != after:
            yield condition, before, after


def _beside(devices: Iterable[str]) -> list[str]:
    """The conditions of a run that matter to a case on any of these devices."""
    return [name for name in RUN_CONDITIONS if any(name not in _NOT_BESIDE.get(device, ()) for device in devices)]


def protocol_differences(
    base: Mapping[str, Any], new: Mapping[str, Any], names: Iterable[str]
) -> Iterable[tuple[str, str, str]]:
    """The lengths in which two protocols differ that have the same names in their rows.

    Where lengths are not known a name stands for them; `custom` stands for none.
    """
    one, other = lengths(base), lengths(new)
    if one and other:
        for field in LENGTHS:
            if one[field] != other[field]:
                yield "protocol", f"{field} {one[field]}", f"{field} {other[field]}"
    elif "custom" in names:
        yield "protocol", *(f"lengths {'recorded' if side else UNKNOWN}" for side in (one, other))


def lengths(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The lengths of a run's protocol, empty where they are not recorded. The two switches are younger than runs."""
    known = dict(environment.get("protocol") or {})
    return {field: {"together": False, "one_step": False, **known}[field] for field in LENGTHS} if known else {}


def vector_differences(base: Mapping[str, Any], new: Mapping[str, Any]) -> Iterable[tuple]:
    """The difference of both processors' vector extensions, if they are known to differ."""
    return (each for each in run_differences(base, new) if each[0] == "vectors" and UNKNOWN not in each)


def not_recorded(base: Mapping[str, Any], new: Mapping[str, Any], devices: Iterable[str]) -> list[str]:
    """Conditions that could not be compared, because only one side recorded them, and may differ."""
    one, other = run_conditions(base), run_conditions(new)
    unknown = [name for name in _beside(devices) if (name in one) != (name in other)]
    notes = [f"{name} is not recorded in {'NEW' if name in one else 'BASE'}" for name in unknown]
    packages = [side.get("versions", {}) for side in (one, other)]
    if all(packages):
        for name in sorted({*packages[0]} ^ {*packages[1]}):
            notes.append(f"the version of {name} is recorded in {'BASE' if name in packages[0] else 'NEW'} only")
    return notes


def check_numbers(path: Any, rows: Sequence[Row]) -> None:
    """Raise RecordError for a cell that must be a number and is not, a repeated case, or a status nobody knows."""
    whole = (*ALLOCATOR_COLUMNS, DEVICE_COLUMN, "rows", "world_size", "nodes", "rounds")
    seen: dict[tuple, int] = {}
    for line, row in enumerate(rows, start=2):
        for column in (*whole, "mean_seconds", "mean_low_seconds", "mean_high_seconds"):
            try:
                value = (int if column in whole else float)(row[column] or 1)
            except ValueError:
                raise RecordError(f"{path}: line {line}, column {column!r} is {row[column]!r}, not a number") from None
            if not 0 <= value < float("inf") or (column.endswith("seconds") and value == 0):
                raise RecordError(f"{path}: line {line}, column {column!r} is {row[column]}, out of range")
        _check_means(path, line, row)
        if row["status"] not in SEVERITY and row["status"] not in ("too_noisy", "interrupted"):
            raise RecordError(f"{path}: line {line}, column 'status' is {row['status']!r}, which is none")
        key = (*name_of(row), *(row[column] for columns in ROW_CONDITIONS.values() for column in columns))
        if key in seen:
            raise RecordError(f"{path}: line {line} repeats the case of line {seen[key]} ({title(row)})")
        seen[key] = line


def _check_means(path: Any, line: int, row: Row) -> None:
    """Process means that are no numbers, or whose mean lies outside of their range."""
    try:
        means = [float(text) for text in row["round_mean_seconds"].split()]
    except ValueError:
        means = [-1.0]
    if not all(0 < mean < float("inf") for mean in means):
        raise RecordError(
            f"{path}: line {line}, column 'round_mean_seconds' is {row['round_mean_seconds']!r}, not times"
        )
    texts = [row[f"mean_{name}seconds"] for name in ("low_", "", "high_")]
    if all(texts):
        low, mean, high = map(float, texts)
        slack = 1e-9 * mean  # a mean of equal values may round to another one
        if not low - slack <= mean <= high + slack:
            raise RecordError(f"{path}: line {line}, mean_seconds {mean} lies outside of its range {low} to {high}")
