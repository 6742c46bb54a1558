"""What this machine is: cores, memory, GPUs, a short name. Imports no framework; asks the kernel and the driver."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

# (vendor, family, models) -> name, from the vendors' revision guides
_AMD = (
    (26, range(0x00, 0x100), "zen5"),
    (25, range(0x10, 0x20), "zen4"),
    (25, range(0x60, 0x80), "zen4"),
    (25, range(0xA0, 0xB0), "zen4"),
    (25, range(0x00, 0x100), "zen3"),
    (23, range(0x30, 0x100), "zen2"),
    (23, range(0x00, 0x30), "zen"),
)
_INTEL = {
    85: "skylake",
    106: "icelake",
    108: "icelake",
    143: "sapphirerapids",
    207: "emeraldrapids",
    173: "graniterapids",
    79: "broadwell",
    63: "haswell",
}
_ARM = {0xD0C: "neoverse-n1", 0xD40: "neoverse-v1", 0xD49: "neoverse-n2", 0xD4F: "neoverse-v2"}


@dataclass(frozen=True)
class Gpu:
    """A visible NVIDIA GPU. `used_bytes` and `process_ids` tell whether somebody else is on it."""

    index: int
    name: str
    capability: float
    memory_bytes: int
    used_bytes: int = 0
    uuid: str = ""
    process_ids: tuple[int, ...] = ()


@dataclass(frozen=True)
class Machine:
    """The machine as the ranks see it."""

    cores: int
    memory_bytes: int
    cpu_name: str
    cpu_slug: str
    gpus: tuple[Gpu, ...] = ()
    foreign_gpu: str | None = None  # a GPU of another vendor
    name: str | None = None  # overrules the slug
    flags: tuple[str, ...] = field(default=(), repr=False)

    def slug(self, device: str) -> str:
        """Folder name under results/measured: `h200-x1`, `cpu-zen4-2c`."""
        if self.name:
            return self.name
        if device == "cuda" and self.gpus:
            return f"{gpu_slug(self.gpus[0].name)}-x{len(self.gpus)}"
        return f"cpu-{self.cpu_slug}-{self.cores}c"


def gpu_slug(name: str) -> str:
    """`NVIDIA H200` -> `h200`, `NVIDIA GeForce RTX 4090` -> `rtx-4090`."""
    words = [word for word in re.split(r"[\s-]+", name.lower()) if word not in ("nvidia", "tesla", "geforce", "quadro")]
    kept = words[:2] if words and words[0] in ("rtx", "gtx") else words[:1]
    return "-".join(kept) or "gpu"


@cache
def detect() -> Machine:
    """This machine, found out once per process."""
    cpu = _cpu_fields()
    return Machine(
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        cpu_name=cpu.get("model name", os.uname().machine),
        cpu_slug=_cpu_slug(cpu),
        gpus=tuple(_gpus()),
        foreign_gpu=_foreign_gpu(),
        flags=tuple(cpu.get("flags", cpu.get("Features", "")).split()),
    )


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by a container's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def memory_bytes() -> int:
    """Main memory, cut by a container's limit."""
    match = re.search(r"MemTotal:\s+(\d+) kB", _read("/proc/meminfo"))
    total = int(match[1]) * 1024 if match else 0
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    return min(total, int(limit)) if limit.isdigit() else total


def _cpu_fields() -> dict[str, str]:
    first = _read("/proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _cpu_slug(cpu: dict[str, str]) -> str:
    family, model = cpu.get("cpu family", ""), cpu.get("model", "")
    if cpu.get("vendor_id") == "AuthenticAMD" and family.isdigit() and model.isdigit():
        for known_family, models, name in _AMD:
            if int(family) == known_family and int(model) in models:
                return name
    if cpu.get("vendor_id") == "GenuineIntel" and family == "6" and model.isdigit() and int(model) in _INTEL:
        return _INTEL[int(model)]
    part = cpu.get("CPU part", "")
    if part.startswith("0x") and int(part, 16) in _ARM:
        return _ARM[int(part, 16)]
    words = re.sub(r"\(.*?\)|[^a-z0-9 ]", "", cpu.get("model name", "").lower()).split()
    return "-".join(words[:3]) or os.uname().machine


def _gpus() -> list[Gpu]:
    found = _gpus_from_library()
    if found is None:
        found = _gpus_from_command()
    return _visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))


def _gpus_from_library() -> list[Gpu] | None:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    found = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        try:
            processes = tuple(process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
        except pynvml.NVMLError:
            processes = ()
        name, uuid = _text(pynvml.nvmlDeviceGetName(handle)), _text(pynvml.nvmlDeviceGetUUID(handle))
        found.append(Gpu(index, name, major + minor / 10, memory.total, memory.used, uuid, processes))
    return found


def _gpus_from_command() -> list[Gpu]:
    rows = nvidia_smi("gpu", "index,name,compute_cap,memory.total,memory.used,uuid")
    busy = nvidia_smi("compute-apps", "gpu_uuid,pid")
    found = []
    for index, name, capability, total, used, uuid in rows:
        pids = tuple(int(row[1]) for row in busy if row[0] == uuid and row[1].isdigit())
        mebi = 1 << 20
        found.append(Gpu(int(index), name, float(capability), int(total) * mebi, int(used) * mebi, uuid, pids))
    return found


def nvidia_smi(what: str, fields: str) -> list[list[str]]:
    """Rows of `nvidia-smi --query-<what>=<fields>`, without units; empty when there is no such command or driver."""
    command = ["nvidia-smi", f"--query-{what}={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    wanted = fields.count(",") + 1
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == wanted] if done.returncode == 0 else []


def _visible(gpus: list[Gpu], choice: str | None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; like CUDA, the list ends at the first unknown entry."""
    if choice is None:
        return gpus
    kept = []
    for entry in (text.strip() for text in choice.split(",")):
        match = [gpu for gpu in gpus if entry == str(gpu.index) or (entry and gpu.uuid.startswith(entry))]
        if not match:
            break
        kept.append(match[0])
    return kept


def _foreign_gpu() -> str | None:
    vendors = {"0x1002": "AMD", "0x8086": "Intel"}
    for path in Path("/sys/class/drm").glob("renderD*/device/vendor"):
        vendor = vendors.get(_read(str(path)).strip())
        if vendor:
            return vendor
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
