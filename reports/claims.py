"""The article's claims: published, recomputed from its own table, measured here, and a verdict by a stated rule.

Each claim has one small function over measured rows. It answers per machine with `confirmed` or `refuted`, or the claim
stays `not run`, with the reason. A ratio is confirmed when it reaches the published one at its published digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from harness import cost
from reports import collectives
from reports.measured import OUR_SYSTEM, PRODUCTS, unusual
from reports.store import Results, Row, Run, number
from reports.table import Column, Table
from reports.text import live_rows, memory_bytes_of, memory_text, significant, time_text

ARTICLE_SYSTEM = "article_scaling_contrasts"
PEER = "big_vision"
BOX = 8
LARGEST, MIDDLE = 16384, 4096  # of the sizes that the article has


@dataclass(frozen=True)
class Verdict:
    """What one machine says about one claim."""

    machine: str
    value: str
    holds: bool


@dataclass(frozen=True)
class Rule:
    """How a claim is judged. `published` recomputes it from the article's table; `measured` yields verdicts."""

    says: str
    needs: str
    published: Callable[[Sequence[Row]], str] = lambda rows: ""
    measured: Callable[[Sequence[Run]], Iterable[Verdict]] = lambda runs: ()


def table(results: Results) -> Table:
    """One line per claim and machine that can judge it; `not run` with what it would take otherwise."""
    body = []
    for claim in results.claims:
        rule = RULES.get(claim["id"], Rule("none written", "a rule for this claim"))
        again = rule.published(results.loss_step)
        head = (f"{claim['claim']} ({claim['condition']})", claim["value"], again)
        verdicts = list(rule.measured(results.runs))
        for verdict in verdicts:
            word = "confirmed" if verdict.holds else "refuted"
            body.append((*head, f"{verdict.value} ({verdict.machine})", word, f"Rule: {rule.says}."))
        if not verdicts:
            body.append((*head, "", "not run", f"Needs {rule.needs}. Rule: {rule.says}."))
    columns = ("claim", "published", "by its own table", "measured here", "verdict", "why")
    return Table(
        id="claims",
        title="The article's claims",
        columns=tuple(Column(name) for name in columns),
        rows=tuple(body),
        note=f"Source: {results.claims[0]['source']}. Measured on: {_machines(results.runs)}.",
    )


def _machines(runs: Sequence[Run]) -> str:
    places = sorted({(run.machine, row["world_size"], row["device"]) for run in runs for row in run.rows})
    largest: dict[tuple[str, str], int] = {}
    for machine, world, device in places:
        largest[machine, device] = max(largest.get((machine, device), 0), int(world))
    return ", ".join(f"{name} (up to {n} {device} ranks)" for (name, device), n in largest.items()) or "nothing yet"


# Rows


def _rows(run: Run, nodes: int, size: int | None = None) -> list[Row]:
    """GPU rows of the usual case, state `init`, on `nodes` boxes of 8."""
    return [
        row
        for row in run.rows
        if row["device"] == "cuda"
        and row["state"] == "init"
        and not unusual(row)
        and (int(row["nodes"]), int(row["world_size"])) == (nodes, BOX * nodes)
        and (size is None or int(row["rows"]) == size)
    ]


def _one(rows: Sequence[Row], system: str, column: str = "best_seconds") -> Row | None:
    """The system's fastest `ok` row among these that knows `column`."""
    known = [row for row in rows if row["system"] == system and row["status"] == "ok" and row[column]]
    if system == OUR_SYSTEM:
        known = [row for row in known if row["loss"] == "one_set_sigmoid"]
    return min(known, key=lambda row: number(row, "best_seconds") or 0.0, default=None)


def _pair(run: Run, nodes: int, column: str = "best_seconds") -> tuple[Row, Row] | None:
    rows = _rows(run, nodes, LARGEST)
    ours, peer = _one(rows, OUR_SYSTEM, column), _one(rows, PEER, column)
    return (ours, peer) if ours and peer else None


def _published_pair(rows: Sequence[Row], nodes: int) -> tuple[Row, Row]:
    chosen = [row for row in rows if int(row["nodes"]) == nodes and int(row["rows"]) == LARGEST]
    by_system = {row["system"]: row for row in chosen}
    return by_system[ARTICLE_SYSTEM], by_system[PEER]


def _faster(ours: Row, peer: Row) -> float:
    return number(peer, "best_seconds") / number(ours, "best_seconds")


def _cells(row: Row) -> float:
    return cost.covered_cells(live_rows(row)) / number(row, "best_seconds")


def _pairs(row: Row) -> float:
    return cost.distinct_pairs(row["loss"], live_rows(row)) / number(row, "best_seconds")


# Rules


def _ratio(nodes: int, least: float, ratio: Callable[[Row, Row], float], column: str = "best_seconds"):
    """Verdicts of a ratio between our row and big_vision's at R = 16384, confirmed from `least` on."""

    def judge(runs: Sequence[Run]) -> Iterable[Verdict]:
        for run in runs:
            pair = _pair(run, nodes, column)
            if pair:
                value = ratio(*pair)
                yield Verdict(run.title, f"{significant(value)}x", value >= least)

    return judge


def _fastest(runs: Sequence[Run]) -> Iterable[Verdict]:
    for run in runs:
        won, sizes = 0, 0
        for nodes in (1, 2):
            rows = [row for row in _rows(run, nodes) if row["system"] != PRODUCTS]
            for size in sorted({int(row["rows"]) for row in rows}):
                here = [row for row in rows if int(row["rows"]) == size]
                ours = _one(here, OUR_SYSTEM)
                others = [_one(here, name) for name in sorted({row["system"] for row in here} - {OUR_SYSTEM})]
                others = [row for row in others if row]
                if ours and others:
                    sizes += 1
                    won += all(_faster(ours, row) > 1 for row in others)
        if sizes:
            yield Verdict(run.title, f"fastest at {won} of {sizes} sizes", won == sizes)


def _published_fastest(rows: Sequence[Row]) -> str:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["best_seconds"]:
            groups.setdefault((row["nodes"], row["rows"]), []).append(row)
    won = sum(min(g, key=lambda row: number(row, "best_seconds"))["system"] == ARTICLE_SYSTEM for g in groups.values())
    return f"fastest at {won} of {len(groups)} sizes"


def _across_boxes(column: str) -> Callable[[Sequence[Run]], list[tuple[str, float, float]]]:
    """(titles, one box, two boxes) of our figures at R = 16384, for runs of both sizes on one kind of GPU."""

    def pairs(runs: Sequence[Run]) -> list[tuple[str, float, float]]:
        found = []
        for one in runs:
            for two in runs:
                before = _one(_rows(one, 1, LARGEST), OUR_SYSTEM, column)
                after = _one(_rows(two, 2, LARGEST), OUR_SYSTEM, column)
                same = before and after and before["device_name"] == after["device_name"]
                if same and one.protocol == two.protocol:
                    titles = one.title if one is two else f"{one.title}; {two.title}"
                    found.append((titles, number(before, column), number(after, column)))
        return found

    return pairs


def _pace(runs: Sequence[Run]) -> Iterable[Verdict]:
    for titles, before, after in _across_boxes("best_seconds")(runs):
        yield Verdict(titles, f"{time_text(before)} to {time_text(after)}", after <= 2.1 * before)


def _flat(runs: Sequence[Run]) -> Iterable[Verdict]:
    for titles, before, after in _across_boxes("allocated_peak_bytes")(runs):
        yield Verdict(titles, f"{memory_text(before)} to {memory_text(after)}", after <= 1.05 * before)


def _published_step(rows: Sequence[Row]) -> str:
    (one, _), (two, _) = _published_pair(rows, 1), _published_pair(rows, 2)
    return f"{one['published_time_text']} to {two['published_time_text']}"


def _published_memory(rows: Sequence[Row]) -> str:
    (one, _), (two, _) = _published_pair(rows, 1), _published_pair(rows, 2)
    return f"{one['published_memory_text']} to {two['published_memory_text']}"


def _published_memory_ratio(rows: Sequence[Row]) -> str:
    ours, peer = (memory_bytes_of(row["published_memory_text"]) for row in _published_pair(rows, 2))
    return f"{significant(peer / ours)}x"


def _binary(runs: Sequence[Run]) -> Iterable[Verdict]:
    for run in runs:
        size, models = run.environment.get("binary_bytes"), run.environment.get("binary_architectures")
        if isinstance(size, int) and isinstance(models, list) and len(models) == 1:
            yield Verdict(run.title, f"{significant(size / 1e6)} MB for {models[0]}", size < 13.45e6)


def _bandwidth(runs: Sequence[Run]) -> Iterable[Verdict]:
    for run in runs:
        found = collectives.best_ratio(run, "in_switch")
        if found and found[1] == BOX:
            yield Verdict(run.machine, f"{significant(found[0])}x", found[0] >= 1.25)


def _repeats(runs: Sequence[Run]) -> Iterable[Verdict]:
    for run in runs:
        told = [
            int(row["differing_repetitions"])
            for row in run.rows
            if (row["system"], row["variant"]) == (collectives.OURS, "in_switch")
            and (row["status"], int(row["world_size"])) == ("ok", BOX)
            and row["differing_repetitions"]
        ]
        if told:
            same = told.count(0)
            yield Verdict(run.machine, f"the same bits at {same} of {len(told)} sizes", same == len(told))


def _wait(runs: Sequence[Run]) -> Iterable[Verdict]:
    for run in runs:
        row = _one(_rows(run, 1, MIDDLE), OUR_SYSTEM, "end_wait_seconds")
        if row:
            share = number(row, "end_wait_seconds") / number(row, "mean_seconds")
            yield Verdict(run.title, f"{significant(100 * share)}% of a step", 0.35 <= share <= 0.40)


def _rate(nodes: int, of: Callable[[Row], float]) -> Callable[[Sequence[Row]], str]:
    def recompute(rows: Sequence[Row]) -> str:
        ours, peer = _published_pair(rows, nodes)
        return f"{significant(of(ours) / of(peer))}x"

    return recompute


def _memory_ratio(ours: Row, peer: Row) -> float:
    return number(peer, "allocated_peak_bytes") / number(ours, "allocated_peak_bytes")


_ONE_BOX = f"one box of {BOX} GPUs, native and {PEER} at R = {LARGEST}"
_TWO_BOXES = f"two boxes of {BOX} GPUs, native and {PEER} at R = {LARGEST}"
_BOTH = f"one and two boxes of {BOX} GPUs, native at R = {LARGEST}"
_COLLECTIVES = (
    f"a campaign of collectives on one box of {BOX} GPUs with multicast (native_all_reduce:in_switch and NCCL)"
)
_PROFILE = "a trace of the step on 8 GPUs, which this suite does not record yet"

RULES = {
    "fastest_at_every_size": Rule(
        "native's best step is below every peer's at every R, state init",
        f"boxes of {BOX} GPUs with native and a peer",
        _published_fastest,
        _fastest,
    ),
    "faster_than_big_vision": Rule(
        "ratio of best steps at least 2.85", _TWO_BOXES, _rate(2, _cells), _ratio(2, 2.85, _faster)
    ),
    "less_memory_than_big_vision": Rule(
        "ratio of allocated_peak_bytes at least 34.5",
        _TWO_BOXES,
        _published_memory_ratio,
        _ratio(2, 34.5, _memory_ratio, "allocated_peak_bytes"),
    ),
    "pace_kept_to_two_boxes": Rule(
        "two boxes take at most 2.1 times one box, at four times the cells", _BOTH, _published_step, _pace
    ),
    "cells_per_second": Rule(
        "ratio of cells per second at least 2.65",
        _ONE_BOX,
        _rate(1, _cells),
        _ratio(1, 2.65, lambda ours, peer: _cells(ours) / _cells(peer)),
    ),
    "distinct_pairs_per_second": Rule(
        "ratio of distinct pairs per second at least 1.355",
        _ONE_BOX,
        _rate(1, _pairs),
        _ratio(1, 1.355, lambda ours, peer: _pairs(ours) / _pairs(peer)),
    ),
    "all_reduce_bandwidth": Rule(
        "ratio of best bus bandwidths, in-switch over NCCL's, at least 1.25", _COLLECTIVES, measured=_bandwidth
    ),
    "all_reduce_repeats": Rule("the same bits from every repetition", _COLLECTIVES, measured=_repeats),
    "all_reduce_wait": Rule(
        f"end_wait_seconds over mean_seconds at R = {MIDDLE} within 35% to 40%",
        f"one box of {BOX} GPUs, native at R = {MIDDLE}, whose devices meet by flags",
        measured=_wait,
    ),
    "calls_per_step": Rule("calls per GPU and step within 50 to 60", _PROFILE),
    "scalar_work_bound": Rule(
        "not judged: a state of the article's code before its last rewrite", "that earlier kernel"
    ),
    "scalar_rewrite": Rule("not judged: the article's code before and after", "both versions of the article's kernel"),
    "binary_size": Rule(
        "a binary for one GPU model is below 13.45 MB",
        "a binary built for one GPU model, with its size recorded",
        measured=_binary,
    ),
    "memory_flat_in_gpus": Rule(
        "allocated_peak_bytes grows at most 5% from one box to two", _BOTH, _published_memory, _flat
    ),
}
