"""One measurement at a time on a machine: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.cases import ConfigurationError


def folder() -> Path:
    """Where this user's lock is: one place per machine, whatever TMPDIR a session has."""
    place = Path("/tmp")
    return (place if place.is_dir() else Path(tempfile.gettempdir())) / f"scaling-contrasts-{os.getuid()}"


@contextmanager
def measuring(what: str, where: str | os.PathLike | None = None) -> Iterator[None]:
    """Hold the lock while measuring `what`. Raises ConfigurationError when somebody else measures."""
    place = Path(where) if where else folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if place.is_symlink() or place.stat().st_uid != os.getuid():
            raise ConfigurationError(f"{place} belongs to somebody else; set machine.lock_folder to a folder of yours")
        handle = os.open(place / "measuring.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as problem:
        raise ConfigurationError(
            f"{place} cannot hold the lock ({problem.strerror}); set machine.lock_folder to one that can be written"
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigurationError(f"{_holder(handle)}; wait for it or stop it, and start again") from None
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps({"pid": os.getpid(), "what": what}).encode(), 0)
        yield
    finally:
        os.close(handle)


def _holder(handle: int) -> str:
    try:
        data = json.loads(os.pread(handle, 4096, 0))
        return f"another measurement runs on this machine (process {data['pid']}: {data['what']})"
    except (ValueError, KeyError, TypeError):
        return "another measurement runs on this machine"
