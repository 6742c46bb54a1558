"""Reading what a run has written, finished or not, for the tests of whole runs."""

import json
import time

import pytest


def samples(folder):
    """`(case_id, round) -> [(rank, block, steps, seconds)]` of a run's side file."""
    parquet = pytest.importorskip("pyarrow.parquet")
    found = {}
    for row in parquet.read_table(folder / "samples.parquet").to_pylist():
        key = row["case_id"], row["round"]
        found.setdefault(key, []).append([row["rank"], row["block"], row["steps"], row["seconds"]])
    return found


def state(folder):
    """Finished rounds in a running or killed run's state."""
    found = {}
    for path in folder.glob("state/*.json"):
        case_id, phase, _ = path.name.split(".")
        if phase != "check":
            found[case_id, int(phase)] = [block[:4] for block in json.loads(path.read_text())["blocks"]]
    return found


def wait_for(process, done, seconds=60.0):
    end = time.monotonic() + seconds
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
