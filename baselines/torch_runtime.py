"""What every PyTorch system shares: device, process group, inputs, the ladder, one step, memory figures."""

from __future__ import annotations

import atexit
import functools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import distributed

from baselines import torch_inputs
from baselines.first_use import TorchMeter
from baselines.interface import Declaration, Outputs, Unsupported, World, factor, processor_name

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}

# torch.distributed.nn, which the systems under test use, announces its successor at every import.
warnings.filterwarnings("ignore", message=".*torch.distributed.nn.*", category=FutureWarning)
warnings.filterwarnings("ignore", message=".*torch.distributed.nn.*", category=DeprecationWarning)


class TorchSystem:
    """Base of the PyTorch systems; see `baselines.interface.System` for the members.

    A subclass sets `declares` and writes `prefix_loss`; it may write `prepare`. Embeddings are leaf tensors of the
    gradients' dtype, because autograd gives a leaf's gradient the leaf's dtype; their values are exact in either.
    Scale, or its logarithm, and bias are float32 parameters without dimensions.

    Prefix weights are applied relative to the largest, and the largest is applied outside the step. So the default,
    1/5 each, multiplies the losses by 1 inside the step; 1/5 is no bf16 number, and would put a systematic 0.1% on
    every gradient of a system whose logits are bf16.
    """

    declares: Declaration
    compute_dtype = torch.float32  # that a step casts embeddings to before anything else

    @classmethod
    def declared(cls, options: Mapping[str, Any]) -> Declaration:
        """The declaration of a variant with these options: `declares`, unless a subclass knows better."""
        return cls.declares

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case.get("live") is not None:
            return "every rank must hold the same number of rows"
        return None

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        self.case, self.world = case, world
        self.options: Mapping[str, Any] = case.get("options") or {}
        self.declares = self.declared(self.options)
        self.device = _device(case, world)
        if case.get("threads") and self.device.type == "cpu":
            torch.set_num_threads(int(case["threads"]))
        _join(world, self.device)
        on_gpu = self.device.type == "cuda"
        self.device_name = torch.cuda.get_device_name(self.device) if on_gpu else processor_name()
        self._meter = _cuda_meter(self.device) if on_gpu else None
        self._captured_bytes = 0
        weights = case.get("prefix_weights") or [1.0 / len(case["prefixes"])] * len(case["prefixes"])
        self.outer_weight = max(weights)
        self.ladder = [(p, w / self.outer_weight) for p, w in zip(case["prefixes"], weights, strict=True) if w]

    def build(self) -> None:
        leaf_dtype = DTYPES[self.case["gradient_dtype"]]
        first_row = self.world.rank * self.case["rows"]
        sets = torch_inputs.case_rows(self.case, first_row, self.case["rows"], leaf_dtype, self.device)
        self.names = list(sets)
        self.leaves = [values.requires_grad_() for values, _ in sets.values()]
        self.labels = next(iter(sets.values()))[1]
        scale = self.case["scale"]
        stored = math.log(scale) if self.declares.scale_parameter == "log_scale" else scale
        self.scale_parameter = torch.tensor(stored, dtype=torch.float32, device=self.device, requires_grad=True)
        self.bias = torch.tensor(self.case["bias"], dtype=torch.float32, device=self.device, requires_grad=True)
        self._first_use = TorchMeter()
        self.prepare()
        self._first_use.prepared()

    def first_use(self) -> dict[str, float | None]:
        return self._first_use.seconds()

    def prepare(self) -> None:
        """Whatever a subclass makes once: loss modules, compiled functions."""

    def scale(self) -> torch.Tensor:
        """The exponentiated scale as the loss takes it; part of the timed step."""
        return self.scale_parameter.exp() if self.declares.scale_parameter == "log_scale" else self.scale_parameter

    def prefix_loss(self, heads: list[torch.Tensor], scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """This rank's loss of one prefix: `heads` are `[rows, prefix]` of each set, of `compute_dtype`."""
        raise NotImplementedError

    def objective(self) -> torch.Tensor:
        """This rank's loss over the ladder, float32. Embeddings are cast once, so prefixes add up in that dtype."""
        values = [leaf.to(self.compute_dtype) for leaf in self.leaves]
        scale = self.scale()
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        for prefix, weight in self.ladder:
            loss = self.prefix_loss([value[:, :prefix] for value in values], scale, self.bias).float()
            total = total + (loss if weight == 1.0 else weight * loss)
        return total

    def step(self) -> None:
        for tensor in (*self.leaves, self.scale_parameter, self.bias):
            tensor.grad = None
        loss = self.objective()
        loss.backward()
        zero = torch.zeros_like(loss)
        parts = [loss.detach(), self.scale_parameter.grad, self.bias.grad]
        self._scalars = torch.stack([zero if part is None else part for part in parts])
        if self.world.world_size > 1:
            distributed.all_reduce(self._scalars)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def barrier(self) -> None:
        if self.world.world_size > 1:
            distributed.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def maximum(self, value: float) -> float:
        if self.world.world_size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        distributed.all_reduce(tensor, distributed.ReduceOp.MAX)
        return float(tensor)

    def outputs(self) -> Outputs:
        size = self.world.world_size
        loss, scale_gradient, bias_gradient = (self.outer_weight * value for value in self._scalars.double().tolist())
        if self.declares.scale_parameter == "log_scale":
            scale_gradient /= self.case["scale"]  # d/dt = d/d(log t) / t
        scalar_factor = factor(self.declares.scalar_scale, size)
        has_bias = "bias" in self.declares.scalars and self.case["loss"].endswith("sigmoid")
        gradient_factor = self.outer_weight * factor(self.declares.gradient_scale, size)
        return Outputs(
            loss=loss * factor(self.declares.loss_scale, size),
            scale_gradient=scale_gradient * scalar_factor if "scale" in self.declares.scalars else None,
            bias_gradient=bias_gradient * scalar_factor if has_bias else None,
            gradients={
                name: (leaf.grad.float() * gradient_factor).cpu().numpy().astype(np.float32)
                for name, leaf in zip(self.names, self.leaves, strict=True)
            },
            first_row=self.world.rank * self.case["rows"],
        )

    def captured(self, step: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """A CUDA graph of `step`, warmed up first; raises Unsupported where PyTorch cannot capture it.

        What a graph allocates stays its own, so a replay allocates nothing: the peak of the capture is kept.
        """
        side = torch.cuda.Stream(self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream(self.device).wait_stream(side)
        self._meter.reset()
        graph = torch.cuda.CUDAGraph()
        # NCCL's watchdog asks for events of earlier collectives from its own thread, which would end a capture of mode
        # "global" (github.com/pytorch/pytorch/pull/104555).
        mode = "thread_local" if self.world.world_size > 1 else "global"
        try:
            with torch.cuda.graph(graph, capture_error_mode=mode):
                step()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as problem:
            line = (str(problem).strip().splitlines() or [""])[0]
            raise Unsupported(f"the step does not capture into a CUDA graph: {line[:160]}") from None
        self._captured_bytes = self._meter.allocated_peak_bytes()
        return graph

    def memory_reset(self) -> None:
        if self._meter:
            self._meter.reset()

    def memory(self) -> dict[str, int | None]:
        """On CPU PyTorch counts no bytes; the worker fills in the peak of resident memory."""
        elements = [leaf.numel() for leaf in self.leaves]
        labels = self.labels.numel() * self.labels.element_size() if len(self.leaves) == 1 else 0
        return {
            "allocated_peak_bytes": max(self._meter.allocated_peak_bytes(), self._captured_bytes)
            if self._meter
            else None,
            "input_bytes": sum(leaf.numel() * leaf.element_size() for leaf in self.leaves) + labels,
            "gradient_bytes": sum(elements) * DTYPES[self.case["gradient_dtype"]].itemsize,
            "device_used_bytes": self._meter.device_used_bytes() if self._meter else None,
        }

    def versions(self) -> dict[str, str]:
        known = {"torch": torch.__version__}
        if self.device.type == "cuda":
            known["cuda"] = torch.version.cuda or ""
            if self.world.world_size > 1:
                known["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return known

    def close(self) -> None:
        """Drop this system's tensors. The process group lives on for the next one and ends with the process."""
        self.leaves = []
        self.labels = self.scale_parameter = self.bias = self._scalars = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def compiled(function: Callable) -> Callable:
    """`torch.compile(function)`; raises Unsupported when the compiler does not work on this machine."""
    _try_compiler("cuda" if torch.cuda.is_initialized() else "cpu")
    return torch.compile(function, dynamic=False)


@functools.cache
def _try_compiler(device: str) -> None:
    try:
        torch.compile(lambda x: x.exp().sum(), dynamic=False)(torch.ones(64, device=device))
    except Exception as problem:
        line = (str(problem).strip().splitlines() or [""])[0]
        raise Unsupported(f"torch.compile does not work here: {type(problem).__name__}: {line[:160]}") from None


def _device(case: Mapping[str, Any], world: World) -> torch.device:
    if case["device"] != "cuda":
        return torch.device("cpu")
    device = torch.device("cuda", world.local_rank)
    torch.cuda.set_device(device)
    return device


def _join(world: World, device: torch.device) -> None:
    """Join the process group that the launcher's variables describe; one rank needs none."""
    if world.world_size == 1 or distributed.is_initialized():
        return
    options = {"device_id": device} if device.type == "cuda" else {}
    distributed.init_process_group(
        "nccl" if device.type == "cuda" else "gloo", rank=world.rank, world_size=world.world_size, **options
    )
    atexit.register(lambda: distributed.is_initialized() and distributed.destroy_process_group())


class _CudaMeter:
    """Peaks of PyTorch's allocator, and what the driver reports for the device less what the bare context takes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        torch.zeros(1, device=device)  # makes the context
        torch.cuda.empty_cache()
        self._context_bytes = self._used()

    def _used(self) -> int:
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return total - free

    def reset(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def allocated_peak_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)

    def device_used_bytes(self) -> int:
        # The allocator keeps its segments until asked, so what the driver shows after a step is the step's peak.
        return max(0, self._used() - self._context_bytes)


_METERS: dict[torch.device, _CudaMeter] = {}


def _cuda_meter(device: torch.device) -> _CudaMeter:
    """One meter a process: its baseline is the context before the first system, whatever an earlier one left behind."""
    if device not in _METERS:
        _METERS[device] = _CudaMeter(device)
    return _METERS[device]
