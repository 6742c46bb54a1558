"""Published figures beside the same case measured here, and how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness import cost
from reports.store import Results, Row, number
from reports.table import LEFT, RIGHT, Column, Table
from reports.text import live_rows, marked, memory_bytes_of, published_name, significant, status_text, time_text


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
        "What `measured as` calls `N ranks` ran on as many GPUs. Data offload stands beside the native loss's, whose "
        "one GPU streams the whole batch, the sigmoid loss's too. "
        "`wrong`: its loss, not its embeddings' gradients (configs/system/inf_cl.yaml).",
        2.0**30,
    ),
    "inf_cl_table_2": Paper(
        "Inf-CL, table 2: the largest batch of each loss, and its memory",
        "step_peak_bytes",
        "best_seconds",
        "As for table 1. Data offload: the native loss holds a batch as large on one GPU, all of its embeddings and "
        "gradients in the host's memory, where the published rank holds an eighth or less of it; what counts here is "
        "all that it takes on the GPU, bounded by an option (docs/usage.md). No case here sought the largest batch.",
        2.0**30,
    ),
    "inf_cl_table_4": Paper(
        "Inf-CL, table 4: loss memory of 64k pairs on 4 GPUs",
        "step_peak_bytes",
        "best_seconds",
        "As for table 1; one GPU plays a rank of 4, and lines of `4 ranks` ran on four. By its source the plain ring "
        "holds one more R x R block of logits, 1 GB, where it has several ranks.",
        2.0**30,
    ),
    "siglip_kernel_readme": Paper(
        "siglip-kernel's README",
        "allocated_peak_bytes",
        "best_seconds",
        "Published on GH200 and H100. Which statistic its times are is not stated; measured ones are the best block. "
        "Variants `*_unit_rows` have the README's setting, unit rows as inputs; with the others a step normalises the "
        "rows, too, in float32. The peak counts inputs and gradients (the step alone: table of statuses). And dt is "
        "asked for: the eager loss then keeps one more R x R block in bf16, 8.6 GB of 65536 pairs, by its source. What "
        "the published figures count is not stated.",
    ),
    "metric_learning_page": Paper(
        "pytorch-metric-learning's performance page, release 2.9.0",
        "allocated_peak_bytes",
        "mean_seconds",
        "Times are means of process means; of the A40 and the M1 Pro (one CPU thread) medians of each pass, whose sum "
        "stands against the median of whole steps. Memory is the allocator's peak; `above baseline` is what of it "
        "comes on top of inputs and retained workspaces: of an H200 64 MiB of cuBLAS's, as 128 rows show, which take "
        "64.8 MiB in all. Largest batches are of capacity searches within 90% of the GPU's memory. Inputs are standard "
        "normal there, this suite's near-normal ones here.",
    ),
}


@dataclass(frozen=True)
class Counterpart:
    """A variant here that redoes a published one: on as many ranks, each with as many rows, or played by one rank.

    `alone`: what that one rank holds, the published rank's `rows` or the whole `batch`.
    """

    system: str
    variant: str
    alone: str = ""

    def redoes(self, row: Row, measured: Row) -> bool:
        """Whether a measured row is this variant at a published row's size and setting."""
        ranks = "1" if self.alone else row["world_size"]
        rows = live_rows(row) if self.alone == "batch" else int(row["rows"])
        wanted = {
            "system": self.system,
            "variant": self.variant.format(world_size=row["world_size"]),
            "world_size": ranks,
            "rows": str(rows),
            **{name: row[name] for name in _SETTING if row[name]},
        }
        if ranks != "1" and row["nodes"]:
            wanted["nodes"] = row["nodes"]
        return all(measured[name] == value for name, value in wanted.items())


def _in_both_settings(variant: str) -> tuple[Counterpart, ...]:
    """Of siglip-kernel: with unit rows as inputs, its README's setting, and normalising in the step."""
    return Counterpart("siglip_kernel", f"{variant}_unit_rows"), Counterpart("siglip_kernel", variant)


_SETTING = ("dims", "prefixes", "labels", "dtype", "state", "device")
# By published system and variant; of others the namesake.
_COUNTERPARTS = {
    ("clip_vanilla", "full_matrix"): (
        Counterpart("open_clip", "clip_fp32", alone="batch"),
        Counterpart("open_clip", "clip_fp32"),
    ),
    ("open_clip", "local"): (
        Counterpart("open_clip", "clip_rank_of_{world_size}", alone="rows"),
        Counterpart("open_clip", "clip_local_fp32"),
    ),
    ("inf_cl", "tiled"): (Counterpart("inf_cl", "inf", alone="rows"), Counterpart("inf_cl", "inf")),
    ("inf_cl", "ring"): (Counterpart("inf_cl", "ring", alone="rows"), Counterpart("inf_cl", "ring")),
    ("inf_cl", "tiled_data_offload"): (
        Counterpart("native", "info_nce_offload", alone="batch"),
        Counterpart("native", "two_set_offload", alone="batch"),
    ),
    ("siglip_kernel", "eager_reference"): _in_both_settings("reference"),
    ("siglip_kernel", "chunk_4096"): _in_both_settings("default"),
    ("siglip_kernel", "chunk_1024"): _in_both_settings("minimum_memory"),
    ("siglip_kernel", "ring"): _in_both_settings("default"),
}
LARGEST = "largest batch"  # what a published row's memory begins with where it is a limit and no case
ABOVE_BASELINE = "above baseline"  # what it ends with where inputs and retained workspaces do not count
# Bytes that cuBLAS keeps in PyTorch's allocator; of others than these GPUs not known here.
_WORKSPACES = {"NVIDIA H200": 64 << 20}


def tables(results: Results) -> list[Table]:
    """One table per publication of which anything was measured: a line for each figure, measured or not."""
    found = []
    for stem, rows in results.literature.items():
        if stem not in PAPERS:
            continue
        pairs = [(row, _measured(row, results)) for row in rows]
        if any(measured for _, measured in pairs):
            found.append(_table(stem, PAPERS[stem], pairs))
    return found


def _measured(row: Row, results: Results) -> list[tuple[Row, str]]:
    """Each measured row that redoes a published one, and where it was measured.

    A row that could not run, or was not reached, stands only where there is no other.
    """
    if row["published_memory_text"].startswith(LARGEST):
        searches = [(each, f"{found.machine}, capacity") for found in results.capacities for each in found.rows]
        return [(each, where) for each, where in searches if _same_search(row, each)]
    key = (row["system"], row["variant"])
    counterparts = _COUNTERPARTS.get(key, (Counterpart(*key),))
    found = [
        (measured, f"{run.machine}, protocol {run.protocol}")
        for run in results.runs
        for measured in run.rows
        if any(one.redoes(row, measured) for one in counterparts)
    ]
    return [each for each in found if each[0]["status"] not in ("unsupported", "interrupted")] or found[:1]


def _same_search(row: Row, found: Row) -> bool:
    names = ("system", "variant", "world_size", *_SETTING)
    return bool(found["largest_rows"]) and all(found[name] == row[name] for name in names if row[name])


# In order; the ones that hold times are left out where no time is published, and remarks where there are none. Of the
# places that all lines share the note tells.
_COLUMNS = {
    "system": LEFT,
    "batch": RIGHT,
    "ranks": RIGHT,
    "on": LEFT,
    "time": RIGHT,
    "memory": RIGHT,
    "measured as": LEFT,
    "R": RIGHT,
    "time here": RIGHT,
    "deviation": RIGHT,
    "memory here": RIGHT,
    "deviation of memory": RIGHT,
    "where": LEFT,
    "remarks": LEFT,
}


def _table(stem: str, paper: Paper, pairs: Sequence[tuple[Row, Sequence[tuple[Row, str]]]]) -> Table:
    body, beside = [], [row for row, _ in pairs]
    for row, found in pairs:
        for measured, where in found:
            limit = row["published_memory_text"].startswith(LARGEST)
            cells = _limit_cells(row, measured) if limit else _cells(row, measured, paper)
            body.append((*_head(row, beside), *cells, where, measured["reason"] if limit else _remark(measured)))
        if not found:
            body.append((*_head(row, beside), "not measured", *[""] * 7))
    left_out = set() if any(row["published_time_text"] for row in beside) else {"time", "deviation"}
    left_out |= set() if any(line[-1] for line in body) else {"remarks"}
    shared = ""
    for name, words in (("on", "Published"), ("where", "Measured")):
        found = {line[list(_COLUMNS).index(name)] for line in body} - {""}
        if len(found) == 1:
            left_out.add(name)
            shared += f" {words} on {found.pop()}."
    kept = [place for place, name in enumerate(_COLUMNS) if name not in left_out]
    columns = [Column(paper.memory if name == "memory here" else name, side) for name, side in _COLUMNS.items()]
    return Table(
        id=f"paper-{stem.replace('_', '-')}",
        title=f"{paper.title}: published and measured",
        columns=tuple(columns[place] for place in kept),
        rows=tuple(tuple(line[place] for place in kept) for line in body),
        note=f"{paper.note}{shared} Deviation: measured over published, less one. `wrong`: timed all the same; the "
        "remark says why that is expected or, of older rows, by how much the first of the gate's limits was missed.",
    )


def _remark(measured: Row) -> str:
    """Why a row is wrong, as its variant has it; else the first thing that the gate found. All: table of statuses."""
    if measured["status"] != "wrong":
        return ""
    found, _, because = measured["reason"].partition(". Expected: ")
    return because or found.split("; ")[0]


def _head(row: Row, beside: Sequence[Row]) -> tuple[str, ...]:
    ok = row["status"] == "ok"
    return (
        published_name(row, beside),
        str(live_rows(row)),
        row["world_size"],
        row["device_name"],
        row["published_time_text"] if ok else status_text(row),
        row["published_memory_text"] if ok else status_text(row),
    )


def _cells(row: Row, measured: Row, paper: Paper) -> tuple[str, ...]:
    name = _name(measured)
    if measured["status"] not in ("ok", "wrong"):
        return (name, measured["rows"], status_text(measured), "", status_text(measured), "")
    published = row["published_memory_text"]
    statistic = next((column for column in (paper.time, "median_seconds", "best_seconds") if row[column]), paper.time)
    seconds, memory = number(measured, statistic), _memory(measured, paper, published)
    bytes_published = memory_bytes_of(published)
    if bytes_published and " GB" in published:
        bytes_published *= paper.gigabyte / 1e9
    unit, suffix = _unit(published, memory or 0.0, paper)
    suffix += f" {ABOVE_BASELINE}" if published.endswith(ABOVE_BASELINE) else ""
    return (
        name,
        measured["rows"],
        "" if seconds is None else marked(measured, time_text(seconds)),
        _deviation(seconds, number(row, statistic)),
        "" if memory is None else f"{significant(memory / unit)} {suffix}",
        _deviation(memory, bytes_published),
    )


def _unit(published: str, memory: float, paper: Paper) -> tuple[float, str]:
    """The published figure's, so that digits compare; where there is none, by size."""
    if " MB" in published:
        return 1e6, "MB"
    large = " GB" in published or (not published and memory >= paper.gigabyte)
    return (paper.gigabyte, "GB") if large else (2.0**20, "MiB")


def _limit_cells(row: Row, found: Row) -> tuple[str, ...]:
    """Of a capacity search: the largest R, and how far it is from the published one."""
    against = _deviation(float(found["largest_rows"]), float(row["rows"]))
    return (_name(found), found["largest_rows"], "", "", LARGEST, against)


def _name(measured: Row) -> str:
    """`inf_cl ring, 4 ranks`, `metric_learning triplet, CPU of 2 threads`."""
    name, ranks = f"{measured['system']} {measured['variant']}", measured["world_size"]
    name += f", {ranks} ranks" if ranks != "1" else ""
    return name + (f", CPU of {measured['threads'] or 'unknown'} threads" if measured["device"] == "cpu" else "")


def _memory(measured: Row, paper: Paper, published: str) -> float | None:
    """Bytes by the metric of the published figure."""
    if not published.endswith(ABOVE_BASELINE):
        return number(measured, paper.memory)
    above = number(measured, "step_peak_bytes")  # the returned gradients count there, the workspaces do not
    if above is None:
        return None
    sets, width = 1 if cost.is_one_set(measured["loss"]) else 2, {"bfloat16": 2, "float32": 4}
    gradients = sets * int(measured["rows"]) * int(measured["dims"]) * width[measured["gradient_dtype"]]
    return above + gradients - _WORKSPACES.get(measured["device_name"], 0)


def _deviation(measured: float | None, published: float | None) -> str:
    if not measured or not published:
        return ""
    return f"{round(100 * (measured / published - 1), 1) + 0.0:+.1f}%"  # never -0.0
