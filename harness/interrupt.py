"""Ctrl-C and SIGTERM, so that neither is ever lost."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self


class Interrupt:
    """While entered, SIGINT and SIGTERM raise KeyboardInterrupt, and `check` raises it again should it get lost.

    Python swallows an exception that a signal raises inside a destructor or a weak reference's callback.
    """

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def check(self) -> None:
        """Raise KeyboardInterrupt when an interrupt has been asked for."""
        if self.requested:
            raise KeyboardInterrupt

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        raise KeyboardInterrupt

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *problem: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
