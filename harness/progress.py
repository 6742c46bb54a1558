"""What a run says while it goes on, and the table at its end."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence, Set
from typing import Any, TextIO

from harness.plan import duration, size


class Progress:
    """Lines about a run. On a terminal the running case is shown on a line that is overwritten."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stdout
        self._live = self._stream.isatty()
        self._start = time.monotonic()
        self._shown = False

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self._start

    def say(self, text: str) -> None:
        """A line that stays."""
        self._wipe()
        print(text, file=self._stream, flush=True)

    def running(self, title: str, done: int, total: int) -> None:
        """What runs now: on a terminal only."""
        if self._live:
            width = shutil.get_terminal_size().columns
            self._wipe()
            self._stream.write(f"  {done + 1}/{total} {title} ...  {duration(self.elapsed)} elapsed"[: width - 1])
            self._stream.flush()
            self._shown = True

    def finished(self, title: str, what: str, done: int, total: int, remaining: float) -> None:
        """One launch is done."""
        self.say(
            f"{done:>4}/{total} {duration(self.elapsed):>7} elapsed, {duration(remaining):>7} left  {title}: {what}"
        )

    def _wipe(self) -> None:
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._shown = False


def step_time(seconds: float | None) -> str:
    """Seconds per step with three digits in a readable unit."""
    if seconds is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:#.3g} {unit}".replace(". ", " ")
    return f"{seconds * 1e9:.3g} ns"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The result table for a terminal."""
    header = ("system", "loss", "R", "ranks", "state", "best step", "process means", "memory", "status")
    lines = [header]
    for row in rows:
        low, high = row.get("mean_low_seconds"), row.get("mean_high_seconds")
        peak = row.get("step_peak_bytes")
        used = row.get("device_used_bytes")
        memory = f"{size(peak)} step" if peak is not None else f"{size(used)} used" if used is not None else "-"
        status = row["status"] + (f": {row['reason']}" if row.get("reason") else "")
        lines.append(
            (
                f"{row['system']}:{row['variant']}",
                row["loss"],
                str(row["rows"]),
                str(row["world_size"]) + (f" on {row['nodes']} nodes" if row["nodes"] > 1 else ""),
                row["state"],
                step_time(row.get("best_seconds")),
                f"{step_time(low)} to {step_time(high)}" if low is not None else "-",
                memory,
                status,
            )
        )
    return align(lines, numeric={2, 3, 5})


def align(lines: Sequence[Sequence[str]], numeric: Set[int]) -> str:
    """Lines of cells in columns, those of `numeric` to the right; the last column runs free."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]) - 1)]
    text = []
    for line in lines:
        cells = [
            cell.rjust(width) if column in numeric else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line[:-1], widths, strict=True))
        ]
        text.append("  ".join([*cells, line[-1]]))
    return "\n".join(text)
