"""Keeps a launch within a memory budget, and the machine out of swap: a thread that looks often and kills in time.

An address-space limit would not do: PyTorch, XLA and CUDA reserve far more addresses than they touch.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Self

from harness import launch
from harness.events import Events
from harness.plan import size

INTERVAL_SECONDS = 0.02  # a core writes some 10 GB/s: between two looks a launch grows by less than the reserve
_PAGE = os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int:
    """Main memory that can be had without swapping, within a container's limit."""
    free = _field("/proc/meminfo", "MemAvailable:") * 1024
    limit = _text("/sys/fs/cgroup/memory.max").strip()
    if not limit.isdigit():
        return free
    used = int(_text("/sys/fs/cgroup/memory.current") or 0)
    reclaimable = _field("/sys/fs/cgroup/memory.stat", "inactive_file")
    return min(free, int(limit) - used + reclaimable)


class Watch:
    """While entered, kills every process of the launch in `folder` that breaks a limit, and says so in `reason`.

    `budget_bytes`: of all its ranks' resident memory above what they held once their imports were done (the contract's
    `device_used` on CPU), None on GPUs. `reserve_bytes`: what the machine must keep available whatever the launch does.
    """

    def __init__(self, folder: Path, budget_bytes: int | None, reserve_bytes: int) -> None:
        self.reason = ""
        self._folder, self._budget, self._reserve = folder, budget_bytes, reserve_bytes
        self._baselines: dict[int, int] = {}  # pid of a rank -> its resident bytes at `ready`
        self._problem: Exception | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._done.set()
        self._thread.join()
        if self._problem:
            raise self._problem

    def _run(self) -> None:
        looks = 0
        while not self._done.wait(INTERVAL_SECONDS):
            try:
                if not self._baselines or looks % 10 == 0:  # ranks come up once, sizes change all the time
                    self.find_ranks()
                looks += 1
                self.reason = self.reason or self.broken()
            except Exception as problem:  # nothing may run unwatched
                self._problem, self.reason = problem, "the watch failed"
            if self.reason:
                for pid in launch.marked_processes(self._folder):
                    launch.kill(pid)

    def find_ranks(self) -> None:
        """Read from the launch's events which processes are its ranks, and what they held at `ready`."""
        events = Events.read(self._folder)
        pids = {rank: event.get("pid") for rank, event in events.of("start")}
        for rank, ready in events.of("ready"):
            if pids.get(rank) and ready.get("rss_bytes") is not None:
                self._baselines[pids[rank]] = ready["rss_bytes"]

    def broken(self) -> str:
        """Which limit the launch breaks now, in words; empty when none."""
        available = available_bytes()
        if available < self._reserve:
            return f"ended when the machine had only {size(available)} left ({size(self._reserve)} are kept free)"
        used = sum(max(0, resident_bytes(pid) - before) for pid, before in self._baselines.items())
        if self._budget is not None and used > self._budget:
            return f"ended when its processes had grown by {size(used)}, over the budget of {size(self._budget)}"
        return ""


def resident_bytes(pid: int) -> int:
    """Resident memory of a process now, 0 when it is gone."""
    fields = _text(f"/proc/{pid}/statm").split()
    return int(fields[1]) * _PAGE if len(fields) > 1 else 0


def _field(path: str, name: str) -> int:
    for line in _text(path).splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return 0


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
