"""Drawing: one style, and the few kinds of plot that the charts are made of. SVG text, the same bytes every time.

Text stays text (it scales, it can be searched and it follows the reader's fonts), so nothing depends on the outlines of
a font file. Positions come from Matplotlib's own DejaVu metrics, which are wider than most, so labels do not collide.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

INK, MUTED, RULE, PAPER = "#1f2328", "#59636e", "#d1d9e0", "#fffffe"
# Colour-blind safe (after Okabe and Ito, the light ones darkened for text); a system keeps its colour everywhere.
COLOURS = {
    "native": "#c04a00",
    "article_scaling_contrasts": "#c04a00",
    "open_clip": "#0067a3",
    "big_vision": "#00785a",
    "torch_reference": "#a8527f",
    "siglip_kernel": "#8f6a00",
    "inf_cl": "#2f7fb8",
    "cublas_products": "#59636e",
    "disco_clip": "#6b4fa0",
    "grad_cache": "#7a5230",
    "metric_learning": "#3f6b1f",
}
_SPARE = ("#7d3c98", "#1b6f70", "#8c4a4a", "#4d5d8f")
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1)), (0, (8, 2)))
_MARKERS = ("o", "s", "D", "^", "v", "P")
FONT_SIZE = 11
_LINE = 13.5  # points between two lines of labels
_END_LABEL = "end-label"
_LABEL = 31  # characters that fit beside a panel

_STYLE = {
    "svg.hashsalt": "scaling-contrasts",
    "svg.fonttype": "none",
    "font.family": ["DejaVu Sans"],
    "font.size": FONT_SIZE,
    "figure.dpi": 72,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
}


@dataclass(frozen=True)
class Series:
    """One line: `points` are (x, y); `failures` are (x, status) of sizes without a figure."""

    label: str
    system: str
    variant: int
    points: tuple[tuple[float, float], ...]
    failures: tuple[tuple[float, str], ...] = ()

    @property
    def colour(self) -> str:
        return colour(self.system)


def colour(system: str) -> str:
    """The system's colour; unknown systems get one by their name."""
    return COLOURS.get(system) or _SPARE[sum(system.encode()) % len(_SPARE)]


def draw(width: float, height: float, paint: Callable[[Figure], None]) -> str:
    """SVG text of a figure, `width` x `height` in points; the user's own Matplotlib settings play no part."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=(width / 72, height / 72))
        FigureCanvasSVG(figure)
        paint(figure)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return _tidy(out.getvalue())


def _tidy(svg: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"\s*<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = svg.replace("'DejaVu Sans'", "system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif")
    # Seven digits after the point are noise in a drawing of some hundred points.
    svg = re.sub(r"(\d+\.\d{2})\d+", r"\1", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def add_panel(figure: Figure, left: float, right: float, bottom: float, top: float) -> Axes:
    """Axes placed in points from the figure's edges: `left`/`right` as x, `bottom`/`top` as y coordinates."""
    width, height = figure.get_size_inches() * 72
    return figure.add_axes((left / width, bottom / height, (right - left) / width, (top - bottom) / height))


def heading(axes: Axes, title: str, unit: str) -> None:
    """Panel title, and the unit of the upright axis under it, where it can be read without turning the head."""
    axes.text(0, 1, title, transform=_above(axes, 22), fontweight="bold", fontsize=12, va="baseline")
    axes.text(0, 1, unit, transform=_above(axes, 8), color=MUTED, va="baseline")


def _above(axes: Axes, points: float):
    from matplotlib.transforms import ScaledTranslation

    return axes.transAxes + ScaledTranslation(0, points / 72, axes.figure.dpi_scale_trans)


def lines(axes: Axes, series: Sequence[Series], tick_text: Callable[[float], str], x_label: str) -> None:
    """Lines on log axes, each labelled at its right end; sizes that failed are crosses along the upper edge."""
    xs = sorted({x for each in series for x, _ in (*each.points, *each.failures)})
    ys = [y for each in series for _, y in each.points]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for each in series:
        axes.plot(
            *zip(*each.points, strict=True) if each.points else ([], []),
            color=each.colour,
            linestyle=_DASHES[each.variant % len(_DASHES)],
            marker=_MARKERS[each.variant % len(_MARKERS)],
            clip_on=False,
        )
    step = math.log2(xs[-1] / xs[0]) if len(xs) > 1 else 1.0
    axes.set_xlim(xs[0] / 2 ** (0.06 * step), xs[-1] * 2 ** (0.06 * step))
    _log_range(axes, ys, tick_text)
    axes.xaxis.set_major_locator(FixedLocator(_thinned(xs)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.0f}"))
    axes.set_xlabel(x_label)
    axes.tick_params(length=0)
    _failures(axes, series)
    _end_labels(axes, series)


def _thinned(xs: Sequence[float]) -> list[float]:
    """At most seven ticks, the last size always among them."""
    stride = math.ceil(len(xs) / 7)
    return list(reversed(list(reversed(xs))[::stride]))


def _log_range(axes: Axes, ys: Sequence[float], tick_text: Callable[[float], str]) -> None:
    low, high = (min(ys), max(ys)) if ys else (1.0, 10.0)
    low, high = low / 1.6, high * 1.6
    if high / low < 12:  # a decade at least, so that there are ticks to read
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(12), middle * math.sqrt(12)
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(_ticks(low, high))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: tick_text(y)))


def _ticks(low: float, high: float) -> LogLocator:
    """Enough ticks to read a value off, few enough not to touch."""
    decades = math.log10(high / low)
    subs = (1.0, 2.0, 5.0) if decades < 1.5 else (1.0, 3.0) if decades < 2.8 else (1.0,)
    return LogLocator(10, subs=subs, numticks=20)


def _failures(axes: Axes, series: Sequence[Series]) -> None:
    from matplotlib.transforms import blended_transform_factory

    place = blended_transform_factory(axes.transData, axes.transAxes)
    height = axes.get_position().height * axes.figure.get_size_inches()[1] * 72
    taken: dict[float, int] = {}
    for each in series:
        for x, _ in each.failures:
            level = taken.get(x, 0)
            taken[x] = level + 1
            axes.plot([x], [1 - 9 * level / height], "x", color=each.colour, transform=place, clip_on=False, mew=1.6)


def _end_labels(axes: Axes, series: Sequence[Series]) -> None:
    """Names at the right of the last point, pushed apart until a line fits between any two."""
    box = axes.get_position()
    height = box.height * axes.figure.get_size_inches()[1] * 72
    low, high = (math.log10(y) for y in axes.get_ylim())
    wanted = []
    for each in series:
        last_point, last_failure = each.points[-1:], each.failures[-1:]
        if last_failure and (not last_point or last_failure[0][0] > last_point[0][0]):
            text = f"{each.label}: {last_failure[0][1]}"
            wanted.append((height, text if len(text) <= _LABEL else f"{each.label}: failed", each))
        elif last_point:
            wanted.append(((math.log10(last_point[0][1]) - low) / (high - low) * height, each.label, each))
    wanted.sort(key=lambda entry: entry[:2])
    wanted = [(y, text if len(text) <= _LABEL else text[: _LABEL - 1] + "…", each) for y, text, each in wanted]
    for y, (_, text, each) in zip(spread([entry[0] for entry in wanted], _LINE, height + 6), wanted, strict=True):
        axes.annotate(
            text,
            (1, y / height),
            xycoords="axes fraction",
            xytext=(8, 0),
            textcoords="offset points",
            color=each.colour,
            va="center",
            label=_END_LABEL,
            annotation_clip=False,
        )


def spread(places: Sequence[float], gap: float, ceiling: float) -> list[float]:
    """Ascending places moved as little as a sweep allows so that neighbours are `gap` apart, none above `ceiling`."""
    moved = list(places)
    for _ in range(200):
        calm = True
        for index in range(1, len(moved)):
            short = gap - (moved[index] - moved[index - 1])
            if short > 1e-9:
                moved[index - 1] -= short / 2
                moved[index] += short / 2
                calm = False
        if moved and moved[-1] > ceiling:
            moved[-1], calm = ceiling, False
        if calm:
            break
    for index in range(len(moved) - 2, -1, -1):  # the ceiling may have left a remainder
        moved[index] = min(moved[index], moved[index + 1] - gap)
    return moved


def bars(
    axes: Axes, entries: Sequence[tuple[str, float, str]], value_text: Callable[[float], str], log: bool = False
) -> None:
    """Horizontal bars from the top down: (label, value, colour), the value written at the end of each bar."""
    places = list(range(len(entries)))[::-1]
    values = [value for _, value, _ in entries]
    if log:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 3, max(values) * 1.02)
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(0, max(values) * 1.02)
    axes.barh(places, values, height=0.62, color=[each for _, _, each in entries])
    axes.set_ylim(-0.6, len(entries) - 0.4)
    axes.set_yticks(places, [label for label, _, _ in entries])
    axes.tick_params(length=0)
    for label in axes.get_yticklabels():
        label.set_color(INK)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: value_text(x) if x else "0"))
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            value_text(value),
            (value, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            annotation_clip=False,
        )


def dumbbells(
    axes: Axes,
    entries: Sequence[tuple[str, str, float | None, float | None, str]],
    tick_text: Callable[[float], str],
    named: bool = True,
) -> None:
    """From the top down: (label, system, hollow value, full value, remark), joined by a line, on a log scale.

    `named`: write the labels at the left."""
    places = list(range(len(entries)))[::-1]
    values = [value for entry in entries for value in entry[2:4] if value]
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 1.25, max(values) * 1.25)
    axes.xaxis.set_major_locator(_ticks(min(values), max(values)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: tick_text(x)))
    axes.set_ylim(-0.6, len(entries) - 0.4)
    axes.set_yticks(places, [entry[0] if named else "" for entry in entries])
    axes.tick_params(length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    for place, (_, system, hollow, full, remark) in zip(places, entries, strict=True):
        tone = colour(system)
        axes.get_yticklabels()[len(entries) - 1 - place].set_color(tone)
        if hollow and full:
            axes.plot([hollow, full], [place, place], color=tone, linewidth=2.2, solid_capstyle="butt", zorder=2)
        if full:
            axes.plot([full], [place], "o", color=tone, markersize=8, zorder=3)
        if hollow:
            axes.plot([hollow], [place], "o", mfc=PAPER, mec=tone, mew=2, markersize=8, zorder=4)
        place_x = max((value for value in (hollow, full) if value), default=None)
        anchor = (place_x, place) if place_x else (axes.get_xlim()[0], place)
        axes.annotate(
            remark,
            anchor,
            xytext=(9 if place_x else 2, 0),
            textcoords="offset points",
            va="center",
            color=INK if place_x else MUTED,
            annotation_clip=False,
        )


def rescale(axes: Axes, series: Sequence[Series], low: float, high: float) -> None:
    """Give `axes` an upright scale from outside and set the labels at the line ends anew."""
    for text in [each for each in axes.texts if each.get_label() == _END_LABEL]:
        text.remove()
    axes.set_ylim(low, high)
    _end_labels(axes, series)
