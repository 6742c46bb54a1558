"""The measurement loop, identical for all Python systems (docs/contracts.md, section 3; the binary has its own)."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any


def measure(
    system: Any, protocol: Mapping[str, Any], emit: Callable[..., None], clock: Callable[[], float] = time.perf_counter
) -> None:
    """First step, warm-up, then blocks; each is handed to `emit` as an event.

    All ranks run the same number of steps, because steps contain collectives: every decision uses the largest time over
    ranks. The device is synchronised at the edges of a block only.
    """
    system.barrier()
    emit("first_step", seconds=_run(system, 1, clock))
    step_seconds = _warm_up(system, protocol["warmup_steps"], protocol["warmup_seconds"], clock)
    steps = block_steps(step_seconds, protocol["steps_per_block"], protocol["max_block_seconds"])
    for block in range(protocol["blocks"]):
        gc.collect()  # so that a collection does not fall into the block
        system.synchronize()
        system.barrier()
        emit("block", block=block, steps=steps, seconds=_run(system, steps, clock))


def block_steps(step_seconds: float, steps_per_block: int, max_block_seconds: float) -> int:
    """Steps of a block: `steps_per_block`, fewer if it would last longer than `max_block_seconds`, never under 2."""
    if step_seconds * steps_per_block <= max_block_seconds:
        return steps_per_block
    return max(2, min(steps_per_block, int(max_block_seconds / step_seconds)))


def _warm_up(system: Any, least_steps: int, least_seconds: float, clock: Callable[[], float]) -> float:
    """At least so many steps and so many seconds. Returns seconds per step of the last stretch, slowest rank."""
    spent, steps = 0.0, least_steps
    while True:
        stretch = system.maximum(_run(system, steps, clock))
        spent += stretch
        step_seconds = max(stretch / steps, 1e-9)
        if spent >= least_seconds:
            return step_seconds
        steps = min(math.ceil((least_seconds - spent) / step_seconds), 4 * steps)


def _run(system: Any, steps: int, clock: Callable[[], float]) -> float:
    step = system.step
    start = clock()
    for _ in range(steps):
        step()
    system.synchronize()
    return clock() - start
