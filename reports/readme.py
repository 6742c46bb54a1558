"""The README's headline, written from results: a table between two markers, and a picture. No number typed by hand."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from harness.records import write_atomically
from reports.facts import fastest, headline_shapes
from reports.measured import OUR_SYSTEM
from reports.store import Results, Row, number
from reports.table import RIGHT, Column, Table
from reports.text import loss_name, measured_cell, published_cell, significant, system_label

BEGIN, END = "<!-- headline:begin -->", "<!-- headline:end -->"
PICTURE = Path("docs/images/headline.svg")
LOSSES = ("one_set_sigmoid", "two_set_sigmoid", "info_nce")


class ReadmeError(ValueError):
    """README.md lacks the markers; one line."""


def refresh(results: Results, root: Path, check: bool) -> int:
    """Write README.md and the picture, or with `check` only compare. Returns 0; 1 when `check` finds a difference."""
    from reports.charts import headline

    readme, picture = root / "README.md", root / PICTURE
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as problem:
        raise ReadmeError(f"{readme}: cannot be read ({problem.strerror})") from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ReadmeError(f"{readme}: needs the lines {BEGIN} and {END}, once each and in this order")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    wanted = {readme: f"{before}\n\n{block(results)}\n{after}".encode(), picture: headline(results).svg.encode()}
    stale = [path for path, data in wanted.items() if not path.exists() or path.read_bytes() != data]
    if check:
        for path in stale:
            print(f"{path} is out of date; run: python -m reports --readme", file=sys.stderr)
        return 1 if stale else 0
    picture.parent.mkdir(parents=True, exist_ok=True)
    for path in stale:
        write_atomically(path, wanted[path])
        print(f"wrote {path}")
    return 0


def block(results: Results) -> str:
    """What stands between the markers: the table and its note."""
    made = table(results)
    return f"{made.markdown()}\n{made.note}\n"


def table(results: Results) -> Table:
    """At the largest R of each machine, `time · memory`: one set beside the fastest peer of another loss, as the
    article has it; then each native loss beside the fastest peer of the same loss.
    """
    body = []
    for nodes in ("1", "2"):
        pair = fastest([row for row in results.loss_step if row["nodes"] == nodes], "article_scaling_contrasts")
        if pair:
            machine = f"{pair[0]['world_size']}x {pair[0]['device_name'].split()[0]} (the article)"
            body.append(_line(machine, pair, [published_cell(row) for row in pair]))
    runs = []
    for shape in headline_shapes(results):
        machine = f"{shape.run.machine} ({shape.place})"
        pairs = [fastest(shape.rows, OUR_SYSTEM, same=False)]
        pairs += [fastest(shape.rows, OUR_SYSTEM, loss, same=True) for loss in LOSSES]
        for pair in filter(None, pairs):
            body.append(_line(machine, pair, [measured_cell(row, shape.memory_column) for row in pair]))
        runs.append(
            f"{shape.run.machine}: protocol {shape.run.protocol}, run {shape.run.run_id}, {shape.memory_column}"
        )
    note = "Best loss-step time, then memory per rank; five prefixes of 1024 dimensions, bf16."
    if runs:
        note += f" Measured: {'; '.join(runs)}."
    return Table(
        "headline",
        "Headline",
        (
            Column("machine"),
            Column("R", RIGHT),
            Column("native loss"),
            Column("its figures", RIGHT),
            Column("fastest peer"),
            Column("its loss"),
            Column("its figures", RIGHT),
            Column("faster by", RIGHT),
        ),
        tuple(body),
        note,
    )


def _line(machine: str, pair: tuple[Row, Row], cells: Sequence[str]) -> tuple[str, ...]:
    ours, peer = pair
    ratio = number(peer, "best_seconds") / number(ours, "best_seconds")
    its_loss = "the same" if peer["loss"] == ours["loss"] else loss_name(peer["loss"])
    peers = (system_label(peer), its_loss, cells[1])
    return machine, ours["rows"], loss_name(ours["loss"]), cells[0], *peers, f"{significant(ratio, 2)}x"
