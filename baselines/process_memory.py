"""Resident memory of this process on Linux, for systems that run on CPU. Bytes throughout."""

from __future__ import annotations

import ctypes
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Memory resident now."""
    return _field("VmRSS")


class PeakMeter:
    """Highest resident memory since `reset`, above a baseline taken when the meter was made.

    Make it once imports are done and before inputs exist. The kernel keeps the high-water mark; writing 5 to
    `/proc/self/clear_refs` lowers it to the present size. Where that is not allowed, `peak_bytes` is None: an old peak
    would be charged to the wrong step.
    """

    def __init__(self) -> None:
        self.baseline_bytes = resident_bytes()
        self._can_reset = False

    def reset(self) -> None:
        """Hand freed memory back to the system, then forget the peak so far."""
        _trim()
        try:
            _CLEAR.write_text("5")
            self._can_reset = True
        except OSError:
            self._can_reset = False

    def peak_bytes(self) -> int | None:
        """Peak since `reset` less the baseline, or None if the peak could not be reset."""
        return max(0, _field("VmHWM") - self.baseline_bytes) if self._can_reset else None


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no line {name}")


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)
