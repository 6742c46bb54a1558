"""NVIDIA's management library through ctypes: clocks, power, throttle reasons, energy, health. No package is needed.

Every question answers None where the library, the GPU or the permission to ask is missing. Units: MHz, watts, joules,
bytes. Structures and numbers are those of nvml.h, which are stable across drivers.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

_SM_CLOCK, _MIG_ENABLED = 1, 1
_UNCORRECTED, _VOLATILE, _AGGREGATE = 1, 0, 1
_P2P_READ, _P2P_OK = 0, 0
# Bits of nvmlDeviceGetCurrentClocksEventReasons. Idleness and clocks that somebody set are no throttling.
THROTTLE_BITS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


@functools.cache
def library() -> ctypes.CDLL | None:
    """The library, initialised; None without a driver."""
    try:
        found = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    return found if found.nvmlInit_v2() == 0 else None


def bus_ids(ordinals: Sequence[int]) -> list[str] | None:
    """PCI addresses of the devices that CUDA numbers so in this process (CUDA_VISIBLE_DEVICES is minded)."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    if driver.cuInit(0) != 0:
        return None
    found = []
    for ordinal in ordinals:
        device, text = ctypes.c_int(), ctypes.create_string_buffer(32)
        if driver.cuDeviceGet(ctypes.byref(device), ordinal) or driver.cuDeviceGetPCIBusId(text, 32, device):
            return None
        found.append(text.value.decode())
    return found


class Device:
    """One GPU, found by its PCI address or its UUID. Raises LookupError where the library does not know it."""

    def __init__(self, address: str) -> None:
        self._library = library()
        self._handle = ctypes.c_void_p()
        by = "nvmlDeviceGetHandleByUUID" if address.startswith("GPU-") else "nvmlDeviceGetHandleByPciBusId_v2"
        if self._library is None or self._call(by, address.encode(), ctypes.byref(self._handle), handle=False):
            raise LookupError(address)

    def _call(self, name: str, *arguments: object, handle: bool = True) -> int:
        function = getattr(self._library, name, None)
        if function is None:
            return -1
        return function(*((self._handle, *arguments) if handle else arguments))

    def _ask(self, name: str, kind: type, *before: object) -> int | None:
        value = kind()
        return None if self._call(name, *before, ctypes.byref(value)) else value.value

    def clock_mhz(self) -> int | None:
        """The streaming multiprocessors' clock now."""
        return self._ask("nvmlDeviceGetClockInfo", ctypes.c_uint, _SM_CLOCK)

    def power_watts(self) -> float | None:
        """Power drawn now (what "now" averages over is the GPU's choice, up to a second)."""
        return _thousandth(self._ask("nvmlDeviceGetPowerUsage", ctypes.c_uint))

    def power_limits_watts(self) -> tuple[float, float] | None:
        """The limit in force, and the GPU's default."""
        now = self._ask("nvmlDeviceGetEnforcedPowerLimit", ctypes.c_uint)
        default = self._ask("nvmlDeviceGetPowerManagementDefaultLimit", ctypes.c_uint)
        return None if now is None or default is None else (now / 1e3, default / 1e3)

    def energy_joules(self) -> float | None:
        """Energy since the driver was loaded. The counter moves in steps of some tens of milliseconds."""
        return _thousandth(self._ask("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong))

    def throttle_reasons(self) -> tuple[str, ...] | None:
        """What holds the clocks down now."""
        bits = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong)
        return None if bits is None else tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)

    def mig(self) -> bool | None:
        """Whether the GPU is partitioned."""
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        if self._call("nvmlDeviceGetMigMode", ctypes.byref(now), ctypes.byref(pending)):
            return None
        return now.value == _MIG_ENABLED

    def persistence(self) -> bool | None:
        """Whether the driver stays loaded while nobody uses the GPU."""
        value = self._ask("nvmlDeviceGetPersistenceMode", ctypes.c_uint)
        return None if value is None else bool(value)

    def uncorrected_errors(self) -> tuple[int, int] | None:
        """Uncorrected ECC errors since the last boot, and ever."""
        counts = [
            self._ask("nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, _UNCORRECTED, span)
            for span in (_VOLATILE, _AGGREGATE)
        ]
        return None if None in counts else (counts[0], counts[1])

    def reaches(self, other: Device) -> bool | None:
        """Whether this GPU can read the other's memory directly."""
        status = ctypes.c_int()
        if self._call("nvmlDeviceGetP2PStatus", other._handle, _P2P_READ, ctypes.byref(status)):
            return None
        return status.value == _P2P_OK


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1e3
