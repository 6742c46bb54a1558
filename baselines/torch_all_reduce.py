"""All-reduces of float32 buffers through PyTorch, in the place of a loss: NCCL (gloo on CPU), and symmetric memory.

A step sums `rows * dims` floats over ranks in place, so numbers grow from step to step; the first step is what the gate
sees. With `graph: true` steps are captured ten to a CUDA graph and queued when ten have been asked for: where a step
takes microseconds, launches of one graph each would be what is measured. The native all-reduce does the same.

Options: `backend` is `nccl` (the process group's own, whatever it is), `one_shot` or `two_shot` (torch's symmetric
memory, peer pointers) or `multimem` (the same, summed by the switch; never run), `graph` true or false.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed

from baselines import torch_inputs
from baselines.first_use import TorchMeter
from baselines.interface import Declaration, Outputs, Unsupported
from baselines.torch_runtime import TorchSystem

BATCH = 10  # steps in one graph
OPERATORS = {  # of torch.ops.symm_mem
    "one_shot": "one_shot_all_reduce",
    "two_shot": "two_shot_all_reduce_",
    "multimem": "multimem_all_reduce_",
}
# By which a machine's owner turns multicast off. The second is the one that PyTorch obeys.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


class TorchAllReduce(TorchSystem):
    """`rows` of the case times `dims` floats on every rank."""

    declares = Declaration(sets=1, negatives="none", normalisation="none", scalars=(), notes="sums over ranks, no loss")

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["world_size"] < 2:
            return "an all-reduce needs two ranks or more"
        if case["gradient_dtype"] != "float32":
            return "sums are float32: set gradient_dtype=float32"
        options = case.get("options") or {}
        if case["device"] != "cuda" and (options.get("graph") or options.get("backend", "nccl") != "nccl"):
            return "CUDA graphs and symmetric memory need GPUs"
        set_here = next(
            (f"{name}={value}" for name, value in NO_MULTICAST.items() if os.environ.get(name) == value), ""
        )
        if options.get("backend") == "multimem" and set_here:
            return f"sums in the switch need multicast, and {set_here} is set"
        return super().unsupported(case)

    def build(self) -> None:
        first_row = self.world.rank * self.case["rows"]
        ((rows, _),) = torch_inputs.case_rows(
            self.case, first_row, self.case["rows"], torch.float32, self.device
        ).values()
        self.pending, self.steps, self.graphs = 0, 0, {}
        native = self.options.get("backend", "nccl") == "nccl"
        self.buffer = torch.zeros_like(rows) if native else self._symmetric(rows)
        if self.options.get("graph"):
            # Here, so that no block pays for it, and before the rows are there: what warms a capture up adds for real.
            self.graphs = {steps: self._captured(steps) for steps in (1, BATCH)}
        self.buffer.copy_(rows)
        self._first_use = TorchMeter()
        self.barrier()

    def _captured(self, steps: int) -> torch.cuda.CUDAGraph:
        return self.captured(lambda: [self._reduce() for _ in range(steps)])

    def _symmetric(self, rows: torch.Tensor) -> torch.Tensor:
        """A zeroed buffer of the rows' shape; raises Unsupported where this PyTorch or machine cannot add over it."""
        try:
            from torch.distributed import _symmetric_memory as symmetric
        except ImportError:
            raise Unsupported("this PyTorch has no symmetric memory") from None
        operator = OPERATORS[self.options["backend"]]
        if not hasattr(torch.ops.symm_mem, operator):
            raise Unsupported(f"PyTorch {torch.__version__} has no symm_mem.{operator}")
        if self.options["backend"] != "multimem":  # or rendezvous() would create a multicast object for nothing
            os.environ["TORCH_SYMM_MEM_DISABLE_MULTICAST"] = "1"
        try:
            buffer = symmetric.empty(rows.numel(), dtype=rows.dtype, device=self.device)
            symmetric.rendezvous(buffer, distributed.group.WORLD.group_name)
            self.buffer = buffer.zero_().view_as(rows)
            self._reduce()
            self.synchronize()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, AttributeError) as problem:  # its interface is in alpha state, and changes
            line = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
            raise Unsupported(f"symmetric memory of PyTorch {torch.__version__}: {line[:160]}") from None
        return self.buffer

    def _reduce(self) -> None:
        backend = self.options.get("backend", "nccl")
        if backend == "nccl":
            distributed.all_reduce(self.buffer)
            return
        flat = self.buffer.view(-1)
        sums = getattr(torch.ops.symm_mem, OPERATORS[backend])(flat, "sum", distributed.group.WORLD.group_name)
        if backend == "one_shot":  # the others add in place
            flat.copy_(sums)

    def step(self) -> None:
        self.steps += 1
        if self.steps == 1 or not self.options.get("graph"):
            self._reduce()
            return
        self.pending += 1
        if self.pending == BATCH:
            self.graphs[BATCH].replay()
            self.pending = 0

    def synchronize(self) -> None:
        while getattr(self, "pending", 0):
            self.pending -= 1
            self.graphs[1].replay()
        super().synchronize()

    def outputs(self) -> Outputs:
        sums = self.buffer.float().cpu().numpy()
        return Outputs(0.0, None, None, {"rows": sums}, first_row=self.world.rank * self.case["rows"])

    def memory(self) -> dict[str, int | None]:
        size = self.buffer.numel() * self.buffer.element_size()
        peak = max(self._meter.allocated_peak_bytes(), self._captured_bytes) if self._meter else None
        used = self._meter.device_used_bytes() if self._meter else None
        return {
            "allocated_peak_bytes": peak,
            "input_bytes": size,
            "gradient_bytes": 0,
            "device_used_bytes": used,
        }

    def close(self) -> None:
        self.buffer, self.graphs = None, {}
        super().close()
