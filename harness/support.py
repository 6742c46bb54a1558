"""Whether a case can run here, found out without launching anything. A case that cannot is a row with the reason."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from harness.cases import Case
from harness.machine import Machine
from harness.systems import System, Variant

MINIMUM_CAPABILITY = 8.0  # bf16 tensor cores
PROCESS_BYTES = 300 << 20  # of a rank that is a process with PyTorch in it, before any inputs


@dataclass
class Support:
    """Answers for one machine. Remembers which packages there are.

    `to_run`: false for a listing, where a native binary that is not built yet is no reason: `make bench` builds it.
    """

    machine: Machine
    binary: Path
    nodes: int = 1
    to_run: bool = True
    _packages: dict[str, bool] = field(default_factory=dict)

    def reason(self, case: Case, system: System, variant: Variant, predicted_bytes: int | None = None) -> str | None:
        """Why this case cannot run here, as one clause, or None."""
        return (
            self._places(case, system, variant)
            or self._software(case, system)
            or (self._cuda(case, system) if case.device == "cuda" else self._memory(case, system, predicted_bytes))
        )

    def _places(self, case: Case, system: System, variant: Variant) -> str | None:
        if case.device not in system.devices:
            return f"{system.name} runs on {', '.join(system.devices)} only"
        if case.device not in variant.devices:
            return f"{system.name}:{variant.name} runs on {', '.join(variant.devices)} only"
        if variant.world_sizes and case.world_size not in variant.world_sizes:
            sizes = ", ".join(map(str, variant.world_sizes))
            return f"{system.name}:{variant.name} runs on {sizes} devices only"
        if case.nodes > self.nodes:
            return f"needs {case.nodes} machines, this run has {self.nodes}"
        return None

    def _software(self, case: Case, system: System) -> str | None:
        missing = [name for name in system.requires if not self._has(name)]
        if missing:
            return f"Python package {missing[0]} is not installed"
        if system.launcher != "native" or not (self.to_run or self.binary.is_file()):
            return None
        said = capabilities(self.binary)
        if isinstance(said, str):
            return said
        if case.loss not in said.get("losses", [case.loss]):
            return f"{self.binary.name} does not compute {case.loss}"
        if case.device not in said.get("devices", [case.device]):
            return f"{self.binary.name} finds no {case.device} device that it was built for"
        return None

    def _cuda(self, case: Case, system: System) -> str | None:
        gpus = self.machine.gpus
        if not gpus:
            if self.machine.foreign_gpu:
                return f"the GPU is {self.machine.foreign_gpu}'s; only NVIDIA GPUs are measured"
            return "no NVIDIA GPU is visible"
        needed = case.world_size // case.nodes
        if needed > len(gpus):
            return f"needs {needed} GPUs per machine, {len(gpus)} visible"
        least = max(MINIMUM_CAPABILITY, system.minimum_capability)
        for gpu in gpus[:needed]:
            if gpu.capability < least:
                return f"{gpu.name} has compute capability {gpu.capability}, {system.name} needs {least}"
        return None

    def _memory(self, case: Case, system: System, predicted_bytes: int | None) -> str | None:
        """On CPU an allocation that is too large takes the machine down with it, so the prediction decides."""
        process_bytes = PROCESS_BYTES if system.launcher == "torchrun" else 0
        needed = ((predicted_bytes or 0) + process_bytes) * (case.world_size // case.nodes)
        if needed <= self.machine.memory_bytes:
            return None
        gib = 1 << 30
        return (
            f"predicted to need {needed / gib:.1f} GiB, the machine has {self.machine.memory_bytes / gib:.1f} GiB "
            "(machine.memory_bytes overrules)"
        )

    def _has(self, package: str) -> bool:
        if package not in self._packages:
            try:
                self._packages[package] = importlib.util.find_spec(package.partition(".")[0]) is not None
            except (ImportError, ValueError):
                self._packages[package] = False
        return self._packages[package]


@cache
def capabilities(binary: Path) -> dict[str, Any] | str:
    """What the native binary says about itself, or why it cannot be asked."""
    if not binary.is_file():
        return f"{binary.name} is not built; run make native"
    try:
        done = subprocess.run([str(binary), "--capabilities"], capture_output=True, text=True, timeout=60)
        answer = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as problem:
        return f"{binary.name} --capabilities does not answer ({type(problem).__name__}); run make native"
    return answer if isinstance(answer, dict) else f"{binary.name} --capabilities answers no JSON object"
