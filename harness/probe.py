"""A system of known behaviour: what the self-test and the tests measure the harness with.

It returns the reference's answers, sleeps and allocates what `options` say, and misbehaves on demand. Options:

    sleep_seconds, allocate_bytes   of every step
    steps        a file that every step adds a byte to
    wild         a file: every other process that adds to it sleeps twice as long, as on a machine that is not quiet
    clocks_mhz   what the sensors read in turn, the last one for good (default: the machine's own sensors)
    fault        crash, hang, out_of_memory, nan, kill, exit, unsupported; wrong answers: missing_row, world_times_scale
                 (dt times the world size, or doubled for one rank), flip_loss, flip_rows, flip_scale, flip_bias
    fault_rank   the rank that misbehaves (default: every rank)
    fault_when   check or time: the action in which it does (default: both)
    compile_seconds, autotune_seconds   what it says of its first use
    reference    where the right answers come from, module:function
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from baselines.interface import Declaration, Outputs, World
from harness.sensors import CpuSensors, Reading, Sensors


class _Played:
    """A GPU whose clock falls, and whose energy counter gives a joule a reading."""

    def __init__(self, clocks_mhz: list[float]) -> None:
        self._clocks, self._reads = clocks_mhz, 0

    def read(self) -> Reading:
        clock = self._clocks[min(self._reads, len(self._clocks) - 1)]
        self._reads += 1
        reasons = ("hw_thermal_slowdown",) if clock < self._clocks[0] else ()
        return Reading((clock,), (500.0,), reasons, float(self._reads), 0.0)


def _turn(counter: str) -> float:
    with open(counter, "ab") as stream:
        stream.write(b".")
        return 1.0 + stream.tell() % 2


class Probe:
    """The adapter. One process per rank under torchrun, or one process for all."""

    declares = Declaration(sets=1, negatives="global", normalisation="none: answers come from the reference")

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        """As told."""
        return "told so" if case["options"].get("fault") == "unsupported" else None

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        self.case, self.world = case, world
        self.options = case["options"]
        module, _, name = self.options.get("reference", "baselines.reference:evaluate").partition(":")
        self._evaluate = getattr(importlib.import_module(module), name)  # here: memory counts from after the imports
        self._factor = _turn(self.options["wild"]) if "wild" in self.options else 1.0
        self._collective = None
        if world.world_size > 1:
            import torch.distributed

            self._collective = torch.distributed
            if not self._collective.is_initialized():
                self._collective.init_process_group("gloo")
                atexit.register(self._collective.destroy_process_group)

    def build(self) -> None:
        """Nothing lasts from step to step."""

    def step(self) -> None:
        """Sleep, allocate, misbehave."""
        if "steps" in self.options:
            with open(self.options["steps"], "ab") as stream:
                stream.write(b".")
        size = self.options.get("allocate_bytes", 0)
        held = np.ones(size, dtype=np.uint8) if size else None
        if self.options.get("sleep_seconds"):
            time.sleep(self.options["sleep_seconds"] * self._factor)
        fault = self._fault()
        if fault == "crash":
            raise RuntimeError("the probe was told to crash")
        if fault == "out_of_memory":
            raise MemoryError("the probe was told to run out of memory")
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGSEGV)
        if fault == "exit":
            os._exit(3)
        while fault == "hang":
            time.sleep(3600)
        del held

    def _fault(self) -> str | None:
        when, rank = self.options.get("fault_when"), self.options.get("fault_rank", self.world.rank)
        here = (when is None or when in self.case["actions"]) and rank == self.world.rank
        return self.options.get("fault") if here else None

    def synchronize(self) -> None:
        """Steps are synchronous."""

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self._collective:
            self._collective.barrier()

    def maximum(self, value: float) -> float:
        """The largest value over ranks."""
        if not self._collective:
            return value
        import torch

        box = torch.tensor([value], dtype=torch.float64)
        self._collective.all_reduce(box, op=self._collective.ReduceOp.MAX)
        return float(box)

    def outputs(self) -> Outputs:
        """The reference's answers for this rank's rows, spoiled as told."""
        devices = self.case["world_size"] // self.world.world_size
        first = self.world.rank * self.case["rows"]
        mine = list(range(first, first + self.case["rows"] * devices))
        answer = self._evaluate(self.case, mine, True)
        gradients = {key: value.astype(np.float32) for key, value in answer["gradients"].items()}
        loss, scale, bias = (answer[key] for key in ("loss", "scale_gradient", "bias_gradient"))
        fault = self._fault() or ""
        if fault == "nan":
            next(iter(gradients.values()))[0, 0] = np.nan
        if fault == "flip_rows":
            gradients = {key: -value for key, value in gradients.items()}
        if fault == "missing_row":
            next(iter(gradients.values()))[-1] = 0.0
        if fault == "world_times_scale":
            scale *= max(2, self.case["world_size"])
        return Outputs(
            loss=-loss if fault == "flip_loss" else loss,
            scale_gradient=-scale if fault == "flip_scale" else scale,
            bias_gradient=-bias if fault == "flip_bias" else bias,
            gradients=gradients,
            first_row=first,
        )

    def memory_reset(self) -> None:
        """Nothing to reset: the worker reads the process's memory."""

    def memory(self) -> dict[str, int | None]:
        """Unknown here; the worker reads the process's memory."""
        return dict.fromkeys(("allocated_peak_bytes", "input_bytes", "gradient_bytes", "device_used_bytes"))

    def sensors(self) -> Sensors:
        """The machine's, or what `clocks_mhz` plays."""
        clocks = self.options.get("clocks_mhz")
        return _Played(clocks) if clocks else CpuSensors()

    def first_use(self) -> dict[str, float | None]:
        """As told."""
        return {name: self.options.get(name) for name in ("compile_seconds", "autotune_seconds")}

    def versions(self) -> dict[str, str]:
        """Only NumPy matters."""
        return {"probe": "1", "numpy": np.__version__}

    def close(self) -> None:
        """Nothing is held; the process group, which later instances share, ends with the process."""
