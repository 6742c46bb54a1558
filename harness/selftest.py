"""`python -m harness selftest`: the harness measured against systems whose behaviour is known."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness import configuration, gate, launch, plan, summary
from harness.cases import Case
from harness.systems import System

SLEEP_SECONDS = 0.05
ATTEMPTS = 3  # other work on the machine lengthens a sleep: a reading counts as wrong when it is wrong every time
ALLOCATED_BYTES = 256 << 20
SLEEP_TOLERANCE = 0.02
MEMORY_TOLERANCE = 0.01
PYTHON_OVERHEAD_SECONDS = 20e-6
NATIVE_OVERHEAD_SECONDS = 1e-6
CASE_OVERHEAD_SECONDS = 2.0
CLOCKS_MHZ = [1980, 1980, 1980, 1200]  # what the injected sensors read in turn
PROTOCOL = {
    "name": "selftest",
    "warmup_steps": 3,
    "warmup_seconds": 0.1,
    "blocks": 5,
    "steps_per_block": 4,
    "max_block_seconds": 1.0,
}
# what the probe spoils -> the output that the gate must name
SPOILED = {
    "flip_loss": "loss",
    "flip_rows": "embedding_gradient",
    "missing_row": "embedding_gradient",
    "flip_scale": "scale_gradient",
    "world_times_scale": "scale_gradient",
    "flip_bias": "bias_gradient",
}
FAULTS = {"crash": "crashed", "kill": "crashed", "exit": "crashed", "hang": "timeout", "out_of_memory": "out_of_memory"}
PROBE = System("probe", "harness.probe:Probe", "single", (), None, ("cpu",), 0.0, {}, {})
NATIVE = System("sleep", None, "native", (), None, ("cpu",), 0.0, {}, {})


class SelfTest:
    """Launches probes in a temporary folder and compares what the harness reads with what is known."""

    def __init__(self, folder: Path, binary: Path, reference: str) -> None:
        self.folder, self.binary, self.reference = folder, binary, reference

    def checks(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """`(name, check)`; a check returns what it read and raises AssertionError when that is wrong."""
        yield "a no-op step reads near zero (Python)", lambda: self._noop(PROBE, PYTHON_OVERHEAD_SECONDS)
        yield "a sleep reads its length (Python)", lambda: self._sleep(PROBE)
        yield "an allocation reads its size (Python)", lambda: self._allocation(PROBE, "device_used_bytes")
        yield "a throttled clock is noticed", self._throttled
        yield "a case costs little beside its steps", self._case_overhead
        yield "right answers pass the gate", lambda: self._gate(None, None)
        for fault, output in SPOILED.items():
            yield f"{fault} is caught", lambda fault=fault, output=output: self._gate(fault, output)
        for fault, status in FAULTS.items():
            yield f"{fault} gives {status}", lambda fault=fault, status=status: self._fault(fault, status)
        yield "NaN gives nonfinite", lambda: self._fault("nan", "nonfinite")
        if self.binary.is_file():
            yield "a no-op step reads near zero (native)", lambda: self._noop(NATIVE, NATIVE_OVERHEAD_SECONDS)
            yield "a sleep reads its length (native)", lambda: self._sleep(NATIVE)
            yield "an allocation reads its size (native)", lambda: self._allocation(NATIVE, "allocated_peak_bytes")

    def _launch(self, system: System, options: dict[str, Any], actions: Sequence[str], deadline: float = 60.0):
        case = Case(
            system.name, "one_set_sigmoid", "probe", rows=24, dims=32, prefixes=(8, 32), options=options, labels="mixed"
        )
        checks, _ = gate.checks_of(case)
        payload = case.to_json() | {
            "threads": 1,
            "actions": list(actions),
            "checks": checks if "check" in actions else [],
            "protocol": PROTOCOL,
            "deadline_seconds": deadline,
        }
        return case, checks, launch.launch(system, payload, self.folder / "work", self.binary, grace_seconds=0.5)

    def _best(self, system: System, options: dict[str, Any]) -> float:
        _, _, outcome = self._launch(system, options, ["time"])
        assert outcome.status == "ok", f"{outcome.status}: {outcome.reason}"
        return min(summary.samples_of(summary.blocks_of(outcome.events)))

    def _noop(self, system: System, limit: float) -> str:
        seconds = self._best(system, {})
        assert seconds < limit, f"reads {seconds * 1e6:.2f} us a step, must stay under {limit * 1e6:.0f} us"
        return f"{seconds * 1e6:.2f} us a step"

    def _sleep(self, system: System) -> str:
        for _ in range(ATTEMPTS):
            seconds = self._best(system, {"sleep_seconds": SLEEP_SECONDS})
            error = seconds / SLEEP_SECONDS - 1
            if 0 <= error < SLEEP_TOLERANCE:
                break
        assert 0 <= error < SLEEP_TOLERANCE, f"reads {seconds * 1e3:.3f} ms for {SLEEP_SECONDS * 1e3:.0f} ms"
        return f"{error:.2%} over {SLEEP_SECONDS * 1e3:.0f} ms"

    def _allocation(self, system: System, figure: str) -> str:
        case, _, outcome = self._launch(system, {"allocate_bytes": ALLOCATED_BYTES}, ["memory"])
        assert outcome.status == "ok", f"{outcome.status}: {outcome.reason}"
        value = summary.memory_figures(outcome.events, case)[figure]
        assert value is not None, f"{figure} is not known"
        error = value / ALLOCATED_BYTES - 1
        assert abs(error) < MEMORY_TOLERANCE, f"{figure} reads {plan.size(value)} for {plan.size(ALLOCATED_BYTES)}"
        return f"{error:+.2%} of {plan.size(ALLOCATED_BYTES)}"

    def _throttled(self) -> str:
        _, _, outcome = self._launch(PROBE, {"clocks_mhz": CLOCKS_MHZ}, ["time"])
        assert outcome.status == "ok", f"{outcome.status}: {outcome.reason}"
        said = summary.throttled(summary.conditions([{"blocks": summary.blocks_of(outcome.events)}]))
        assert said == "clocks fell to 1200 of 1980 MHz (hw_thermal_slowdown)", f"says {said or 'nothing'}"
        return said

    def _case_overhead(self) -> str:
        """Wall seconds of a case's check and one round of a system that does nothing, less its steps' own time."""
        for _ in range(ATTEMPTS):
            begin = time.monotonic()
            case, checks, outcome = self._launch(PROBE, {}, ["check", "memory"])
            failure = gate.Gate(self.reference).judge(case, PROBE.launcher, checks, outcome.events).failure
            assert not failure, failure
            _, _, outcome = self._launch(PROBE, {}, ["time"])
            steps = [
                event["seconds"] for kind in ("first_step", "warm_up", "block") for _, event in outcome.events.of(kind)
            ]
            seconds = time.monotonic() - begin - sum(steps)
            if seconds < CASE_OVERHEAD_SECONDS:
                break
        assert seconds < CASE_OVERHEAD_SECONDS, f"{seconds:.2f} s, must stay under {CASE_OVERHEAD_SECONDS:.0f} s"
        return f"{seconds:.2f} s for a check and a round, processes and imports included"

    def _gate(self, fault: str | None, output: str | None) -> str:
        options = {"fault": fault} if fault else {}
        case, checks, outcome = self._launch(PROBE, options, ["check"])
        assert outcome.status == "ok", f"{outcome.status}: {outcome.reason}"
        failure = gate.Gate(self.reference).judge(case, PROBE.launcher, checks, outcome.events).failure
        if output is None:
            assert not failure, failure
            return "all outputs within tolerance"
        assert failure.startswith(output), f"the gate says {failure or 'nothing'}"
        return failure.partition(";")[0]

    def _fault(self, fault: str, status: str) -> str:
        deadline = 5.0 if fault == "hang" else 60.0
        _, _, outcome = self._launch(PROBE, {"fault": fault}, ["check"], deadline)
        assert outcome.status == status, f"{outcome.status}: {outcome.reason}"
        left = launch.marked_processes(self.folder)
        assert not left, f"processes {left} are left"
        return outcome.reason


def main(argv: Sequence[str]) -> int:
    """Run all checks; the last line counts them. Exit status 1 when one failed. `binary=...` tests another binary."""
    chosen = configuration.compose(argv)
    passed = failed = 0
    with tempfile.TemporaryDirectory(prefix="scaling-contrasts-") as folder:
        for name, check in SelfTest(Path(folder), chosen.path("binary"), chosen.reference).checks():
            try:
                print(f"passed  {name}: {check()}", flush=True)
                passed += 1
            except AssertionError as problem:
                print(f"FAILED  {name}: {problem}", flush=True)
                failed += 1
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0
