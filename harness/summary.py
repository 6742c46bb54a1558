"""Statistics of a case and its row in the result table."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness import records
from harness.events import Events
from harness.inputs import sets_of
from harness.plan import Planned

_CASE_COLUMNS = (
    "system loss variant state rows dims prefixes dtype gradient_dtype scale bias seed self_pairs world_size nodes "
    "device labels live prefix_weights"
).split()


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
    first_step_seconds: float | None
    round_mean_seconds: tuple[float, ...]  # process means in the order of rounds


def blocks_of(events: Events) -> list[list[float]]:
    """`[rank, block, steps, seconds]` of every block of a launch."""
    return [[rank, event["block"], event["steps"], event["seconds"]] for rank, event in events.of("block")]


def samples_of(blocks: Sequence[Sequence[float]]) -> list[float]:
    """Seconds per step of each block, in order of blocks: the slowest rank's."""
    slowest: dict[int, float] = defaultdict(float)
    for _, block, steps, seconds in blocks:
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
    firsts = [each["first_step_seconds"] for each in rounds if each.get("first_step_seconds") is not None]
    return Timing(
        best_seconds=min(flat),
        median_seconds=statistics.median(flat),
        mean_seconds=statistics.fmean(means),
        mean_low_seconds=min(means),
        mean_high_seconds=max(means),
        rounds=len(samples),
        samples=len(flat),
        steps_per_block=int(min(block[2] for each in rounds for block in each["blocks"])),
        first_step_seconds=statistics.median(firsts) if firsts else None,
        round_mean_seconds=tuple(means),
    )


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
    return {
        "allocated_peak_bytes": peak,
        "step_peak_bytes": None if peak is None else max(0, peak - inputs - gradients),
        "device_used_bytes": events.largest("memory", "device_used_bytes"),
    }


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
    result["expected_status"] = each.variant.expected_status(case.state)
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
        result |= vars(figures) | {"retries": len(rounds) - len(counted)}
    if interrupted:
        return result | {"status": "interrupted", "reason": interrupted}
    if failed:
        return result | {"status": failed["status"], "reason": failed["reason"]}
    if figures is None:
        return result | {"status": "interrupted", "reason": not_begun} if not_begun else None
    remarks = list(check.get("notes") or ()) if check else []
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
