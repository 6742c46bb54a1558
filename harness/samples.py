"""Raw samples of every rank, in a compressed file beside the rows."""

from __future__ import annotations

import csv
import importlib.util
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.records import write_atomically

COLUMNS = ("case_id", "system", "variant", "rows", "round", "rank", "block", "steps", "seconds")


def file_name() -> str:
    """`samples.parquet`, or `samples.csv` where pyarrow is not installed."""
    return "samples.parquet" if importlib.util.find_spec("pyarrow") else "samples.csv"


def write(folder: Path, samples: Iterable[Sequence[object]]) -> Path:
    """Replace the run's sample file, atomically. `samples` hold COLUMNS in order; seconds are a block's wall time."""
    table = list(samples)
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

        types = dict.fromkeys(("rows", "round", "rank", "block", "steps"), pyarrow.int64())
        types |= dict.fromkeys(("case_id", "system", "variant"), pyarrow.string()) | {"seconds": pyarrow.float64()}
        schema = pyarrow.schema([(name, types[name]) for name in COLUMNS])
        columns = list(zip(*table, strict=True)) or [()] * len(COLUMNS)
        arrays = [pyarrow.array(values, type=schema.field(i).type) for i, values in enumerate(columns)]
        sink = pyarrow.BufferOutputStream()
        pyarrow.parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
    write_atomically(path, data)
    return path
