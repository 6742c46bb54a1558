"""A campaign: check and memory of every case, then rounds of fresh processes, all of it resumable."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import environment, gate, inputs, launch, records, samples, summary
from harness.cases import Case
from harness.configuration import Configuration, seconds
from harness.events import Events
from harness.machine import Machine
from harness.plan import Planned, within_budget
from harness.progress import Progress, step_time
from harness.store import CHECK, Store

HASHED_ELEMENTS = 1 << 26  # of one set: larger inputs are not hashed, it would take minutes
CHECKS_SHARE = 0.6  # of a budget: checks stop there, so that what was checked can also be timed


class Campaign:
    """One run over planned cases. Records every finished launch before the next one starts."""

    def __init__(
        self,
        configuration: Configuration,
        machine: Machine,
        planned: Sequence[Planned],
        store: Store,
        progress: Progress,
    ) -> None:
        self.configuration = configuration
        self.machine = machine
        self.planned = list(planned)
        self.store = store
        self.progress = progress
        self.rounds = configuration.protocol["rounds"]
        self.budget = seconds(configuration.budget, "budget")
        self.notes: list[str] = []
        self._gate = gate.Gate(configuration.reference)
        self._hashes: dict[str, str | None] = {}
        self._current: tuple[Case, str, str] | None = None  # case, phase, its name in words
        self._revision = environment.revision()["revision"]
        self._pace = 1.0  # observed over predicted seconds of what has run
        self._observed: list[tuple[float, float]] = []

    def run(self, check_interrupt: Callable[[], None] = lambda: None) -> None:
        """Everything that is not finished yet. An interrupt leaves the tables up to date and goes on to the caller.

        `check_interrupt` raises KeyboardInterrupt when one was asked for; it is called now and then.
        """
        self._check_interrupt = check_interrupt
        try:
            self.write_rows()
            self._check_all()
            for number in range(self.rounds):
                self._round(number)
        finally:
            self.store.reload()
            self.store.clear_work()
            self.write_rows()
            self._write_samples()

    # what a launch is

    def _launch(self, each: Planned, actions: Sequence[str], checks: Sequence[Mapping[str, Any]]) -> launch.Outcome:
        case = each.case
        payload = case.to_json() | {
            "threads": self.threads(case),
            "actions": list(actions),
            "checks": list(checks),
            "protocol": {k: v for k, v in self.configuration.protocol.items() if k != "rounds"},
            "deadline_seconds": each.deadline(self.configuration.launch["deadline_seconds"]),
        }
        self._check_interrupt()
        name = f"{case.case_id}.{actions[0]}"
        folder = self.store.work / name
        outcome = launch.launch(
            each.system,
            payload,
            folder,
            self.configuration.path("binary"),
            self.configuration.launch["grace_seconds"],
            self._check_interrupt,
        )
        if outcome.status not in ("ok", "unsupported"):
            self.store.keep_log(name, folder)
        self._observed.append((each.launch_seconds, outcome.seconds))
        predicted, observed = (sum(values) for values in zip(*self._observed, strict=True))
        self._pace = observed / predicted if predicted else 1.0
        return outcome

    def threads(self, case: Case) -> int:
        """CPU threads of each rank: cores over ranks on this machine, at least 1."""
        return max(1, self.machine.cores // (case.world_size // case.nodes))

    # the passes

    def _runnable(self) -> list[Planned]:
        """Cases that are still to be timed: nothing has failed yet."""
        return [each for each in self.planned if not each.unsupported and not self._failed(each)]

    def _failed(self, each: Planned) -> bool:
        found = [self.store.check(each.case.case_id), *self.store.rounds(each.case.case_id).values()]
        return any(record and record["status"] != "ok" for record in found)

    def _check_all(self) -> None:
        todo = [each for each in self._runnable() if self.store.check(each.case.case_id) is None]
        for done, each in enumerate(todo):
            if self.budget is not None and self.progress.elapsed > CHECKS_SHARE * self.budget:
                self.note(f"left out, checks have used up their share of the budget: {_titles(todo[done:])}")
                break
            self._current = each.case, CHECK, "its check"
            self.progress.running(f"check {each.case.title}", done, len(todo))
            record = self._check(each)
            self._keep(each, CHECK, record)
            what = _check_text(record)
            predicted = sum(other.total_seconds(self.rounds) for other in todo[done + 1 :])
            predicted += sum(other.launch_seconds * self.rounds for other in todo[: done + 1])
            self.progress.finished(f"check {each.case.title}", what, done + 1, len(todo), self._left(predicted))

    def _check(self, each: Planned) -> dict[str, Any]:
        case = each.case
        checks, notes = gate.checks_of(case)
        outcome = self._launch(each, ["check", "memory"] if checks else ["memory"], checks)
        events = outcome.events
        record: dict[str, Any] = {"status": outcome.status, "reason": outcome.reason, "seconds": outcome.seconds}
        record |= self._identity(each, events) | {"notes": notes, "inputs_sha256": self._hash(case)}
        if outcome.status == "ok":
            verdict = self._gate.judge(case, each.system.launcher, checks, events)
            record |= {"errors": verdict.errors, "loss_value": verdict.loss_value, "checks": verdict.checks}
            record["memory"] = summary.memory_figures(events, case)
            if verdict.failure:
                record |= {"status": "nonfinite" if verdict.nonfinite else "wrong", "reason": verdict.failure}
        return record

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
        todo = [each for each in ready if number not in self.store.rounds(each.case.case_id)]
        todo = self._fit(todo, number)
        order = rotated(todo, number)
        for done, each in enumerate(order):
            if self._over_budget(each, number):
                self.note(f"round {number + 1} leaves out, the budget is used up: {_titles(order[done:])}")
                break
            self._current = each.case, str(number), f"round {number + 1} of {self.rounds}"
            title = f"round {number + 1} {each.case.title}"
            self.progress.running(title, done, len(todo))
            outcome = self._launch(each, ["time"], [])
            record = {"status": outcome.status, "reason": outcome.reason, "seconds": outcome.seconds}
            record |= {
                "blocks": summary.blocks_of(outcome.events),
                "first_step_seconds": outcome.events.largest("first_step", "seconds"),
            }
            if outcome.status == "ok" and not record["blocks"]:
                record |= {"status": "crashed", "reason": "ended ok without a timed block"}
            self._keep(each, str(number), record)
            predicted = sum(other.launch_seconds for other in order[done + 1 :])
            predicted += (self.rounds - number - 1) * sum(other.launch_seconds for other in ready)
            self.progress.finished(title, _round_text(record), done + 1, len(todo), self._left(predicted))

    def _fit(self, todo: list[Planned], number: int) -> list[Planned]:
        """What of a round fits into the rest of the budget; the longest cases go first."""
        if self.budget is None:
            return todo
        left = (self.budget - self.progress.elapsed) / max(self._pace, 1e-9)
        kept, dropped = within_budget(todo, max(left, 0.0), 0)
        if dropped:
            self.note(f"round {number + 1} leaves out, over the budget: {_titles(dropped)}")
        return kept

    def _over_budget(self, each: Planned, number: int) -> bool:
        """Whether a launch must not start any more. First rounds may use the budget up, later ones must fit into it."""
        if self.budget is None:
            return False
        needed = self._pace * each.launch_seconds if number else 0.0
        return self.progress.elapsed + needed > self.budget

    def _left(self, predicted: float) -> float:
        """Seconds left at the pace so far. What does not fit into the budget will not run, so it does not count."""
        remaining = self._pace * predicted
        return remaining if self.budget is None else max(0.0, min(remaining, self.budget - self.progress.elapsed))

    # what is kept

    def note(self, text: str) -> None:
        """Say something that belongs into the record too."""
        self.notes.append(text)
        self.progress.say(text)

    def _keep(self, each: Planned, phase: str, record: Mapping[str, Any]) -> None:
        self.store.save(each.case.case_id, phase, record)
        self._current = None
        self.store.clear_work()
        self.write_rows()

    def rows(self) -> list[dict[str, Any]]:
        """The result table as far as it has got."""
        common = {
            "run_id": self.store.run_id,
            "protocol": self.configuration.protocol["name"],
            "git_revision": self._revision,
            "environment_file": "environment.json",
            "samples_file": samples.file_name(),
        }
        result = []
        for each in self.planned:
            case_id = each.case.case_id
            interrupted = ""
            if self._current and self._current[0] == each.case and not self.store.holds(case_id, self._current[1]):
                interrupted = f"interrupted in {self._current[2]}; the same command continues"
            own = common | {"threads": self.threads(each.case)}
            check, rounds = self.store.check(case_id), list(self.store.rounds(case_id).values())
            row = summary.row(each, check, rounds, own, self.rounds, interrupted)
            if row is not None:
                result.append(row)
        return result

    def write_rows(self) -> None:
        """Replace rows.csv."""
        records.write_rows(self.store.folder / "rows.csv", self.rows())

    def _write_samples(self) -> None:
        table = []
        for each in self.planned:
            case = each.case
            for number, record in self.store.rounds(case.case_id).items():
                who = case.case_id, case.system, case.variant, case.rows, number
                table += [(*who, *map(int, block[:3]), block[3]) for block in record["blocks"]]
        samples.write(self.store.folder, table)

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


def rotated(planned: Sequence[Planned], number: int) -> list[Planned]:
    """The order of a round: shape by shape, so that compared systems run side by side, each shape's systems rotated."""
    shapes: dict[tuple, list[Planned]] = {}
    for each in planned:
        case = each.case
        shapes.setdefault((case.nodes, case.world_size, case.state, case.rows), []).append(each)
    order = []
    for systems in shapes.values():
        start = number % len(systems)
        order += systems[start:] + systems[:start]
    return order


def write_checks(folder: Path, run_id: str, planned: Sequence[Planned], store: Store) -> None:
    """The run's correctness log: one JSON line for each checked case."""
    lines = []
    for each in planned:
        record = store.check(each.case.case_id)
        if record:
            kept = {name: record.get(name) for name in ("status", "reason", "errors", "checks", "notes")}
            limits = {name: limit for name, (limit, _) in gate.tolerances(each.case, each.system.launcher).items()}
            lines.append(json.dumps({"case_id": each.case.case_id, "case": each.case.title, "limits": limits, **kept}))
    if lines:
        folder.mkdir(parents=True, exist_ok=True)
        records.write_atomically(folder / f"{run_id}.jsonl", ("\n".join(lines) + "\n").encode())


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
