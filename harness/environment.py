"""What a record must say about the machine, the software and the moment. Imports no framework."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.configuration import ROOT
from harness.machine import Machine, nvidia_smi

REVISION_VARIABLE = "SCALING_CONTRASTS_REVISION"  # the commit of a copy that has no .git
PACKAGES = ("numpy", "torch", "jax", "jaxlib", "triton", "open_clip_torch", "nvidia-cublas", "nvidia-nccl-cu13")
_VECTOR_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "amx_bf16", "sve", "bf16", "i8mm", "asimd")
_GPU_FIELDS = (
    "index name driver_version clocks.sm clocks.mem clocks.max.sm power.limit power.draw temperature.gpu "
    "clocks_event_reasons.active ecc.mode.current mig.mode.current persistence_mode"
).split()


def now() -> str:
    """UTC, ISO 8601."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def describe(machine: Machine, packages: Iterable[str] = ()) -> dict[str, Any]:
    """The machine and its software; does not change during a run."""
    return {
        "host": {
            "cpu": machine.cpu_name,
            "cores": machine.cores,
            "memory_bytes": machine.memory_bytes,
            "vector_flags": [flag for flag in _VECTOR_FLAGS if flag in machine.flags],
            "kernel": platform.release(),
            "architecture": platform.machine(),
        },
        "gpus": [
            {"name": gpu.name, "capability": gpu.capability, "memory_bytes": gpu.memory_bytes} for gpu in machine.gpus
        ],
        "python": platform.python_version(),
        "packages": versions((*PACKAGES, *packages)),
        "git": revision(),
        # without the program's path: a record must not hold this machine's folders
        "argv": ["python", "-m", "harness", *sys.argv[1:]],
    }


def moment(machine: Machine) -> dict[str, Any]:
    """Load and frequency; on GPUs clocks, power and throttle reasons. Taken before and after a run."""
    data: dict[str, Any] = {
        "time": now(),
        "load": list(os.getloadavg()),
        "governor": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "frequency_khz": _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq"),
    }
    if machine.gpus:
        rows = nvidia_smi("gpu", ",".join(_GPU_FIELDS))
        data["gpus"] = [dict(zip(_GPU_FIELDS, row, strict=True)) for row in rows]
    return data


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those distributions that are installed."""
    found = {}
    for name in sorted({name for name in packages if name}):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def revision() -> dict[str, Any]:
    """The repository's commit, whether tracked files differ from it, and a digest of how.

    A copy without `.git` can be told its commit (docs/environment_variables.md); whether it differs is then not known.
    """
    commit = _git("rev-parse", "HEAD")
    if not commit and os.environ.get(REVISION_VARIABLE):
        return {"revision": os.environ[REVISION_VARIABLE], "dirty": None, "changes_sha256": ""}
    changes = _git("diff", "HEAD", "--", ".", ":(exclude)results") if commit else ""
    return {
        "revision": commit,
        "dirty": bool(changes),
        "changes_sha256": hashlib.sha256(changes.encode()).hexdigest() if changes else "",
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None
