"""The cases of a run: enumeration, prediction, the budget, and what `list=true` prints."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import cost, systems
from harness.caches import flush_seconds
from harness.cases import STATES, Case, ConfigurationError
from harness.configuration import Configuration
from harness.inputs import sets_of
from harness.machine import Machine
from harness.support import Support
from harness.systems import System, Variant
from harness.timing import block_steps

MINIMUM_DEADLINE_SECONDS = 180.0
DEADLINE_FACTOR = 20.0  # predictions are rough and machines are shared: a deadline must never cut a healthy case


@dataclass(frozen=True)
class Planned:
    """A case with what is known before it runs. `seconds` and `bytes` are predictions: one launch, one rank."""

    case: Case
    system: System
    variant: Variant
    launch_seconds: float
    rank_bytes: int
    unsupported: str | None = None
    device_bytes: int = 0

    @property
    def expects_out_of_memory(self) -> bool:
        """Predicted not to fit: running out of memory is then an answer, not a failure."""
        return 0 < self.device_bytes < self.rank_bytes

    def expected(self, status: str) -> bool:
        """Whether a run that ends with this status is as it should be."""
        if status == "interrupted":  # the time budget ended: the row says so, and nothing went wrong
            return True
        if status == "unsupported" or (status == "out_of_memory" and self.expects_out_of_memory):
            return True
        return status == self.variant.expected_status(self.case)

    def total_seconds(self, apart: int) -> float:
        """Predicted seconds of the check and of `apart` launches beside it."""
        return 0.0 if self.unsupported else self.launch_seconds * (1 + apart)

    def deadline(self, configured: float | None) -> float:
        """Seconds after which one launch of this case counts as hung."""
        return float(configured or max(MINIMUM_DEADLINE_SECONDS, DEADLINE_FACTOR * self.launch_seconds))


def apply_overrides(machine: Machine, settings: dict) -> Machine:
    """The machine with `configs/machine` applied."""
    given = {name: settings[name] for name in ("name", "cores", "memory_bytes") if settings.get(name) is not None}
    if "name" in given:
        given["name"] = str(given["name"])  # a folder's name may look like a number
    return dataclasses.replace(machine, **given)


def choose_device(configuration: Configuration, machine: Machine) -> str:
    """The configured device kind, or cuda where an NVIDIA GPU is visible."""
    return configuration.device or ("cuda" if machine.gpus else "cpu")


def enumerate_cases(configuration: Configuration, machine: Machine) -> list[Planned]:
    """All cases of a configuration (already filled in for its device), in the order of their shapes.

    Raises ConfigurationError for names that the registry does not hold and shapes that cannot be.
    """
    device = choose_device(configuration, machine)
    registry = systems.load(configuration.path("registry"))
    support = Support(machine, configuration.path("binary"), configuration.machines, to_run=not configuration.list)
    planned: dict[str, Planned] = {}  # by case id: what is asked for twice is measured once
    for matrix in configuration.matrices():
        chosen = systems.select(registry, matrix.systems, matrix.losses)
        for case, system, variant in _matrix(matrix, chosen, machine, device):
            planned[case.case_id] = plan_case(case, system, variant, matrix.protocol, machine, support)
    return list(planned.values())


def _matrix(
    configuration: Configuration, chosen: Sequence[tuple[System, Variant]], machine: Machine, device: str
) -> Iterable[tuple[Case, System, Variant]]:
    for nodes, world_size in _worlds(configuration, machine, device):
        for state in configuration.states:
            for rows in configuration.rows or _no("rows"):
                sized = [(rows, *each) for each in chosen]
                sized += [(2 * rows, *each) for each in _same_batch(configuration, chosen)]
                for size, system, variant in sized:
                    case = _case(configuration, system, variant, device, nodes, world_size, state, size)
                    yield case, system, variant


def _same_batch(configuration: Configuration, chosen: Sequence[tuple[System, Variant]]) -> list[tuple[System, Variant]]:
    """The chosen systems that `same_batch` names, if a two-set loss is chosen with them: those for the same pairs."""
    if all(sets_of(variant.loss) == 1 for _, variant in chosen):
        return []
    named = configuration.same_batch or []
    return [(system, variant) for system, variant in chosen if f"{system.name}:{variant.name}" in named]


def _no(field: str):
    raise ConfigurationError(f"{field} is not set; give {field}=[...]")


def _worlds(configuration: Configuration, machine: Machine, device: str) -> Iterable[tuple[int, int]]:
    per_node = configuration.devices_per_node or (len(machine.gpus) if device == "cuda" and machine.gpus else 1)
    for nodes in configuration.nodes or [configuration.machines]:
        for world_size in configuration.world_sizes or [per_node * nodes]:
            yield nodes, world_size


def _case(
    configuration: Configuration,
    system: System,
    variant: Variant,
    device: str,
    nodes: int,
    world_size: int,
    state: str,
    rows: int,
) -> Case:
    scale, bias = STATES[state]
    weights, live = configuration.prefix_weights, configuration.live
    return Case(
        system=system.name,
        loss=variant.loss,
        variant=variant.name,
        rows=rows,
        state=state,
        live=tuple(live) if live is not None else None,
        dims=configuration.dims,
        prefixes=tuple(configuration.prefixes),
        prefix_weights=tuple(map(float, weights)) if weights is not None else None,
        dtype=configuration.dtype,
        gradient_dtype=configuration.gradient_dtype,
        scale=scale,
        bias=bias,
        seed=configuration.seed,
        labels=configuration.labels,
        self_pairs=configuration.self_pairs,
        world_size=world_size,
        nodes=nodes,
        device=device,
        options=variant.options,
    )


def plan_case(
    case: Case, system: System, variant: Variant, protocol: dict, machine: Machine, support: Support
) -> Planned:
    """One case with predictions and, where it cannot run here, the reason."""
    predict = system.predict | variant.predict
    try:
        step = cost.predict_seconds(case, predict)
        needed = cost.predict_bytes(case, predict)
    except ValueError as problem:
        raise ConfigurationError(f"configs/system/{system.name}.yaml: {problem}") from None
    seconds = predict.get("startup_seconds", 0.0) + _timed_seconds(step, protocol, case.device)
    reason = support.reason(case, system, variant, needed)
    device_bytes = machine.gpus[0].memory_bytes if case.device == "cuda" and machine.gpus else machine.memory_bytes
    return Planned(case, system, variant, seconds, needed, reason, device_bytes)


def _timed_seconds(step: float, protocol: dict, device: str) -> float:
    """Predicted seconds that a protocol spends on steps of so many seconds in one launch."""
    if protocol.get("one_step"):
        return step
    warm_up = max(protocol["warmup_steps"] * step, protocol["warmup_seconds"])
    block = max(2 * step, min(protocol["steps_per_block"] * step, protocol["max_block_seconds"]))
    if protocol["cache"] == "cold":  # not in the block's own seconds, and may take far longer than its steps
        steps = block_steps(max(step, 1e-9), protocol["steps_per_block"], protocol["max_block_seconds"])
        block += steps * flush_seconds(device)
    return warm_up + protocol["blocks"] * block


def within_budget(
    planned: Sequence[Planned], budget: float | None, seconds_of: Callable[[Planned], float]
) -> tuple[list[Planned], list[Planned]]:
    """Kept and dropped cases: the longest go first until the rest fits into `budget` seconds."""
    if budget is None:
        return list(planned), []
    seconds = [seconds_of(each) for each in planned]
    shortest = sorted(range(len(planned)), key=lambda index: (seconds[index], -index))
    count = bisect.bisect_right(list(itertools.accumulate(seconds[index] for index in shortest)), budget)
    kept, dropped = sorted(shortest[:count]), reversed(shortest[count:])
    return [planned[index] for index in kept], [planned[index] for index in dropped]


def disk_bytes(each: Planned, checked_rows: int = 64) -> int:
    """Bytes a case writes while it runs: gradients of the checked rows (float32, three checks), events, samples."""
    if each.unsupported:
        return 0
    case = each.case
    rows = min(case.rows, checked_rows) * case.world_size
    return 3 * sets_of(case.loss) * rows * case.dims * 4 + 65536


def listing(kept: Sequence[Planned], dropped: Sequence[Planned], rounds: int, apart: int, folder: Path) -> str:
    """What `list=true` and `python -m harness plan` print. `apart`: launches of a case beside its check."""
    lines = [f"{'case':<64} {'time':>8} {'memory/rank':>12}  note"]
    for each in kept:
        if each.unsupported:
            lines.append(f"{each.case.title:<64} {'-':>8} {'-':>12}  unsupported: {each.unsupported}")
            continue
        note = "predicted not to fit" if each.expects_out_of_memory else ""
        time, memory = duration(each.total_seconds(apart)), size(each.rank_bytes)
        lines.append(f"{each.case.title:<64} {time:>8} {memory:>12}  {note}".rstrip())
    for each in dropped:
        lines.append(f"{each.case.title:<64} {duration(each.total_seconds(apart)):>8} {'':>12}  dropped: over budget")
    runnable = [each for each in kept if not each.unsupported]
    total = sum(each.total_seconds(apart) for each in runnable)
    disk = max((disk_bytes(each) for each in runnable), default=0) + 65536 * len(kept)
    lines.append(
        f"{len(kept)} cases ({len(runnable)} run here, {len(dropped)} dropped), predicted {duration(total)} "
        f"with {rounds} rounds, {size(disk)} of disk in {folder}"
    )
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """`45 s`, `3m20s`, `1h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60}m{whole % 60:02d}s" if whole < 3600 else f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def size(count: float) -> str:
    """Bytes in binary units: `3.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
