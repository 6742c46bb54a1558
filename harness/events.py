"""What the ranks of one launch left behind: event lines and arrays, read as they are, whole or cut off."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# When ranks disagree, the first of these that any rank reports is the case's: a crash is often another rank's shadow.
_PRECEDENCE = ("out_of_memory", "nonfinite", "unsupported", "wrong", "crashed")


@dataclass
class Events:
    """Events of all ranks by rank, in order of writing."""

    folder: Path
    ranks: dict[int, list[dict[str, Any]]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Events:
        """Everything in `folder`; a torn last line (the writer was killed) ends that rank's list."""
        ranks = {}
        for path in sorted(folder.glob("events.*.jsonl")):
            match = re.fullmatch(r"events\.(\d+)\.jsonl", path.name)
            if match:
                ranks[int(match[1])] = list(_lines(path))
        return cls(folder, dict(sorted(ranks.items())))

    def of(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """`(rank, event)` of one kind."""
        return [(rank, event) for rank, events in self.ranks.items() for event in events if event.get("event") == kind]

    def ended(self) -> tuple[str, str] | None:
        """Status and reason over all ranks, or None when a rank wrote no last line and none explains why."""
        ends = [event for _, event in self.of("end")]
        ends.sort(key=lambda event: event.get("time", 0.0))  # the first to fail knows why, the others lost it
        for status in _PRECEDENCE:
            for event in ends:
                if event.get("status") == status:
                    return status, str(event.get("reason") or status)
        if ends and len(ends) == len(self.ranks) and all(event.get("status") == "ok" for event in ends):
            return "ok", ""
        return None

    def gradients(self, check: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Per set: global row numbers and float32 gradients `[rows, dims]` of a check, put together from all ranks."""
        parts: dict[str, list[tuple[list[int], np.ndarray]]] = {}
        for _, event in self.of("check"):
            if event["name"] == check:
                for name, file in event["gradients"].items():
                    parts.setdefault(name, []).append((event["rows"], np.load(self.folder / Path(file).name)))
        return {
            name: (np.concatenate([np.asarray(rows, dtype=np.int64) for rows, _ in pieces]), np.concatenate(arrays))
            for name, pieces in parts.items()
            for arrays in [[array for _, array in pieces]]
        }

    def largest(self, kind: str, name: str) -> Any:
        """The largest value of a field over ranks, None where no rank knows it."""
        values = [event.get(name) for _, event in self.of(kind)]
        return max((value for value in values if value is not None), default=None)


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            return
        if isinstance(event, dict):
            yield event
