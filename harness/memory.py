"""Resident memory of this process, from /proc. Bytes."""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def _field(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    return 0


def resident_bytes() -> int:
    """Resident set size now."""
    return _field("VmRSS")


def peak_resident_bytes() -> int:
    """Highest resident set size since the process began or since `reset_peak`."""
    return _field("VmHWM")


def trim() -> None:
    """Give freed memory back to the system, so that what earlier actions used does not count later."""
    gc.collect()
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc
    if release:
        release(0)


def reset_peak() -> bool:
    """Make the peak start again from the present size. False where the kernel does not allow it."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True
