"""The time that a run may take, and the pace at which predictions have come true."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.plan import Planned, within_budget

CHECKS_SHARE = 0.6  # of a budget: checks stop there, so that what was checked can also be timed


class Budget:
    """`total`: seconds, None for no limit. `elapsed` tells the seconds used so far."""

    def __init__(self, total: float | None, elapsed: Callable[[], float]) -> None:
        self.total = total
        self._elapsed = elapsed
        self._predicted = self._observed = 0.0

    @property
    def _pace(self) -> float:
        """Observed over predicted seconds of what has run."""
        return self._observed / self._predicted if self._predicted else 1.0

    def observe(self, predicted: float, observed: float) -> None:
        """A launch that was predicted to take so long took so long."""
        self._predicted += predicted
        self._observed += observed

    def left(self, predicted: float) -> float:
        """Seconds left at the pace so far. What does not fit into the budget will not run, so it does not count."""
        remaining = self._pace * predicted
        return remaining if self.total is None else max(0.0, min(remaining, self.total - self._elapsed()))

    def checks_are_used_up(self, together: bool = False) -> bool:
        """Whether checks have had their share: all of it where they also time (`together`)."""
        return self.total is not None and self._elapsed() > (1.0 if together else CHECKS_SHARE) * self.total

    def fit(self, todo: Sequence[Planned]) -> tuple[list[Planned], list[Planned]]:
        """What of a round fits into the rest, and what does not; the longest cases go first."""
        if self.total is None:
            return list(todo), []
        left = (self.total - self._elapsed()) / max(self._pace, 1e-9)
        return within_budget(todo, max(left, 0.0), lambda each: each.launch_seconds)

    def forbids(self, each: Planned, first_round: bool) -> bool:
        """Whether a launch must not start any more. First rounds may use the budget up, later ones must fit into it."""
        if self.total is None:
            return False
        needed = 0.0 if first_round else self._pace * each.launch_seconds
        return self._elapsed() + needed > self.total
