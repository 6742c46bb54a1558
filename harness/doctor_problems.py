"""What is wrong for benchmarking, from facts alone: `(problem, fix)` each. Pure functions, each problem tested."""

from __future__ import annotations

from collections.abc import Iterator

from harness.bench import BUSY_MEMORY_SHARE
from harness.doctor_facts import MULTICAST_VARIABLES, Facts, GpuFacts
from harness.plan import size

Problem = tuple[str, str]
BUSY_LOAD = 0.5  # of the cores: more than this is somebody else's work


def problems(facts: Facts) -> Iterator[Problem]:
    """All of them: first the machine's, then each GPU's, then those between GPUs and between machines."""
    yield from _machine(facts)
    for gpu in facts.gpus:
        yield from _gpu(gpu)
    if len(facts.gpus) > 1:
        yield from _between_gpus(facts)
    if facts.gpus:
        yield from _between_machines(facts)


def _machine(facts: Facts) -> Iterator[Problem]:
    if facts.load > BUSY_LOAD * facts.cores:
        yield (
            f"other work runs here: the load is {facts.load:.1f} on {facts.cores} cores",
            "stop it (top shows what it is), or expect wide ranges and too_noisy rows",
        )
    if facts.governor not in (None, "performance"):
        yield f"the CPU governor is {facts.governor}", "sudo cpupower frequency-set -g performance"
    if facts.swap_bytes:
        yield f"{size(facts.swap_bytes)} of swap are in use", "free memory, then: sudo swapoff -a && sudo swapon -a"


def _gpu(gpu: GpuFacts) -> Iterator[Problem]:
    name, here = f"GPU {gpu.index}", f"-i {gpu.index}"
    if gpu.process_ids:
        yield (
            f"{name} is busy: processes {', '.join(map(str, gpu.process_ids))}",
            "wait for them or stop them (nvidia-smi says what they are); allow_busy=true measures anyway",
        )
    elif gpu.used_bytes > BUSY_MEMORY_SHARE * gpu.memory_bytes:
        yield (
            f"{name} is shared with other tenants: {size(gpu.used_bytes)} are used by processes not visible here",
            "ask for a GPU of your own, or choose another with CUDA_VISIBLE_DEVICES",
        )
    limit, default = gpu.power_limit_watts, gpu.default_power_watts
    if limit is not None and default is not None and limit < default:
        yield (
            f"{name} is capped at {limit:.0f} W, its default is {default:.0f} W",
            f"sudo nvidia-smi {here} -pl {default:.0f}",
        )
    slowed = [reason for reason in gpu.throttle_reasons if reason not in ("sw_power_cap", "sync_boost")]
    if slowed:
        yield (
            f"{name} holds its clocks down: {', '.join(slowed)}",
            "look at cooling and power supply (nvidia-smi -q -d PERFORMANCE,TEMPERATURE)",
        )
    if gpu.mig:
        yield f"{name} is partitioned (MIG): a part is not the GPU", f"sudo nvidia-smi {here} -mig 0"
    since_boot, ever = gpu.uncorrected_errors or (0, 0)
    if since_boot:
        yield (
            f"{name} has {since_boot} uncorrected ECC errors since it was started",
            f"sudo nvidia-smi {here} -r, or reboot; have the GPU replaced if they come back",
        )
    elif ever:
        yield (
            f"{name} has had {ever} uncorrected ECC errors, none since it was started",
            f"watch it: nvidia-smi {here} -q -d ECC,ROW_REMAPPER",
        )
    if gpu.persistence is False:
        yield f"{name} has no persistence mode: first steps pay for its start", f"sudo nvidia-smi {here} -pm 1"


def _between_gpus(facts: Facts) -> Iterator[Problem]:
    for gpu in facts.gpus:
        if gpu.unreachable:
            yield (
                f"GPU {gpu.index} cannot read the memory of GPU {', '.join(map(str, gpu.unreachable))}",
                "the native box needs peer access: choose GPUs that NVLink joins (nvidia-smi topo -p2p r)",
            )
    switched_off = [name for name, value in MULTICAST_VARIABLES.items() if facts.variables.get(name) == value]
    if switched_off:
        yield (
            f"multicast is switched off by {', '.join(switched_off)}",
            f"unset {' '.join(switched_off)}, unless your administrator set it; sums go over peer pointers meanwhile",
        )
    elif any(gpu.multicast is False for gpu in facts.gpus):
        yield (
            "the driver offers no multicast between these GPUs",
            "it needs an NVLink switch and a running nvidia-fabricmanager; sums go over peer pointers meanwhile",
        )


def _between_machines(facts: Facts) -> Iterator[Problem]:
    if facts.rdma_ports and facts.verbs:
        return
    if facts.rdma_ports:
        yield "RDMA ports are here, libibverbs is not: boxes would talk over TCP", "install rdma-core (libibverbs1)"
    elif facts.rdma_down:
        yield (
            f"RDMA ports are down: {', '.join(facts.rdma_down)}",
            "bring their links up (ibstat, or ip link for RoCE); boxes talk over TCP meanwhile",
        )
    else:
        yield (
            "no RDMA: several boxes would talk over TCP",
            "nothing to do for one machine; else use network cards that /sys/class/infiniband shows",
        )
