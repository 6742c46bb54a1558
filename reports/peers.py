"""What each peer computes: its own declaration, and the defects that are known of it."""

from __future__ import annotations

from collections.abc import Sequence

from reports.store import Row
from reports.table import RIGHT, Column, Table


def declarations(rows: Sequence[Row]) -> Table:
    """A line per system, loss and declaration, with the variants that share it."""
    body = []
    for row in rows:
        factors = [row[f"{name}_factor"] for name in ("loss", "feature_gradient", "scalar_gradient")]
        body.append(
            (
                row["system"],
                row["variants"].replace(" ", ", "),
                row["loss"],
                row["computes"],
                row["sets"],
                row["negatives"],
                row["normalisation"],
                *(factor.replace("world_size", "W") for factor in factors),
                row["scale_gradient"],
                row["bias_gradient"],
                row["notes"],
            )
        )
    heads = "system variants loss computes sets negatives normalisation loss dX dt,db t b notes".split()
    names = {"loss": "loss", "dX": "dX times", "dt,db": "dt, db times", "t": "gradient of t", "b": "gradient of b"}
    columns = [Column(names.get(name, name), RIGHT if name == "sets" else "left") for name in heads]
    columns[7] = Column("loss times")
    return Table(
        id="peer-declarations",
        title="What each peer computes, by its own declaration",
        columns=tuple(columns),
        rows=tuple(body),
        note="W: the number of ranks. Raw outputs of a step are multiplied by these factors, outside the timed step, "
        "to become those of the global mean loss: dX of a rank's own backward pass, the others summed over ranks. The "
        "factors are stated from each system's definition and checked against the float64 reference, never fitted. "
        "`none`: the step yields no such gradient.",
    )


def caveats(rows: Sequence[Row]) -> Table:
    """Known defects of peers and how they show here."""
    return Table(
        id="peer-caveats",
        title="Known defects, and how each shows in this suite",
        columns=tuple(Column(name) for name in ("system", "defect", "what happens", "here", "source")),
        rows=tuple((row["system"], row["title"], row["what_happens"], row["here"], row["source"]) for row in rows),
        note="Numbers with a project's name are its public issues and pull requests. Nothing is repaired silently.",
    )
