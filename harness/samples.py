"""Raw samples of every rank, in a compressed file beside the rows."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from harness import sensors
from harness.cases import ConfigurationError
from harness.records import RecordError, write_atomically

# What a block is, its wall time, and what the sensors said at its edges.
COLUMNS = ("case_id", "system", "variant", "rows", "round", "rank", "block", "steps", "seconds", *sensors.FIELDS)
_WHOLE, _TEXT = ("rows", "round", "rank", "block", "steps"), ("case_id", "system", "variant", "throttle_reasons")


def file_name() -> str:
    """`samples.parquet`, or `samples.csv` where pyarrow is not installed."""
    return "samples.parquet" if importlib.util.find_spec("pyarrow") else "samples.csv"


def path_in(folder: Path) -> Path | None:
    """A run's sample file, None where it has none."""
    return next((folder / name for name in ("samples.parquet", "samples.csv") if (folder / name).is_file()), None)


def read(folder: Path) -> list[dict[str, Any]]:
    """All blocks of a run by column.

    Raises ConfigurationError when there is no sample file, or no way to read it, RecordError when it is broken.
    """
    path = path_in(folder)
    if path is None:
        raise ConfigurationError(f"{folder} has no sample file; give a run folder of results/measured")
    if path.suffix == ".csv":
        try:
            with open(path, encoding="utf-8", newline="") as stream:
                return list(csv.DictReader(stream))
        except (OSError, ValueError, csv.Error) as problem:
            raise RecordError(f"{path}: cannot be read as a CSV ({problem})") from None
    try:
        import pyarrow.parquet
    except ImportError:
        raise ConfigurationError(f"{path} needs the Python package pyarrow; install it, or leave the run out") from None
    try:
        return pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as problem:  # pyarrow's own are of these kinds
        raise RecordError(f"{path}: cannot be read as Parquet ({str(problem).splitlines()[0]})") from None


def write(folder: Path, samples: Iterable[Sequence[object]]) -> Path:
    """Replace the run's sample file, atomically. `samples` hold COLUMNS in order; seconds are a block's wall time.

    A list of words becomes one text.
    """
    table = [[" ".join(cell) if isinstance(cell, (list, tuple)) else cell for cell in each] for each in samples]
    path = folder / file_name()
    if path.suffix == ".csv":
        out = io.StringIO(newline="")
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(table)
        data = out.getvalue().encode()
    else:
        import pyarrow
        import pyarrow.parquet

        types = dict.fromkeys(_WHOLE, pyarrow.int64()) | dict.fromkeys(_TEXT, pyarrow.string())
        schema = pyarrow.schema([(name, types.get(name, pyarrow.float64())) for name in COLUMNS])
        columns = list(zip(*table, strict=True)) or [()] * len(COLUMNS)
        arrays = [pyarrow.array(values, type=schema.field(i).type) for i, values in enumerate(columns)]
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
    write_atomically(path, data)
    return path
