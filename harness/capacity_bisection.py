"""Where to look next for the largest R that fits: pure functions of what has been seen.

Every R has a list of launches, True where it fitted. Its verdict is their majority: one launch may err (a fluke, a
neighbour on the machine), and an endpoint counts only once it has been launched again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Seen = Mapping[int, Sequence[bool]]


@dataclass(frozen=True)
class Bounds:
    """How a search goes. `confirmations`: further launches of each endpoint; even, so that a majority exists."""

    start_rows: int
    ceiling_rows: int
    step_rows: int
    step_share: float
    confirmations: int


def fits(launches: Sequence[bool]) -> bool:
    """The verdict over an R's launches: more of them fitted than not. A tie does not fit."""
    return 2 * sum(launches) > len(launches)


def endpoints(seen: Seen) -> tuple[int, int | None]:
    """The largest R that fits below the smallest that does not, 0 if none does; and that smallest, None if all fit."""
    failing = min((rows for rows, launches in seen.items() if not fits(launches)), default=None)
    fitting = [rows for rows, launches in seen.items() if fits(launches) and (failing is None or rows < failing)]
    return max(fitting, default=0), failing


def next_rows(seen: Seen, bounds: Bounds) -> int | None:
    """The R to launch next, None when the search is done.

    Doubling from the start, then bisection, then `confirmations` more launches of both endpoints. A confirmation that
    turns a verdict over moves the endpoint, and the search goes on from there.
    """
    low, high = endpoints(seen)
    if high is None and low < bounds.ceiling_rows:
        return min(2 * low if low else bounds.start_rows, bounds.ceiling_rows)
    if high is not None and high - low > max(bounds.step_rows, bounds.step_share * low):
        return _between(low, high, bounds.step_rows)
    for rows in (low, high):
        if rows and len(seen[rows]) <= bounds.confirmations:
            return rows
    return None


def _between(low: int, high: int, step: int) -> int:
    """The middle, on a multiple of `step` where one lies between: round numbers are what shapes are tuned for."""
    middle = (low + high) // 2
    rounded = middle // step * step
    return rounded if low < rounded < high else middle
