"""One measurement at a time on a machine: a lock that the kernel drops when its holder dies."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.cases import ConfigurationError

MACHINE_WIDE = "\0scaling-contrasts-measuring"  # an abstract socket: every user sees it, it dies with its holder


def folder() -> Path:
    """Where this user's lock is: one place per machine, whatever TMPDIR a session has."""
    place = Path("/tmp")
    return (place if place.is_dir() else Path(tempfile.gettempdir())) / f"scaling-contrasts-{os.getuid()}"


@contextmanager
def measuring(what: str, where: str | os.PathLike | None = None) -> Iterator[None]:
    """Hold the lock while measuring `what`. Raises ConfigurationError when somebody else measures."""
    with ExitStack() as held:
        held.enter_context(_file(Path(where) if where else folder(), what))
        if where is None:
            held.enter_context(_machine_wide())
        yield


@contextmanager
def writer(run: Path) -> Iterator[bool]:
    """Hold a run folder's lock; False when another process, also on another machine that shares it, writes there.

    The lock file lies in the run's `state/`, which goes when the run is complete. Without locks, as on some network
    filesystems, the answer is True.
    """
    state = run / "state"
    state.mkdir(exist_ok=True)
    try:
        handle = os.open(state / "writer.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:  # its holder has just finished the run and removes `state/`
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            yield problem.errno not in (errno.EWOULDBLOCK, errno.EACCES)
        else:
            yield True
    finally:
        os.close(handle)


@contextmanager
def _machine_wide() -> Iterator[None]:
    """Keep the other users of this machine from measuring too; their lock files are out of reach."""
    with socket.socket(socket.AF_UNIX) as name:
        try:
            name.bind(MACHINE_WIDE)
            name.listen()
        except OSError:
            raise ConfigurationError(f"{_other_user()}; wait for it or stop it, and start again") from None
        yield


def _other_user() -> str:
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.connect(MACHINE_WIDE)
            format_ = "3i"  # struct ucred: process, user, group
            credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(format_))
        except OSError:
            return "another measurement runs on this machine"
        process, user, _ = struct.unpack(format_, credentials)
        return f"another measurement runs on this machine (process {process} of user {user})"


@contextmanager
def _file(place: Path, what: str) -> Iterator[None]:
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
