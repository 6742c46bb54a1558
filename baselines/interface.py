"""What every Python system offers the worker. Native code speaks the same contract as flags and JSON lines.

An adapter is one class in one module of `baselines/`, found through `target` in `configs/system/<name>.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np


class Unsupported(RuntimeError):
    """A case that turns out not to run here, with the reason: raised where `System.unsupported` could not know."""


@dataclass(frozen=True)
class World:
    """Where this process stands: `rank` of `world_size` processes, `local_rank` on this machine."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0


@dataclass(frozen=True)
class Declaration:
    """What a system computes and how its raw results relate to the global mean loss.

    The raw embedding gradients are those of this rank's backward pass; the raw loss and gradients of scale and bias are
    sums over ranks. `gradient_scale`, `loss_scale` and `scalar_scale` (scale and bias) multiply them: a number, or
    "1/world_size" or "1/world_size^2". They are stated from the system's definition, never fitted.
    """

    sets: int
    negatives: str  # "global" or "local"
    normalisation: str  # who divides by the norm, and with which guard
    gradient_scale: str | float = 1.0
    loss_scale: str | float = 1.0
    scalar_scale: str | float = 1.0
    scalars: tuple[str, ...] = ("scale", "bias")  # of which a step yields gradients, where the loss has them
    scale_parameter: str = "scale"  # what autograd differentiates: "scale" or "log_scale"; outputs are d/d(scale)
    notes: str = ""
    mirrors: str = ""  # upstream revision whose maths this follows, if any


def factor(declared: str | float, world_size: int) -> float:
    """The number behind a declared factor. Raises ValueError for an unknown text."""
    if isinstance(declared, str):
        powers = {"1/world_size": 1, "1/world_size^2": 2}
        if declared not in powers:
            raise ValueError(f"a declared factor is a number or one of {', '.join(powers)}, not {declared!r}")
        return float(world_size) ** -powers[declared]
    return float(declared)


def processor_name() -> str:
    """The CPU's model as Linux names it, or "cpu"."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "cpu")


@dataclass
class Outputs:
    """One step's results on this rank, of the GLOBAL mean loss.

    `gradients` maps "rows", or "images" and "captions", to float32 `[rows_of_this_rank, dims]`. A scalar's gradient is
    None where the loss has no such scalar, or the system declares that it yields none. `first_row` is the global number
    of the first row held here.
    """

    loss: float
    scale_gradient: float | None
    bias_gradient: float | None
    gradients: dict[str, np.ndarray]
    first_row: int = 0
    extra: dict[str, Any] = field(default_factory=dict)


class System(Protocol):
    """The adapter interface. `case` is the JSON object of docs/contracts.md section 1."""

    declares: Declaration
    device_name: str  # the device's model

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        """Why this case cannot run here, as one clause, or None."""

    def __init__(self, case: Mapping[str, Any], world: World) -> None: ...

    def build(self) -> None:
        """Create inputs on the device and the parameters; called once, after `ready` was written."""

    def step(self) -> None:
        """Forward and backward from device-resident embeddings to loss, dX, dt, db; may return before it is done."""

    def synchronize(self) -> None:
        """Wait for this rank's device."""

    def barrier(self) -> None:
        """Wait for all ranks."""

    def maximum(self, value: float) -> float:
        """The largest `value` over ranks."""

    def outputs(self) -> Outputs:
        """Results of the last step, rescaled to the global mean loss."""

    def memory_reset(self) -> None:
        """Forget peaks measured so far."""

    def memory(self) -> dict[str, int | None]:
        """`allocated_peak_bytes input_bytes gradient_bytes device_used_bytes`, per device; None where it is not known.

        On CPU the worker fills in `device_used_bytes` from the process's resident memory.
        """

    def first_use(self) -> dict[str, float | None]:
        """`compile_seconds` and `autotune_seconds` since `build`; None where a system cannot tell. May be left out."""

    def versions(self) -> dict[str, str]:
        """Package versions that matter for this system."""

    def close(self) -> None:
        """Release process groups and memory."""
