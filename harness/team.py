"""`bench` on several machines: every node starts the same command, one of them leads, the others follow."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from harness import channel, identity, lock, nodes, rendezvous
from harness.configuration import Configuration
from harness.follower import Follower
from harness.interrupt import Interrupt
from harness.leader import Leader, Stopped
from harness.machine import Machine
from harness.nodes import Place
from harness.plan import Planned
from harness.progress import Progress


def run(
    place: Place,
    chosen: Configuration,
    here: Machine,
    planned: Sequence[Planned],
    device: str,
    measure: Callable[[Leader], int],
) -> int:
    """Lead, with `measure` as the campaign, or follow. Returns the exit status. The caller holds the machine's lock.

    Raises ConfigurationError, one line, when the nodes cannot or must not work together, KeyboardInterrupt.
    """
    screen = Progress()
    settings, results = chosen.launch, chosen.path("results")
    channel.store_class()  # imported before anybody waits for this node: it takes seconds
    with Interrupt() as interrupt:
        listener = rendezvous.try_to_lead(place.address, place.port, place.rank)
        with contextlib.ExitStack() as held:
            if listener is not None:
                held.callback(listener.close)
            secret = nodes.token(place, results, settings["wait_seconds"])
            token_file = place.token_file or nodes.job_token_file(place, results)
            hello = identity.hello(place, chosen, here, planned, device)
            if listener is not None:
                if place.token_file is None:
                    held.callback(token_file.unlink, missing_ok=True)
                return _lead(
                    Leader(place, listener, secret, hello, settings, token_file, screen.say), interrupt, measure
                )
            work = _folder(chosen) / "node"
            own = Follower(place, secret, token_file, hello, chosen, work, screen.say, interrupt.check)
            status = own.follow()
            screen.say(f"node 0 ended with status {status}; the rows are there")
            only = settings["follower_status"]
            return only if only is not None and status in (0, 1) else status


def _lead(leader: Leader, interrupt: Interrupt, measure: Callable[[Leader], int]) -> int:
    with leader:
        try:
            leader.gather(interrupt.check)
        except Stopped as problem:
            leader.end(2, str(problem))
            leader.say(f"{problem}; nothing was measured")
            return 2
        status = measure(leader)
        leader.end(status)
        return status


def _folder(chosen: Configuration) -> Path:
    """Where a node that follows works: beside the lock, which one process of a machine holds."""
    where = chosen.machine["lock_folder"]
    return Path(where) if where else lock.folder()
