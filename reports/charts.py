"""Which charts there are and what they say. Each is a picture with a title and a description in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from harness import cost
from reports import collectives, plots
from reports.facts import pictured_shape
from reports.measured import PRODUCTS, Shape, shapes
from reports.plots import Series
from reports.store import PUBLISHED, Results, Row, Run, number
from reports.text import (
    live_rows,
    memory_bytes_of,
    memory_text,
    rate_text,
    set_word,
    significant,
    status_text,
    system_label,
    time_text,
)

WIDTH, PANEL_HEIGHT = 1060, 330
_PANEL = 275  # points that the lines of a panel take; its labels stand at the right of it
_HEAD, _FOOT = 46, 44
# Drawn as crosses; what was never tried (unsupported, interrupted) or is a documented trap stands in the tables only.
_DRAWN_FAILURES = ("out_of_memory", "timeout", "crashed", "nonfinite", "wrong", "too_noisy")


@dataclass(frozen=True)
class Chart:
    """`description` is the text alternative: the figures of the largest R, in words."""

    id: str
    title: str
    description: str
    svg: str


@dataclass(frozen=True)
class Quantity:
    """Something to plot against R: how to read it off a row, how to write it, and what its axis is called."""

    name: str
    unit: str
    of: Callable[[Row], float | None]
    text: Callable[[float], str]

    def tick(self, value: float) -> str:
        """Ticks are round numbers: `10 ms`, not `10.0 ms`."""
        figure, _, unit = self.text(value).partition(" ")
        return f"{figure.rstrip('0').rstrip('.') if '.' in figure else figure} {unit.removesuffix('/s')}".rstrip()


def _rate(count: Callable[[Row], float]) -> Callable[[Row], float | None]:
    def per_second(row: Row) -> float | None:
        seconds = number(row, "best_seconds")
        return None if seconds is None else count(row) / seconds

    return per_second


TIME = Quantity("Best loss-step time", "per step", lambda row: number(row, "best_seconds"), time_text)
PUBLISHED_MEMORY = Quantity(
    "Memory per GPU",
    "as published",
    lambda row: memory_bytes_of(row["published_memory_text"]),
    memory_text,
)
CELLS = Quantity("Covered cells", "per second", _rate(lambda row: cost.covered_cells(live_rows(row))), rate_text)
PAIRS = Quantity(
    "Distinct pairs",
    "per second",
    _rate(lambda row: cost.distinct_pairs(row["loss"], live_rows(row))),
    rate_text,
)


def memory_quantity(column: str) -> Quantity:
    """Measured memory: one figure, named."""
    name = column.removesuffix("_bytes").replace("_", " ")
    return Quantity("Memory per rank", name, lambda row: number(row, column), memory_text)


def all_charts(results: Results) -> dict[str, list[Chart]]:
    """Charts by section of the page: `published`, `footprint`, and one list for each measured run's slug."""
    boxes = shapes(results.article)
    places = [box.place for box in boxes]
    charts = {
        "published": [
            _panels("published-time", "Step time against R, as published", boxes, [TIME] * len(boxes), places, True),
            _panels(
                "published-memory",
                "Memory against R, as published",
                boxes,
                [PUBLISHED_MEMORY] * len(boxes),
                places,
                True,
            ),
            one_box_against_two(results.loss_step),
            *(throughput(f"published-throughput-{box.world_size}", box) for box in boxes),
        ],
        "footprint": [footprint(results.footprint)],
    }
    for run in results.runs:
        charts[run.slug] = [chart for shape in shapes(run) for chart in measured(shape)]
        charts[run.slug] += [chart for chart in (all_reduces(run), scaling(run)) if chart]
    return charts


def measured(shape: Shape) -> list[Chart]:
    """Time and memory, and the two rates, of one shape; nothing when no row has a time."""
    if not any(row["status"] == "ok" and row["best_seconds"] for row in shape.rows):
        return []
    memory = memory_quantity(shape.memory_column)
    known = [each for each in (TIME, memory) if any(series.points for series in series_of(shape, each))]
    title = f"Step time and memory: {shape.place}, {shape.setting}"
    names = [each.name for each in known]
    return [
        _panels(f"time-memory-{shape.id}", title, [shape] * len(known), known, names),
        throughput(f"throughput-{shape.id}", shape),
    ]


def throughput(name: str, shape: Shape) -> Chart:
    """Cells and distinct pairs per second against R."""
    return _panels(
        name,
        f"Cells and distinct pairs per second: {shape.place}",
        [shape] * 2,
        [CELLS, PAIRS],
        [CELLS.name, PAIRS.name],
    )


def series_of(shape: Shape, quantity: Quantity) -> list[Series]:
    """One line per system and variant. Rows without the figure are failures if their status is one, else left out."""
    drawn: list[Series] = []
    variants: dict[str, int] = {}
    for label, rows in shape.labels.items():
        system = rows[0]["system"]
        if system == PRODUCTS and quantity in (CELLS, PAIRS):
            continue
        variant = variants[system] = variants.get(system, -1) + 1
        points, failures = [], []
        for row in sorted(rows, key=lambda each: int(each["rows"])):
            value = quantity.of(row) if row["status"] == "ok" else None
            if value:
                points.append((float(row["rows"]), value))
            elif row["status"] in _DRAWN_FAILURES and row["status"] != row["expected_status"]:
                failures.append((float(row["rows"]), status_text(row)))
        if points or failures:
            drawn.append(Series(label, system, variant, tuple(points), tuple(failures)))
    return drawn


def _panels(
    name: str,
    title: str,
    shown: Sequence[Shape],
    quantities: Sequence[Quantity],
    headings: Sequence[str],
    scale_shared: bool = False,
) -> Chart:
    """Panels side by side, a shape and a quantity each. `scale_shared`: one upright scale, so that heights compare."""
    height = _height([len(shape.labels) for shape in shown])
    all_series = [series_of(shape, quantity) for shape, quantity in zip(shown, quantities, strict=True)]

    def paint(figure: Figure) -> None:
        axes_drawn = []
        for index, (shape, quantity, series) in enumerate(zip(shown, quantities, all_series, strict=True)):
            left = 62 + index * WIDTH / 2
            axes = plots.add_panel(figure, left, left + _PANEL, _FOOT, height - _HEAD)
            losses = {set_word(row["loss"]) for row in shape.rows}
            words = " or ".join(sorted(losses, reverse=True))
            plots.lines(axes, series, quantity.tick, f"R, {words} per rank")
            crosses = sorted({status for each in series for _, status in each.failures})
            unit = f"{quantity.unit} · cross: {', '.join(crosses)}" if crosses else quantity.unit
            plots.heading(axes, headings[index], unit)
            axes_drawn.append(axes)
        if scale_shared:
            _share_scale(axes_drawn, all_series)

    says = [
        f"{shape.place}, {q.name.lower()}: {_in_words(s, q)}"
        for shape, q, s in zip(shown, quantities, all_series, strict=True)
    ]
    return Chart(name, title, " ".join(says), plots.draw(WIDTH, height, paint))


def _height(labels: Sequence[int]) -> int:
    """Tall enough for the longest list of labels."""
    return max(PANEL_HEIGHT, int(_HEAD + _FOOT + 15 * max(labels)))


def _share_scale(axes_drawn: Sequence, all_series: Sequence[Sequence[Series]]) -> None:
    """The same upright scale on every panel, so that heights compare; labels are set again for it."""
    low = min(axes.get_ylim()[0] for axes in axes_drawn)
    high = max(axes.get_ylim()[1] for axes in axes_drawn)
    for axes, series in zip(axes_drawn, all_series, strict=True):
        plots.rescale(axes, series, low, high)


def _in_words(series: Sequence[Series], quantity: Quantity) -> str:
    """`at R = 16384: ScalingContrasts 39 ms, open_clip CLIP out of memory.`"""
    sizes = [x for each in series for x, _ in (*each.points, *each.failures)]
    if not sizes:
        return "no figures."
    largest = max(sizes)
    parts = []
    for each in series:
        found = [quantity.text(y) for x, y in each.points if x == largest]
        found += [status for x, status in each.failures if x == largest]
        if found:
            parts.append(f"{each.label} {found[0]}")
    return f"at R = {largest:.0f}: {', '.join(parts)}."


def all_reduces(run: Run) -> Chart | None:
    """Bus bandwidth against message size, a panel for each number of ranks (the two largest)."""
    rows = [row for row in run.rows if collectives.bus_bandwidth(row)]
    panels = []
    for ranks in sorted({row["world_size"] for row in rows}, key=int)[-2:]:
        points: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for row in rows:
            if row["world_size"] == ranks:
                at = (float(row["bytes"]) / 1024, collectives.bus_bandwidth(row))
                points.setdefault((system_label(row), row["system"]), []).append(at)
        panels.append((f"{ranks} ranks", _series_by_system(points)))
    if not panels:
        return None
    words = [f"{heading}: " + _last_points(series, collectives.rate_words) for heading, series in panels]
    return _free_panels(
        f"all-reduce-{run.slug}",
        f"All-reduce, bus bandwidth against message: {run.machine}",
        panels,
        ("bytes / time x 2 (N - 1) / N", "message, KiB"),
        lambda value: collectives.rate_words(value).removesuffix("/s"),
        " ".join(words),
    )


def scaling(run: Run) -> Chart | None:
    """Weak efficiency against ranks, at the largest R and at the smallest."""
    found = [each for each in collectives.efficiencies(run) if each[6] and each[2] == "init"]
    panels = []
    for size in sorted({each[4] for each in found})[:: max(1, len({each[4] for each in found}) - 1)][:2]:
        points: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for label, loss, _, ranks, rows, _, weak, *_ in found:
            if rows == size:
                series = points.setdefault((f"{label}, {loss}", label.split()[0]), [(1.0, 1.0)])
                series.append((float(ranks), weak))
        panels.append((f"R = {size} per rank", _series_by_system(points)))
    if not panels:
        return None

    def percent(value: float) -> str:
        return f"{significant(100 * value, 3)}%"

    words = [f"{heading}: " + _last_points(series, percent) for heading, series in panels]
    title = f"Weak scaling, cells per second and rank against one rank: {run.machine}"
    axes = ("of one rank's pace", "ranks")
    return _free_panels(f"scaling-{run.slug}", title, panels, axes, percent, " ".join(words))


def _series_by_system(points: dict[tuple[str, str], list[tuple[float, float]]]) -> list[Series]:
    variants: dict[str, int] = {}
    series = []
    for (label, system), found in sorted(points.items()):
        variants[system] = variants.get(system, -1) + 1
        series.append(Series(label, system, variants[system], tuple(sorted(found))))
    return series


def _last_points(series: Sequence[Series], text: Callable[[float], str]) -> str:
    return ", ".join(f"{each.label} {text(each.points[-1][1])}" for each in series) + "."


def _free_panels(
    name: str,
    title: str,
    panels: Sequence[tuple[str, list[Series]]],
    axis_names: tuple[str, str],
    tick: Callable[[float], str],
    says: str,
) -> Chart:
    """Panels of series that are not against R."""
    height = _height([len(series) for _, series in panels])

    def paint(figure: Figure) -> None:
        for index, (heading, series) in enumerate(panels):
            left = 62 + index * WIDTH / 2
            axes = plots.add_panel(figure, left, left + _PANEL, _FOOT, height - _HEAD)
            plots.lines(axes, series, tick, axis_names[1])
            plots.heading(axes, heading, axis_names[0])

    return Chart(name, title, says, plots.draw(WIDTH, height, paint))


def one_box_against_two(rows: Sequence[Row]) -> Chart:
    """For every R and system: hollow is one box, full is two, with the ratio at the right."""
    sizes = list(dict.fromkeys(row["rows"] for row in rows))
    panels = {size: list(_box_entries(rows, size)) for size in sizes}
    tallest = max(len(entries) for entries in panels.values())
    step, height = 34 * tallest, _HEAD + _FOOT + 34 * tallest

    def paint(figure: Figure) -> None:
        names, gap = 128, 62  # the names stand once, at the left; each panel leaves room for its remarks
        width = (WIDTH - names) / len(sizes)
        for index, (size, entries) in enumerate(panels.items()):
            left = names + index * width
            axes = plots.add_panel(figure, left, left + width - gap, _FOOT, _FOOT + step)
            plots.dumbbells(axes, entries, TIME.tick, named=index == 0)
            plots.heading(axes, f"R = {size}", "hollow: one box, full: two boxes")

    words = [
        f"R = {size}: " + ", ".join(f"{entry[0]} {entry[4]}" for entry in entries) + "."
        for size, entries in panels.items()
    ]
    title = "One box against two: step time, as published"
    lead = "Twice the GPUs cover four times the cells, so 2x is an unchanged pace per GPU. "
    return Chart("published-boxes", title, lead + " ".join(words), plots.draw(WIDTH, height, paint))


def _box_entries(rows: Sequence[Row], size: str) -> Iterable[tuple[str, str, float | None, float | None, str]]:
    chosen = [row for row in rows if row["rows"] == size]
    for label in dict.fromkeys(system_label(row) for row in chosen):
        one, two = (next((r for r in chosen if system_label(r) == label and r["nodes"] == n), None) for n in ("1", "2"))
        if not one or not two:
            continue
        before, after = number(one, "best_seconds"), number(two, "best_seconds")
        remark = f"{significant(after / before, 2)}x" if before and after else status_text(two)
        yield label, one["system"], before, after, remark


def footprint(rows: Sequence[Row]) -> Chart:
    """Sizes of what has to be installed."""
    entries = [
        (
            row["component"],
            float(row["megabytes"]),
            plots.colour("article_scaling_contrasts") if row["component"] == "ScalingContrasts" else plots.MUTED,
        )
        for row in rows
    ]
    height = _HEAD + _FOOT + 34 * len(entries) - 20

    def paint(figure: Figure) -> None:
        axes = plots.add_panel(figure, 170, WIDTH - 90, _FOOT - 10, height - _HEAD)
        plots.bars(axes, entries, lambda value: f"{value:g} MB")
        plots.heading(axes, "Size on disk", "MB, as published")

    says = ", ".join(f"{name} {value:g} MB" for name, value, _ in entries) + "."
    return Chart("published-footprint", "Footprint, as published", says, plots.draw(WIDTH, height, paint))


def _fastest_variants(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Of each system and loss the rows of one variant: that which is fastest at the largest R it has a time of."""
    best: dict[tuple[str, str], tuple[tuple[int, float], str]] = {}
    for row in rows:
        if row["status"] == "ok" and row["best_seconds"]:
            key, place = (row["system"], row["loss"]), (-int(row["rows"]), number(row, "best_seconds"))
            if key not in best or place < best[key][0]:
                best[key] = place, row["variant"]
    return tuple(row for row in rows if best.get((row["system"], row["loss"]), ("", ""))[1] == row["variant"])


def headline(results: Results) -> Chart:
    """The README's picture: step time against R, as published on one box, and as measured."""
    article = shapes(results.article)
    shown = [shape for shape in article if shape.nodes == 1]
    measured = pictured_shape(results)
    shown += [replace(measured, rows=_fastest_variants(measured.rows))] if measured else []
    if len(shown) == 1:
        shown = article[:2]
    headings = [f"{each.place}, {'as published' if each.run.protocol == PUBLISHED else 'measured'}" for each in shown]
    return _panels("headline", "Best loss-step time against R", shown, [TIME] * len(shown), headings)
