"""One launch over several nodes, as node 0 sees it: who has answered, who is gone, what it comes to."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.channel import Channel
from harness.events import Events
from harness.launch import Outcome
from harness.part import Cut
from harness.roster import Member, Roster

_GATHER_SECONDS = 30.0  # for results to arrive after the deadline of a launch
_MUTE = re.compile(r"killed by|exit status \d+, no last line|cannot start")  # how launch.py says that nobody told why


class Gathering:
    """The results of launch `number` from `members`, which come into `folder`. `check_interrupt` may raise."""

    def __init__(
        self,
        roster: Roster,
        channel: Channel,
        number: int,
        members: Mapping[int, Member],
        case: Mapping[str, Any],
        folder: Path,
        grace_seconds: float,
        check_interrupt: Callable[[], None],
    ) -> None:
        self._roster, self._channel, self._number, self._members = roster, channel, number, members
        self._folder, self._grace, self._check_interrupt = folder, grace_seconds, check_interrupt
        self._local_ranks = case["world_size"] // case["nodes"]
        self._start = time.monotonic()
        self._end = self._start + case["deadline_seconds"] + _GATHER_SECONDS
        self._notes: dict[int, dict[str, Any]] = {}
        self._lost = ""  # how a node was lost
        self._failed_at: float | None = None
        self._called_off = False

    def check(self) -> None:
        """Called while this node's part runs. Raises Cut when it need not go on."""
        self._check_interrupt()
        self._look()
        if self._lost or self._grace_is_over():
            raise Cut

    def _grace_is_over(self) -> bool:
        return self._failed_at is not None and time.monotonic() - self._failed_at > self._grace

    def _look(self) -> None:
        self._roster.look()
        self._roster.check_interrupts()
        for rank, member in self._members.items():
            if rank in self._notes or self._lost:
                continue
            note = self._channel.get(f"result/{self._number}/{rank}/{member.key}")
            if note is not None:
                self._notes[rank] = note
                if note["status"] != "ok" and self._failed_at is None:
                    self._failed_at = time.monotonic()
                if note["status"] == "cut" and not self._called_off:
                    self._lose(member, gave_up=True)
            elif self._roster.members[rank] is not member or not self._roster.present(member):
                self._lose(member)

    def _lose(self, member: Member, gave_up: bool = False) -> None:
        first, count = member.rank * self._local_ranks, self._local_ranks
        ranks = f"rank {first}" if count == 1 else f"ranks {first} to {first + count - 1}"
        self._lost = self._roster.loss(member, self._start, gave_up, ranks)

    def wait(self, outcome: Outcome, call_off: Callable[[], None]) -> None:
        """Wait for the other nodes' results, as long as they can still come.

        `call_off` tells them to give up; they still say how far they got.
        """
        if outcome.status not in ("ok", "cut") and self._failed_at is None:
            self._failed_at = time.monotonic()
        while len(self._notes) < len(self._members) and not self._lost and time.monotonic() < self._end:
            if self._grace_is_over() and not self._called_off:
                self._called_off = True
                call_off()
            self._check_interrupt()
            self._look()
            time.sleep(0.02)

    def merge(self, outcome: Outcome) -> Outcome:
        """All nodes' results as one. The folder holds all nodes' files afterwards."""
        for rank, member in self._members.items():
            if rank in self._notes:
                self._channel.get_files(f"result/{self._number}/{rank}/{member.key}", self._folder)
        for path in sorted(self._folder.glob("log.*.txt")):
            with open(self._folder / "log.txt", "ab") as log, open(path, "rb") as other:
                log.write(f"\n--- node {path.name.split('.')[1]}\n".encode())
                shutil.copyfileobj(other, log)
        events = Events.read(self._folder)
        seconds = max([outcome.seconds, *(note["seconds"] for note in self._notes.values())])
        if self._lost:
            return Outcome("crashed", self._lost, events, seconds)
        missing = [str(member) for rank, member in self._members.items() if rank not in self._notes]
        if missing:
            return Outcome("crashed", f"{missing[0]} sent no result", events, seconds)
        notes = {self._roster.name(0): (outcome.status, outcome.reason)}
        notes |= {str(self._members[rank]): (note["status"], note["reason"]) for rank, note in self._notes.items()}
        return Outcome(*verdict(notes, events.ended()), events, seconds)


def verdict(notes: Mapping[str, tuple[str, str]], said: tuple[str, str] | None) -> tuple[str, str]:
    """Status and reason of a launch from each node's own; `said` is what all ranks' last lines come to.

    A node that fails takes the others with it, and they fail differently. So a status that explains itself goes before
    `crashed`, and a process that died without a word before one that lost its peers.
    """
    failed = {name: note for name, note in notes.items() if note[0] not in ("ok", "cut")}
    if not failed:
        cut = [name for name, note in notes.items() if note[0] == "cut"]
        return ("crashed", f"{cut[0]} ended before it was done") if cut else ("ok", "")
    mute = [name for name, note in failed.items() if note[0] == "crashed" and _MUTE.match(note[1])]
    first = [name for name, note in failed.items() if said and note == said]
    explained = [name for name, note in failed.items() if note[0] not in ("crashed", "timeout")]
    name = (explained or mute or first or list(failed))[0]
    status, reason = failed[name]
    return status, f"{name}: {reason}"
