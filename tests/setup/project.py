"""A copy of the set-up in a folder with a space in its name, with stand-ins for all that it starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Stands in for `python -m harness` and `python -m reports`: notes its arguments, exits as told.
RECORDER = """
import json, os, sys
with open("calls.jsonl", "a") as stream:
    stream.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
sys.exit(int(os.environ.get("{variable}", "0")))
"""

# Stands in for cmake: notes its arguments, fails when told.
CMAKE = """#!/bin/sh
printf '%s|' "$@" >> "$CALLS/cmake.txt"; echo >> "$CALLS/cmake.txt"
echo "error: the compiler says no" >&2
exit "${CMAKE_EXIT:-0}"
"""


@dataclass
class Project:
    """The copied project; `bin` is the only folder on PATH that the tests control."""

    root: Path
    bin: Path

    def make(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run make with only the stand-ins and the basic system tools on PATH."""
        base = {"PATH": str(self.bin), "HOME": str(self.root), "CALLS": str(self.root)}
        command = [shutil.which("make"), *words]
        variables = base | environment
        return subprocess.run(command, cwd=self.root, env=variables, text=True, capture_output=True, timeout=120)

    def calls(self) -> list[list[str]]:
        """What the recorders were called with, in order."""
        path = self.root / "calls.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def cmake_calls(self) -> list[list[str]]:
        """What cmake was called with, in order."""
        path = self.root / "cmake.txt"
        return [line.split("|")[:-1] for line in path.read_text().splitlines()] if path.exists() else []

    def add_program(self, name: str, text: str) -> None:
        """Put an executable script on PATH."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)


def copy_project(tmp_path: Path) -> Project:
    """A Project with no cmake and no compiler yet."""
    root = tmp_path / "a clone (copy)"
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "harness" / "setup", root / "harness" / "setup", ignore=unwanted)
    shutil.copy(ROOT / "harness" / "__init__.py", root / "harness")
    shutil.copy(ROOT / "Makefile", root)
    (root / "harness" / "__main__.py").write_text(RECORDER.format(name="harness", variable="HARNESS_EXIT"))
    (root / "reports").mkdir()
    (root / "reports" / "__main__.py").write_text(RECORDER.format(name="reports", variable="REPORTS_EXIT"))
    (root / "kernels").mkdir()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "sed"):
        (programs / name).symlink_to(shutil.which(name))
    (programs / "python3").symlink_to(os.path.realpath(sys.executable))
    return Project(root, programs)
