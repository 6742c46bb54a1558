"""The all-reduce through PyTorch as a whole run times it: checked, then timed, on two gloo ranks."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_is_checked_and_timed(tmp_path):
    overrides = [
        "campaign=collectives", "device=cpu", "systems=[torch_all_reduce:nccl]", "rows=[2]", "world_sizes=[2]",
        "dims=64", "prefixes=[64]", "protocol=survey", "protocol.blocks=1", "protocol.warmup_seconds=0",
        f"results={tmp_path}", f"machine.lock_folder={tmp_path}",
    ]  # fmt: skip
    command = [sys.executable, "-m", "harness", "bench", *overrides]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.rglob("rows.csv")
    with path.open() as file:
        (row,) = csv.DictReader(file)
    assert row["status"] == "ok", row["reason"]
    assert float(row["best_seconds"]) > 0
    assert float(row["embedding_gradient_error"]) < 1e-6  # two ranks' floats added once
