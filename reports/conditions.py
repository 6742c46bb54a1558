"""Under what each row was measured: clocks, power, energy, load, retries, and what first use cost."""

from __future__ import annotations

from harness import cost
from reports.measured import head_of, in_order
from reports.store import Row, Run, number
from reports.table import LEFT, RIGHT, Column, Table
from reports.text import live_rows, memory_text, significant, time_text

_HEADS = ("system", "loss", "state", "R", "ranks")
_WORDS = ("caches", "throttle reasons")


def conditions(run: Run) -> Table | None:
    """One line for each row that was timed; None for runs of before such things were recorded."""
    timed = [row for row in in_order(run) if row["best_seconds"] and (row["load_average"] or row["power_watts"])]
    if not timed:
        return None
    columns = (
        *_HEADS,
        *("caches", "retries", "lowest clock", "highest clock", "power", "throttle reasons", "load"),
        *("energy per step", "J per million cells", "compiling", "autotuning", "first collective"),
        "driver less allocator",
    )
    words = (*_HEADS[:3], *_WORDS)
    return Table(
        id=f"conditions-{run.slug}",
        title=f"Conditions and first use: {run.title}",
        columns=tuple(Column(name, LEFT if name in words else RIGHT) for name in columns),
        rows=tuple(_line(row) for row in timed),
        note="Read at the edges of timed blocks. Clocks are the GPU's SMs' (on CPU the cores' mean), power is of one "
        "GPU, energy of all together. A million cells are covered cells, each once, whoever computes it. "
        "Autotuning includes the compiling of its candidates.",
    )


def _line(row: Row) -> tuple[str, ...]:
    joules, retries = number(row, "energy_joules_per_step"), row["retries"]
    per_cells = None if joules is None else cost.joules_per_million_cells(joules, live_rows(row))
    first_use = (number(row, f"{name}_seconds") for name in ("compile", "autotune", "first_collective"))
    difference = number(row, "allocator_driver_difference_bytes")
    return (
        *head_of(row),
        row["cache_state"],
        "" if retries == "0" else retries,
        *(_with_unit(row, f"clock_{end}_mhz", "MHz") for end in ("low", "high")),
        _with_unit(row, "power_watts", "W"),
        row["throttle_reasons"],
        _with_unit(row, "load_average", ""),
        "" if joules is None else f"{significant(joules)} J",
        "" if per_cells is None else significant(per_cells),
        *("" if value is None else time_text(value) for value in first_use),
        "" if difference is None else ("-" if difference < 0 else "") + memory_text(abs(difference)),
    )


def _with_unit(row: Row, column: str, unit: str) -> str:
    value = number(row, column)
    return "" if value is None else f"{significant(value)} {unit}".rstrip()
