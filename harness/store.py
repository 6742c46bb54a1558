"""A run's folder: what is finished, kept so that a killed run continues and loses nothing.

While a run is on, `state/` holds one small JSON file for each finished check and round, written atomically. They are
the truth; rows.csv and the sample file are made from them, again and again. A complete run has no `state/`.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.records import remove_temporaries, write_atomically

CHECK = "check"


class Store:
    """The folder of one run: `rows.csv environment.json samples.parquet`, `logs/` of failures, `state/` and `work/`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._state = folder / "state"
        self.work = folder / "work"
        self.logs = folder / "logs"
        self._records: dict[str, dict[str, dict[str, Any]]] = {}
        self.reload()

    def reload(self) -> None:
        """Read what is on disk: an interrupt may have come between writing a record and remembering it."""
        for path in sorted(self._state.glob("*.json")):
            try:
                case_id, phase, _ = path.name.split(".")
                record = json.loads(path.read_text())
                whole = "status" in record and (phase == CHECK or int(phase) >= 0)
            except (ValueError, TypeError):
                continue  # not one of ours: ours are whole or absent
            if whole:
                self._records.setdefault(case_id, {})[phase] = record

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.folder.name

    def save(self, case_id: str, phase: str, record: Mapping[str, Any]) -> None:
        """Keep a finished check or round (`phase`: `check` or the round's number) for good."""
        self._state.mkdir(parents=True, exist_ok=True)
        write_atomically(self._state / f"{case_id}.{phase}.json", json.dumps(record).encode())
        self._records.setdefault(case_id, {})[phase] = dict(record)

    def holds(self, case_id: str, phase: str) -> bool:
        """Whether a check or round is finished."""
        return phase in self._records.get(case_id, {})

    def check(self, case_id: str) -> dict[str, Any] | None:
        """The record of a finished check."""
        return self._records.get(case_id, {}).get(CHECK)

    def rounds(self, case_id: str) -> dict[int, dict[str, Any]]:
        """Records of finished rounds by number."""
        phases = self._records.get(case_id, {})
        numbers = sorted(int(phase) for phase in phases if phase != CHECK)
        return {number: phases[str(number)] for number in numbers}

    def failed(self, case_id: str) -> bool:
        """Whether its check or a round ended otherwise than `ok`; not where the check was to end `wrong`."""
        records = self._records.get(case_id, {}).values()
        return any(record["status"] != "ok" and not record.get("expected") for record in records)

    def missing(self, case_id: str, rounds: int) -> int:
        """Launches that a case still needs: its check and `rounds` rounds. None once it has failed."""
        if self.failed(case_id):
            return 0
        return (self.check(case_id) is None) + max(0, rounds - len(self.rounds(case_id)))

    def write_environment(self, data: Mapping[str, Any]) -> None:
        """Replace environment.json."""
        text = json.dumps(data, indent=1, sort_keys=True, default=str)
        write_atomically(self.folder / "environment.json", (text + "\n").encode())

    def keep_log(self, name: str, work: Path) -> None:
        """Keep the log of a launch that failed."""
        if (work / "log.txt").is_file():
            self.logs.mkdir(exist_ok=True)
            shutil.copyfile(work / "log.txt", self.logs / f"{name}.txt")

    def clear_work(self) -> None:
        """Remove what launches left."""
        shutil.rmtree(self.work, ignore_errors=True)

    def finish(self) -> None:
        """The run is complete and its files are written: the state is no longer needed."""
        self.clear_work()
        remove_temporaries(self.folder)
        shutil.rmtree(self._state, ignore_errors=True)


def new_run_id(now: datetime | None = None) -> str:
    """`YYYYMMDDThhmmssZ-<4 hex>`."""
    return f"{(now or datetime.now(UTC)):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"


def unfinished(parent: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Run folders under `parent` that can be continued, newest first: stopped, or ended by their time budget."""
    for path in sorted(parent.glob("*/environment.json"), reverse=True):
        data = environment_of(path.parent)
        if data.get("finished") is False or data.get("complete") is False:
            yield path.parent, data


def complete(folder: Path) -> bool:
    """Whether a run has nothing left to continue."""
    data = environment_of(folder)
    return data.get("finished") is True and data.get("complete") is True


def environment_of(folder: Path) -> dict[str, Any]:
    """What a run's environment.json says, empty where there is none that can be read."""
    try:
        data = json.loads((folder / "environment.json").read_text())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}
