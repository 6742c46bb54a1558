"""Node 0 of a run on several machines: admits the others, hands out launches, gathers results, notices who is gone."""

from __future__ import annotations

import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from harness import channel, identity, launch, rendezvous
from harness.cases import ConfigurationError
from harness.events import Events
from harness.launch import Outcome
from harness.nodes import Place, endpoint
from harness.plan import Planned
from harness.rendezvous import Refused
from harness.share import Share
from harness.systems import System

BEAT_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_GATHER_SECONDS = 30.0  # for results to arrive after the deadline of a launch
_FAREWELL_SECONDS = 3.0


MUTE = re.compile(r"killed by|exit status \d+, no last line|cannot start")  # how launch.py says that nobody told why


class Stopped(Exception):
    """The run cannot go on: nodes did not come, or not come back."""


class _Cut(Exception):
    """Ends this node's part of a launch that has failed elsewhere."""


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


class Leader:
    """As a context: open from the first admission to the farewell. `hello` is what node 0 says of itself."""

    def __init__(
        self,
        place: Place,
        listener: Any,
        token: bytes,
        hello: Mapping[str, Any],
        settings: Mapping[str, Any],
        token_file: Path,
        say: Callable[[str], None],
    ) -> None:
        self.place, self.hello, self.say = place, hello, say
        self._lost_seconds, self._wait_seconds = settings["lost_seconds"], settings["wait_seconds"]
        self._token, self._token_file = token, token_file
        self._address = listener.getsockname()[0]
        self._members: dict[int, Member] = {}
        self._history: list[dict[str, Any]] = []
        self._lock = threading.RLock()
        self._stood_still = 0.0  # when this process last found that it had been frozen
        self._mismatch = ""
        session = secrets.token_hex(16)
        self._store, self._port = channel.open_store(self._address, serve=True)
        self._channel = channel.Channel(self._store, rendezvous.derive(token, "store", session))
        self._session = session
        self._state: dict[str, Any] = {"count": 0, "launch": 0, "over": 0, "end": None}
        self._closed = threading.Event()
        self._channel.put("leader", self._state)
        self._server = rendezvous.Server(listener, token, self._admit, say)
        threading.Thread(target=self._beat, name="beat", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, problem: BaseException | None, trace: Any) -> None:
        if self._state["end"] is None:
            interrupted = kind is not None and issubclass(kind, (KeyboardInterrupt, SystemExit))
            self.end(130 if interrupted else 1, str(problem or "").splitlines()[0] if problem and str(problem) else "")
        waiting = time.monotonic() + _FAREWELL_SECONDS
        while any(self._present(each) and not each.beat.get("left") for each in self._members.values()):
            if time.monotonic() > waiting:
                break
            time.sleep(_LOOK_SECONDS)
            self._look()
        self._closed.set()
        self._server.close()

    def end(self, status: int, why: str = "") -> None:
        """Tell the others that the run is over, and how."""
        self._tell(end=status, why=why)

    # who is there

    def gather(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until every node has come. Raises Stopped, or ConfigurationError when one measures something else."""
        where = endpoint(self._address, self.place.port)
        self.say(f"node 0 of {self.place.nodes} listens on {where}; start the same command on the other nodes")
        self._wait_for(range(1, self.place.nodes), check)

    def _wait_for(self, ranks: Sequence[int], check: Callable[[], None], idle_at: int | None = None) -> None:
        end, announced, first = time.monotonic() + self._wait_seconds, time.monotonic() + 2.0, idle_at is None
        while True:
            self._look()
            missing = [rank for rank in ranks if not self._ready(rank, idle_at)]
            if not missing:
                return
            if first and self._mismatch:
                raise ConfigurationError(self._mismatch)
            check()
            self._check_interrupts()
            names = ", ".join(self._name(rank) for rank in missing)
            if time.monotonic() > end:
                come = "come" if first else "come back"
                raise Stopped(f"{names} did not {come} within {self._wait_seconds:g} s")
            if not first and time.monotonic() > announced:
                self.say(f"waiting up to {self._wait_seconds:g} s for {names}; start the same command there")
                announced = end + 1
            time.sleep(_LOOK_SECONDS)

    def _ready(self, rank: int, idle_at: int | None) -> bool:
        member = self._members.get(rank)
        return (
            member is not None and self._present(member) and (idle_at is None or member.beat.get("waiting") == idle_at)
        )

    def _present(self, member: Member) -> bool:
        return time.monotonic() - member.heard < self._lost_seconds and not member.beat.get("left")

    def _name(self, rank: int) -> str:
        return str(self._members.get(rank) or f"node {rank}")

    def _admit(self, hello: Mapping[str, Any], address: str) -> dict[str, Any]:
        """The reply to a node that holds the token. Called by threads of the rendezvous. Raises Refused."""
        difference = identity.difference(self.hello, hello)
        if difference:
            line = f"{hello.get('host')} ({address}) differs from node 0: {difference}"
            self._mismatch = line
            self.say(f"refused {line}")
            raise Refused(f"this node differs from node 0: {difference}")
        with self._lock:
            self._look()
            rank = self._free_rank(hello, address)
            back = rank in self._members
            member = Member(rank, hello, address, secrets.token_hex(8), time.monotonic())
            self._members[rank] = member
            self._history.append({"node": rank, "host": hello["host"], "facts": hello["facts"]})
        self.say(f"{member} is {'back' if back else 'here'}")
        return {
            "rank": rank,
            "key": member.key,
            "session": self._session,
            "port": self._port,
            "launch": self._state["launch"],
            "lost_seconds": self._lost_seconds,
        }

    def _free_rank(self, hello: Mapping[str, Any], address: str) -> int:
        wanted = hello.get("rank")
        if wanted is not None and not 1 <= int(wanted) < self.place.nodes:
            raise Refused(f"NODE_RANK={wanted} is {'here already' if wanted == 0 else 'no node of this run'}")
        ranks = range(1, self.place.nodes) if wanted is None else [int(wanted)]
        free = [rank for rank in ranks if rank not in self._members or not self._present(self._members[rank])]
        if not free:
            names = ", ".join(str(self._members[rank]) for rank in ranks)
            raise Refused(f"{names} {'is' if len(ranks) == 1 else 'are'} here already", again=True)
        before = [rank for rank in free if rank in self._members and self._members[rank].hello["host"] == hello["host"]]
        return (before or free)[0]

    def unsupported(self, planned: Sequence[Planned]) -> list[Planned]:
        """The cases with what the other nodes cannot run, and why."""
        result = []
        for each in planned:
            for rank in range(1, each.case.nodes):
                reason = self._members[rank].hello["unsupported"].get(each.case.case_id)
                if reason and not each.unsupported:
                    each = replace(each, unsupported=f"{self._name(rank)}: {reason}")
            result.append(each)
        return result

    def record(self) -> list[dict[str, Any]]:
        """For environment.json: every node that was ever admitted, in order; a rejoined one is there again."""
        own = {"node": 0, "host": self.hello["host"], "facts": self.hello["facts"]}
        return [own, *self._history]

    # launches

    def launch(
        self,
        system: System,
        case: Mapping[str, Any],
        folder: Path,
        binary: Path,
        grace_seconds: float = 3.0,
        check_interrupt: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """`launch.launch` on the first `nodes` nodes of a case, results of all in `folder`. Waits for nodes that left.

        Raises Stopped when they do not come back, KeyboardInterrupt when one was interrupted.
        """
        number, others = self._state["launch"] + 1, range(1, case["nodes"])
        self._wait_for(others, check_interrupt, idle_at=number)
        store, port = None, 0
        if system.launcher == "torchrun":
            store, port = channel.open_store(self._address, serve=True)
        else:
            port = channel.free_port(self._address)
        job = {"system": system.name, "case": dict(case), "port": port, "grace_seconds": grace_seconds}
        members = {rank: self._members[rank] for rank in others}
        job["keys"] = {str(rank): member.key for rank, member in members.items()}
        self._channel.put(f"launch/{number}", job)
        self._tell(launch=number)
        local = case["world_size"] // case["nodes"]
        watch = _Watch(self, number, members, check_interrupt, grace_seconds, folder, local)
        try:
            outcome = self._own_part(system, case, folder, binary, grace_seconds, port, watch)
            watch.wait(outcome, case["deadline_seconds"])
        finally:
            self._tell(over=number)
            self._channel.delete(f"launch/{number}")
            del store
        return watch.merge(outcome)

    def _own_part(
        self,
        system: System,
        case: Mapping[str, Any],
        folder: Path,
        binary: Path,
        grace: float,
        port: int,
        watch: _Watch,
    ) -> Outcome:
        share = Share(
            0, case["nodes"], self._address, port, self._address, channel.interface_of(self._address), self._token_file
        )
        start = time.monotonic()
        try:
            return launch.launch(system, case, folder, binary, grace, watch.check, share)
        except _Cut:
            return Outcome("cut", "", Events.read(folder), time.monotonic() - start)

    # the store

    def _tell(self, **changes: Any) -> None:
        with self._lock:
            self._state |= changes
            self._state["count"] += 1
            self._channel.put("leader", self._state)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._closed.wait(BEAT_SECONDS):
            now = time.monotonic()
            if now - last > self._lost_seconds:
                self._stood_still = now
            last = now
            try:
                self._tell()
                self._look()
            except OSError:
                return

    def _look(self) -> None:
        """Read the beats of all members."""
        with self._lock:
            for rank, member in self._members.items():
                beat = self._channel.get(f"beat/{rank}/{member.key}")
                if beat is not None and beat != member.beat:
                    member.beat, member.heard = beat, time.monotonic()

    def _check_interrupts(self) -> None:
        for member in self._members.values():
            if member.beat.get("interrupted"):
                self.say(f"{member} was interrupted")
                raise KeyboardInterrupt


class _Watch:
    """One launch as node 0 sees it: who has answered, who is gone."""

    def __init__(
        self,
        leader: Leader,
        number: int,
        members: Mapping[int, Member],
        check_interrupt: Callable[[], None],
        grace_seconds: float,
        folder: Path,
        local_ranks: int,
    ) -> None:
        self._leader, self._number, self._members, self._folder = leader, number, members, folder
        self._local = local_ranks
        self._check_interrupt, self._grace = check_interrupt, grace_seconds
        self._notes: dict[int, dict[str, Any]] = {}
        self._lost = ""
        self._start = time.monotonic()
        self._failed_at: float | None = None

    def check(self) -> None:
        """Called while this node's part runs. Raises _Cut when it need not go on."""
        self._check_interrupt()
        self._look()
        if self._lost or (self._failed_at is not None and time.monotonic() - self._failed_at > self._grace):
            raise _Cut

    def _look(self) -> None:
        leader = self._leader
        leader._look()
        leader._check_interrupts()
        for rank, member in self._members.items():
            if rank in self._notes:
                continue
            note = leader._channel.get(f"result/{self._number}/{rank}/{member.key}")
            if note is not None:
                self._notes[rank] = note
                if note["status"] != "ok" and self._failed_at is None:
                    self._failed_at = time.monotonic()
                if note["status"] == "cut" and leader._state["over"] < self._number and not self._lost:
                    self._lost = self._how(member)  # it had given node 0 up
            elif not self._lost and (leader._members[rank] is not member or not leader._present(member)):
                self._lost = self._how(member)

    def _how(self, member: Member) -> str:
        leader = self._leader
        time.sleep(2 * _LOOK_SECONDS)  # if all stood still, the beating thread has noticed by then
        if leader._stood_still > self._start:
            return f"node 0 ({leader.hello['host']}) stood still for longer than {leader._lost_seconds:g} s"
        if member.rank in self._notes:
            return f"{member} lost sight of node 0 for longer than {leader._lost_seconds:g} s"
        if leader._members[member.rank] is not member or member.beat.get("left"):
            return f"{member} was started anew"
        first = member.rank * self._local
        ranks = f"rank {first}" if self._local == 1 else f"ranks {first} to {first + self._local - 1}"
        return f"{member} with {ranks} disappeared: no sign of life for {leader._lost_seconds:g} s"

    def wait(self, outcome: Outcome, deadline: float) -> None:
        """Wait for the other nodes' results, as long as they can still come."""
        if outcome.status not in ("ok", "cut") and self._failed_at is None:
            self._failed_at = time.monotonic()
        end = self._start + deadline + _GATHER_SECONDS
        while len(self._notes) < len(self._members) and not self._lost and time.monotonic() < end:
            if self._failed_at is not None and time.monotonic() - self._failed_at > self._grace:
                self._leader._tell(over=self._number)  # they give up, and say how far they got
            self._check_interrupt()
            self._look()
            time.sleep(0.02)

    def merge(self, outcome: Outcome) -> Outcome:
        """All nodes' results as one. The folder holds all nodes' files afterwards."""
        leader = self._leader
        for rank, member in self._members.items():
            if rank in self._notes:
                leader._channel.get_files(f"result/{self._number}/{rank}/{member.key}", self._folder)
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
        notes = {f"node 0 ({leader.hello['host']})": (outcome.status, outcome.reason)}
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
    mute = [name for name, note in failed.items() if note[0] == "crashed" and MUTE.match(note[1])]
    first = [name for name, note in failed.items() if said and note == said]
    explained = [name for name, note in failed.items() if note[0] not in ("crashed", "timeout")]
    name = (explained or mute or first or list(failed))[0]
    status, reason = failed[name]
    return status, f"{name}: {reason}"
