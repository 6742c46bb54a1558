"""Readings at the edges of blocks: how two become an event, and what this machine can tell."""

import os
from typing import ClassVar

import pytest

from harness import nvml, sensors
from harness.sensors import Reading


def test_two_readings_become_the_fields_of_an_event():
    before = Reading((1980.0, 1900.0), (500.0, 520.0), ("sw_power_cap",), 100.0, 1.0)
    after = Reading((1700.0, 1950.0), (600.0, 580.0), ("hw_slowdown", "sw_power_cap"), 250.0, 3.0)
    assert sensors.span(before, after) == {
        "clock_low_mhz": 1700.0,
        "clock_high_mhz": 1980.0,
        "power_watts": 550.0,
        "throttle_reasons": ["hw_slowdown", "sw_power_cap"],
        "energy_joules": 150.0,
        "load_average": 3.0,
    }


def test_what_nobody_knows_is_none_and_no_zero():
    found = sensors.span(Reading(), Reading(energy_joules=5.0))
    assert found == dict.fromkeys(sensors.FIELDS) | {"throttle_reasons": []}


def test_a_cpu_reads_its_clock_and_the_load():
    reading = sensors.of_process("cpu", [0]).read()
    assert reading.load_average == pytest.approx(os.getloadavg()[0], abs=1)
    assert all(100 < clock < 10000 for clock in reading.clocks_mhz), "megahertz"
    assert reading.power_watts == () and reading.energy_joules is None


@pytest.mark.skipif(nvml.library() is not None, reason="there is a driver here")
def test_without_a_driver_a_gpu_reads_nothing():
    reading = sensors.of_process("cuda", [0]).read()
    assert (reading.clocks_mhz, reading.power_watts, reading.throttle_reasons) == ((), (), ())
    with pytest.raises(LookupError):
        nvml.Device("0000:01:00.0")


class FakeLibrary:
    """Answers as nvml.h says: thousandths, and bits."""

    def __init__(self, **answers):
        self.answers = answers

    def __getattr__(self, name):
        if name not in self.answers:
            raise AttributeError(name)

        def call(*arguments):
            arguments[-1]._obj.value = self.answers[name]
            return 0

        return call


def test_units_and_bits_of_the_management_library(monkeypatch):
    library = FakeLibrary(
        nvmlDeviceGetHandleByPciBusId_v2=1,
        nvmlDeviceGetClockInfo=1755,
        nvmlDeviceGetPowerUsage=612_500,
        nvmlDeviceGetTotalEnergyConsumption=5_000_250,
        # idle (0x1) is no throttling; 0x4 and 0x40 are
        nvmlDeviceGetCurrentClocksThrottleReasons=0x1 | 0x4 | 0x40,
    )
    monkeypatch.setattr(nvml, "library", lambda: library)
    reading = sensors.GpuSensors(["0000:01:00.0"]).read()
    assert reading.clocks_mhz == (1755,)
    assert reading.power_watts == (612.5,)
    assert reading.energy_joules == 5000.25
    assert reading.throttle_reasons == ("hw_thermal_slowdown", "sw_power_cap")
    assert nvml.Device("0000:01:00.0").mig() is None, "a question that the library does not know"


class TwoGpus:
    """A driver that sees two of a machine's GPUs, the one with the higher address first, and the management library."""

    answers: ClassVar = {
        "nvmlDeviceGetClockInfo": (1000, 1900),
        "nvmlDeviceGetPowerUsage": (100_000, 700_000),
        "nvmlDeviceGetTotalEnergyConsumption": (1_000, 7_000),
        "nvmlDeviceGetCurrentClocksThrottleReasons": (4, 8),
    }

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = 70 + ordinal
        return 0 if ordinal < 2 else 101

    def cuDeviceGetPCIBusId(self, text, length, device):
        text.value = {70: b"0000:02:00.0", 71: b"0000:01:00.0"}[device.value]
        return 0

    def __getattr__(self, name):
        def by_address(address, handle):
            handle._obj.value = {b"0000:01:00.0": 1, b"0000:02:00.0": 2}[address]
            return 0

        def ask(handle, *rest):
            rest[-1]._obj.value = self.answers[name][handle.value - 1]
            return 0

        return by_address if name == "nvmlDeviceGetHandleByPciBusId_v2" else ask


@pytest.mark.parametrize(
    ("ordinals", "clocks", "energy", "reasons"),
    [
        ([0], (1900,), 7.0, ("hw_slowdown",)),
        ([1], (1000,), 1.0, ("sw_power_cap",)),
        ([0, 1], (1900, 1000), 8.0, ("hw_slowdown", "sw_power_cap")),
        ([2], (), None, ()),
    ],
)
def test_a_process_reads_the_gpus_that_it_drives_by_their_addresses(monkeypatch, ordinals, clocks, energy, reasons):
    """CUDA's numbers are not the management library's: only addresses say which GPU is meant."""
    both = TwoGpus()
    monkeypatch.setattr(nvml, "library", lambda: both)
    monkeypatch.setattr(nvml.ctypes, "CDLL", lambda name: both)
    reading = sensors.of_process("cuda", ordinals).read()
    assert (reading.clocks_mhz, reading.energy_joules, reading.throttle_reasons) == (clocks, energy, reasons)
