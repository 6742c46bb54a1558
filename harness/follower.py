"""A node that is not node 0: joins, runs its part of every launch, sends the results, and ends when node 0 says so."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import channel, launch, part, rendezvous, systems
from harness.cases import ConfigurationError
from harness.configuration import Configuration
from harness.nodes import Place, endpoint
from harness.rendezvous import Refused, Unreachable
from harness.roster import BEAT_SECONDS

_RETRY_SECONDS = 0.5
_IDLE_SECONDS, _BUSY_SECONDS = 0.1, 0.5  # between two looks at the store: seldom while something is measured


class Follower:
    """This node of `place`. `hello` is what it says of itself; `folder` is for work, emptied and removed."""

    def __init__(
        self,
        place: Place,
        token: bytes,
        token_file: Path,
        hello: Mapping[str, Any],
        chosen: Configuration,
        folder: Path,
        say: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        self._place, self._token, self._token_file, self._hello = place, token, token_file, hello
        self._folder, self._say, self._check = folder, say, check
        self._wait_seconds, self._binary = chosen.launch["wait_seconds"], chosen.path("binary")
        self._registry = systems.load(chosen.path("registry"))

    def follow(self) -> int:
        """Serve node 0 to the run's end and return its exit status.

        A lost node 0 is looked for again for `launch.wait_seconds`. Raises ConfigurationError when this node is refused
        or node 0 does not (re)appear, KeyboardInterrupt when `check` does.
        """
        for pid in launch.marked_processes(self._folder):
            launch.kill(pid)  # left by a node that was killed
        try:
            while True:
                status = self._visit()
                if status is not None:
                    return status
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _visit(self) -> int | None:
        """From joining node 0 to its end: its exit status, or None when it is lost."""
        link = _Link(*self._join(), self._token)
        self._say(f"node {link.rank} of {self._place.nodes}, led by {endpoint(link.leader, self._place.port)}")
        try:
            status = self._serve(link)
        except KeyboardInterrupt:
            link.leave(interrupted=True)
            raise
        if status is None:
            self._say(f"lost node 0: no sign of life for {link.lost_seconds:g} s; looking for it again")
            link.close()
        else:
            link.leave()
        return status

    def _join(self) -> tuple[dict[str, Any], str, str]:
        end, said = time.monotonic() + self._wait_seconds, ""
        while True:
            self._check()
            try:
                return rendezvous.join(self._place.address, self._place.port, self._token, self._hello)
            except Unreachable as problem:
                why = str(problem)
            except Refused as problem:
                if not problem.again:
                    raise ConfigurationError(f"refused by node 0: {problem.reason}") from None
                why = problem.reason
            if time.monotonic() > end:
                raise ConfigurationError(f"{why}; gave up after {self._wait_seconds:g} s")
            if why != said:
                self._say(f"{why}; trying for {self._wait_seconds:g} s")
                said = why
            time.sleep(_RETRY_SECONDS)

    def _serve(self, link: _Link) -> int | None:
        """Launch after launch. Returns node 0's exit status, or None when node 0 is lost."""
        while True:
            self._check()
            if link.lost():
                return None
            state, job = link.state, link.job
            if state.get("end") is not None:
                if state.get("why"):
                    self._say(f"node 0 ended: {state['why']}")
                return int(state["end"])
            if job is None:
                link.changed.wait(_IDLE_SECONDS)
                link.changed.clear()
                continue
            if job["keys"].get(str(link.rank), link.key) != link.key:
                raise ConfigurationError(f"another node has taken the number {link.rank}")
            link.done(self._part(link, job) if str(link.rank) in job["keys"] else None, self._folder)

    def _part(self, link: _Link, job: Mapping[str, Any]) -> dict[str, Any]:
        """Run this node's part of a launch: the note that goes with its results."""
        number, case, system = link.number, job["case"], self._registry[job["system"]]

        def look() -> None:
            self._check()
            if link.lost() or link.state.get("over", 0) >= number or link.state.get("end") is not None:
                raise part.Cut

        addresses = link.leader, link.own
        outcome = part.run(link.rank, job, system, addresses, self._folder, self._binary, self._token_file, look)
        title = f"{case['system']}:{case['variant']} {case['loss']} R={case['rows']} {case['state']}"
        self._say(f"{', '.join(case['actions'])} {title}: {outcome.status} {outcome.reason}".rstrip())
        return {"node": link.rank, "status": outcome.status, "reason": outcome.reason, "seconds": outcome.seconds}


class _Link:
    """The line to node 0. A thread does all that touches the store: its calls hang while node 0 is frozen."""

    def __init__(self, reply: Mapping[str, Any], leader: str, own: str, token: bytes) -> None:
        self.rank, self.key, self.leader, self.own = int(reply["rank"]), str(reply["key"]), leader, own
        self.lost_seconds = float(reply["lost_seconds"])
        self.number = int(reply["launch"]) + 1  # of the launch that comes next
        self.state: Mapping[str, Any] = {}
        self.job: Mapping[str, Any] | None = None
        self.changed = threading.Event()
        self._reply, self._secret = reply, rendezvous.derive(token, "store", str(reply["session"]))
        self._heard = time.monotonic()
        self._broken = False
        self._flags: dict[str, Any] = {}
        self._outbox: tuple[dict[str, Any] | None, Path] | None = None
        self._wake, self._closed, self._idle = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)
        self._thread.start()

    def lost(self) -> bool:
        """Whether node 0 has given no sign of life for too long."""
        return self._broken or time.monotonic() - self._heard > self.lost_seconds

    def done(self, note: dict[str, Any] | None, folder: Path) -> None:
        """Send a launch's result; None when this node had no part in it. Returns when it is sent, or node 0 lost."""
        self._idle.clear()
        self._outbox = (note, folder)
        self._wake.set()
        while not self._idle.wait(_IDLE_SECONDS):
            if self.lost():
                return

    def leave(self, interrupted: bool = False) -> None:
        """Say goodbye, within a bounded time."""
        self._flags = {"interrupted": True} if interrupted else {"left": True}
        self._wake.set()
        if interrupted:  # node 0 ends the run, and then this node may leave
            end = time.monotonic() + self.lost_seconds
            while self.state.get("end") is None and not self.lost() and time.monotonic() < end:
                time.sleep(_IDLE_SECONDS)
            self._flags = {"interrupted": True, "left": True}
            self._wake.set()
        self._closed.set()
        self._thread.join(timeout=2.0)

    def close(self) -> None:
        """Let the thread end when it can: should node 0 wake up again, it hears that this line is not used any more."""
        self._outbox, self._flags = None, {"left": True}
        self._closed.set()
        self._wake.set()

    def _run(self) -> None:
        try:
            store, _ = channel.open_store(self.leader, int(self._reply["port"]), seconds=self.lost_seconds)
            line = channel.Channel(store, self._secret)
            count, beat, beaten = -1, 0, 0.0
            while True:
                last = self._closed.is_set()
                state = line.get("leader") or {}
                if state.get("count") != count:
                    count, self._heard = state.get("count"), time.monotonic()
                if state != self.state:
                    self.state = state
                    self.changed.set()
                if self.job is None and state.get("launch", 0) >= self.number:
                    self._fetch(line, state)
                if outbox := self._outbox:
                    self._send(line, *outbox)
                    beaten = 0.0
                if self._wake.is_set() or time.monotonic() - beaten >= BEAT_SECONDS:
                    self._wake.clear()
                    beat, beaten = beat + 1, time.monotonic()
                    waiting = {"waiting": self.number} if self.job is None else {}
                    line.put(f"beat/{self.rank}/{self.key}", {"count": beat, **waiting, **self._flags})
                if last:
                    return
                self._wake.wait(_IDLE_SECONDS if self.job is None else _BUSY_SECONDS)
        except (OSError, ValueError, ConfigurationError):
            self._broken = True
            self.changed.set()

    def _fetch(self, line: channel.Channel, state: Mapping[str, Any]) -> None:
        job = line.get(f"launch/{self.number}")
        if job is not None:
            self.job = job
        elif state["over"] >= self.number or state["launch"] > self.number:
            self.number += 1  # it came and went while this node was away
        self.changed.set()

    def _send(self, line: channel.Channel, note: dict[str, Any] | None, folder: Path) -> None:
        if note is not None:
            line.put_files(f"result/{self.number}/{self.rank}/{self.key}", folder, note)
        self._outbox, self.job = None, None
        self.number += 1
        self._idle.set()
