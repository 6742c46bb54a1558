"""Runs the native binary through its contract and reads what it wrote."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np

from harness import inputs

ROOT = Path(__file__).parents[2]
BINARY = Path(os.environ.get("SCALING_CONTRASTS_BINARY", ROOT / "build" / "scaling_contrasts"))
SET_NAMES = {1: ("rows",), 2: ("images", "captions")}


def base_case(**overrides):
    """A small case as the worker contract's JSON object."""
    case = {
        "contract": 1, "system": "native", "loss": "one_set_sigmoid", "variant": "one_set", "state": "init", "rows": 64,
        "live": None, "dims": 128, "prefixes": [16, 32, 128], "prefix_weights": None, "dtype": "bfloat16",
        "gradient_dtype": "float32", "scale": 10.0, "bias": -10.0, "seed": 42, "labels": "pairs", "self_pairs": False,
        "world_size": 1, "nodes": 1, "device": "cpu", "threads": 1,
    }  # fmt: skip
    return case | overrides


def flags(case):
    """The case as flags (docs/contracts.md, section 3)."""
    words = []
    for key, value in case.items():
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"
        elif isinstance(value, (list, tuple)):
            value = ",".join(map(str, value))
        words += ["--" + key.replace("_", "-"), str(value)]
    return words


def run(*words, environment=None):
    """The finished process; never raises for an exit status."""
    return subprocess.run(
        [str(BINARY), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | (environment or {}),
    )


def events_of(folder):
    """The events of rank 0."""
    return [json.loads(line) for line in (Path(folder) / "events.0.jsonl").read_text().splitlines()]


def check(folder, case, *more, check_flag="name=all"):
    """One step of `case` through the check action: its event, with the gradient arrays in place of file names."""
    done = run("--folder", folder, *check_words(case, check_flag, *more))
    assert done.returncode == 0, done.stderr
    return checked(folder)


def check_words(case, check_flag, *more):
    """Flags of one step of `case` through the check action, without a folder."""
    return [*flags(case), "--actions", "check", "--check", check_flag, *more]


def batch(folder, cases):
    """One step of each of `cases` (name: case and more flags), all in one process, each in a folder of its name under
    `folder`. Whether one failed is for `checked` to find."""
    lines = []
    for name, (case, *more) in cases.items():
        (folder / name).mkdir()
        lines.append(" ".join(map(str, ["--folder", folder / name, *check_words(case, "name=all", *more)])))
    (folder / "batch.txt").write_text("\n".join(lines) + "\n")
    done = run("--batch", folder / "batch.txt")
    assert done.returncode in (0, 1), done.stderr


def checked(folder):
    """The check event of a finished step, with the gradient arrays in place of file names."""
    events = events_of(folder)
    assert events[-1]["event"] == "end" and events[-1]["status"] == "ok", events[-1]
    (event,) = [event for event in events if event["event"] == "check"]
    arrays = {name: np.load(Path(folder) / file) for name, file in event["gradients"].items()}
    return event | {"arrays": arrays}


def live_inputs(case):
    """Global numbers of live rows, the sets' live rows in float64, and the labels of the first set's."""
    counts = case["live"] or [case["rows"]] * case["world_size"]
    keep = np.concatenate([rank * case["rows"] + np.arange(count) for rank, count in enumerate(counts)]).astype(
        np.int64
    )
    sets = list(inputs.case_rows(case, 0, case["rows"] * case["world_size"]))
    return keep, [values[keep].astype(np.float64) for _, values, _ in sets], sets[0][2][keep]
