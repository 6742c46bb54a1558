"""Tables of what others published, cell for cell as they wrote it, and what follows from those digits by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from harness import cost
from reports.store import Results, Row, number
from reports.table import CENTER, LEFT, RIGHT, Column, Table
from reports.text import (
    live_rows,
    loss_name,
    published_cell,
    published_name,
    rate_text,
    significant,
    status_text,
    system_label,
)


def loss_step(rows: Sequence[Row]) -> list[Table]:
    """The article's two tables: the same rows, columns, order, units and digits."""
    tables = []
    for nodes in sorted({int(row["nodes"]) for row in rows}):
        box = [row for row in rows if int(row["nodes"]) == nodes]
        world = int(box[0]["world_size"])
        names, sizes = _ordered(system_label(row) for row in box), _ordered(row["rows"] for row in box)
        cells = {(row["rows"], system_label(row)): row for row in box}
        machine = f"{world}x {box[0]['device_name'].split()[0]}"
        emphasis = set()
        for index, size in enumerate(sizes):
            timed = [(number(cells[size, name], "best_seconds"), place) for place, name in enumerate(names, start=1)]
            known = [pair for pair in timed if pair[0] is not None]
            if known:
                emphasis.add((index, min(known)[1]))
        tables.append(
            Table(
                id=f"published-loss-step-{world}",
                title=f"{machine}: best loss-step time, then memory per GPU, as published",
                columns=(Column(machine), *(Column(name, RIGHT) for name in names)),
                rows=tuple((f"R = {size}", *(published_cell(cells[size, name]) for name in names)) for size in sizes),
                note=_loss_note(box) + f" Source: {box[0]['source']}.",
                emphasis=frozenset(emphasis),
            )
        )
    return tables


def rates(rows: Sequence[Row]) -> Table:
    """Cells, distinct pairs and nominal FLOPs per second, derived from the published times."""
    body = []
    for row in rows:
        seconds = number(row, "best_seconds")
        head = (str(row["world_size"]), row["rows"], system_label(row), loss_name(row["loss"]))
        if seconds is None:
            body.append((*head, status_text(row), "", "", ""))
            continue
        n, widest = live_rows(row), int(row["prefixes"].split()[-1])
        flops = cost.nominal_flops_per_rank(row["loss"], n, widest, int(row["world_size"])) / seconds
        body.append(
            (
                *head,
                row["published_time_text"],
                rate_text(cost.covered_cells(n) / seconds),
                rate_text(cost.distinct_pairs(row["loss"], n) / seconds),
                f"{significant(flops / 1e12)} TFLOP/s",
            )
        )
    return Table(
        id="published-rates",
        title="Rates that follow from the published times",
        columns=(
            Column("GPUs", RIGHT),
            Column("R", RIGHT),
            Column("system"),
            Column("loss"),
            Column("step", RIGHT),
            Column("cells per second", RIGHT),
            Column("distinct pairs per second", RIGHT),
            Column("nominal FLOPs per GPU", RIGHT),
        ),
        rows=tuple(body),
        note="Cells: n x n. Distinct pairs: n(n-1)/2 of one set, n x n of two sets. Nominal FLOPs: 4RND of one set, "
        "6RND of two sets. Arithmetic on the published digits; nothing here was measured by this suite.",
    )


def literature(stem: str, rows: Sequence[Row]) -> Table:
    """Another publication's figures: a line per system and machine, a column per batch."""
    batches, widths = (
        sorted(found) for found in ({live_rows(row) for row in rows}, {int(row["dims"]) for row in rows})
    )
    dims = " or ".join(map(str, widths))
    lines: dict[tuple[str, ...], dict[int, str]] = {}
    for row in rows:
        key = (published_name(row, rows), loss_name(row["loss"]), f"{row['world_size']}x {row['device_name']}")
        lines.setdefault(key, {})[live_rows(row)] = published_cell(row)
    return Table(
        id=f"published-{stem.replace('_', '-')}",
        title=f"{rows[0]['source'].split(', http')[0]} (rows of {dims} dimensions, no prefixes)",
        columns=(
            Column("system"),
            Column("loss"),
            Column("machine"),
            *(Column(f"batch {batch}", RIGHT) for batch in batches),
        ),
        rows=tuple((*key, *(cells.get(batch, "") for batch in batches)) for key, cells in lines.items()),
        note=" ".join(f"Source: {source}." for source in _ordered(row["source"] for row in rows)),
    )


def footprint(results: Results) -> list[Table]:
    """The article's list, and the size of the binary of each measured run that recorded it."""
    published = Table(
        id="published-footprint",
        title="What has to be installed, as published",
        columns=(Column("component"), Column("size", RIGHT), Column("against the binary", RIGHT), Column("for")),
        rows=tuple(
            (
                row["component"],
                f"{row['megabytes']} MB",
                f"{row['times_the_binary']}x" if row["times_the_binary"] else "",
                row["purpose"],
            )
            for row in results.footprint
        ),
        note=f"Source: {results.footprint[0]['source']}.",
    )
    measured = [
        (run.machine, f"{int(run.environment['binary_bytes']) / 1e6:.2f} MB", run.run_id)
        for run in results.runs
        if str(run.environment.get("binary_bytes", "")).isdigit()
    ]
    if not measured:
        return [published]
    columns = (Column("machine"), Column("build/scaling_contrasts", RIGHT), Column("run"))
    title = "The native binary, as built where it was measured"
    return [published, Table("measured-footprint", title, columns, tuple(measured))]


def domains(rows: Sequence[Row]) -> Table:
    """The article's table of scale-up domains."""
    return Table(
        id="published-scale-up-domains",
        title="Scale-up domains, as published",
        columns=(
            Column("Scale-up domain"),
            Column("GPUs", RIGHT),
            Column("Per GPU, both ways", RIGHT),
            Column("Fabric"),
            Column("Reductions", CENTER),
            Column("Matrix units", LEFT),
        ),
        rows=tuple(
            (
                row["domain"],
                row["gpus"],
                f"{row['terabytes_per_second_per_gpu_both_ways']} TB/s",
                row["fabric"],
                row["in_switch_reductions"],
                row["matrix_units"],
            )
            for row in rows
        ),
        note=f"Reductions: whether the fabric can add numbers in flight. Source: {rows[0]['source']}.",
    )


def one_box_against_two(rows: Sequence[Row]) -> Table:
    """What each system pays for the second box, from the published digits."""
    by_nodes = {(int(row["nodes"]), row["rows"], system_label(row)): row for row in rows}
    body = []
    for size in _ordered(row["rows"] for row in rows):
        for name in _ordered(system_label(row) for row in rows):
            one, two = (by_nodes.get((nodes, size, name)) for nodes in (1, 2))
            if not one or not two:
                continue
            before, after = number(one, "best_seconds"), number(two, "best_seconds")
            if before is None or after is None:
                body.append((size, name, published_cell(one), published_cell(two), "", ""))
                continue
            # Twice the GPUs hold twice the rows and cover four times the cells: the same pace per GPU is a ratio of 2.
            pace = 2 * before / after
            times = (one["published_time_text"], two["published_time_text"])
            body.append((size, name, *times, f"{significant(after / before)}x", f"{significant(100 * pace)}%"))
    columns = ("R", "system", "one box", "two boxes", "step takes", "pace per GPU kept")
    return Table(
        id="published-one-box-two-boxes",
        title="One box against two, from the published times",
        columns=tuple(Column(name, LEFT if name == "system" else RIGHT) for name in columns),
        rows=tuple(body),
        note="Twice the GPUs at the same R cover four times the cells, so each GPU does twice the work: "
        "at an unchanged pace per GPU the step takes 2x.",
    )


def _loss_note(rows: Sequence[Row]) -> str:
    losses: dict[str, str] = {}
    for row in rows:
        losses.setdefault(system_label(row), loss_name(row["loss"]))
    return "Loss of each column: " + "; ".join(f"{name}, {loss}" for name, loss in losses.items()) + "."


def _ordered(items) -> list[str]:
    """Without repeats, in the order of first appearance: the published order."""
    return list(dict.fromkeys(items))
