"""`python -m harness doctor`: what this machine can run, why not the rest, and what would spoil a measurement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import configuration, doctor_facts, machine, plan, systems
from harness.cases import Case, ConfigurationError
from harness.configuration import Configuration
from harness.doctor_problems import problems
from harness.machine import Machine
from harness.support import Support, capabilities


def main(argv: Sequence[str]) -> int:
    """Print three lists: the machine, the systems, the problems with their fixes. Exit status 0."""
    if argv:
        raise ConfigurationError(f"doctor takes no arguments, got {argv[0]!r}")
    chosen = configuration.compose()
    here = machine.detect()
    print(f"machine   {here.cpu_name}, {here.cores} cores, {plan.size(here.memory_bytes)} memory")
    for gpu in here.gpus:
        print(f"GPU {gpu.index}     {gpu.name}, capability {gpu.capability}, {plan.size(gpu.memory_bytes)}")
    print(f"native    {_native(chosen.path('binary'))}")
    answers = list(_systems(chosen, here))
    width = max(len(title) for title, _ in answers)
    print("\n".join(f"{title:<{width}}  {answer}" for title, answer in answers))
    found = list(problems(doctor_facts.gather(here)))
    for problem, fix in found:
        print(f"problem   {problem}\n          {fix}")
    if not found:
        print("no problem found that would spoil a measurement")
    return 0


def _native(binary: Path) -> str:
    said = capabilities(binary)
    if isinstance(said, str):
        return said if binary.is_file() else "binary not built: make native"
    return f"binary built, engines that run here: {', '.join(said.get('engines_usable') or ['none'])}"


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
