"""`python -m harness doctor`: what this machine can run, why not the rest, and what would spoil a measurement."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import bench, configuration, environment, machine, plan, systems
from harness.cases import Case, ConfigurationError
from harness.configuration import Configuration
from harness.machine import Machine
from harness.support import Support


def main(argv: Sequence[str]) -> int:
    """Print three lists: the machine, the systems, the problems with their fixes. Exit status 0."""
    if argv:
        raise ConfigurationError(f"doctor takes no arguments, got {argv[0]!r}")
    chosen = configuration.compose()
    here = machine.detect()
    print(f"machine   {here.cpu_name}, {here.cores} cores, {plan.size(here.memory_bytes)} memory")
    for gpu in here.gpus:
        print(f"GPU {gpu.index}     {gpu.name}, capability {gpu.capability}, {plan.size(gpu.memory_bytes)}")
    answers = list(_systems(chosen, here))
    width = max(len(title) for title, _ in answers)
    print("\n".join(f"{title:<{width}}  {answer}" for title, answer in answers))
    problems = list(_problems(here))
    for problem, fix in problems:
        print(f"problem   {problem}\n          {fix}")
    if not problems:
        print("no problem found that would spoil a measurement")
    return 0


def _systems(chosen: Configuration, here: Machine) -> Iterator[tuple[str, str]]:
    support = Support(here, chosen.path("binary"))
    for system in systems.load(chosen.path("registry")).values():
        for variant in system.variants.values() if system.runs_here else ():
            for device in ("cpu", "cuda"):
                case = Case(
                    system.name,
                    variant.loss,
                    variant.name,
                    rows=256,
                    world_size=min(variant.world_sizes or (1,)),
                    device=device,
                    options=variant.options,
                )
                reason = support.reason(case, system, variant)
                yield f"{system.name}:{variant.name} on {device}", f"no: {reason}" if reason else "yes"


def _problems(here: Machine) -> Iterator[tuple[str, str]]:
    """`(what is wrong, what to do)`."""
    load = os.getloadavg()[0]
    if load > 0.5 * here.cores:
        yield f"the load is {load:.1f} on {here.cores} cores", "stop other work, or expect wide ranges"
    now = environment.moment(here)
    if now["governor"] not in (None, "performance"):
        yield f"the CPU governor is {now['governor']}", "sudo cpupower frequency-set -g performance"
    if _swap_used():
        yield f"{plan.size(_swap_used())} of swap are in use", "free memory, then: sudo swapoff -a && sudo swapon -a"
    try:
        bench.refuse_busy(here)
    except ConfigurationError as busy:
        yield str(busy), "wait for it to end; nvidia-smi shows who it is"
    for gpu in now.get("gpus", ()):
        name = f"GPU {gpu['index']}"
        if gpu["mig.mode.current"] == "Enabled":
            yield f"{name} is partitioned (MIG)", f"sudo nvidia-smi -i {gpu['index']} -mig 0"
        if gpu["persistence_mode"] == "Disabled":
            yield f"{name} has no persistence mode", f"sudo nvidia-smi -i {gpu['index']} -pm 1"


def _swap_used() -> int:
    fields = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields[name] = value.split()
    return sum(sign * int(fields[name][0]) * 1024 for sign, name in ((1, "SwapTotal"), (-1, "SwapFree")))
