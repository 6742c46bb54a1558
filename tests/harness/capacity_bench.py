"""How the tests of capacity search: a small budget, small shapes, and systems whose memory is a formula of R."""

from __future__ import annotations

MIB = 1 << 20
BUDGET = 70 * MIB
SMALL = (
    f"capacity.memory_bytes={BUDGET} capacity.start_rows=256 capacity.step_rows=64 capacity.ceiling_rows=4096 "
    "capacity.launch_limit=2m dims=32 prefixes=[8,32] device=cpu systems=null"
).split()


def arguments(bench, *overrides):
    """Overrides of a small search; later ones win."""
    given = {override.partition("=")[0] for override in overrides}
    small = [override for override in SMALL if override.partition("=")[0] not in given]
    places = [f"registry={bench.registry}", f"results={bench.results}", f"machine.lock_folder={bench.folder}/lock"]
    return [*small, *places, *overrides]


def sized(bench, variants):
    """Add the system `sized` to a registry."""
    bench.system("sized", variants, target="tests.harness.capacity_systems:Sized")
