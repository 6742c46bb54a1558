"""Child processes, their progress and their logs, and the lock that makes two set-ups wait for each other."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL)


class SetupError(RuntimeError):
    """Set-up cannot go on: one line that says what is wrong and what to do."""


def say(text: str) -> None:
    """One line of progress, on standard error so that a target's own output stays clean."""
    print(f"setup: {text}", file=sys.stderr, flush=True)


def foreground(command: Sequence[str | os.PathLike], environment: Mapping[str, str] | None = None) -> int:
    """Run a command in the terminal's foreground and return its exit code (128 + signal if one killed it).

    Ctrl-C reaches the child directly; this process only waits, so that the child can put its rows on disk first.
    SIGTERM is handed on to the child.
    """
    child = subprocess.Popen([os.fspath(word) for word in command], cwd=ROOT, env=environment)
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda number, _frame: child.send_signal(number)),
    }
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def logged(
    what: str,
    command: Sequence[str | os.PathLike],
    log: Path,
    progress: Callable[[str], str | None] = lambda line: None,
    environment: Mapping[str, str] | None = None,
    keep_open: Sequence[int] = (),
) -> None:
    """Run a command with its output appended to `log`. `progress` turns an output line into the status shown, or None.

    On a terminal the status is one line that is rewritten. File descriptors in `keep_open` are inherited, so that a
    lock outlives this process while the child still writes. Raises SetupError with the log's end if `what` fails.
    """
    words = [os.fspath(word) for word in command]
    live = sys.stderr.isatty()
    with open(log, "a", encoding="utf-8", errors="replace") as stream:
        stream.write(f"$ {' '.join(words)}\n")
        child = subprocess.Popen(
            words,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=tuple(keep_open),
        )
        try:
            for line in child.stdout:
                stream.write(line)
                stream.flush()
                status = progress(line)
                if live and status:
                    print(f"\r\033[K  {status[:100]}", end="", file=sys.stderr, flush=True)
            code = child.wait()
        except BaseException:
            child.terminate()
            child.wait()
            raise
        finally:
            if live:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
    if code:
        raise SetupError(f"{what} failed (exit code {code}); the end of {log}:\n{tail(log)}")


def tail(log: Path, lines: int = 15) -> str:
    """The last lines of a log, indented."""
    text = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"  {line}" for line in text[-lines:])


@contextmanager
def sigterm_is_interrupt() -> Iterator[None]:
    """Let `kill` end set-up the way Ctrl-C does: children stopped, nothing half-made trusted."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[int]:
    """Hold the lock file `path` and yield its descriptor. Whoever comes second says who holds it, and waits.

    The lock is flock's: it ends with the processes that hold the descriptor, so a crash leaves nothing to clean up, and
    it works between machines on NFS. On a filesystem without locks one line says so and the work goes on.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as problem:
        raise SetupError(f"cannot write {path} ({problem.strerror}); use a folder that you may write") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno in NO_LOCKS:
                say(f"{path.parent} has no file locks ({problem.strerror}): do not run two set-ups there at once")
            else:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip() or "another process"
                say(f"waiting for {holder}, which has the lock on {what}")
                fcntl.flock(descriptor, fcntl.LOCK_EX)
        since = time.strftime("%H:%M:%S")
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()} (since {since})\n".encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)
