"""Node 0 of a run on several machines: admits the others, hands out launches, gathers results, notices who is gone."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from harness import channel, part, rendezvous
from harness.cases import ConfigurationError
from harness.gathering import Gathering
from harness.launch import Outcome
from harness.nodes import Place, endpoint
from harness.roster import BEAT_SECONDS, LOOK_SECONDS, Roster
from harness.systems import System

_FAREWELL_SECONDS = 3.0


class Stopped(Exception):
    """The run cannot go on: nodes did not come, or not come back."""


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
        self.place, self.say = place, say
        self._wait_seconds, self._token_file = settings["wait_seconds"], token_file
        self._address = listener.getsockname()[0]
        self._session = secrets.token_hex(16)
        self._store, self._port = channel.open_store(self._address, serve=True)
        self._channel = channel.Channel(self._store, rendezvous.derive(token, "store", self._session))
        self.roster = Roster(place, hello, self._channel, settings["lost_seconds"], say)
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
        while any(map(self.roster.present, self.roster.members.values())):
            if time.monotonic() > waiting:
                break
            time.sleep(LOOK_SECONDS)
            self.roster.look()
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
            self.roster.look()
            missing = [rank for rank in ranks if not self.roster.ready(rank, idle_at)]
            if not missing:
                return
            if first and self.roster.mismatch:
                raise ConfigurationError(self.roster.mismatch)
            check()
            self.roster.check_interrupts()
            names = ", ".join(map(self.roster.name, missing))
            if time.monotonic() > end:
                come = "come" if first else "come back"
                raise Stopped(f"{names} did not {come} within {self._wait_seconds:g} s")
            if not first and time.monotonic() > announced:
                self.say(f"waiting up to {self._wait_seconds:g} s for {names}; start the same command there")
                announced = end + 1
            time.sleep(LOOK_SECONDS)

    def _admit(self, hello: Mapping[str, Any], address: str) -> dict[str, Any]:
        """The reply to a node that holds the token. Called by threads of the rendezvous. Raises Refused."""
        member = self.roster.admit(hello, address)
        return {
            "rank": member.rank,
            "key": member.key,
            "session": self._session,
            "port": self._port,
            "launch": self._state["launch"],
            "lost_seconds": self.roster.lost_seconds,
        }

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
        members = {rank: self.roster.members[rank] for rank in others}
        job["keys"] = {str(rank): member.key for rank, member in members.items()}
        self._channel.put(f"launch/{number}", job)
        self._tell(launch=number)
        gathering = Gathering(self.roster, self._channel, number, members, case, folder, grace_seconds, check_interrupt)
        try:
            here = self._address, self._address
            outcome = part.run(0, job, system, here, folder, binary, self._token_file, gathering.check)
            gathering.wait(outcome, lambda: self._tell(over=number))
        finally:
            self._tell(over=number)
            self._channel.delete(f"launch/{number}")
            del store
        return gathering.merge(outcome)

    # the store

    def _tell(self, **changes: Any) -> None:
        with self.roster.lock:
            self._state |= changes
            self._state["count"] += 1
            self._channel.put("leader", self._state)

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            try:
                self._tell()
                self.roster.beat()
            except OSError:
                return
