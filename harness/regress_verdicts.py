"""What a pair of rows says: verdicts on time, memory and status. Pure functions over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.regress_conditions import ALLOCATOR_COLUMNS, DEVICE_COLUMN, NAME, SEVERITY, Row, title

SAME, FASTER, SLOWER, AMBIGUOUS = "same", "faster", "slower", "ambiguous"


@dataclass(frozen=True)
class Settings:
    """Thresholds, as in configs/regress/default.yaml."""

    minimum_effect: float = 0.03
    maximum_range: float = 0.03
    minimum_rounds: int = 5
    memory_relative: float = 0.01
    memory_absolute_bytes: int = 2 << 20
    unsteady_memory_relative: float = 0.01
    unsteady_memory_absolute_bytes: int = 2 << 20

    def allowed_bytes(self, before: int, unsteady: bool) -> float:
        """By how much what a driver or an operating system saw may differ."""
        if unsteady:
            return max(self.unsteady_memory_relative * before, self.unsteady_memory_absolute_bytes)
        return max(self.memory_relative * before, self.memory_absolute_bytes)


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
    base: Row,
    new: Row,
    settings: Settings,
    ranges: tuple[Range | None, Range | None] | None = None,
    unlike: bool = False,
    unsteady: bool = False,
) -> Finding:
    """Everything about one case. `ranges` replaces the rows' own (ratios to a peer).

    `unlike`: the processors have other vector extensions, so other code ran on each: only statuses and what allocators
    count are judged. `unsteady`: a condition differs that may, so resident memory may too.
    """
    finding = Finding(title(base), base, new)
    _compare_status(finding)
    if base["status"] == new["status"] == "ok":
        finding.base_range, finding.new_range = ranges or (time_range(base), time_range(new))
        _compare_time(finding, settings)
        columns = ALLOCATOR_COLUMNS if unlike else (*ALLOCATOR_COLUMNS, DEVICE_COLUMN)
        _compare_memory(finding, settings, columns, unsteady or _compiled(base) or _compiled(new))
        if unlike:
            finding.verdict = AMBIGUOUS
            finding.remarks.append("other vector extensions")
    return finding


def _compare_status(finding: Finding) -> None:
    before, after = finding.base["status"], finding.new["status"]
    if before == after:
        if before != "ok":
            finding.remarks.append(f"{before} in both")
        return
    finding.remarks.append(f"{before} -> {after}" + (f": {finding.new['reason']}" if finding.new["reason"] else ""))
    if before not in SEVERITY or after not in SEVERITY:
        finding.verdict = AMBIGUOUS
    elif SEVERITY[after] > SEVERITY[before]:
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


def _compiled(row: Row) -> bool:
    """Whether a compiler ran in the process whose resident memory was measured: it needs more or less each time."""
    return row["device"] == "cpu" and bool(row["compile_seconds"])


def _compare_memory(finding: Finding, settings: Settings, columns: Sequence[str], unsteady: bool) -> None:
    for column in columns:
        before, after = finding.base[column], finding.new[column]
        if not before or not after:
            if before or after:
                finding.remarks.append(f"{column} is not known in {'NEW' if before else 'BASE'}")
            continue
        change = int(after) - int(before)
        allowed = settings.allowed_bytes(int(before), unsteady) if column == DEVICE_COLUMN else 0.0
        if abs(change) > allowed:
            finding.memory.append(f"{column} {'+' if change > 0 else ''}{change}")
            finding.memory_grew |= change > 0


def is_peer(row: Row, peer: str) -> bool:
    """Whether `peer` (`system`, `system:variant` or `system:variant:loss`) names this row."""
    return all(row[name] == value for name, value in zip(("system", "variant", "loss"), peer.split(":"), strict=False))


def peer_of(row: Row, rows: Sequence[Row], peer: str) -> Row | None:
    """The row of `peer` that stands beside `row` in its run, and has times."""
    beside = [name for name in NAME if name not in ("system", "variant", "loss", "self_pairs", "labels")]
    for other in rows:
        if is_peer(other, peer) and all(other[name] == row[name] for name in beside):
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
