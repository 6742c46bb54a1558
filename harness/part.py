"""This node's own part of a launch over several, which may be cut short because it has failed elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness import channel, launch
from harness.events import Events
from harness.launch import Outcome
from harness.share import Share
from harness.systems import System


class Cut(Exception):
    """Raised by a launch's `check`: this part need not go on."""


def run(
    node: int,
    job: Mapping[str, Any],
    system: System,
    addresses: tuple[str, str],
    folder: Path,
    binary: Path,
    token_file: Path,
    check: Callable[[], None],
) -> Outcome:
    """Launch node `node`'s part of `job`, as node 0 hands it out, in `folder`. Status `cut`: `check` raised Cut.

    `addresses`: node 0's and this node's own.
    """
    case, (leader, own) = job["case"], addresses
    share = Share(node, case["nodes"], leader, job["port"], own, channel.interface_of(own), token_file)
    start = time.monotonic()
    try:
        return launch.launch(system, case, folder, binary, job["grace_seconds"], check, share)
    except Cut:
        return Outcome("cut", "", Events.read(folder), time.monotonic() - start)
