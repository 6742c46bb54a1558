"""What `doctor` knows of a machine, gathered once: questions to the kernel and the driver, no opinions."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness import nvml
from harness.machine import Machine

_MULTICAST_SUPPORTED = 132  # CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED
MULTICAST_VARIABLES = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}


@dataclass(frozen=True)
class GpuFacts:
    """One GPU's health. None: not known."""

    index: int
    name: str
    used_bytes: int = 0
    memory_bytes: int = 1
    process_ids: tuple[int, ...] = ()
    power_limit_watts: float | None = None
    default_power_watts: float | None = None
    throttle_reasons: tuple[str, ...] = ()
    mig: bool | None = None
    uncorrected_errors: tuple[int, int] | None = None  # since the last boot, ever
    persistence: bool | None = None
    multicast: bool | None = None
    unreachable: tuple[int, ...] = ()  # GPUs whose memory it cannot read


@dataclass(frozen=True)
class Facts:
    """The machine at a moment."""

    cores: int
    load: float
    governor: str | None = None
    swap_bytes: int = 0
    gpus: tuple[GpuFacts, ...] = ()
    rdma_ports: tuple[str, ...] = ()  # those that are up
    rdma_down: tuple[str, ...] = ()
    verbs: bool = False  # libibverbs can be opened
    variables: Mapping[str, str] = field(default_factory=dict)


def gather(here: Machine) -> Facts:
    """Ask this machine."""
    up, down = _rdma_ports(Path("/sys/class/infiniband"))
    return Facts(
        cores=here.cores,
        load=os.getloadavg()[0],
        governor=_read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        swap_bytes=_swap_used(_read("/proc/meminfo")),
        gpus=tuple(_gpus(here)),
        rdma_ports=up,
        rdma_down=down,
        verbs=_opens("libibverbs.so.1"),
        variables={name: os.environ[name] for name in MULTICAST_VARIABLES if name in os.environ},
    )


def _gpus(here: Machine) -> list[GpuFacts]:
    devices = [_device(gpu.uuid) for gpu in here.gpus]
    found = []
    for place, (gpu, device) in enumerate(zip(here.gpus, devices, strict=True)):
        limits = device.power_limits_watts() if device else None
        others = [
            (other.index, peer) for other, peer in zip(here.gpus, devices, strict=True) if peer and peer != device
        ]
        found.append(
            GpuFacts(
                index=gpu.index,
                name=gpu.name,
                used_bytes=gpu.used_bytes,
                memory_bytes=gpu.memory_bytes,
                process_ids=gpu.process_ids,
                power_limit_watts=limits[0] if limits else None,
                default_power_watts=limits[1] if limits else None,
                throttle_reasons=(device.throttle_reasons() if device else None) or (),
                mig=device.mig() if device else None,
                uncorrected_errors=device.uncorrected_errors() if device else None,
                persistence=device.persistence() if device else None,
                multicast=_multicast(place),
                unreachable=tuple(index for index, peer in others if device and device.reaches(peer) is False),
            )
        )
    return found


def _device(uuid: str) -> nvml.Device | None:
    try:
        return nvml.Device(uuid)
    except LookupError:
        return None


def _multicast(ordinal: int) -> bool | None:
    """Whether a device could join a multicast object; none is created."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), ordinal):
        return None
    return None if driver.cuDeviceGetAttribute(ctypes.byref(value), _MULTICAST_SUPPORTED, device) else bool(value.value)


def _rdma_ports(root: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """`device/port` of RDMA ports that are up, and of those that are not."""
    up, down = [], []
    for state in sorted(root.glob("*/ports/*/state")):
        name = f"{state.parts[-4]}/{state.parts[-2]}"
        (up if "ACTIVE" in _read(str(state)) else down).append(name)
    return tuple(up), tuple(down)


def _swap_used(meminfo: str) -> int:
    fields = {name: value.split() for name, _, value in (line.partition(":") for line in meminfo.splitlines())}
    sizes = [int(fields[name][0]) * 1024 if fields.get(name) else 0 for name in ("SwapTotal", "SwapFree")]
    return sizes[0] - sizes[1]


def _opens(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
