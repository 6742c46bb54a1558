"""The measurement loop under a clock that is driven by the system itself: exact expectations, no waiting."""

import pytest

from harness import timing
from harness.sensors import Reading

PROTOCOL = {
    "warmup_steps": 10,
    "warmup_seconds": 1.0,
    "blocks": 3,
    "steps_per_block": 100,
    "max_block_seconds": 10.0,
}


@pytest.fixture(autouse=True)
def no_collections(monkeypatch):
    """A collection before each block walks over all that the test session holds: a second a test."""
    monkeypatch.setattr(timing.gc, "collect", lambda: None)


class Clocked:
    """A system whose asynchronous step costs `seconds` of a fake clock, paid when synchronised."""

    def __init__(self, seconds: float, first: float = 0.0, slowest: float = 1.0) -> None:
        self.seconds, self.first, self.slowest = seconds, first, slowest
        self.now, self.steps, self.pending, self.calls = 0.0, 0, 0.0, []

    def clock(self) -> float:
        return self.now

    def step(self) -> None:
        self.pending += self.first if self.steps == 0 else self.seconds
        self.steps += 1

    def synchronize(self) -> None:
        self.now += self.pending
        self.pending = 0.0
        self.calls.append("synchronize")

    def barrier(self) -> None:
        assert not self.pending, "a barrier must come after the device is done"
        self.calls.append("barrier")

    def maximum(self, value: float) -> float:
        return value * self.slowest


def test_a_single_step_is_a_block_of_one():
    system, events = Clocked(334.0, first=334.5), []
    timing.single_step(system, lambda event, **fields: events.append((event, fields)), system.clock)
    (first, told), (block, timed) = events
    assert (first, told) == ("first_step", {"seconds": 334.5})
    assert (block, timed["block"], timed["steps"], timed["seconds"]) == ("block", 0, 1, 334.5)
    assert system.steps == 1 and system.calls == ["barrier", "synchronize"]


def run(system, **changes):
    events = []
    timing.measure(
        system, PROTOCOL | changes, lambda event, **fields: events.append({"event": event, **fields}), system.clock
    )
    collective, first, warm_up, *blocks = events
    assert [event["event"] for event in (collective, first, warm_up)] == ["first_collective", "first_step", "warm_up"]
    assert [block["event"] for block in blocks] == ["block"] * len(blocks)
    return first, blocks


def test_blocks_read_the_step_and_the_first_step_stands_apart():
    system = Clocked(0.01, first=5.0)
    first, blocks = run(system)
    assert first["seconds"] == pytest.approx(5.0)
    assert [block["steps"] for block in blocks] == [100, 100, 100]
    assert all(block["seconds"] == pytest.approx(1.0) for block in blocks)
    assert [block["block"] for block in blocks] == [0, 1, 2]


@pytest.mark.parametrize(
    ("step", "least_warm_up"),
    [(1e-3, 1000), (0.05, 20), (0.5, 10)],  # a second, or ten steps, whichever is later
)
def test_warm_up_lasts_both_its_steps_and_its_seconds(step, least_warm_up):
    system = Clocked(step)
    _, blocks = run(system)
    warm_up = system.steps - 1 - sum(block["steps"] for block in blocks)
    assert warm_up >= least_warm_up
    assert warm_up * step <= 1.5 + 10 * step


@pytest.mark.parametrize(("step", "steps"), [(0.1, 100), (0.5, 20), (3.0, 3), (60.0, 2)])
def test_slow_steps_get_shorter_blocks_but_never_one_step(step, steps):
    _, blocks = run(Clocked(step))
    assert [block["steps"] for block in blocks] == [steps] * 3


def test_the_slowest_rank_decides_the_number_of_steps():
    fast = Clocked(0.1, slowest=4.0)  # another rank takes four times as long
    _, blocks = run(fast)
    assert [block["steps"] for block in blocks] == [25] * 3


def test_the_device_is_synchronised_at_the_edges_of_blocks_only():
    system = Clocked(0.5)
    run(system, blocks=2)
    assert system.calls[-6:] == ["synchronize", "barrier", "synchronize"] * 2


def test_ranks_that_agree_on_times_run_equal_numbers_of_steps():
    """Two ranks with clocks of their own share `maximum`: the same decisions, although rank 0 is faster."""
    fast, slow = Clocked(0.1, slowest=2.0), Clocked(0.2)
    assert [block["steps"] for block in run(fast)[1]] == [block["steps"] for block in run(slow)[1]]
    assert fast.steps == slow.steps


def timed_events(system, **arguments):
    """All events by name; one of each kind but blocks."""
    events = {}
    timing.measure(
        system, PROTOCOL, lambda event, **fields: events.setdefault(event, []).append(fields), system.clock, **arguments
    )
    return events


def test_the_first_barrier_is_the_first_collective_and_stands_apart():
    class Slow(Clocked):
        def barrier(self):
            self.now += 7.0 if "barrier" not in self.calls else 0.0
            super().barrier()

    events = timed_events(Slow(0.01, first=5.0))
    assert events["first_collective"][0]["seconds"] == pytest.approx(7.0)
    assert events["first_step"][0]["seconds"] == pytest.approx(5.0)


def test_the_warm_up_says_how_many_steps_it_took():
    events = timed_events(Clocked(0.05))
    (warm_up,) = events["warm_up"]
    assert warm_up["seconds"] == pytest.approx(0.05 * warm_up["steps"])
    assert warm_up["seconds"] >= 1.0


def test_sensors_are_read_outside_of_what_is_timed():
    """Each reading takes three seconds of the clock; no block and no warm-up is longer for it."""
    system = Clocked(0.01)
    reads = []

    def read():
        assert not system.pending, "a reading while steps are in flight"
        system.now += 3.0
        reads.append(system.steps)
        system.calls.append("read")
        return Reading(clocks_mhz=(2000.0 - len(reads),), energy_joules=10.0 * len(reads))

    events = timed_events(system, read=read)
    assert [block["seconds"] for block in events["block"]] == pytest.approx([1.0] * 3)
    assert events["warm_up"][0]["seconds"] < 2.0
    block = ["read", "synchronize", "barrier", "synchronize", "read"]
    assert system.calls[-15:] == 3 * block, "nothing comes between the barrier, where ranks meet, and the first step"
    assert len(reads) == 8, "before and after the warm-up and each of three blocks"
    assert [(block["clock_low_mhz"], block["clock_high_mhz"]) for block in events["block"]] == [
        (1996.0, 1997.0),
        (1994.0, 1995.0),
        (1992.0, 1993.0),
    ]
    assert all(block["energy_joules"] == pytest.approx(10.0) for block in events["block"])


def test_cold_steps_are_timed_one_by_one_without_their_flush():
    system = Clocked(0.01)
    flushed = []

    def flush():
        assert not system.pending
        system.now += 0.5
        flushed.append(system.steps)

    events = timed_events(system, flush=flush)
    assert [block["seconds"] for block in events["block"]] == pytest.approx([1.0] * 3)
    assert len(flushed) == 300 and len(set(flushed)) == 300, "before each step of each block, never in the warm-up"
