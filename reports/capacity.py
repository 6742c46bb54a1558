"""The table of largest batches: what each system holds on a machine, measured beside predicted."""

from __future__ import annotations

from reports.store import Capacity, Row, number, slug
from reports.table import RIGHT, Column, Table
from reports.text import STATUS_NAMES, loss_name, loss_order, memory_text


def largest_batch(found: Capacity) -> Table:
    """One row per system and place."""
    rows = sorted(found.rows, key=lambda row: (int(row["world_size"]), row["state"], loss_order(row["loss"])))
    runs = "run" if len(found.run_ids) == 1 else "runs"
    names = ("largest R", "memory at it", "predicted memory", "limit", "smallest R that fails", "how", "remark")
    return Table(
        id=f"largest-batch-{slug(found.machine)}",
        title=f"Largest batch: {found.machine}, {runs} {', '.join(found.run_ids)}",
        columns=(
            Column("system"),
            Column("loss"),
            Column("state"),
            Column("ranks", RIGHT),
            *(Column(name) if name in ("how", "remark") else Column(name, RIGHT) for name in names),
        ),
        rows=tuple(_line(row) for row in rows),
        note="R is rows (one set) or pairs (two sets) per rank; memory is per rank, the larger of the allocator's and "
        "the driver's figure (on CPU: the operating system's). An R fits when it runs within the limit. Where a search "
        "ended early, as its remark says, R is a lower bound. Predictions are from each system's formula when the "
        "search ran. Of several searches of a system the newest is shown. How close the two ends lie and how often "
        "each was launched: `capacity.csv` and `environment.json` of the run.",
    )


def _line(row: Row) -> tuple[str, ...]:
    known = [number(row, name) for name in ("allocated_peak_bytes", "device_used_bytes") if row[name]]
    status = "" if row["status"] == "ok" else STATUS_NAMES.get(row["status"], row["status"].replace("_", " "))
    remark = ": ".join(text for text in (status, row["reason"]) if text)
    return (
        f"{row['system']} {row['variant']}",
        loss_name(row["loss"]),
        row["state"],
        row["world_size"],
        row["largest_rows"],
        memory_text(max(known)) if known else "",
        *(memory_text(number(row, name)) if row[name] else "" for name in ("predicted_bytes", "limit_bytes")),
        row["failing_rows"],
        STATUS_NAMES.get(row["failing_outcome"], row["failing_outcome"]),
        remark,
    )
