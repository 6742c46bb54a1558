"""What a process spends on compiling and autotuning, as the compilers themselves count it. Imports no framework.

Each meter counts from its making: make it before the first step and read it after the last.
"""

from __future__ import annotations

import sys
from typing import Any


class TorchMeter:
    """torch.compile (its own time counters) and Triton (its listeners, where this release has them).

    A system that neither compiles nor autotunes reads None for both.
    """

    def __init__(self) -> None:
        self._triton_compile = self._triton_autotune = 0.0
        self.prepared()

    def prepared(self) -> None:
        """To be called when a system is prepared, too: it may have captured a graph of Triton's kernels, whose
        compiling counts, have imported Triton, and have tried whether torch.compile works at all, which does not."""
        self._dynamo_before = _dynamo_seconds()
        knobs = getattr(sys.modules.get("triton"), "knobs", None)
        for group, listener in (("compilation", self._compiled), ("autotuning", self._autotuned)):
            settings = getattr(knobs, group, None)
            if settings is not None and hasattr(settings, "listener"):
                settings.listener = listener

    def _compiled(self, *, times: Any, **_: Any) -> None:
        self._triton_compile += times.total * 1e-6

    def _autotuned(self, *, duration: float | None = None, **_: Any) -> None:
        self._triton_autotune += duration or 0.0

    def seconds(self) -> dict[str, float | None]:
        """`compile_seconds` and `autotune_seconds` since the making."""
        compiled = _dynamo_seconds() - self._dynamo_before + self._triton_compile
        return {"compile_seconds": compiled or None, "autotune_seconds": self._triton_autotune or None}


def _dynamo_seconds() -> float:
    """Seconds that torch.compile has spent so far: the forward graphs, and backward graphs made on their first use."""
    utilities = sys.modules.get("torch._dynamo.utils")
    spent = getattr(utilities, "compilation_time_metrics", {})
    return sum(sum(spent.get(name, ())) for name in ("_compile.compile_inner", "backward._backward_impl"))


class JaxMeter:
    """Tracing, lowering and compiling, as JAX's monitoring reports them. XLA's autotuning is part of its compiling."""

    def __init__(self) -> None:
        self._seconds = 0.0
        monitoring = getattr(sys.modules.get("jax"), "monitoring", None)
        if monitoring is not None:
            monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            self._seconds += duration

    def seconds(self) -> dict[str, float | None]:
        """`compile_seconds` since the making; autotuning is not told apart."""
        return {"compile_seconds": self._seconds or None, "autotune_seconds": None}
