"""The measurement loop, identical for all Python systems (docs/contracts.md, section 3; the binary has its own)."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.sensors import Reading, span


def measure(
    system: Any,
    protocol: Mapping[str, Any],
    emit: Callable[..., None],
    clock: Callable[[], float] = time.perf_counter,
    read: Callable[[], Reading] = Reading,
    flush: Callable[[], object] | None = None,
) -> None:
    """First step, warm-up, then blocks; each is handed to `emit` as an event.

    All ranks run the same number of steps, because steps contain collectives: every decision uses the largest time over
    ranks. The device is synchronised at the edges of a block only. `read` reads the sensors, outside of what is timed.
    `flush` empties the caches before each step of a block (`protocol.cache=cold`); such steps are timed one by one.
    """
    start = clock()
    system.barrier()
    emit("first_collective", seconds=clock() - start)
    emit("first_step", seconds=_run(system, 1, clock))
    before = read()
    step_seconds, steps, spent = _warm_up(system, protocol["warmup_steps"], protocol["warmup_seconds"], clock)
    emit("warm_up", steps=steps, seconds=spent, **span(before, read()))
    steps = block_steps(step_seconds, protocol["steps_per_block"], protocol["max_block_seconds"])
    for block in range(protocol["blocks"]):
        gc.collect()  # so that a collection does not fall into the block
        before = read()
        system.synchronize()
        system.barrier()
        seconds = _run(system, steps, clock) if flush is None else _run_cold(system, steps, clock, flush)
        emit("block", block=block, steps=steps, seconds=seconds, **span(before, read()))


def single_step(
    system: Any,
    emit: Callable[..., None],
    clock: Callable[[], float] = time.perf_counter,
    read: Callable[[], Reading] = Reading,
) -> None:
    """One step as it comes, without a warm-up: a block of one step."""
    system.barrier()
    before = read()
    seconds = _run(system, 1, clock)
    emit("first_step", seconds=seconds)
    emit("block", block=0, steps=1, seconds=seconds, **span(before, read()))


def block_steps(step_seconds: float, steps_per_block: int, max_block_seconds: float) -> int:
    """Steps of a block: `steps_per_block`, fewer if it would last longer than `max_block_seconds`, never under 2."""
    if step_seconds * steps_per_block <= max_block_seconds:
        return steps_per_block
    return max(2, min(steps_per_block, int(max_block_seconds / step_seconds)))


def _warm_up(
    system: Any, least_steps: int, least_seconds: float, clock: Callable[[], float]
) -> tuple[float, int, float]:
    """At least so many steps and so many seconds.

    Returns seconds per step of the last stretch, steps and seconds in all; seconds are the slowest rank's.
    """
    spent, done, steps = 0.0, 0, least_steps
    while True:
        stretch = system.maximum(_run(system, steps, clock))
        spent += stretch
        done += steps
        step_seconds = max(stretch / steps, 1e-9)
        if spent >= least_seconds:
            return step_seconds, done, spent
        steps = min(math.ceil((least_seconds - spent) / step_seconds), 4 * steps)


def _run(system: Any, steps: int, clock: Callable[[], float]) -> float:
    step = system.step
    start = clock()
    for _ in range(steps):
        step()
    system.synchronize()
    return clock() - start


def _run_cold(system: Any, steps: int, clock: Callable[[], float], flush: Callable[[], object]) -> float:
    """Seconds of the steps alone: each begins with empty caches and ends with the device done."""
    seconds = 0.0
    for _ in range(steps):
        system.synchronize()
        flush()
        system.barrier()
        start = clock()
        system.step()
        system.synchronize()
        seconds += clock() - start
    return seconds
