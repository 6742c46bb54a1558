"""One rank of one case of a Python system: `python -m harness.worker FOLDER` (docs/contracts.md, section 3).

Reads FOLDER/case.json, does its actions, writes FOLDER/events.<rank>.jsonl and gradient arrays. Runs in a process that
is thrown away: whatever goes wrong becomes the last event and the exit status.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from baselines.interface import Unsupported, World
from harness import caches, memory, sensors, timing

OUT_OF_MEMORY_WORDS = (
    "out of memory",
    "RESOURCE_EXHAUSTED",
    "can't allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "cannot allocate memory",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


class Stop(Exception):
    """Ends the worker with a status and a reason."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class Worker:
    """The actions of one rank, in the order of `case.json`."""

    def __init__(self, folder: Path, world: World) -> None:
        self.folder = folder
        self.world = world
        self.case = json.loads((folder / "case.json").read_text())
        self._events = open(folder / f"events.{world.rank}.jsonl", "w", encoding="utf-8")
        self._system: Any = None  # the instance at the case's own shape
        self._ready_bytes = 0

    def emit(self, event: str, **fields: Any) -> None:
        """Write one event, flushed, so that it survives a kill."""
        self._events.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")
        self._events.flush()

    def run(self) -> int:
        """Do everything; returns the exit status."""
        try:
            self._act()
        except BaseException as problem:
            status, reason = classify(problem)
            self.emit("end", status=status, reason=reason)
            if status == "crashed":
                raise
            return 1
        self.emit("end", status="ok", reason="")
        return 0

    def _act(self) -> None:
        system_class = _load(self.case["target"])
        reason = system_class.unsupported(self.case)
        if reason:
            raise Stop("unsupported", reason)
        self._system = system_class(self.case, self.world)
        self.emit(
            "start",
            rank=self.world.rank,
            pid=os.getpid(),
            system=self.case["system"],
            versions=self._system.versions(),
            device_name=_device_name(self._system),
            declares=asdict(self._system.declares),
        )
        memory.trim()  # as before the memory steps: what is given back then must not count here
        self._ready_bytes = memory.resident_bytes()
        self.emit("ready", rss_bytes=self._ready_bytes, input_bytes=None)
        actions = {"check": self._checks, "time": self._time, "memory": self._memory, "step": self._step}
        self._built = False
        for action in self.case["actions"]:
            actions[action]()
        self._system.barrier()
        self._system.close()

    def _own(self) -> Any:
        if not self._built:
            self._system.build()
            self._built = True
        return self._system

    def _checks(self) -> None:
        """Each check on an instance of its own, except those at the case's own shape. Those come last."""
        checks = sorted(self.case["checks"], key=lambda check: not overrides_of(check))
        for check in checks:
            overrides = overrides_of(check)
            if overrides:
                system = type(self._system)({**self.case, **overrides}, self.world)
                system.build()
            else:
                system = self._own()
            self._check(check, system)
            if overrides:
                system.close()
            del system
            gc.collect()

    def _check(self, check: Mapping[str, Any], system: Any) -> None:
        system.step()
        system.synchronize()
        outputs = system.outputs()
        scalars = [outputs.loss, outputs.scale_gradient, outputs.bias_gradient]
        if not all(math.isfinite(value) for value in scalars if value is not None):
            raise Stop("nonfinite", f"check {check['name']}: loss, dt, db are {scalars}")
        rows = kept_rows(outputs.first_row, len(next(iter(outputs.gradients.values()))), check.get("sample_rows"))
        files = {}
        for name, gradient in outputs.gradients.items():
            kept = np.ascontiguousarray(gradient[rows - outputs.first_row], dtype=np.float32)
            if not np.isfinite(kept).all():
                raise Stop("nonfinite", f"check {check['name']}: the gradient of {name} holds NaN or infinity")
            files[name] = f"{check['name']}.{name}.{self.world.rank}.npy"
            np.save(self.folder / files[name], kept)
        self.emit(
            "check",
            name=check["name"],
            loss_value=float(outputs.loss),
            scale_gradient=None if outputs.scale_gradient is None else float(outputs.scale_gradient),
            bias_gradient=None if outputs.bias_gradient is None else float(outputs.bias_gradient),
            gradients=files,
            rows=rows.tolist(),
        )

    def _time(self) -> None:
        system, protocol = self._own(), self.case["protocol"]
        flush = caches.flush_of(self.case["device"], self._ordinals()) if protocol.get("cache") == "cold" else None
        timing.measure(system, protocol, self.emit, read=self._reader(), flush=flush)
        self._first_use()

    def _step(self) -> None:
        """Of steps that last minutes: one, both its time, as a block of one step, and its memory."""
        system = self._own()
        fresh = self._forget_memory()
        timing.single_step(system, self.emit, read=self._reader())
        self._report_memory(fresh)
        self._first_use()

    def _memory(self) -> None:
        system = self._own()
        if self.case["actions"][0] == "memory":
            system.step()  # compilation comes before what is measured, as it does after a check
        fresh = self._forget_memory()
        for _ in range(2):
            system.step()
        system.synchronize()
        self._report_memory(fresh)

    def _ordinals(self) -> Sequence[int]:
        """The devices of this process: a process for each rank drives one, one process for all drives them all."""
        ranks = self.case["world_size"] // self.case["nodes"]
        return [self.world.local_rank] if self.world.world_size == self.case["world_size"] else range(ranks)

    def _reader(self) -> Callable[[], sensors.Reading]:
        system = self._own()
        known = system.sensors() if hasattr(system, "sensors") else None
        return (known or sensors.of_process(self.case["device"], self._ordinals())).read

    def _first_use(self) -> None:
        if hasattr(self._own(), "first_use"):
            self.emit("first_use", **self._own().first_use())

    def _forget_memory(self) -> bool:
        """Memory counts from here on. Whether the operating system's peak does as well."""
        self._own().synchronize()
        memory.trim()
        self._own().memory_reset()
        return memory.reset_peak()

    def _report_memory(self, fresh: bool) -> None:
        system, peak = self._own(), memory.peak_resident_bytes()
        fields = dict(system.memory())
        if self.case["device"] == "cpu" and fields.get("device_used_bytes") is None and fresh:
            # A process that drives several devices shares its memory among them: figures are per device.
            devices = max(1, self.case["world_size"] // self.world.world_size)
            fields["device_used_bytes"] = max(0, peak - self._ready_bytes) // devices
        self.emit("memory", **fields)


def overrides_of(check: Mapping[str, Any]) -> dict[str, Any]:
    """What a check changes of its case."""
    return {key: value for key, value in check.items() if key not in ("name", "sample_rows")}


def kept_rows(first_row: int, count: int, sample_rows: list[int] | None) -> np.ndarray:
    """Global numbers of the wanted rows that lie in `first_row .. first_row + count`."""
    if sample_rows is None:
        return np.arange(first_row, first_row + count)
    wanted = np.asarray(sample_rows, dtype=np.int64)
    return wanted[(wanted >= first_row) & (wanted < first_row + count)]


def classify(problem: BaseException) -> tuple[str, str]:
    """Status and reason of an exception, without importing the framework that raised it."""
    if isinstance(problem, Stop):
        return problem.status, problem.reason
    if isinstance(problem, Unsupported):
        return "unsupported", str(problem)
    lines = str(problem).strip().splitlines() or [""]
    words = str(problem)
    if isinstance(problem, MemoryError) or type(problem).__name__ == "OutOfMemoryError":
        return "out_of_memory", lines[0] or type(problem).__name__
    for word in OUT_OF_MEMORY_WORDS:
        if word.lower() in words.lower():
            line = next(line for line in lines if word.lower() in line.lower())
            return "out_of_memory", line.strip()
    if isinstance(problem, FloatingPointError):
        return "nonfinite", lines[-1]
    return "crashed", f"{type(problem).__name__}: {lines[-1].strip()}".rstrip(": ")


def _device_name(system: Any) -> str | None:
    name = getattr(system, "device_name", None)
    return name() if callable(name) else name


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _die_with_parent() -> None:
    """SIGKILL for this rank when its launcher dies, so that no rank outlives a killed harness."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def main(argv: list[str]) -> int:
    """Entry point: the folder is the only argument; rank and world size come from torchrun's variables."""
    if len(argv) != 1:
        print("usage: python -m harness.worker FOLDER", file=sys.stderr)
        return 2
    _die_with_parent()
    ranks = {name: int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1))}
    world = World(ranks["RANK"], ranks["WORLD_SIZE"], int(os.environ.get("LOCAL_RANK", 0)))
    return Worker(Path(argv[0]), world).run()


def leave(code: int) -> None:
    """End at once: all is recorded, and a framework's threads may abort a process that takes itself down."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
