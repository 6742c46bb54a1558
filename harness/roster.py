"""Who belongs to a run on several machines, as node 0 sees it: admissions, numbers, signs of life."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from harness import identity
from harness.channel import Channel
from harness.nodes import Place
from harness.plan import Planned
from harness.rendezvous import Refused

BEAT_SECONDS = 1.0  # between two signs of life
LOOK_SECONDS = 0.1


@dataclass
class Member:
    """A node that was admitted. `heard` is when its beat last changed, by this machine's clock."""

    rank: int
    hello: Mapping[str, Any]
    address: str
    key: str
    heard: float
    beat: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"node {self.rank} ({self.hello['host']}, {self.address})"


class Roster:
    """The nodes beside node 0. `hello` is what node 0 says of itself. Threads of the rendezvous use it too."""

    def __init__(
        self,
        place: Place,
        hello: Mapping[str, Any],
        channel: Channel,
        lost_seconds: float,
        say: Callable[[str], None],
    ) -> None:
        self.members: dict[int, Member] = {}
        self.mismatch = ""  # how a node differed that was refused for it
        self.lost_seconds = lost_seconds
        self.lock = threading.RLock()
        self._place, self._hello, self._channel, self._say = place, hello, channel, say
        self._history: list[dict[str, Any]] = []
        self._stood_still, self._beaten = 0.0, time.monotonic()  # when this process last found that it had been frozen

    def beat(self) -> None:
        """Called every second: finds out who is alive, and whether this process was frozen meanwhile."""
        now = time.monotonic()
        if now - self._beaten > self.lost_seconds:
            self._stood_still = now
        self._beaten = now
        self.look()

    def ready(self, rank: int, idle_at: int | None) -> bool:
        """Whether a node is there and, unless None, waits for launch `idle_at`."""
        member = self.members.get(rank)
        return (
            member is not None and self.present(member) and (idle_at is None or member.beat.get("waiting") == idle_at)
        )

    def present(self, member: Member) -> bool:
        """Whether a node has given a sign of life lately, and has not left."""
        return time.monotonic() - member.heard < self.lost_seconds and not member.beat.get("left")

    def name(self, rank: int) -> str:
        """What lines and rows call a node."""
        if rank == 0:
            return f"node 0 ({self._hello['host']})"
        return str(self.members.get(rank) or f"node {rank}")

    def admit(self, hello: Mapping[str, Any], address: str) -> Member:
        """Take in a node that holds the token, under a number that is free. Raises Refused."""
        difference = identity.difference(self._hello, hello)
        if difference:
            line = f"{hello.get('host')} ({address}) differs from node 0: {difference}"
            self.mismatch = line
            self._say(f"refused {line}")
            raise Refused(f"this node differs from node 0: {difference}")
        with self.lock:
            self.look()
            rank = self._free_rank(hello, address)
            back = rank in self.members
            member = Member(rank, hello, address, secrets.token_hex(8), time.monotonic())
            self.members[rank] = member
            self._history.append({"node": rank, "host": hello["host"], "facts": hello["facts"]})
        self._say(f"{member} is {'back' if back else 'here'}")
        return member

    def _free_rank(self, hello: Mapping[str, Any], address: str) -> int:
        wanted = hello.get("rank")
        if wanted is not None and not 1 <= int(wanted) < self._place.nodes:
            raise Refused(f"NODE_RANK={wanted} is {'here already' if wanted == 0 else 'no node of this run'}")
        ranks = range(1, self._place.nodes) if wanted is None else [int(wanted)]
        free = [rank for rank in ranks if rank not in self.members or not self.present(self.members[rank])]
        if not free:
            names = ", ".join(str(self.members[rank]) for rank in ranks)
            raise Refused(f"{names} {'is' if len(ranks) == 1 else 'are'} here already", again=True)
        before = [rank for rank in free if rank in self.members and self.members[rank].hello["host"] == hello["host"]]
        return (before or free)[0]

    def unsupported(self, planned: Sequence[Planned]) -> list[Planned]:
        """The cases with what the other nodes cannot run, and why."""
        result = []
        for each in planned:
            for rank in range(1, each.case.nodes):
                reason = self.members[rank].hello["unsupported"].get(each.case.case_id)
                if reason and not each.unsupported:
                    each = replace(each, unsupported=f"{self.name(rank)}: {reason}")
            result.append(each)
        return result

    def record(self) -> list[dict[str, Any]]:
        """For environment.json: every node that was ever admitted, in order; a rejoined one is there again."""
        own = {"node": 0, "host": self._hello["host"], "facts": self._hello["facts"]}
        return [own, *self._history]

    def look(self) -> None:
        """Read the beats of all members."""
        with self.lock:
            for rank, member in self.members.items():
                beat = self._channel.get(f"beat/{rank}/{member.key}")
                if beat is not None and beat != member.beat:
                    member.beat, member.heard = beat, time.monotonic()

    def check_interrupts(self) -> None:
        """Raise KeyboardInterrupt when a node was interrupted."""
        for member in self.members.values():
            if member.beat.get("interrupted"):
                self._say(f"{member} was interrupted")
                raise KeyboardInterrupt

    def loss(self, member: Member, since: float, gave_up: bool, ranks: str) -> str:
        """How a node was lost in a launch that began at `since`; `gave_up`: it said that it could not hear node 0."""
        time.sleep(2 * LOOK_SECONDS)  # if all stood still, the beating thread has noticed by then
        limit = f"{self.lost_seconds:g} s"
        if self._stood_still > since:
            return f"{self.name(0)} stood still for longer than {limit}"
        if gave_up:
            return f"{member} lost sight of node 0 for longer than {limit}"
        if self.members[member.rank] is not member or member.beat.get("left"):
            return f"{member} was started anew"
        return f"{member} with {ranks} disappeared: no sign of life for {limit}"
