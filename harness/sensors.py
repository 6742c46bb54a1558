"""Clock, power, throttle reasons, energy and load at the edges of timed blocks, never within them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness import nvml

# What an event holds, in the sample file's order (docs/contracts.md, section 3).
FIELDS = ("clock_low_mhz", "clock_high_mhz", "power_watts", "throttle_reasons", "energy_joules", "load_average")


@dataclass(frozen=True)
class Reading:
    """One moment of all the devices that a process drives. Empty or None: not known."""

    clocks_mhz: tuple[float, ...] = ()
    power_watts: tuple[float, ...] = ()
    throttle_reasons: tuple[str, ...] = ()
    energy_joules: float | None = None  # all devices together, since some moment in the past
    load_average: float | None = None


class Sensors(Protocol):
    """Whatever can be read at a moment."""

    def read(self) -> Reading: ...


class CpuSensors:
    """The mean clock of the cores that this process may use, and the machine's load."""

    def read(self) -> Reading:
        """Now."""
        clocks = [_core_mhz(core) for core in sorted(os.sched_getaffinity(0))]
        known = [clock for clock in clocks if clock] or _cpuinfo_mhz()
        return Reading(clocks_mhz=(sum(known) / len(known),) if known else (), load_average=os.getloadavg()[0])


class GpuSensors:
    """Those of GPUs, by their PCI addresses, beside the machine's load."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._devices = [nvml.Device(address) for address in addresses]

    def read(self) -> Reading:
        """Now."""
        energies = [device.energy_joules() for device in self._devices]
        reasons = {reason for device in self._devices for reason in device.throttle_reasons() or ()}
        return Reading(
            clocks_mhz=_known(device.clock_mhz() for device in self._devices),
            power_watts=_known(device.power_watts() for device in self._devices),
            throttle_reasons=tuple(sorted(reasons)),
            energy_joules=sum(energies) if energies and None not in energies else None,
            load_average=os.getloadavg()[0],
        )


def of_process(device: str, ordinals: Sequence[int]) -> Sensors:
    """The sensors of a worker that drives these devices (CUDA's numbers). Where there are none, readings are empty."""
    if device == "cpu":
        return CpuSensors()
    try:
        return GpuSensors(nvml.bus_ids(ordinals) or ())
    except LookupError:
        return GpuSensors(())


def span(before: Reading, after: Reading) -> dict[str, Any]:
    """The fields of an event, from readings before and after what it tells of."""
    clocks = (*before.clocks_mhz, *after.clocks_mhz)
    powers = (*before.power_watts, *after.power_watts)
    energy = None
    if before.energy_joules is not None and after.energy_joules is not None:
        energy = after.energy_joules - before.energy_joules
    loads = [value for value in (before.load_average, after.load_average) if value is not None]
    values = (
        min(clocks, default=None),
        max(clocks, default=None),
        sum(powers) / len(powers) if powers else None,
        sorted({*before.throttle_reasons, *after.throttle_reasons}),
        energy,
        max(loads, default=None),
    )
    return dict(zip(FIELDS, values, strict=True))


def _known(values: Any) -> tuple[float, ...]:
    return tuple(value for value in values if value is not None)


def _core_mhz(core: int) -> float | None:
    try:
        return int(Path(f"/sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq").read_text()) / 1e3
    except (OSError, ValueError):
        return None


def _cpuinfo_mhz() -> list[float]:
    """What virtual machines without cpufreq show instead."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
