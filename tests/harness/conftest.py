"""A registry of probes, and runs of the harness as a user starts it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from harness import records, regress
from tests.harness.regress_rows import ENVIRONMENT

ROOT = Path(__file__).resolve().parents[2]
PREDICT = {
    "bytes_per_cell": 12.0,
    "bytes_per_element": 24.0,
    "startup_seconds": 0.4,
    "cpu_flops_per_second": 1.0e9,
    "cuda_flops_per_second": 1.0e12,
    "step_overhead_seconds": 1.0e-4,
}
SHORT = (
    "rows=[8] dims=32 prefixes=[8,32] device=cpu on_cpu={} protocol.rounds=2 protocol.warmup_steps=1 "
    "protocol.warmup_seconds=0 protocol.blocks=2 protocol.steps_per_block=3 protocol.maximum_range=null"
).split()


class Bench:
    """The harness with a registry, results and lock of its own, all in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = folder / "registry"
        self.registry.mkdir()
        self.results = folder / "results"

    def system(self, name: str, variants: dict, **changes) -> None:
        """Add a system; `variants` maps a variant's name to the probe's options or to a whole variant."""
        whole = {
            variant: value if "loss" in value else {"loss": "one_set_sigmoid", "options": value}
            for variant, value in variants.items()
        }
        data = {
            "name": name,
            "target": "harness.probe:Probe",
            "launcher": "single",
            "requires": ["numpy"],
            "package": "numpy",
            "devices": ["cpu"],
            "variants": whole,
            "predict": PREDICT,
        }
        (self.registry / f"{name}.yaml").write_text(yaml.safe_dump(data | changes))

    def arguments(self, *overrides: str) -> list[str]:
        """Overrides of a short run; later ones win."""
        given = {override.partition("=")[0] for override in overrides}
        short = [override for override in SHORT if override.partition("=")[0] not in given]
        places = [f"registry={self.registry}", f"results={self.results}", f"machine.lock_folder={self.folder}/lock"]
        return (
            [*short, "systems=null", *places, *overrides] if "systems" not in given else [*short, *places, *overrides]
        )

    def start(self, *overrides: str, command: str = "bench") -> subprocess.Popen:
        """Start the harness in a process of its own."""
        return subprocess.Popen(
            [sys.executable, "-m", "harness", command, *self.arguments(*overrides)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        )

    def run(self, *overrides: str, command: str = "bench") -> subprocess.CompletedProcess:
        """Run the harness to its end."""
        process = self.start(*overrides, command=command)
        out, err = process.communicate(timeout=120)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def runs(self) -> list[Path]:
        """Run folders, oldest first."""
        return sorted(path.parent for path in self.results.glob("measured/*/*/*/environment.json"))

    def rows(self) -> dict[str, dict[str, str]]:
        """Rows of the newest run by variant."""
        return {row["variant"]: row for row in records.read_rows(self.runs()[-1] / "rows.csv")}


@pytest.fixture
def bench(tmp_path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def pair(tmp_path):
    """Write BASE and NEW; returns a function that runs the comparison and gives its exit code."""

    def run(base, new, *arguments, environments=(ENVIRONMENT, ENVIRONMENT)):
        for name, rows, environment in (("base", base, environments[0]), ("new", new, environments[1])):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            records.write_rows(folder / "rows.csv", rows)
            (folder / "environment.json").write_text(json.dumps(environment))
        return regress.main([f"base={tmp_path / 'base'}", f"new={tmp_path / 'new' / 'rows.csv'}", *arguments])

    return run
