"""The search for one system's largest R: launches, what each of them says, and the row of capacity.csv."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import capacity_bisection as bisection
from harness import cost, environment, launch, records, summary
from harness.cases import Case
from harness.configuration import Configuration
from harness.configuration_checks import seconds
from harness.machine import Machine
from harness.plan import size
from harness.progress import Progress
from harness.store import Store
from harness.systems import System, Variant
from harness.watch import Watch

FIGURES = ("allocated_peak_bytes", "step_peak_bytes", "device_used_bytes")
_CASE_COLUMNS = (
    "system loss variant state dims prefixes dtype gradient_dtype labels self_pairs world_size nodes device"
).split()
_PREDICTABLE_ROWS = 1 << 40  # beyond it a formula that hardly grows is taken for one that does not


@dataclass(frozen=True)
class Attempt:
    """One launch: `outcome` is `ok`, a worker's status, or `time_limit_reached` when it was cut short."""

    rows: int
    outcome: str
    reason: str
    seconds: float
    memory: Mapping[str, int | None] = field(default_factory=dict)


@dataclass
class Search:
    """One system at one place. `limit_bytes`, per rank: what counts as fitting. `ended`: why it stopped early."""

    case: Case  # at the first R
    system: System
    variant: Variant
    limit_bytes: int
    unsupported: str | None = None
    attempts: list[Attempt] = field(default_factory=list)
    ended: tuple[str, str] | None = None
    identity: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What progress lines call it."""
        place = f"{self.case.world_size} {self.case.device}" if self.case.world_size > 1 else self.case.device
        return f"{self.system.name}:{self.variant.name} {self.case.loss} {self.case.state} on {place}"

    @property
    def predict(self) -> Mapping[str, float]:
        """The formula: the variant's keys before the system's."""
        return self.system.predict | self.variant.predict

    def at(self, rows: int) -> Case:
        """The case of another R."""
        return dataclasses.replace(self.case, rows=rows)

    def of(self, rows: int | None) -> list[Attempt]:
        """What was launched at an R and ran to its own end."""
        return [each for each in self.attempts if each.rows == rows and each.outcome != "time_limit_reached"]

    @property
    def seen(self) -> dict[int, list[bool]]:
        """R -> whether each of its launches fitted."""
        tried = {each.rows for each in self.attempts if self.of(each.rows)}
        return {rows: [each.outcome == "ok" for each in self.of(rows)] for rows in tried}

    @property
    def status(self) -> tuple[str, str]:
        """Status and reason of the row, as far as the search has got."""
        if self.unsupported:
            return "unsupported", self.unsupported
        if self.ended:
            return self.ended
        if not self.attempts:
            return "interrupted", "not begun"
        low, high = bisection.endpoints(self.seen)
        if high is None:
            return "ceiling_reached", f"all R up to the ceiling of {low} fit"
        doubts = [rows for rows, launches in self.seen.items() if rows in (low, high) and len(set(launches)) > 1]
        if doubts:
            return "ok" if low else self.failure(high)[0], f"launches of R={doubts[0]} disagree; their majority counts"
        return ("ok", "") if low else self.failure(high)

    def failure(self, rows: int | None) -> tuple[str, str]:
        """Outcome and reason of the first launch that did not fit at an R."""
        return next(((each.outcome, each.reason) for each in self.of(rows) if each.outcome != "ok"), ("", ""))

    @property
    def predicted_rows(self) -> int | None:
        """The largest R that fits by the system's formula, None when the formula does not grow or there is no limit."""
        if not self.limit_bytes:
            return None
        low, high = 0, _PREDICTABLE_ROWS
        while low < high:
            middle = (low + high + 1) // 2
            fits = cost.predict_bytes(self.at(middle), self.predict) <= self.limit_bytes
            low, high = (middle, high) if fits else (low, middle - 1)
        return low if low < _PREDICTABLE_ROWS else None

    def row(self, common: Mapping[str, Any]) -> dict[str, Any]:
        """The row of capacity.csv as far as the search has got."""
        status, reason = self.status
        low, high = bisection.endpoints(self.seen)
        failing_outcome, failing_reason = self.failure(high)
        fitted = [each for each in self.of(low) if each.outcome == "ok"]
        row = {"schema_version": records.CAPACITY_VERSION, **common, **self.identity}
        row |= {name: getattr(self.case, name) for name in _CASE_COLUMNS}
        row |= {name: _largest(each.memory.get(name) for each in fitted) for name in FIGURES}
        return row | {
            "status": status,
            "reason": reason,
            "largest_rows": low or None,
            "largest_launches": len(self.of(low)) or None,
            "largest_fitted": len(fitted) or None,
            "predicted_bytes": cost.predict_bytes(self.at(low), self.predict) if low else None,
            "limit_bytes": self.limit_bytes,
            "failing_rows": high,
            "failing_launches": len(self.of(high)) or None,
            "failing_failed": sum(each.outcome != "ok" for each in self.of(high)) or None,
            "failing_outcome": failing_outcome,
            "failing_reason": failing_reason,
            "predicted_rows": self.predicted_rows,
            "launches": len(self.attempts),
            "seconds": round(sum(each.seconds for each in self.attempts), 3),
        }


class Searcher:
    """Runs searches one after the other; `keep` is called after each launch, so that nothing found is lost."""

    def __init__(
        self, chosen: Configuration, here: Machine, store: Store, screen: Progress, keep: Callable[[], None]
    ) -> None:
        self._chosen, self._here, self._store, self._screen, self._keep = chosen, here, store, screen, keep
        settings = chosen.capacity
        names = ("start_rows", "ceiling_rows", "step_rows", "step_share", "confirmations")
        self._bounds = bisection.Bounds(**{name: settings[name] for name in names})
        self._launch_limit = seconds(settings["launch_limit"], "capacity.launch_limit")
        self._end = time.monotonic() + seconds(settings["total_limit"], "capacity.total_limit")
        self._reserve = int(settings["reserve_share"] * here.memory_bytes)

    def run(self, searches: Sequence[Search], check_interrupt: Callable[[], None]) -> None:
        """All searches. An interrupt leaves them as they are and goes on to the caller."""
        todo = [search for search in searches if not search.unsupported]
        for done, search in enumerate(todo):
            # An even share of what is left: one long search must not starve the others.
            share = (self._end - time.monotonic()) / (len(todo) - done)
            self._search(search, time.monotonic() + share, check_interrupt)
            self._keep()
            self._screen.say(f"{done + 1}/{len(todo)} {search.title}: {_found(search)}")

    def _search(self, search: Search, end: float, check_interrupt: Callable[[], None]) -> None:
        search.ended = "interrupted", "stopped before its end: the endpoints may lie closer"
        while (rows := bisection.next_rows(search.seen, self._bounds)) is not None:
            left = end - time.monotonic()
            if left <= 0:
                search.ended = "time_limit_reached", "its share of capacity.total_limit is used up"
                return
            self._screen.running(f"{search.title} R={rows}", len(search.attempts), len(search.attempts) + 1)
            attempt = self._attempt(search, rows, min(self._launch_limit, left), check_interrupt)
            if attempt.outcome == "unsupported" and not search.attempts:
                search.unsupported = attempt.reason
                return
            if attempt.outcome == "timeout" and left < self._launch_limit:
                attempt = dataclasses.replace(attempt, outcome="time_limit_reached")
            search.attempts.append(attempt)
            used = _peak(attempt.memory)
            what = f"fits, {size(used)} a rank" if attempt.outcome == "ok" and used is not None else attempt.reason
            self._screen.say(f"  {search.title} R={rows}: {attempt.outcome}, {what}".rstrip(", "))
            if attempt.outcome == "timeout":
                limit = f"capacity.launch_limit={self._chosen.capacity['launch_limit']}"
                search.ended = "timeout", f"R={rows} took longer than {limit}: time ended the search, not memory"
                return
            self._keep()
        search.ended = None

    def _attempt(self, search: Search, rows: int, deadline: float, check_interrupt: Callable[[], None]) -> Attempt:
        case = search.at(rows)
        payload = case.to_json() | {
            "threads": threads(case, self._here),
            "actions": ["memory"],
            "checks": [],
            "protocol": {name: value for name, value in self._chosen.protocol.items() if name != "rounds"},
            "deadline_seconds": deadline,
        }
        name = f"{case.case_id}.memory"
        folder = self._store.work / name
        binary, grace = self._chosen.path("binary"), self._chosen.launch["grace_seconds"]
        budget = search.limit_bytes * (case.world_size // case.nodes) if case.device == "cpu" else None
        check_interrupt()
        with Watch(folder, budget, self._reserve) as watch:
            outcome = launch.launch(search.system, payload, folder, binary, grace, check_interrupt)
        memory = summary.memory_figures(outcome.events, case) if outcome.events.of("memory") else None
        status, reason = judge(outcome, watch.reason, memory, search.limit_bytes)
        if outcome.status not in ("ok", "unsupported"):
            self._store.keep_log(f"{search.system.name}.{search.variant.name}.{rows}", folder)
        search.identity = search.identity or self._identify(search, outcome)
        self._store.clear_work()
        return Attempt(rows, status, reason, outcome.seconds, memory or {})

    def _identify(self, search: Search, outcome: launch.Outcome) -> dict[str, Any]:
        start = next((event for _, event in outcome.events.of("start")), {})
        package = search.system.package
        said = start.get("versions") or {}
        version = said.get(package or "") or said.get(search.system.name)
        gpu = start.get("device_name") or (self._here.gpus[0].name if self._here.gpus else "")
        return {
            "device_name": self._here.cpu_name if search.case.device == "cpu" else gpu,
            "system_version": version or environment.versions([package or ""]).get(package or ""),
            "threads": threads(search.case, self._here),
        }


def judge(
    outcome: launch.Outcome, watched: str, memory: Mapping[str, int | None] | None, limit_bytes: int
) -> tuple[str, str]:
    """Outcome and reason of a launch: `ok` only when it ended well and its measured peak stays within the limit.

    `watched`: why the watch ended it, if it did. The peak is the largest figure known; where a system knows none, that
    it ran is all there is to go by.
    """
    if watched:
        return "out_of_memory", watched
    if outcome.status != "ok":
        return outcome.status, outcome.reason
    if memory is None:
        return "crashed", "ended ok without a memory event"
    peak = _peak(memory)
    if peak is not None and peak > limit_bytes:
        return "out_of_memory", f"used {size(peak)}, over the limit of {size(limit_bytes)}"
    return "ok", "" if peak is not None else "no memory figure is known, it ran"


def threads(case: Case, here: Machine) -> int:
    """CPU threads of each rank: cores over ranks on this machine, at least 1."""
    return max(1, here.cores // (case.world_size // case.nodes))


def _peak(memory: Mapping[str, int | None]) -> int | None:
    return _largest(memory.get(name) for name in ("allocated_peak_bytes", "device_used_bytes"))


def _largest(values: Any) -> int | None:
    return max((value for value in values if value is not None), default=None)


def _found(search: Search) -> str:
    status, reason = search.status
    low, _ = bisection.endpoints(search.seen)
    words = f"{status}: {reason}" if reason else status
    return f"largest R {low}, {words}" if low else words
