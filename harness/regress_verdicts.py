"""What may be compared, and what a pair of rows says: conditions, matching, verdicts. Pure functions over rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.records import RecordError

Row = Mapping[str, str]

SAME, FASTER, SLOWER, AMBIGUOUS = "same", "faster", "slower", "ambiguous"
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
RUN_CONDITIONS = ("driver", "power_limit", "versions")
CONDITIONS = (*ROW_CONDITIONS, *(name for name in RUN_CONDITIONS if name not in ROW_CONDITIONS))
ALLOWABLE = tuple(name for name in CONDITIONS if name != "protocol")

ALLOCATOR_COLUMNS = ("allocated_peak_bytes", "step_peak_bytes")
DEVICE_COLUMN = "device_used_bytes"
# The larger the worse. Noise and interruption say nothing about the code: they make a case ambiguous instead.
_SEVERITY = {"ok": 0, "unsupported": 1, "out_of_memory": 1, "timeout": 1, "nonfinite": 2, "wrong": 2, "crashed": 2}


@dataclass(frozen=True)
class Settings:
    """Thresholds, as in configs/regress/default.yaml."""

    minimum_effect: float = 0.03
    maximum_range: float = 0.03
    minimum_rounds: int = 3
    memory_relative: float = 0.01
    memory_absolute_bytes: int = 2 << 20


@dataclass(frozen=True)
class Range:
    """Mean of process means with the lowest and the highest, in seconds or as a ratio to a peer, over `rounds`."""

    mean: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> float:
        """Width of the range over its mean."""
        return (self.high - self.low) / self.mean


@dataclass
class Finding:
    """One case of both files. `change` is new over base minus one; `worse` decides the exit code."""

    name: str
    base: Row
    new: Row
    verdict: str = SAME
    change: float | None = None
    base_range: Range | None = None
    new_range: Range | None = None
    memory: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    status_worse: bool = False
    memory_grew: bool = False

    @property
    def worse(self) -> bool:
        """Slower, or memory grew, or the status got worse."""
        return self.verdict == SLOWER or self.memory_grew or self.status_worse


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
    """Whether every condition that is known on both sides, and not allowed to differ, is equal."""
    return not list(row_differences(base, new, allow))


def row_differences(base: Row, new: Row, allow: Iterable[str] = ()) -> Iterable[tuple[str, str, str]]:
    """(condition, base's value, new's value) for each condition that differs and may not. Empty cells are not known."""
    for condition, columns in ROW_CONDITIONS.items():
        if condition in allow and condition != "protocol":
            continue
        for column in columns:
            if base[column] and new[column] and base[column] != new[column]:
                yield condition, f"{column} {base[column]}", f"{column} {new[column]}"


def run_conditions(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Driver, power limit and package versions out of an environment.json; what it does not say is left out."""
    found: dict[str, Any] = {}
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
    return found


def run_differences(base: Mapping[str, Any], new: Mapping[str, Any], allow: Iterable[str] = ()) -> Iterable[tuple]:
    """As row_differences, for what holds for a whole run. Packages that only one side records are not_recorded()'s."""
    one, other = run_conditions(base), run_conditions(new)
    for condition in RUN_CONDITIONS:
        if condition in allow or condition not in one or condition not in other:
            continue
        if condition != "versions":
            if one[condition] != other[condition]:
                yield condition, str(one[condition]), str(other[condition])
            continue
        for package in sorted({*one["versions"]} & {*other["versions"]}):
            before, after = one["versions"][package], other["versions"][package]
            if before != after:
                yield "versions", f"{package} {before}", f"{package} {after}"


def not_recorded(base: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Conditions that only one side recorded: they could not be compared."""
    one, other = run_conditions(base), run_conditions(new)
    notes = [f"{name} is not recorded in {'NEW' if name in one else 'BASE'}" for name in sorted({*one} ^ {*other})]
    packages = [side.get("versions", {}) for side in (one, other)]
    if all(packages):
        for name in sorted({*packages[0]} ^ {*packages[1]}):
            notes.append(f"the version of {name} is recorded in {'BASE' if name in packages[0] else 'NEW'} only")
    return notes


def time_range(row: Row) -> Range | None:
    """The row's range of process means, None when it has none."""
    columns = ("mean_seconds", "mean_low_seconds", "mean_high_seconds")
    if not all(row[column] for column in columns):
        return None
    return Range(*(float(row[column]) for column in columns), int(row["rounds"] or 0))


def judge(base: Range, new: Range, settings: Settings) -> tuple[str, str]:
    """(verdict, remark) of two ranges.

    A change needs ranges that do not overlap and a minimum effect. Where the process means of either side spread wider
    than `maximum_range`, the effect must be twice that spread, and nothing is called `same`.
    """
    effect = new.mean / base.mean - 1
    if min(base.rounds, new.rounds) < settings.minimum_rounds:
        return AMBIGUOUS, f"fewer than {settings.minimum_rounds} rounds"
    spread = max(base.spread, new.spread)
    noisy = spread > settings.maximum_range
    needed = max(settings.minimum_effect, 2 * spread) if noisy else settings.minimum_effect
    apart = new.low > base.high or new.high < base.low
    if apart and abs(effect) >= needed:
        return (SLOWER if effect > 0 else FASTER), ""
    if noisy:
        return AMBIGUOUS, f"process means spread {spread:.1%}"
    if abs(effect) >= settings.minimum_effect:
        return AMBIGUOUS, "ranges overlap"
    return SAME, ""


def compare(
    base: Row, new: Row, settings: Settings, ranges: tuple[Range | None, Range | None] | None = None
) -> Finding:
    """Everything about one case. `ranges` replaces the rows' own (ratios to a peer)."""
    finding = Finding(title(base), base, new)
    _compare_status(finding)
    if base["status"] == new["status"] == "ok":
        finding.base_range, finding.new_range = ranges or (time_range(base), time_range(new))
        _compare_time(finding, settings)
        _compare_memory(finding, settings)
    return finding


def _compare_status(finding: Finding) -> None:
    before, after = finding.base["status"], finding.new["status"]
    if before == after:
        if before != "ok":
            finding.remarks.append(f"{before} in both")
        return
    finding.remarks.append(f"{before} -> {after}" + (f": {finding.new['reason']}" if finding.new["reason"] else ""))
    if before not in _SEVERITY or after not in _SEVERITY:
        finding.verdict = AMBIGUOUS
    elif _SEVERITY[after] > _SEVERITY[before]:
        finding.status_worse = True


def _compare_time(finding: Finding, settings: Settings) -> None:
    base, new = finding.base_range, finding.new_range
    if base is None or new is None:
        finding.verdict = AMBIGUOUS
        finding.remarks.append(f"no times in {'BASE' if base is None else 'NEW'}")
        return
    finding.change = new.mean / base.mean - 1
    finding.verdict, remark = judge(base, new, settings)
    if remark:
        finding.remarks.append(remark)


def _compare_memory(finding: Finding, settings: Settings) -> None:
    for column in (*ALLOCATOR_COLUMNS, DEVICE_COLUMN):
        before, after = finding.base[column], finding.new[column]
        if not before or not after:
            if before or after:
                finding.remarks.append(f"{column} is not known in {'NEW' if before else 'BASE'}")
            continue
        change = int(after) - int(before)
        allowed = 0.0
        if column == DEVICE_COLUMN:
            allowed = max(settings.memory_relative * int(before), settings.memory_absolute_bytes)
        if abs(change) > allowed:
            finding.memory.append(f"{column} {'+' if change > 0 else ''}{change}")
            finding.memory_grew |= change > 0


def peer_of(row: Row, rows: Sequence[Row], peer: str) -> Row | None:
    """The row of `peer` (`system`, `system:variant` or `system:variant:loss`) that stands beside `row` in its run."""
    wanted = dict(zip(("system", "variant", "loss"), peer.split(":"), strict=False))
    beside = [name for name in NAME if name not in ("system", "variant", "loss", "self_pairs", "labels")]
    for other in rows:
        if all(other[name] == value for name, value in wanted.items()) and all(other[n] == row[n] for n in beside):
            if other["status"] == "ok" and time_range(other):
                return other
    return None


def ratio_range(row: Row, peer: Row | None) -> Range | None:
    """The row's time over its peer's.

    Rounds of one run are paired where both rows know all of theirs and none was measured anew: what slows a round
    slows both. Else the ends are the widest that the two ranges allow.
    """
    own = time_range(row)
    against = time_range(peer) if peer is not None else None
    if own is None or against is None:
        return None
    ratios = [mine / other for mine, other in zip(_rounds(row), _rounds(peer), strict=False)]
    if len(ratios) == own.rounds == against.rounds:
        return Range(sum(ratios) / len(ratios), min(ratios), max(ratios), len(ratios))
    rounds = min(own.rounds, against.rounds)
    return Range(own.mean / against.mean, own.low / against.high, own.high / against.low, rounds)


def _rounds(row: Row) -> list[float]:
    """Process means by round; none where rounds were measured anew, because the numbers would not be the same."""
    return [float(text) for text in row["round_mean_seconds"].split()] if row["retries"] in ("", "0") else []


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
        if row["status"] not in _SEVERITY and row["status"] not in ("too_noisy", "interrupted"):
            raise RecordError(f"{path}: line {line}, column 'status' is {row['status']!r}, which is none")
        key = (*name_of(row), *(row[column] for columns in ROW_CONDITIONS.values() for column in columns))
        if key in seen:
            raise RecordError(f"{path}: line {line} repeats the case of line {seen[key]} ({title(row)})")
        seen[key] = line
