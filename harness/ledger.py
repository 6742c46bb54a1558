"""The files of a run, made from what its store holds: rows.csv, the sample file, the correctness log."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import environment, gate, records, samples, summary
from harness.cases import Case
from harness.configuration import Configuration
from harness.plan import Planned
from harness.store import Store

BUDGET_ENDED = "time budget ended before this case; the same command goes on with it"
NOT_BEGUN = "interrupted before its turn; the same command continues"


class Ledger:
    """Writes the run's files anew after each finished launch. `threads` gives a case's CPU threads per rank."""

    def __init__(
        self, configuration: Configuration, planned: Sequence[Planned], store: Store, threads: Callable[[Case], int]
    ) -> None:
        self.planned, self.store = list(planned), store
        self.current: tuple[Case, str, str] | None = None  # what runs now: case, phase, its name in words
        self.left_out: set[str] = set()  # ids of cases for which the time budget had no room
        self._protocol, self._threads = configuration.protocol, threads
        self._common = {
            "run_id": store.run_id,
            "protocol": self._protocol["name"],
            "cache_state": self._protocol["cache"],
            "git_revision": environment.revision()["revision"],
            "environment_file": "environment.json",
            "samples_file": samples.file_name(),
        }

    @property
    def complete(self) -> bool:
        """Whether every case has its answer: all its rounds, or a failure."""
        return all(self._missing(each) == 0 for each in self.planned)

    def _missing(self, each: Planned) -> int:
        return self.store.missing(each.case.case_id, self._protocol["rounds"]) if not each.unsupported else 0

    def rows(self, ended: bool = False) -> list[dict[str, Any]]:
        """The table as far as it has got. `ended`: the run is over, and what was not begun is a row that says so."""
        result = []
        for each in self.planned:
            case_id = each.case.case_id
            interrupted = ""
            if self.current and self.current[0] == each.case and not self.store.holds(case_id, self.current[1]):
                interrupted = f"interrupted in {self.current[2]}; the same command continues"
            not_begun = ""
            if ended:
                not_begun = BUDGET_ENDED if case_id in self.left_out else NOT_BEGUN
            own = self._common | {"threads": self._threads(each.case)}
            check, rounds = self.store.check(case_id), list(self.store.rounds(case_id).values())
            row = summary.row(each, check, rounds, own, self._protocol, interrupted, not_begun)
            if row is not None:
                result.append(row)
        return result

    def write_rows(self, ended: bool = False) -> None:
        """Replace rows.csv."""
        records.write_rows(self.store.folder / "rows.csv", self.rows(ended))

    def write_samples(self) -> None:
        """Replace the sample file: every block of every rank and round, retried rounds included."""
        table = []
        for each in self.planned:
            case = each.case
            for number, record in self.store.rounds(case.case_id).items():
                who = case.case_id, case.system, case.variant, case.rows, number
                table += [(*who, *block) for block in record["blocks"]]
        samples.write(self.store.folder, table)

    def write_checks(self, folder: Path) -> None:
        """The run's correctness log in `folder`: one JSON line for each checked case."""
        lines = []
        for each in self.planned:
            record = self.store.check(each.case.case_id)
            if record:
                kept = {name: record.get(name) for name in ("status", "reason", "errors", "checks", "notes")}
                limits = {name: limit for name, (limit, _) in gate.tolerances(each.case, each.system.launcher).items()}
                lines.append(
                    json.dumps({"case_id": each.case.case_id, "case": each.case.title, "limits": limits, **kept})
                )
        if lines:
            folder.mkdir(parents=True, exist_ok=True)
            text = "\n".join(lines) + "\n"
            name = f"{self.store.run_id}.jsonl"
            records.remove_temporaries(folder, name)
            records.write_atomically(folder / name, text.encode())
