"""All-reduces and scaling over GPUs: bus bandwidth by message size, and what a step keeps of one GPU's pace.

Bus bandwidth is nccl-tests' definition: `bytes / seconds * 2 (N - 1) / N` for an all-reduce over N ranks, `bytes` being
one rank's message. It compares with the speed of a link, whatever N is.
"""

from __future__ import annotations

from collections.abc import Sequence

from reports.store import Row, Run, number
from reports.table import LEFT, RIGHT, Column, Table
from reports.text import loss_name, rate_text, significant, status_text, system_label, time_text

ALL_REDUCE = "one_set_all_reduce"
OURS, NCCL = "native_all_reduce", "torch_all_reduce"


def is_collective(row: Row) -> bool:
    """Whether a row is of an all-reduce, which is no loss: it stands in tables of its own."""
    return row["loss"] == ALL_REDUCE


def bus_bandwidth(row: Row) -> float | None:
    """Bytes per second; None without a time."""
    seconds, ranks = number(row, "best_seconds"), int(row["world_size"])
    if row["status"] != "ok" or not seconds or not row["bytes"]:
        return None
    return float(row["bytes"]) / seconds * 2 * (ranks - 1) / ranks


def message_text(size: float) -> str:
    """Binary units, in which messages are chosen: `4 KiB`."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}"
        size /= 1024
    return f"{size:g} GiB"


def rate_words(per_second: float) -> str:
    """`334 GB/s`."""
    return rate_text(per_second).replace("/s", "B/s")


def tables(run: Run) -> list[Table]:
    """One for each number of ranks: messages down, ways across, `time, bus bandwidth` or a status."""
    rows = [row for row in run.rows if is_collective(row)]
    return [_table(run, [row for row in rows if row["world_size"] == ranks], ranks) for ranks in _distinct(rows)]


def _distinct(rows: Sequence[Row]) -> list[str]:
    return sorted({row["world_size"] for row in rows}, key=int)


def _table(run: Run, rows: Sequence[Row], ranks: str) -> Table:
    names = sorted({system_label(row) for row in rows}, key=lambda name: (not name.startswith("native"), name))
    cells = {(system_label(row), _size(row)): row for row in rows}
    body, emphasis = [], set()
    for index, size in enumerate(sorted({_size(row) for row in rows})):
        line, rated = [message_text(size)], []
        for place, name in enumerate(names, start=1):
            row = cells.get((name, size))
            rate = bus_bandwidth(row) if row else None
            if rate:
                rated.append((rate, place))
                line.append(f"{time_text(number(row, 'best_seconds'))}, {rate_words(rate)}")
            else:
                line.append(status_text(row) if row else "not measured")
        if rated:
            emphasis.add((index, max(rated)[1]))
        body.append(tuple(line))
    name = next((row["device_name"] for row in rows if row["device_name"]), rows[0]["device"])
    return Table(
        id=f"all-reduce-{run.slug}-{ranks}",
        title=f"All-reduce over {ranks}x {name}: best time, then bus bandwidth",
        columns=(Column("message"), *(Column(each, RIGHT) for each in names)),
        rows=tuple(body),
        note=f"{run.title}. float32, in place. Bus bandwidth: bytes / time * 2 (N - 1) / N, as nccl-tests has it.",
        emphasis=frozenset(emphasis),
    )


def _size(row: Row) -> int:
    return int(row["bytes"] or int(row["rows"]) * int(row["dims"]) * 4)


def best_ratio(run: Run, ours: str) -> tuple[float, int] | None:
    """The best bus bandwidth of our variant `ours` over NCCL's best, on the most ranks that have both; and how many."""
    for ranks in reversed(_distinct([row for row in run.rows if is_collective(row)])):
        best: dict[str, float] = {}
        for row in run.rows:
            rate = bus_bandwidth(row) if is_collective(row) and row["world_size"] == ranks else None
            if rate and row["system"] == OURS and row["variant"] == ours:
                best["ours"] = max(rate, best.get("ours", 0.0))
            if rate and row["system"] == NCCL and row["variant"].startswith("nccl"):
                best["nccl"] = max(rate, best.get("nccl", 0.0))
        if len(best) == 2:
            return best["ours"] / best["nccl"], int(ranks)
    return None


def scaling(run: Run) -> Table | None:
    """Weak and strong scaling of every series that has one GPU and several; None where none has.

    Weak: R per GPU stays, work per GPU is R x N R cells. Its efficiency is the pace of cells per GPU against one GPU's
    at the same R. Strong: N R stays. Its efficiency is t(1) / (N t(N)).
    """
    body = [
        (*head, str(ranks), str(size), time_text(seconds), _percent(weak), _percent(strong), _time(skew))
        for *head, ranks, size, seconds, weak, strong, skew in efficiencies(run)
    ]
    if not body:
        return None
    columns = ("system", "loss", "state", "ranks", "R per rank", "best", "weak efficiency", "strong efficiency", "skew")
    return Table(
        id=f"scaling-{run.slug}",
        title=f"Scaling over ranks: {run.title}",
        columns=tuple(Column(name, RIGHT if place > 2 else LEFT) for place, name in enumerate(columns)),
        rows=tuple(body),
        note="Weak: cells per second and rank at N ranks over those at one rank of the same R, N t(1, R) / t(N, R), "
        "for each rank covers N R x R cells. Strong: t(1, N R) / (N t(N, R)). The one-set loss scores a rank's own "
        "block for both halves at once: 3 R R D FLOPs against 4 R R D of each foreign block. Counted so, its "
        "efficiencies are at most 3N / (4N - 1); where a step is mostly fixed costs, they come out higher. Skew: how "
        "much later the last GPU of a native box begins a step than the first; of ranks that are processes, by how "
        "much their blocks' times lie apart, per step. Empty: not recorded.",
    )


def efficiencies(run: Run) -> list[tuple]:
    """`(system, loss, state, ranks, R, seconds, weak, strong, skew)` of rows of several ranks, with one to compare."""
    rows = {
        (system_label(row), loss_name(row["loss"]), row["state"], int(row["world_size"]), int(row["rows"])): row
        for row in run.rows
        if row["status"] == "ok" and row["best_seconds"] and row["nodes"] == "1" and not is_collective(row)
    }
    times = {key: number(row, "best_seconds") for key, row in rows.items()}
    found = []
    for (label, loss, state, ranks, size), seconds in sorted(times.items()):
        one, whole = times.get((label, loss, state, 1, size)), times.get((label, loss, state, 1, size * ranks))
        if ranks > 1 and (one or whole):
            weak, strong = one and ranks * one / seconds, whole and whole / (ranks * seconds)
            skew = number(rows[label, loss, state, ranks, size], "skew_seconds")
            found.append((label, loss, state, ranks, size, seconds, weak, strong, skew))
    return found


def _time(value: float | None) -> str:
    return "" if value is None else time_text(value)


def _percent(value: float | None) -> str:
    return f"{significant(100 * value, 3)}%" if value else ""
