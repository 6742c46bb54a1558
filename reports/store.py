"""Reads `results/`: published figures, the newest complete measured runs per machine, campaign and protocol, and the
newest complete search for the largest batch per machine.

Nothing is computed here. What cannot be read raises ResultsError, one line that names the file and the column.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.cases import STATUSES
from harness.records import CAPACITY_STATUSES, RecordError, read_capacity, read_rows

Row = Mapping[str, str]

OWN = Path(__file__).resolve().parent.parent / "results"
PUBLISHED = "published"
LOSS_STEP = "article_loss_step.csv"
FACTS = {
    "article_footprint.csv": ("component", "megabytes", "times_the_binary", "purpose", "source"),
    "article_scale_up_domains.csv": (
        "domain",
        "gpus",
        "terabytes_per_second_per_gpu_both_ways",
        "fabric",
        "in_switch_reductions",
        "matrix_units",
        "source",
    ),
    "article_claims.csv": ("id", "claim", "value", "condition", "source"),
}
PEERS = {
    "declarations.csv": (
        *("system", "variants", "loss", "computes", "sets", "negatives", "normalisation", "loss_factor"),
        *("feature_gradient_factor", "scalar_gradient_factor", "scale_gradient", "bias_gradient", "notes"),
    ),
    "caveats.csv": ("system", "title", "what_happens", "here", "source"),
}
_COUNTS = ("rows", "dims", "world_size", "nodes", "rounds", "samples")
_BYTES = ("allocated_peak_bytes", "step_peak_bytes", "device_used_bytes")
_SECONDS = (
    "best_seconds",
    "median_seconds",
    "mean_seconds",
    "mean_low_seconds",
    "mean_high_seconds",
    "first_step_seconds",
)
_NEVER_EMPTY = ("system", "loss", "variant", "rows", "dims", "prefixes", "world_size", "protocol", "status")
_FLOATS = (
    "loss_value",
    "loss_error",
    "embedding_gradient_error",
    "scale_gradient_error",
    "bias_gradient_error",
)


class ResultsError(ValueError):
    """A file in `results/` that cannot be reported; one line, with the file and, where it is one, the column."""


@dataclass(frozen=True)
class Run:
    """One measured run: `results/measured/<machine>/<campaign>/<run_id>/`. All its rows share one protocol."""

    machine: str
    campaign: str
    run_id: str
    protocol: str
    rows: tuple[Row, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    beside: bool = False  # shown beside another run, which has not all of its cases

    @property
    def title(self) -> str:
        """Machine, campaign, protocol and run id: what stands with every measured table."""
        if self.protocol == PUBLISHED:
            return "As published"
        cold = " · cold caches" if self.cache == "cold" else ""
        return f"{self.machine} · campaign {self.campaign} · protocol {self.protocol}{cold} · run {self.run_id}"

    @property
    def cache(self) -> str:
        """`warm`, or `cold` where caches were flushed before each step."""
        return next((row["cache_state"] for row in self.rows if row["cache_state"]), "warm")

    @property
    def on_cpu(self) -> bool:
        """Whether no row was measured on an accelerator."""
        return all(row["device"] == "cpu" for row in self.rows)

    @property
    def complete(self) -> bool:
        """Whether no case was left out for want of time."""
        return not any(row["status"] == "interrupted" for row in self.rows)

    @property
    def whole(self) -> bool:
        """Whether it came to its end, too."""
        return self.complete and self.environment.get("finished") is not False

    @property
    def timed(self) -> frozenset[str]:
        """The cases that it has a time of."""
        return frozenset(row["case_id"] for row in self.rows if row["best_seconds"])

    @property
    def slug(self) -> str:
        """The same, for file names and anchors."""
        parts = dict.fromkeys((self.machine, self.campaign, self.protocol, *(["cold"] if self.cache == "cold" else [])))
        own = [self.run_id.lower()] if self.beside else []
        return slug(*parts, *own)


@dataclass(frozen=True)
class Capacity:
    """A machine's largest batches, of `results/measured/<machine>/capacity/<run_id>/capacity.csv`."""

    machine: str
    run_ids: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Results:
    """Everything a report may say. `literature`: rows by file stem. `passed_over`: runs that are not shown, and why."""

    loss_step: tuple[Row, ...]
    literature: Mapping[str, tuple[Row, ...]]
    footprint: tuple[Row, ...]
    domains: tuple[Row, ...]
    claims: tuple[Row, ...]
    runs: tuple[Run, ...]
    passed_over: tuple[str, ...]
    capacities: tuple[Capacity, ...] = ()
    declarations: tuple[Row, ...] = ()
    caveats: tuple[Row, ...] = ()

    @property
    def article(self) -> Run:
        """The article's rows as if they were a run, so that the same tables and charts can show them."""
        return Run(PUBLISHED, "article", PUBLISHED, PUBLISHED, self.loss_step)


def slug(*parts: str) -> str:
    """Parts of a file's name and of an anchor, as one. Folders may have names that HTML takes for its own."""
    return "-".join(re.sub(r"[^\w.]+|_", "-", part) for part in parts)


def number(row: Row, column: str) -> float | None:
    """A numeric cell, None where it is empty. Cells were checked when the file was read."""
    return float(row[column]) if row[column] else None


def load(folder: Path) -> Results:
    """Read a results folder; one that `bench results=<folder>` made has no published figures: then this repository's.

    Raises ResultsError when the article's files are missing, or any file is broken.
    """
    published = (folder if (folder / "published").exists() or not (folder / "measured").is_dir() else OWN) / "published"
    facts = {name: _facts(published / name, columns) for name, columns in FACTS.items()}
    records = {
        path.stem: _records(path) for path in sorted(published.glob("*.csv")) if path.name not in (*FACTS, LOSS_STEP)
    }
    runs, passed_over = _measured(folder / "measured")
    capacities, searches_passed_over = _capacities(folder / "measured")
    return Results(
        loss_step=_records(published / LOSS_STEP),
        literature=records,
        footprint=facts["article_footprint.csv"],
        domains=facts["article_scale_up_domains.csv"],
        claims=facts["article_claims.csv"],
        runs=runs,
        passed_over=passed_over + searches_passed_over,
        capacities=capacities,
        **{name.removesuffix(".csv"): rows for name, rows in _peers(published.with_name("peers")).items()},
    )


def _peers(folder: Path) -> dict[str, tuple[Row, ...]]:
    """What the suite's own peers declare and are known for; a results folder may come without."""
    return {name: _facts(folder / name, columns) for name, columns in PEERS.items() if (folder / name).exists()}


def _records(path: Path, measured: bool = False) -> tuple[Row, ...]:
    try:
        rows = read_rows(path)
    except RecordError as problem:
        raise ResultsError(str(problem)) from None
    if not rows and not measured:
        raise ResultsError(f"{path}: a header and no rows (first column 'schema_version')")
    for line, row in enumerate(rows, start=2):
        _check_row(path, line, row, (*_NEVER_EMPTY, "nodes", "device", "state") if measured else _NEVER_EMPTY)
    return tuple(rows)


def _check_row(path: Path, line: int, row: Row, never_empty: tuple[str, ...]) -> None:
    for column in never_empty:
        if not row[column]:
            raise ResultsError(f"{path}: line {line}, column {column!r} is empty")
    if row["status"] not in STATUSES:
        raise ResultsError(f"{path}: line {line}, column 'status' is {row['status']!r}; known: {', '.join(STATUSES)}")
    for column in ("prefixes", "live"):
        counts = [int(count) if _is_number(count, whole=True) else -1 for count in row[column].split()]
        if row[column] and (min(counts, default=-1) < 0 or max(counts) == 0):
            raise ResultsError(f"{path}: line {line}, column {column!r} is {row[column]!r}, not whole numbers")
    for column in (*_COUNTS, *_BYTES, *_SECONDS, *_FLOATS):
        if row[column] and not _is_number(row[column], whole=column in (*_COUNTS, *_BYTES)):
            raise ResultsError(f"{path}: line {line}, column {column!r} is {row[column]!r}, not a number")
    for column in ("best_seconds", *_COUNTS[:4]):
        if row[column] and float(row[column]) <= 0:
            raise ResultsError(f"{path}: line {line}, column {column!r} is {row[column]}; it must be positive")


def _is_number(text: str, whole: bool) -> bool:
    try:
        value = int(text) if whole else float(text)
    except ValueError:
        return False
    # A gate error may well be infinite or NaN: that is what `nonfinite` and `wrong` rows report.
    return not whole or math.isfinite(value)


def _facts(path: Path, columns: tuple[str, ...]) -> tuple[Row, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise ResultsError(f"{path}: cannot be read as a CSV ({problem})") from None
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, None)
    if header is None:
        raise ResultsError(f"{path}: empty file, no header")
    for column in columns:
        if column not in header:
            raise ResultsError(f"{path}: column {column!r} is missing from the header")
    rows = []
    for line, cells in enumerate(reader, start=2):
        if len(cells) != len(header):
            raise ResultsError(f"{path}: line {line} has {len(cells)} cells, the header {len(header)}")
        rows.append(dict(zip(header, cells, strict=True)))
    if not rows:
        raise ResultsError(f"{path}: a header and no rows (first column {columns[0]!r})")
    if "megabytes" in columns:
        for line, row in enumerate(rows, start=2):
            if not _is_number(row["megabytes"], whole=False):
                raise ResultsError(f"{path}: line {line}, column 'megabytes' is {row['megabytes']!r}, not a number")
    return tuple(rows)


def _measured(folder: Path) -> tuple[tuple[Run, ...], tuple[str, ...]]:
    """The runs to show of each (machine, campaign, protocol, caches), and one line for each run that is not shown.

    The newest one that came to its end and left no case out, or where none did the newest. Beside it any other that has
    a time of a case that no run before it has: those that came to their end come first, then newer ones.
    """
    groups: dict[tuple[str, ...], list[Run]] = {}
    passed_over = []
    for path in sorted(folder.glob("*/*/*/rows.csv")):
        run = _run(path)
        missing = _incomplete(run)
        if missing:
            passed_over.append(f"{run.machine}/{run.campaign}/{run.run_id}: {missing}")
        else:
            # Paths are sorted and a run id begins with its time, so the later one is the newer one.
            groups.setdefault((run.machine, run.campaign, run.protocol, run.cache), []).insert(0, run)
    ordered = sorted(groups, key=lambda key: (groups[key][0].on_cpu, key))  # what readers came for, first
    shown: list[Run] = []
    for key in ordered:
        chosen, reasons = _chosen(groups[key])
        shown += chosen
        passed_over += [f"{run.machine}/{run.campaign}/{run.run_id}: {why}" for run, why in reasons]
    return tuple(shown), tuple(sorted(passed_over))


# What a search for the largest batch is of: the newest of each is shown.
_SEARCHED = (
    *("system", "loss", "variant", "state", "dims", "prefixes", "dtype", "gradient_dtype", "labels", "self_pairs"),
    *("world_size", "nodes", "device"),
)


def _chosen(runs: Sequence[Run]) -> tuple[list[Run], list[tuple[Run, str]]]:
    """Of runs of one kind, newest first: those to show, and the others with the reason."""
    first, *others = sorted(runs, key=lambda run: not run.whole)
    chosen, passed_over, seen = [first], [], set(first.timed)
    for run in others:
        if run.timed - seen:
            chosen.append(replace(run, beside=True))
            seen |= run.timed
        elif run.whole or run.run_id < first.run_id or not first.whole:
            passed_over.append((run, "a newer run is shown"))
        else:
            why = "not finished" if run.environment.get("finished") is False else "its time budget left cases out"
            passed_over.append((run, f"{why}, and what it timed other runs have"))
    return chosen, passed_over


def _capacities(folder: Path) -> tuple[tuple[Capacity, ...], tuple[str, ...]]:
    """Each machine's newest finished search of every system, and one line for each search that is not shown."""
    found: dict[str, dict[tuple[str, ...], Row]] = {}
    passed_over = []
    for path in sorted(folder.glob("*/capacity/*/capacity.csv"), reverse=True):
        machine, run_id = path.parts[-4], path.parts[-2]
        rows = _capacity_rows(path)
        if _environment(path.with_name("environment.json")).get("finished") is False:
            passed_over.append(f"{machine}/capacity/{run_id}: not finished")
            continue
        shown = found.setdefault(machine, {})
        fresh = {key: row for row in rows if (key := tuple(row[name] for name in _SEARCHED)) not in shown}
        shown |= {key: row | {"run_id": run_id} for key, row in fresh.items()}
        if not fresh:
            passed_over.append(f"{machine}/capacity/{run_id}: newer runs are shown")
    capacities = []
    for machine, shown in sorted(found.items()):
        rows = tuple(shown.values())
        capacities.append(Capacity(machine, tuple(sorted({row["run_id"] for row in rows})), rows))
    return tuple(capacities), tuple(sorted(passed_over))


def _capacity_rows(path: Path) -> tuple[Row, ...]:
    try:
        rows = read_capacity(path)
    except RecordError as problem:
        raise ResultsError(str(problem)) from None
    for line, row in enumerate(rows, start=2):
        if row["status"] not in CAPACITY_STATUSES:
            raise ResultsError(f"{path}: line {line}, column 'status' is {row['status']!r}, which is none")
        for column in ("world_size", "largest_rows", "failing_rows", "predicted_bytes", "limit_bytes", *_BYTES):
            if (row[column] or column == "world_size") and not _is_number(row[column], whole=True):
                raise ResultsError(f"{path}: line {line}, column {column!r} is {row[column]!r}, not a number")
    return tuple(rows)


def _run(path: Path) -> Run:
    rows = _records(path, measured=True)
    protocols = sorted({row["protocol"] for row in rows})
    if len(protocols) > 1:
        raise ResultsError(f"{path}: column 'protocol' mixes {' and '.join(protocols)}; a run has one protocol")
    machine, campaign, run_id = path.parts[-4:-1]
    protocol = protocols[0] if protocols else ""
    return Run(machine, campaign, run_id, protocol, rows, _environment(path.with_name("environment.json")))


def _environment(path: Path) -> Mapping[str, Any]:
    if not path.exists():
        return {}
    try:
        environment = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise ResultsError(f"{path}: cannot be read as JSON ({problem})") from None
    if not isinstance(environment, dict):
        raise ResultsError(f"{path}: must hold one JSON object")
    return environment


def _incomplete(run: Run) -> str:
    if not run.rows:
        return "no rows yet"
    if run.environment.get("finished") is None and not run.complete:
        return "interrupted before its end"
    return ""
