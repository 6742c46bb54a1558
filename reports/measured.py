"""Tables of what this suite measured: the article's shape per machine, three readings, every row with its gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness import cost
from reports.collectives import is_collective
from reports.store import Row, Run, number
from reports.table import LEFT, RIGHT, Column, Table
from reports.text import (
    MEMORY_FIGURES,
    SYSTEM_NAMES,
    comparable,
    error_text,
    live_rows,
    loss_name,
    loss_order,
    marked,
    measured_cell,
    memory_text,
    rate_text,
    significant,
    status_text,
    step_text,
    system_label,
    time_text,
    timed_trap,
)

OUR_SYSTEM = "native"
# What the native loss executes (docs/metrics.md); for other systems only the nominal count is known.
OUR_LADDER = "one_pass"
PRODUCTS = "cublas_products"
# What stands beside every table that shows times of such rows.
TRAPS = (
    "`(wrong)`: a documented trap, which fails the gate as expected and is timed all the same; it is in no ratio, and "
    "never the fastest."
)

_USUAL = {
    "dims": "1024",
    "prefixes": "64 128 256 512 1024",
    "dtype": "bfloat16",
    "gradient_dtype": "bfloat16",
    "labels": "pairs",
    "self_pairs": "false",
    "live": "",
    "prefix_weights": "",
    "cache_state": "warm",
}


@dataclass(frozen=True)
class Shape:
    """Rows of one run that differ only in system and R: they may stand in one table and on one chart."""

    run: Run
    nodes: int
    world_size: int
    device: str
    state: str
    unusual: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]

    @property
    def place(self) -> str:
        """`8x NVIDIA H200`, `16x B300 SXM6, 2 boxes`, `2 ranks on AMD EPYC`."""
        name = next((row["device_name"] for row in self.rows if row["device_name"]), self.device.upper())
        boxes = f", {self.nodes} boxes" if self.nodes > 1 else ""
        if self.device == "cpu":
            return f"{self.world_size} rank{'s' if self.world_size > 1 else ''} on {name}{boxes}"
        return f"{self.world_size}x {name}{boxes}"

    @property
    def setting(self) -> str:
        """State and whatever differs from the usual case."""
        state = f"state {self.state}" if self.state else "state not published"
        return "; ".join([state, *(f"{name} {value}" for name, value in self.unusual)])

    @property
    def id(self) -> str:
        """For anchors and file names."""
        parts = [self.run.slug, str(self.world_size), *filter(None, [self.state])]
        parts += [f"{name}-{value}" for name, value in self.unusual]
        return "-".join("".join(c if c.isalnum() else "-" for c in part) for part in parts).lower()

    @property
    def memory_column(self) -> str:
        """The one memory figure of this shape's tables: the first of MEMORY_FIGURES that the most `ok` rows have."""
        timed = [row for row in self.rows if row["status"] == "ok"]
        return max(MEMORY_FIGURES, key=lambda column: sum(1 for row in timed if row[column]))

    @property
    def labels(self) -> dict[str, list[Row]]:
        """Rows by series name, in alphabetical order, this repository's first."""
        names: dict[tuple[str, str], set[str]] = {}
        for row in self.rows:
            names.setdefault((row["system"], row["variant"]), set()).add(row["loss"])
        series: dict[str, list[Row]] = {}
        for row in sorted(self.rows, key=_series_order):
            clashes = len(names[row["system"], row["variant"]]) > 1
            series.setdefault(system_label(row, clashes), []).append(row)
        return series

    def sizes(self) -> list[int]:
        """R, ascending."""
        return sorted({int(row["rows"]) for row in self.rows})


def unusual(row: Row) -> tuple[tuple[str, str], ...]:
    """Fields in which a row differs from the case that every campaign measures, with their values."""
    return tuple((name, row[name]) for name, usual in _USUAL.items() if row[name] not in ("", usual))


def shapes(run: Run) -> list[Shape]:
    """A run's rows, grouped so that only comparable ones stand together; the usual case first, `init` before others."""
    groups: dict[tuple, list[Row]] = {}
    for row in run.rows:
        if is_collective(row):
            continue
        key = (int(row["nodes"]), int(row["world_size"]), row["device"], row["state"], unusual(row))
        groups.setdefault(key, []).append(row)
    ordered = sorted(groups, key=lambda key: (key[4], key[0], key[1], key[2], key[3] != "init", key[3]))
    return [Shape(run, *key, tuple(groups[key])) for key in ordered]


def loss_step(shape: Shape) -> Table:
    """The article's shape of table: R down, systems across, `time · memory` or a status with its reason."""
    series = shape.labels
    cells = {(name, int(row["rows"])): row for name, rows in series.items() for row in rows}
    emphasis, body = set(), [("loss", *(_loss_of(rows[0], loss_name(rows[0]["loss"])) for rows in series.values()))]
    for index, size in enumerate(shape.sizes(), start=1):
        line, timed = [f"R = {size}"], []
        for place, name in enumerate(series, start=1):
            row = cells.get((name, size))
            line.append(measured_cell(row, shape.memory_column) if row else "not measured")
            if row and _timed(row) and row["system"] != PRODUCTS and comparable(row):
                timed.append((number(row, "best_seconds"), place))
        if timed:
            emphasis.add((index, min(timed)[1]))
        body.append(tuple(line))
    return Table(
        id=f"measured-{shape.id}",
        title=f"{shape.place}: best loss-step time, then memory per rank ({shape.setting})",
        columns=(Column(shape.place), *(Column(name, RIGHT) for name in series)),
        rows=tuple(body),
        note=f"{shape.run.title}. Memory: {MEMORY_FIGURES[shape.memory_column]} (`{shape.memory_column}`)."
        + (f" {TRAPS}" if any(map(timed_trap, shape.rows)) else ""),
        emphasis=frozenset(emphasis),
    )


def head_of(row: Row) -> tuple[str, ...]:
    """What a line of a table is about."""
    loss = _loss_of(row, row["loss"])
    return f"{row['system']} {row['variant']}", loss, row["state"], row["rows"], row["world_size"]


def _loss_of(row: Row, name: str) -> str:
    """The loss as `name` has it; the two plain products compute none."""
    return "none" if row["system"] == PRODUCTS else name


def three_ways(shape: Shape, system: str = OUR_SYSTEM, absent: str = "not measured") -> Table | None:
    """One system's one-set loss against every peer: at the same R, with the same loss, at the same batch of pairs.

    None when the run holds no such row, or no peer. `absent` is what a cell without a row says.
    """
    ours: dict[tuple[str, int], Row] = {}  # several variants may compute one loss: the fastest speaks for the system
    for row in sorted(shape.rows, key=lambda row: (not _timed(row), number(row, "best_seconds") or 0.0)):
        if row["system"] == system:
            ours.setdefault((_formula(row), int(row["rows"])), row)
    name = SYSTEM_NAMES.get(system, system)
    body = []
    for label, rows in shape.labels.items():
        if rows[0]["system"] in (system, PRODUCTS) or not comparable(rows[0]):
            continue
        for row in sorted(rows, key=lambda each: int(each["rows"])):
            size, loss = int(row["rows"]), row["loss"]
            # B pairs are 2B rows of one set, and B rows of two: a two-set peer at R meets the one-set loss at 2R.
            same_batch = size if cost.is_one_set(loss) else 2 * size
            no_batch = absent if same_batch == size else f"R = {same_batch} {absent}"
            body.append(
                (
                    str(size),
                    label,
                    loss_name(loss),
                    step_text(row),
                    _against(ours.get(("one_set_sigmoid", size)), row, absent),
                    _against(ours.get((_formula(row), size)), row, absent),
                    _against(ours.get(("one_set_sigmoid", same_batch)), row, no_batch),
                )
            )
    if not body or not ours:
        return None
    return Table(
        id=f"three-ways-{shape.id}",
        title=f"{shape.place}: {name} against its peers, read three ways ({shape.setting})",
        columns=(
            Column("R", RIGHT),
            Column("peer"),
            Column("peer's loss"),
            Column("peer's step", RIGHT),
            Column("same R: one_set_sigmoid", RIGHT),
            Column("same loss: the peer's", RIGHT),
            Column("same batch of image-caption pairs: one_set_sigmoid", RIGHT),
        ),
        rows=tuple(sorted(body, key=lambda line: int(line[0]))),
        note=f"{shape.run.title}. Each cell: the best step of {name}, and how it stands to the peer's. "
        "`ranges overlap`: the two ranges of process means do, so no difference is claimed; `one round`: there is no "
        "range, so no ratio is given. "
        "Same R is the article's reading: a lead in engineering, and a loss of 4 R N D FLOPs against 6 R N D. "
        "Same loss leaves the engineering alone. "
        "Same batch is what a user gains who changes the loss: B pairs are 2B rows of one set, 16 B B D FLOPs against "
        "6 B B D, and negatives within a modality in return.",
    )


def _formula(row: Row) -> str:
    """The loss, and of one that has several forms its form."""
    return f"{row['loss']} {row['form']}".strip()


def timings(run: Run) -> Table:
    """Every row with its times, rates and FLOPs."""
    products = [row for row in run.rows if row["system"] == PRODUCTS and _timed(row)]
    body = [_timing_line(row, products) for row in in_order(run) if not is_collective(row)]
    columns = "system loss state R ranks best median mean range first cells pairs nominal executed products".split()
    heads = {
        "range": "process means",
        "first": "first step",
        "cells": "cells per second",
        "pairs": "distinct pairs per second",
        "nominal": "nominal TFLOP/s per rank",
        "executed": "fraction of the matmul rate",
        "products": "against two plain products",
    }
    return Table(
        id=f"timings-{run.slug}",
        title=f"Times and rates: {run.title}",
        columns=tuple(Column(heads.get(n, n), LEFT if n in ("system", "loss", "state") else RIGHT) for n in columns),
        rows=tuple(body),
        note="Seconds per step, the slowest rank of each block. The fraction sets executed FLOPs against the rate of "
        f"plain products measured in the same run (`{PRODUCTS}`); it is known for the native loss only. "
        "The two products are X X^T and G X of the same R." + (f" {TRAPS}" if any(map(timed_trap, run.rows)) else ""),
    )


def statuses(run: Run) -> Table:
    """Every row with its status, reason, the three memory figures and the errors of the correctness gate."""
    body = []
    for row in in_order(run):
        expected = row["expected_status"] or "ok"
        status = status_text(row) + (" (expected)" if row["status"] == expected != "ok" else "")
        memory = [memory_text(float(row[column])) if row[column] else "" for column in MEMORY_FIGURES]
        errors = [error_text(row, f"{name}_error") for name in _ERRORS]
        head = head_of(row)
        body.append((*head, status, row["reason"], *memory, *errors))
    columns = ("system", "loss", "state", "R", "ranks", "status", "reason")
    return Table(
        id=f"statuses-{run.slug}",
        title=f"Status, memory and correctness: {run.title}",
        columns=(
            *(Column(name, RIGHT if name in ("R", "ranks") else LEFT) for name in columns),
            *(Column(name.removesuffix("_bytes").replace("_", " "), RIGHT) for name in MEMORY_FIGURES),
            *(Column(name, RIGHT) for name in ("loss error", "dX error", "dt error", "db error")),
        ),
        rows=tuple(body),
        note="Errors against the float64 reference: loss relative, dX by the worst band, dt and db relative to the sum "
        "of absolute terms. Memory figures differ in what they count and are never compared across columns.",
    )


_ERRORS = ("loss", "embedding_gradient", "scale_gradient", "bias_gradient")


def _timing_line(row: Row, products: Sequence[Row]) -> tuple[str, ...]:
    head = head_of(row)
    if not _timed(row) and not timed_trap(row):
        return (*head, status_text(row), *[""] * 9)
    best, median, mean, low, high, first = (
        number(row, f"{name}_seconds") for name in ("best", "median", "mean", "mean_low", "mean_high", "first_step")
    )
    times = (
        *("" if value is None else marked(row, time_text(value)) for value in (best, median, mean)),
        _range(row, low, high),
        "" if first is None else time_text(first),
    )
    if not _timed(row):
        return (*head, *times, *[""] * 5)
    n, world, widest = live_rows(row), int(row["world_size"]), int(row["prefixes"].split()[-1])
    flops = cost.nominal_flops_per_rank(row["loss"], n, widest, world)
    rates = (
        rate_text(cost.covered_cells(n) / best),
        rate_text(cost.distinct_pairs(row["loss"], n) / best),
        significant(flops / best / 1e12),
    )
    return (
        *head,
        *times,
        *(rates if comparable(row) else ("", "", "")),
        _fraction(row, products),
        _against_products(row, products),
    )


def _range(row: Row, low: float | None, high: float | None) -> str:
    """From the lowest to the highest process mean; one process is no range."""
    known = low is not None and high is not None and row["rounds"] != "1"
    return marked(row, f"{time_text(low)} to {time_text(high)}") if known else ""


def _fraction(row: Row, products: Sequence[Row]) -> str:
    """Executed FLOPs per second over the best rate that plain products reached in the same run."""
    if row["system"] != OUR_SYSTEM or row["live"] or not products:
        return ""
    prefixes = [int(text) for text in row["prefixes"].split()]
    flops = cost.executed_flops_per_rank(
        row["loss"], int(row["rows"]), int(row["world_size"]), prefixes, OUR_LADDER, cost.is_one_set(row["loss"])
    )
    rate = max(_products_flops(each) / number(each, "best_seconds") for each in products)
    return significant(cost.fraction_of_peak(flops, number(row, "best_seconds"), rate), 2)


def _against_products(row: Row, products: Sequence[Row]) -> str:
    """Best step over the best time of the two products of the same R, on one rank."""
    same = [each for each in products if each["rows"] == row["rows"] and row["world_size"] == "1"]
    if not same:
        return ""
    return f"{significant(number(row, 'best_seconds') / number(same[0], 'best_seconds'))}x"


def _products_flops(row: Row) -> int:
    """X X^T and G X of one rank's rows: 2 R R D each."""
    return 4 * int(row["rows"]) ** 2 * int(row["prefixes"].split()[-1])


def _against(ours: Row | None, peer: Row, absent: str) -> str:
    """`0.172 ms, 7.8x faster`: what our row takes and how it stands to the peer's."""
    if ours is None:
        return absent
    if not _timed(ours):
        return status_text(ours)
    mine, size = number(ours, "best_seconds"), int(ours["rows"])
    text = f"{time_text(mine)} (R = {size})" if size != int(peer["rows"]) else time_text(mine)
    if not _timed(peer):
        return text
    if "1" in (ours["rounds"], peer["rounds"]):
        return f"{text}, one round"
    ratio = number(peer, "best_seconds") / mine
    verdict = f"{significant(ratio)}x faster" if ratio >= 1 else f"{significant(1 / ratio)}x slower"
    return f"{text}, ranges overlap" if _overlap(ours, peer) else f"{text}, {verdict}"


def _overlap(one: Row, other: Row) -> bool:
    ranges = [(number(row, "mean_low_seconds"), number(row, "mean_high_seconds")) for row in (one, other)]
    if any(value is None for pair in ranges for value in pair):
        return False
    return ranges[0][0] <= ranges[1][1] and ranges[1][0] <= ranges[0][1]


def _timed(row: Row) -> bool:
    return row["status"] == "ok" and bool(row["best_seconds"])


def _series_order(row: Row) -> tuple:
    return (
        row["system"] == PRODUCTS,
        row["system"] != OUR_SYSTEM,
        row["system"],
        loss_order(row["loss"]),
        row["variant"],
    )


def _row_order(row: Row) -> tuple:
    return int(row["nodes"]), int(row["world_size"]), int(row["rows"]), row["state"], _series_order(row)


def in_order(run: Run) -> list[Row]:
    """A run's rows as tables list them."""
    return sorted(run.rows, key=_row_order)
