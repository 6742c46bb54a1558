"""Published figures beside the same case measured here, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reports.store import Results, Row, Run, number
from reports.table import RIGHT, Column, Table
from reports.text import live_rows, memory_bytes_of, significant, status_text, time_text


@dataclass(frozen=True)
class Paper:
    """How a publication counts: the columns that match its time and memory, and what it calls a gigabyte."""

    title: str
    memory: str
    time: str
    note: str
    gigabyte: float = 1e9


PAPERS = {
    "inf_cl_table_1": Paper(
        "Inf-CL, table 1: loss memory",
        "step_peak_bytes",
        "best_seconds",
        "One GPU plays each column: the whole grid for CLIP, one rank of 8 or 32 for OpenCLIP, one of the ring for "
        "Inf-CL. The published figures are whole-number multiples of binary gigabytes, so GB is read as 2^30 bytes. "
        "Inf-CL's ring of one rank sends no captions on: by the source of inf-cl 1.2.1 a rank of a longer ring holds "
        "five more arrays of R x 768 floats, 15 instead of 10; that is what its larger batches lack here. Small ones "
        "have 64 MiB on top, whatever R is, probably the workspaces that PyTorch gives cuBLAS, smaller on an A800. "
        "`wrong`: its loss, not its embeddings' gradients (configs/system/inf_cl.yaml).",
        2.0**30,
    ),
    "inf_cl_table_4": Paper(
        "Inf-CL, table 4: loss memory of 64k pairs on 4 GPUs",
        "step_peak_bytes",
        "best_seconds",
        "As for table 1; a rank of 4. By its source the plain ring holds one more R x R block of logits, 1 GB, where "
        "it has several ranks.",
        2.0**30,
    ),
    "siglip_kernel_readme": Paper(
        "siglip-kernel's README",
        "allocated_peak_bytes",
        "best_seconds",
        "Published on GH200 and H100. Which statistic its times are is not stated; measured ones are the best block. "
        "Here a step also normalises the rows, in float32, and the peak counts inputs and gradients (the step alone: "
        "table of statuses). And dt is asked for: the eager loss then keeps one more R x R block in bf16, 8.6 GB of "
        "65536 pairs, by its source. What the published figures count is not stated.",
    ),
    "metric_learning_page": Paper(
        "pytorch-metric-learning's performance page, release 2.9.0",
        "allocated_peak_bytes",
        "mean_seconds",
        "Means of process means, total allocation; the A40 figures are allocation above inputs. Inputs are "
        "standard normal there, this suite's near-normal ones here.",
    ),
}
# (published system, variant) -> (system, variant) here, and whether R or the whole batch must be equal.
_COUNTERPARTS = {
    ("clip_vanilla", "full_matrix"): ("open_clip", "clip_fp32", "batch"),
    ("open_clip", "local"): ("open_clip", "clip_rank_of_{world_size}", "rows"),
    ("inf_cl", "tiled"): ("inf_cl", "inf", "rows"),
    ("siglip_kernel", "eager_reference"): ("siglip_kernel", "reference", "rows"),
    ("siglip_kernel", "chunk_4096"): ("siglip_kernel", "default", "rows"),
    ("siglip_kernel", "chunk_1024"): ("siglip_kernel", "minimum_memory", "rows"),
    ("siglip_kernel", "ring"): ("siglip_kernel", "default", "batch"),
}


def tables(results: Results) -> list[Table]:
    """One table per publication of which anything was measured: a line for each figure, measured or not."""
    found = []
    for stem, rows in results.literature.items():
        if stem not in PAPERS:
            continue
        pairs = [(row, _measured(row, results.runs)) for row in rows]
        if any(measured for _, measured in pairs):
            found.append(_table(stem, PAPERS[stem], pairs))
    return found


def _measured(row: Row, runs: Sequence[Run]) -> list[tuple[Row, Run]]:
    """Each run's row that redoes a published one."""
    found = [(_counterpart(row, run), run) for run in runs]
    return [(measured, run) for measured, run in found if measured is not None]


def _table(stem: str, paper: Paper, pairs: Sequence[tuple[Row, Sequence[tuple[Row, Run]]]]) -> Table:
    body = []
    for row, found in pairs:
        for measured, run in found:
            where = f"{run.machine}, protocol {run.protocol}"
            remark = measured["reason"] if measured["status"] == "wrong" else ""
            body.append((*_head(row), *_cells(row, measured, paper), where, remark))
        if not found:
            body.append((*_head(row), "not measured", *[""] * 7))
    names = (
        "system",
        "batch",
        "ranks",
        "on",
        "time",
        "memory",
        "measured as",
        "R",
        "time here",
        "against",
        "memory here",
    )
    right = ("batch", "ranks", "time", "memory", "R", "time here", "against", "memory here", "memory against")
    columns = (*names, "memory against", "where", "remarks")
    heads = {"against": "deviation", "memory against": "deviation of memory", "memory here": f"{paper.memory}"}
    return Table(
        id=f"paper-{stem.replace('_', '-')}",
        title=f"{paper.title}: published and measured",
        columns=tuple(Column(heads.get(name, name), RIGHT if name in right else "left") for name in columns),
        rows=tuple(body),
        note=f"{paper.note} Deviation: measured over published, less one. `wrong`: timed all the same; the remark says "
        "by how much the gate's limits were missed, the table of known defects why.",
    )


def _counterpart(row: Row, run: Run) -> Row | None:
    """The row of a run that redoes a published one."""
    key = (row["system"], row["variant"])
    system, variant, by = _COUNTERPARTS.get(key, (*key, "rows"))
    if by == "batch" and key[0] == "siglip_kernel" and row["world_size"] != "1":
        return None  # several GPUs are not played by one
    wanted = live_rows(row) if by == "batch" else int(row["rows"])
    for each in run.rows:
        same = (each["system"], each["variant"], each["dims"]) == (
            system,
            variant.format(world_size=row["world_size"]),
            row["dims"],
        )
        same &= each["world_size"] == "1" and int(each["rows"]) == wanted and each["device"] == "cuda"
        same &= all(not row[name] or each[name] == row[name] for name in ("labels", "dtype", "state"))
        same &= each["prefixes"] == row["prefixes"]
        if same:
            return each
    return None


def _head(row: Row) -> tuple[str, ...]:
    ok = row["status"] == "ok"
    return (
        f"{row['system']} {row['variant']}",
        str(live_rows(row)),
        row["world_size"],
        row["device_name"],
        row["published_time_text"] if ok else status_text(row),
        row["published_memory_text"] if ok else status_text(row),
    )


def _cells(row: Row, measured: Row, paper: Paper) -> tuple[str, ...]:
    name = f"{measured['system']} {measured['variant']}"
    seconds, memory = number(measured, paper.time), number(measured, paper.memory)
    if measured["status"] not in ("ok", "wrong"):
        return (name, measured["rows"], status_text(measured), "", status_text(measured), "")
    published_seconds = number(row, paper.time) or number(row, "best_seconds")
    bytes_published = memory_bytes_of(row["published_memory_text"])
    if bytes_published and " GB" in row["published_memory_text"]:
        bytes_published *= paper.gigabyte / 1e9
    unit, suffix = (paper.gigabyte, "GB") if "GB" in row["published_memory_text"] else (2.0**20, "MiB")
    mark = " (wrong)" if measured["status"] == "wrong" else ""
    return (
        name,
        measured["rows"],
        "" if seconds is None else f"{time_text(seconds)}{mark}",
        _deviation(seconds, published_seconds),
        "" if memory is None else f"{significant(memory / unit)} {suffix}",
        _deviation(memory, bytes_published),
    )


def _deviation(measured: float | None, published: float | None) -> str:
    if not measured or not published:
        return ""
    return f"{round(100 * (measured / published - 1), 1) + 0.0:+.1f}%"  # never -0.0
