"""Result rows: the one place that knows the CSV.

Tidy: one row per case; seconds, bytes and counts are stored, rates are derived when reporting. An empty cell means
"not known".
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

SCHEMA_VERSION = 3
csv.field_size_limit(1 << 30)  # Python's own, 128 KiB, would make a run unreadable by one long reason

# The design's names in its order, then what this suite adds.
COLUMNS = (
    "schema_version",
    "run_id",
    "system",
    "loss",
    "variant",
    "state",
    "rows",
    "dims",
    "prefixes",
    "dtype",
    "gradient_dtype",
    "scale",
    "bias",
    "seed",
    "self_pairs",
    "world_size",
    "nodes",
    "device",
    "protocol",
    "status",
    "reason",
    "best_seconds",
    "median_seconds",
    "mean_seconds",
    "mean_low_seconds",
    "mean_high_seconds",
    "rounds",
    "samples",
    "first_step_seconds",
    "allocated_peak_bytes",
    "step_peak_bytes",
    "device_used_bytes",
    "loss_value",
    "loss_error",
    "embedding_gradient_error",
    "scale_gradient_error",
    "bias_gradient_error",
    "samples_file",
    "environment_file",
    "case_id",
    "expected_status",
    "labels",
    "live",
    "prefix_weights",
    "threads",
    "steps_per_block",
    "device_name",
    "system_version",
    "inputs_sha256",
    "git_revision",
    "published_time_text",
    "published_memory_text",
    "source",
    # since version 2
    "form",  # of a loss that has several: nt_xent, sup_con
    "bytes",  # of a collective: its message, per rank
    "cache_state",  # warm: steps follow one another; cold: caches are flushed before each
    "round_mean_seconds",  # process means in the order of rounds
    "retries",  # rounds that were measured anew, their process means lying apart
    "compile_seconds",
    "autotune_seconds",
    "first_collective_seconds",
    "forward_seconds",
    "skew_seconds",
    "energy_joules_per_step",
    "clock_low_mhz",
    "clock_high_mhz",
    "power_watts",
    "throttle_reasons",
    "load_average",
    "allocator_driver_difference_bytes",
    # since version 3
    "end_wait_seconds",  # of a native box's device, in the sum of the scalars at a step's end
    "differing_repetitions",  # of a collective: sums of the same numbers that had other bits
)
REQUIRED = COLUMNS[: COLUMNS.index("case_id")]

CAPACITY_VERSION = 1
CAPACITY_STATUSES = (
    "ok",  # both endpoints found and launched again
    "ceiling_reached",  # every R up to the ceiling fits
    "timeout",  # a launch was longer than its limit: memory was not what ended the search
    "time_limit_reached",  # of the whole command
    "interrupted",
    "unsupported",
    "out_of_memory",  # this and the following: no R fits, and how the smallest tried one ended
    "crashed",
    "nonfinite",
)
# capacity.csv: one row per system, variant and place. Rows are R per rank, bytes are per rank.
CAPACITY_COLUMNS = (
    *"schema_version run_id system loss variant state dims prefixes dtype gradient_dtype labels self_pairs".split(),
    *"world_size nodes device threads status reason".split(),
    "largest_rows",  # the largest R that fits, its launches, and how many of them fitted
    "largest_launches",
    "largest_fitted",
    *"allocated_peak_bytes step_peak_bytes device_used_bytes".split(),  # the highest of those launches
    "predicted_bytes",  # by the system's formula at that R
    "limit_bytes",  # what counts as fitting
    "failing_rows",  # the smallest R that does not fit, its launches, how many of them failed, and how
    "failing_launches",
    "failing_failed",
    "failing_outcome",
    "failing_reason",
    "predicted_rows",  # the largest R that fits by the formula
    *"launches seconds device_name system_version git_revision environment_file".split(),
)


class RecordError(ValueError):
    """A CSV that cannot be read as results; the message names the file and the column."""


def _migrate(row: dict[str, str]) -> dict[str, str]:
    """Bring a row of an older schema to the current one. What was not recorded then stays empty."""
    if row["schema_version"] == "1":
        timed_here = row["best_seconds"] and row["samples_file"]
        row |= {"schema_version": "2", "cache_state": "warm" if timed_here else ""}  # version 1 knew no flush
    if row["schema_version"] == "2":
        row["schema_version"] = "3"
    return row


def read_rows(path: str | os.PathLike) -> list[dict[str, str]]:
    """All rows of a result CSV as text, every column of COLUMNS present.

    Raises RecordError when the header lacks a required column, has an unknown or repeated one, when a row is torn, or
    when the schema version is newer than this code.
    """
    return [_migrate(row) for row in _read(Path(path), COLUMNS, REQUIRED, SCHEMA_VERSION)]


def read_capacity(path: str | os.PathLike) -> list[dict[str, str]]:
    """All rows of a capacity.csv as text. Raises RecordError as `read_rows` does."""
    return _read(Path(path), CAPACITY_COLUMNS, CAPACITY_COLUMNS, CAPACITY_VERSION)


def _read(path: Path, columns: Sequence[str], required: Sequence[str], version: int) -> list[dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig", errors="strict")  # spreadsheets write a mark of byte order
    except (OSError, UnicodeDecodeError) as problem:
        raise RecordError(f"{path}: cannot be read as a CSV ({problem})") from None
    try:
        header, *table = csv.reader(io.StringIO(text, newline=""))
    except csv.Error as problem:
        raise RecordError(f"{path}: cannot be read as a CSV ({problem})") from None
    except ValueError:
        raise RecordError(f"{path}: empty file, no header") from None
    for name in required:
        if name not in header:
            raise RecordError(f"{path}: column {name!r} is missing from the header")
    for name in header:
        if name not in columns:
            raise RecordError(f"{path}: column {name!r} is not one of this schema's")
        if header.count(name) > 1:
            raise RecordError(f"{path}: column {name!r} stands twice in the header")
    rows = []
    for number, cells in enumerate(table, start=2):
        if len(cells) != len(header):
            raise RecordError(f"{path}: line {number} has {len(cells)} cells, the header {len(header)}")
        row = dict.fromkeys(columns, "") | dict(zip(header, cells, strict=True))
        if row["schema_version"] not in map(str, range(1, version + 1)):
            raise RecordError(
                f"{path}: line {number}, column 'schema_version' is {row['schema_version']!r}; "
                f"this version reads 1 to {version}"
            )
        rows.append(row)
    return rows


def format_rows(rows: Iterable[Mapping[str, object]], columns: Sequence[str] = COLUMNS) -> str:
    """CSV text of rows. Unknown keys raise KeyError; missing ones and None become empty cells."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        for name in row:
            if name not in columns:
                raise KeyError(name)
        writer.writerow([_cell(row.get(name)) for name in columns])
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return " ".join(_cell(item) for item in value)
    return str(value)


def write_rows(path: str | os.PathLike, rows: Iterable[Mapping[str, object]]) -> None:
    """Replace `path` with these rows, atomically: a reader sees the old file or the new one, also after a crash."""
    write_atomically(path, format_rows(rows).encode())


def write_capacity(path: str | os.PathLike, rows: Iterable[Mapping[str, object]]) -> None:
    """Replace a capacity.csv, atomically as `write_rows` does."""
    write_atomically(path, format_rows(rows, CAPACITY_COLUMNS).encode())


def write_atomically(path: str | os.PathLike, data: bytes) -> None:
    """Temporary file beside `path`, fsync, rename, fsync of the folder. On failure the old file is untouched.

    An OSError names `path`, not the temporary file.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException as problem:
        temporary.unlink(missing_ok=True)
        if isinstance(problem, OSError):
            problem.filename, problem.filename2 = str(path), None
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def remove_temporaries(folder: Path, name: str = "*") -> None:
    """Remove what killed writes of `name` in `folder` have left. The caller is its only writer."""
    for left in folder.glob(f".{name}.*.tmp"):
        left.unlink(missing_ok=True)
