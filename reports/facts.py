"""The few sentences at the top of the page, every number taken from the rows."""

from __future__ import annotations

from collections.abc import Sequence

from reports.measured import OUR_SYSTEM, PRODUCTS, Shape, shapes, unusual
from reports.store import Results, Row, number
from reports.text import comparable, memory_text, significant, system_label, time_text


def fastest(
    rows: Sequence[Row], ours: str, loss: str = "one_set_sigmoid", same: bool | None = None
) -> tuple[Row, Row] | None:
    """(our fastest row of a loss, the fastest peer's) at the largest R at which both have a time.

    `same`: the peers of the same loss alone, or those of another; None: all.

    An R at which systems are missing, because a budget left them out, comes after the R that have more of them: nobody
    is the fastest peer for want of the others.
    """
    present: dict[int, set[tuple[str, str]]] = {}
    for row in rows:
        if row["status"] != "interrupted":
            present.setdefault(int(row["rows"]), set()).add((row["system"], row["variant"]))
    for size in sorted(present, key=lambda size: (len(present[size]), size), reverse=True):
        timed = [row for row in rows if int(row["rows"]) == size and row["status"] == "ok" and row["best_seconds"]]
        mine = [row for row in timed if row["system"] == ours and row["loss"] == loss]
        peers = [row for row in timed if row["system"] not in (ours, PRODUCTS) and comparable(row)]
        peers = [row for row in peers if same is None or (row["loss"] == loss) == same]
        if mine and peers:
            return tuple(min(each, key=lambda row: number(row, "best_seconds")) for each in (mine, peers))
    return None


def headline_shapes(results: Results) -> list[Shape]:
    """One usual, `init` shape per machine: the most systems timed, the standard protocol before others, the newest run,
    the most GPUs.

    On CPU the fewest ranks: they share the cores. A run of one round has no range of process means, so that it cannot
    say whether two systems differ: it is left out.
    """
    chosen: dict[str, tuple[tuple, Shape]] = {}
    for run in results.runs:
        for shape in shapes(run):
            if shape.state != "init" or any(map(unusual, shape.rows)) or not fastest(shape.rows, OUR_SYSTEM):
                continue
            ranks = -shape.world_size if shape.device == "cpu" else shape.world_size
            if any(int(row["rounds"]) < 2 for row in fastest(shape.rows, OUR_SYSTEM)):
                continue
            timed = {row["system"] for row in shape.rows if row["best_seconds"]}
            preference = (len(timed), run.protocol == "standard", run.run_id, ranks)
            if run.machine not in chosen or preference > chosen[run.machine][0]:
                chosen[run.machine] = preference, shape
    return [shape for _, shape in chosen.values()]


def pictured_shape(results: Results) -> Shape | None:
    """The usual, `init` shape for the README's picture: a GPU's, with peers at two R or more, the most systems, the
    newest run.

    A picture tells no ratio, so one round is enough.
    """
    chosen: tuple[tuple, Shape] | None = None
    for run in results.runs:
        for shape in shapes(run):
            if shape.state != "init" or any(map(unusual, shape.rows)):
                continue
            both = [size for size in shape.sizes() if fastest(_of_size(shape.rows, size), OUR_SYSTEM)]
            ranks = -shape.world_size if shape.device == "cpu" else shape.world_size
            timed = {row["system"] for row in shape.rows if row["best_seconds"]}
            preference = (shape.device == "cuda", min(len(both), 2), len(timed), run.run_id, ranks)
            if both and (chosen is None or preference > chosen[0]):
                chosen = preference, shape
    return chosen and chosen[1]


def _of_size(rows: Sequence[Row], size: int) -> list[Row]:
    return [row for row in rows if int(row["rows"]) == size]


def facts(results: Results) -> list[str]:
    """One sentence per published box and per machine measured."""
    said = []
    for nodes in ("1", "2"):
        rows = [row for row in results.loss_step if row["nodes"] == nodes]
        pair = fastest(rows, "article_scaling_contrasts")
        if pair:
            mine, peer = pair
            ratio = number(peer, "best_seconds") / number(mine, "best_seconds")
            said.append(
                f"Published, {mine['world_size']}x {mine['device_name'].split()[0]}, R = {mine['rows']}: "
                f"{system_label(mine)} {mine['published_time_text']} and {mine['published_memory_text']}, "
                f"{significant(ratio, 2)}x faster than {system_label(peer)} "
                f"({peer['published_time_text']} and {peer['published_memory_text']}), which computes another loss."
            )
    for shape in headline_shapes(results):
        mine, peer = fastest(shape.rows, OUR_SYSTEM)
        ratio = number(peer, "best_seconds") / number(mine, "best_seconds")
        verdict = f"{significant(ratio)}x faster than" if ratio >= 1 else f"{significant(1 / ratio)}x slower than"
        said.append(
            f"Measured on {shape.run.machine} ({shape.place}, protocol {shape.run.protocol}), R = {mine['rows']}: "
            f"native one-set sigmoid {_figures(mine, shape)}, {verdict} the fastest peer, {system_label(peer)} "
            f"({_figures(peer, shape)}){', which computes another loss' if peer['loss'] != mine['loss'] else ''}."
        )
    if not results.runs:
        said.append("Nothing has been measured with this suite yet; `make bench` does so.")
    return said


def _figures(row: Row, shape: Shape) -> str:
    memory = number(row, shape.memory_column)
    return time_text(number(row, "best_seconds")) + (f" and {memory_text(memory)}" if memory is not None else "")
