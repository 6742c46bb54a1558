"""Statistics of a case and its row in the result table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import records, sensors
from harness.events import Events
from harness.inputs import sets_of
from harness.plan import Planned, size

ALL_REDUCE = "one_set_all_reduce"  # a sum over ranks in the place of a loss: rows times dims floats of each
_CASE_COLUMNS = (
    "system loss variant state rows dims prefixes dtype gradient_dtype scale bias seed self_pairs world_size nodes "
    "device labels live prefix_weights"
).split()


ENERGY_SECONDS = 0.5  # less than this is too short for an energy counter
MEMORY_SLACK, MEMORY_SLACK_BYTES = 0.02, 2 << 20  # by which two counts of memory may differ without a remark
CLOCKS_FELL = 0.9  # a clock below this share of the run's highest is worth a remark
# One median over rounds each.
_MEDIANS = (
    "first_step_seconds",
    "compile_seconds",
    "autotune_seconds",
    "first_collective_seconds",
    "energy_joules_per_step",
    "skew_seconds",
    "end_wait_seconds",
)


@dataclass(frozen=True)
class Timing:
    """Seconds per step over all rounds. A sample is one block's wall time over its steps, the largest over ranks."""

    best_seconds: float
    median_seconds: float
    mean_seconds: float  # mean of process means
    mean_low_seconds: float  # lowest and highest process mean: two systems differ where these ranges are apart
    mean_high_seconds: float
    rounds: int
    samples: int
    steps_per_block: int
    round_mean_seconds: tuple[float, ...]  # process means in the order of rounds


def blocks_of(events: Events) -> list[list[Any]]:
    """`[rank, block, steps, seconds]` of every block of a launch, then what the sensors said: `sensors.FIELDS`."""
    return [
        [rank, event["block"], event["steps"], event["seconds"], *(event.get(name) for name in sensors.FIELDS)]
        for rank, event in events.of("block")
    ]


def first_use_of(events: Events) -> dict[str, float | None]:
    """Seconds of a launch's first-use costs, of the rank that spent most. Systems know some of them, or none."""
    # Where one process drives all devices, its barrier is no collective.
    collective = events.largest("first_collective", "seconds") if len(events.ranks) > 1 else None
    return {
        "first_step_seconds": events.largest("first_step", "seconds"),
        "compile_seconds": events.largest("first_use", "compile_seconds"),
        "autotune_seconds": events.largest("first_use", "autotune_seconds"),
        "first_collective_seconds": collective,
    }


def skew_of(events: Events) -> float | None:
    """Seconds per step between the fastest and the slowest rank; None where there is one, or nobody knows.

    The native box says how much later its last device began a step than its first. Of ranks that are processes, whose
    blocks begin at a barrier and end when their device is done: the mean over blocks of the longest less the shortest.
    """
    told = events.largest("figures", "start_skew_seconds")
    if told is not None or len(events.ranks) < 2:
        return told
    paces: dict[int, list[float]] = defaultdict(list)
    for _, block, steps, seconds, *_ in blocks_of(events):
        paces[int(block)].append(seconds / steps)
    return statistics.fmean(max(each) - min(each) for each in paces.values()) if paces else None


def energy_of(events: Events) -> float | None:
    """Joules per step, all ranks together, over warm-up and blocks.

    None where a counter is missing, or the steps did not last long enough for one: they move some tens of
    milliseconds apart.
    """
    total = 0.0
    for rank in events.ranks:
        spans = [event for kind in ("warm_up", "block") for who, event in events.of(kind) if who == rank]
        energies = [event.get("energy_joules") for event in spans]
        if not spans or None in energies or sum(event["seconds"] for event in spans) < ENERGY_SECONDS:
            return None
        total += sum(energies) / sum(event["steps"] for event in spans)
    return total or None


def samples_of(blocks: Sequence[Sequence[float]]) -> list[float]:
    """Seconds per step of each block, in order of blocks: the slowest rank's."""
    slowest: dict[int, float] = defaultdict(float)
    for _, block, steps, seconds, *_ in blocks:
        slowest[int(block)] = max(slowest[int(block)], seconds / steps)
    return [slowest[block] for block in sorted(slowest)]


def timing(rounds: Sequence[Mapping[str, Any]]) -> Timing | None:
    """Statistics of finished rounds (their records), None when there is none."""
    samples = [samples_of(each["blocks"]) for each in rounds]
    samples = [each for each in samples if each]
    if not samples:
        return None
    flat = [value for each in samples for value in each]
    means = [statistics.fmean(each) for each in samples]
    return Timing(
        best_seconds=min(flat),
        median_seconds=statistics.median(flat),
        mean_seconds=statistics.fmean(means),
        mean_low_seconds=min(means),
        mean_high_seconds=max(means),
        rounds=len(samples),
        samples=len(flat),
        steps_per_block=int(min(block[2] for each in rounds for block in each["blocks"])),
        round_mean_seconds=tuple(means),
    )


def conditions(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the sensors said at the edges of all blocks, medians of first-use costs, energy, waits, and what repeats."""
    blocks = [block[4:] for each in rounds for block in each["blocks"] if len(block) > 4]
    lows, highs, powers, reasons, _, loads = ([block[i] for block in blocks] for i in range(len(sensors.FIELDS)))
    power = [value for value in powers if value is not None]
    found = {
        "clock_low_mhz": min((value for value in lows if value is not None), default=None),
        "clock_high_mhz": max((value for value in highs if value is not None), default=None),
        "power_watts": statistics.fmean(power) if power else None,
        "throttle_reasons": sorted({reason for each in reasons for reason in each or ()}),
        "load_average": max((value for value in loads if value is not None), default=None),
    }
    for name in _MEDIANS:
        known = [each[name] for each in rounds if each.get(name) is not None]
        found[name] = statistics.median(known) if known else None
    differing = [each["differing_repetitions"] for each in rounds if each.get("differing_repetitions") is not None]
    found["differing_repetitions"] = max(map(int, differing), default=None)
    return found


def throttled(found: Mapping[str, Any]) -> str:
    """A remark on clocks that were held down, empty when they were not. CPU clocks wander and give no remark."""
    low, high, reasons = (found[name] for name in ("clock_low_mhz", "clock_high_mhz", "throttle_reasons"))
    if found["power_watts"] is None or low is None or low >= CLOCKS_FELL * high:
        return ""
    why = f" ({', '.join(reasons)})" if reasons else ""
    return f"clocks fell to {low:.0f} of {high:.0f} MHz{why}"


def memory_figures(events: Events, case: Any) -> dict[str, int | None]:
    """The three figures, largest over ranks. `step_peak = allocated_peak - inputs - returned gradients`.

    A system that does not say how large its inputs and gradients are gets the sizes of the formula.
    """
    peak = events.largest("memory", "allocated_peak_bytes")
    width = {"bfloat16": 2, "float32": 4}
    elements = sets_of(case.loss) * case.rows * case.dims
    inputs = events.largest("memory", "input_bytes")
    inputs = elements * width[case.dtype] if inputs is None else inputs
    gradients = events.largest("memory", "gradient_bytes")
    gradients = elements * width[case.gradient_dtype] if gradients is None else gradients
    used = events.largest("memory", "device_used_bytes")
    return {
        "allocated_peak_bytes": peak,
        "step_peak_bytes": None if peak is None else max(0, peak - inputs - gradients),
        "device_used_bytes": used,
        "allocator_driver_difference_bytes": None if peak is None or used is None else used - peak,
    }


def worker_notes(events: Events) -> list[str]:
    """What workers want a row to say: the `note` of their first step, such as the blocks that rows are streamed in."""
    return [event["note"] for _, event in events.of("first_step") if event.get("note")]


def memory_remarks(events: Events) -> list[str]:
    """Where two counts of the same memory contradict each other; empty when they do not."""
    peak, used, second = (
        events.largest("memory", name) for name in ("allocated_peak_bytes", "device_used_bytes", "allocator_peak_bytes")
    )
    remarks = []
    # The driver sees all that an allocator has, and more: contexts, code, what the allocator keeps for later.
    if peak is not None and used is not None and used < (1 - MEMORY_SLACK) * peak - MEMORY_SLACK_BYTES:
        remarks.append(f"the allocator counts {size(peak)}, the driver sees only {size(used)}")
    if peak is not None and second is not None and second < (1 - MEMORY_SLACK) * peak - MEMORY_SLACK_BYTES:
        remarks.append(f"the program's analysis says {size(peak)}, its allocator had at most {size(second)}")
    return remarks


def row(
    each: Planned,
    check: Mapping[str, Any] | None,
    rounds: Sequence[Mapping[str, Any]],
    common: Mapping[str, Any],
    protocol: Mapping[str, Any],
    interrupted: str = "",
    not_begun: str = "",
) -> dict[str, Any] | None:
    """The row of a case as far as it has got, or None when there is nothing to tell yet.

    `check` and `rounds` (in order) are records as the store keeps them, `common` the run's own columns. `interrupted`
    and `not_begun` say why a case stopped or was never timed. Times stand only in rows whose status is `ok`,
    `too_noisy` or `interrupted`, or `wrong` where that is expected.
    """
    case = each.case
    result = {"schema_version": records.SCHEMA_VERSION, **common, "case_id": case.case_id}
    result |= {name: getattr(case, name) for name in _CASE_COLUMNS}
    if case.loss == ALL_REDUCE:
        result["bytes"] = case.rows * case.dims * 4
    result["form"] = case.options.get("form", "")
    result["expected_status"] = each.variant.expected_status(case)
    if each.unsupported:
        return result | {"status": "unsupported", "reason": each.unsupported}
    if check is not None:
        result |= {name: check.get(name) for name in ("device_name", "system_version", "loss_value", "inputs_sha256")}
        result |= {f"{output}_error": value for output, value in (check.get("errors") or {}).items()}
        result |= check.get("memory") or {}
    failed = next((record for record in [*rounds, check] if record and record["status"] != "ok"), None)
    if failed and not failed.get("expected"):
        return result | {"status": failed["status"], "reason": failed["reason"]}
    counted = counted_rounds(rounds, protocol)
    figures = timing(counted)
    if figures is not None:
        found = conditions(counted)
        result |= vars(figures) | found | {"retries": len(rounds) - len(counted)}
    if interrupted:
        return result | {"status": "interrupted", "reason": interrupted}
    if failed:
        return result | {"status": failed["status"], "reason": failed["reason"]}
    if figures is None:
        return result | {"status": "interrupted", "reason": not_begun} if not_begun else None
    remarks = list(check.get("notes") or ()) if check else []
    remarks += filter(None, [throttled(found)])
    if figures.rounds < protocol["rounds"]:
        remarks.insert(0, f"{figures.rounds} of {protocol['rounds']} rounds")
    if too_noisy(rounds, protocol):
        remarks.insert(0, _noise_text(figures, result["retries"], protocol))
        return result | {"status": "too_noisy", "reason": "; ".join(remarks)}
    return result | {"status": "ok", "reason": "; ".join(remarks)}


def counted_rounds(rounds: Sequence[Mapping[str, Any]], protocol: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The rounds that a case's figures come from: the last ones, as many as the protocol asks for.

    A retry adds a round and so leaves out the oldest; nothing is chosen by its value.
    """
    return rounds[-protocol["rounds"] :]


def too_noisy(rounds: Sequence[Mapping[str, Any]], protocol: Mapping[str, Any]) -> bool:
    """Whether the process means of the counted rounds lie further apart than the protocol allows."""
    figures = timing(counted_rounds(rounds, protocol))
    limit = protocol["maximum_range"]
    return figures is not None and limit is not None and _range(figures) > limit


def _range(figures: Timing) -> float:
    return (figures.mean_high_seconds - figures.mean_low_seconds) / figures.mean_seconds


def _noise_text(figures: Timing, retries: int, protocol: Mapping[str, Any]) -> str:
    return (
        f"process means range over {_range(figures):.1%} of their mean, more than {protocol['maximum_range']:.0%}, "
        f"after {retries} of {protocol['retries']} retries"
    )
