"""A campaign: check and memory of every case, then rounds of fresh processes, all of it resumable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness import environment, gate, inputs, launch, summary
from harness.budget import Budget
from harness.cases import Case
from harness.configuration import Configuration
from harness.configuration_checks import seconds
from harness.events import Events
from harness.leader import Leader
from harness.ledger import Ledger
from harness.machine import Machine
from harness.plan import Planned
from harness.progress import Progress, step_time
from harness.store import CHECK, Store

HASHED_ELEMENTS = 1 << 26  # of one set: larger inputs are not hashed, it would take minutes
# Fields of a protocol that the harness minds; a worker needs the others.
_HARNESS_FIELDS = ("rounds", "together", "one_step", "maximum_range", "retries")
# What a process that has checked the case cannot tell: its first step and collective came in the check.
_NOT_FIRST = ("first_step_seconds", "first_collective_seconds")


class Campaign:
    """One run over planned cases. Records every finished launch before the next one starts.

    `dropped` are cases that the time budget has no room for: rows of theirs say so. `leader` launches what spans
    several nodes.
    """

    def __init__(
        self,
        configuration: Configuration,
        machine: Machine,
        planned: Sequence[Planned],
        store: Store,
        progress: Progress,
        dropped: Sequence[Planned] = (),
        leader: Leader | None = None,
    ) -> None:
        self.configuration = configuration
        self.machine = machine
        self.planned = list(planned)
        self.store = store
        self.progress = progress
        self.rounds = configuration.protocol["rounds"]
        self.ledger = Ledger(configuration, planned, store, self.threads)
        self.notes: list[str] = []
        self._leader = leader
        self._dropped = {each.case.case_id for each in dropped}
        self._budget = Budget(seconds(configuration.budget, "budget"), lambda: progress.elapsed)
        self._gate = gate.Gate(configuration.reference)
        self._hashes: dict[str, str | None] = {}

    def run(self, check_interrupt: Callable[[], None] = lambda: None) -> None:
        """Everything that is not finished yet. An interrupt leaves the tables up to date and goes on to the caller.

        `check_interrupt` raises KeyboardInterrupt when one was asked for; it is called now and then.
        """
        self._check_interrupt = check_interrupt
        self.ledger.left_out |= self._dropped
        try:
            self.ledger.write_rows()
            self._check_all()
            for number in range(self.rounds + self.configuration.protocol["retries"]):
                self._round(number)
        finally:
            self.store.reload()
            self.store.clear_work()
            self.ledger.write_rows(ended=True)
            self.ledger.write_samples()

    # what a launch is

    def _launch(self, each: Planned, actions: Sequence[str], checks: Sequence[Mapping[str, Any]]) -> launch.Outcome:
        case = each.case
        protocol = self.configuration.protocol
        payload = case.to_json() | {
            "threads": self.threads(case),
            "actions": list(actions),
            "checks": list(checks),
            "protocol": {name: value for name, value in protocol.items() if name not in _HARNESS_FIELDS},
            "deadline_seconds": each.deadline(self.configuration.launch["deadline_seconds"]),
        }
        self._check_interrupt()
        name = f"{case.case_id}.{actions[0]}"
        folder = self.store.work / name
        start = self._leader.launch if self._leader and case.nodes > 1 else launch.launch
        outcome = start(
            each.system,
            payload,
            folder,
            self.configuration.path("binary"),
            self.configuration.launch["grace_seconds"],
            self._check_interrupt,
        )
        if outcome.status not in ("ok", "unsupported"):
            self.store.keep_log(name, folder)
        self._budget.observe(each.launch_seconds, outcome.seconds)
        return outcome

    def threads(self, case: Case) -> int:
        """CPU threads of each rank: cores over ranks on this machine, at least 1."""
        return max(1, self.machine.cores // (case.world_size // case.nodes))

    # the passes

    def _runnable(self) -> list[Planned]:
        """Cases that are still to be timed: there is room for them, and nothing has failed yet."""
        able = [each for each in self.planned if not each.unsupported and each.case.case_id not in self._dropped]
        return [each for each in able if not self._failed(each)]

    def _failed(self, each: Planned) -> bool:
        return self.store.failed(each.case.case_id)

    def _check_all(self) -> None:
        todo = [each for each in self._runnable() if self.store.check(each.case.case_id) is None]
        for done, each in enumerate(todo):
            if self._budget.checks_are_used_up(self._together):
                self._leave_out("checks have used up their share of the budget", todo[done:])
                break
            self.ledger.current = each.case, CHECK, "its check"
            self.progress.running(f"check {each.case.title}", done, len(todo))
            record, outcome = self._check(each)
            self._keep(each, CHECK, record)
            if self._together and not self._failed(each):
                self._keep(each, "0", _timed(outcome) | dict.fromkeys(_NOT_FIRST))
            what = _check_text(record)
            rounds = self.configuration.rounds_apart
            predicted = sum(other.total_seconds(rounds) for other in todo[done + 1 :])
            predicted += sum(other.launch_seconds * rounds for other in todo[: done + 1])
            self.progress.finished(f"check {each.case.title}", what, done + 1, len(todo), self._budget.left(predicted))

    @property
    def _together(self) -> bool:
        """Whether the process that checks a case also times its first round."""
        return self.configuration.protocol["together"]

    @property
    def _one_step(self) -> bool:
        """Whether one step of a process is all that is timed, and measured for its memory."""
        return self.configuration.protocol["one_step"]

    def _check(self, each: Planned) -> tuple[dict[str, Any], launch.Outcome]:
        case = each.case
        checks, notes = gate.checks_of(case)
        measuring = ["step"] if self._one_step else ["memory", *(["time"] if self._together else [])]
        actions = [*(["check"] if checks else []), *measuring]
        outcome = self._launch(each, actions, checks)
        events = outcome.events
        record: dict[str, Any] = {"status": outcome.status, "reason": outcome.reason, "seconds": outcome.seconds}
        record |= self._identity(each, events) | {"notes": notes, "inputs_sha256": self._hash(case)}
        if outcome.status == "ok":
            reference = each.system.references.get(case.loss)
            verdict = self._gate.judge(case, each.system.launcher, checks, events, reference)
            record |= {"errors": verdict.errors, "loss_value": verdict.loss_value, "checks": verdict.checks}
            record["memory"] = summary.memory_figures(events, case)
            record["notes"] = [*notes, *summary.worker_notes(events), *summary.memory_remarks(events)]
            if verdict.failure:
                status = "nonfinite" if verdict.nonfinite else "wrong"
                # A documented trap is timed all the same, so that what it costs can be seen.
                expected = status == "wrong" == each.variant.expected_status(case)
                because = f". Expected: {each.variant.because}" if expected and each.variant.because else ""
                record |= {"status": status, "reason": f"{verdict.failure}{because}", "expected": expected}
        return record, outcome

    def _identity(self, each: Planned, events: Events) -> dict[str, Any]:
        """What the worker said about itself, with the installed package's version where it said nothing."""
        start = next((event for _, event in events.of("start")), {})
        found = start.get("versions") or {}
        package = each.system.package
        version = found.get(package or "") or found.get(each.system.name)
        if version is None and package:
            version = environment.versions([package]).get(package)
        on_cpu = each.case.device == "cpu"
        name = self.machine.cpu_name if on_cpu else start.get("device_name") or self.machine.gpus[0].name
        return {"device_name": name, "system_version": version, "versions": found, "declares": start.get("declares")}

    def _round(self, number: int) -> None:
        ready = [each for each in self._runnable() if self.store.check(each.case.case_id) is not None]
        if number >= self.rounds:  # a retry: only for those whose process means lie too far apart
            ready = [each for each in ready if self._noisy(each)]
        todo = [each for each in ready if number not in self.store.rounds(each.case.case_id)]
        name = f"round {number + 1}" if number < self.rounds else f"retry {number - self.rounds + 1}"
        todo, left_out = self._budget.fit(todo)
        if left_out:
            self._leave_out(f"{name} is over the budget", left_out)
        order = rotated(todo, number)
        for done, each in enumerate(order):
            if self._budget.forbids(each, first_round=number == 0):
                self._leave_out(f"{name}, the budget is used up", order[done:])
                break
            self.ledger.current = each.case, str(number), f"{name} of {self.rounds}"
            title = f"{name} {each.case.title}"
            self.progress.running(title, done, len(todo))
            record = _timed(self._launch(each, ["step" if self._one_step else "time"], []))
            self._keep(each, str(number), record)
            predicted = sum(other.launch_seconds for other in order[done + 1 :])
            predicted += max(0, self.rounds - number - 1) * sum(other.launch_seconds for other in ready)
            self.progress.finished(title, _round_text(record), done + 1, len(todo), self._budget.left(predicted))

    def _noisy(self, each: Planned) -> bool:
        rounds = list(self.store.rounds(each.case.case_id).values())
        return len(rounds) >= self.rounds and summary.too_noisy(rounds, self.configuration.protocol)

    # what is kept

    def note(self, text: str) -> None:
        """Say something that belongs into the record too."""
        self.notes.append(text)
        self.progress.say(text)

    def _leave_out(self, why: str, cases: Sequence[Planned]) -> None:
        self.ledger.left_out |= {each.case.case_id for each in cases}
        self.note(f"left out, {why}: {_titles(cases)}")

    def _keep(self, each: Planned, phase: str, record: Mapping[str, Any]) -> None:
        self.store.save(each.case.case_id, phase, record)
        self.ledger.current = None
        self.store.clear_work()
        self.ledger.write_rows()

    def _hash(self, case: Case) -> str | None:
        """Hash of a case's inputs, computed once for all systems of a shape."""
        names = ("loss", "rows", "world_size", "dims", "seed", "labels")
        shape = {name: getattr(case, name) for name in names}
        shape["loss"] = inputs.sets_of(case.loss)
        key = json.dumps(shape)
        if key not in self._hashes:
            small = case.rows * case.world_size * case.dims <= HASHED_ELEMENTS
            self._hashes[key] = inputs.digest(case.to_json()) if small else None
        return self._hashes[key]


def _timed(outcome: launch.Outcome) -> dict[str, Any]:
    """The record of a round."""
    record = {"status": outcome.status, "reason": outcome.reason, "seconds": outcome.seconds}
    record |= {
        "blocks": summary.blocks_of(outcome.events),
        "energy_joules_per_step": summary.energy_of(outcome.events),
        "skew_seconds": summary.skew_of(outcome.events),
        "end_wait_seconds": outcome.events.largest("figures", "end_wait_seconds"),
        "differing_repetitions": outcome.events.largest("figures", "differing_repetitions"),
        **summary.first_use_of(outcome.events),
    }
    if outcome.status == "ok" and not record["blocks"]:
        record |= {"status": "crashed", "reason": "ended ok without a timed block"}
    return record


def rotated(planned: Sequence[Planned], number: int) -> list[Planned]:
    """The order of a round: shape by shape, so that compared systems run side by side, each shape's systems rotated."""
    shapes: dict[tuple, list[Planned]] = {}
    for each in planned:
        case = each.case
        shape = case.nodes, case.world_size, case.state, case.rows, case.dims, case.dtype, case.labels
        shapes.setdefault(shape, []).append(each)
    order = []
    for systems in shapes.values():
        start = number % len(systems)
        order += systems[start:] + systems[:start]
    return order


def _titles(cases: Sequence[Planned], shown: int = 3) -> str:
    names = [each.case.title for each in cases]
    return f"{len(names)} cases ({', '.join(names[:shown])}{', ...' if len(names) > shown else ''})"


def _check_text(record: Mapping[str, Any]) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record['reason']}"
    names = {"loss": "loss", "embedding_gradient": "dX", "scale_gradient": "dt", "bias_gradient": "db"}
    errors = record["errors"]
    known = [f"{text} {errors[name]:.0e}" for name, text in names.items() if errors[name] is not None]
    return f"ok, errors {', '.join(known)}" if known else "ok, not checked"


def _round_text(record: Mapping[str, Any]) -> str:
    if record["status"] != "ok":
        return f"{record['status']}: {record['reason']}"
    return f"{step_time(min(summary.samples_of(record['blocks'])))} a step"
