"""Starts workers in sessions of their own, watches their deadline, ends them for good, and says how it went."""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.command import processes
from harness.configuration import ROOT
from harness.events import Events
from harness.share import Share
from harness.systems import System

FOLDER_VARIABLE = "SCALING_CONTRASTS_FOLDER"  # marks every process of a launch, whatever session it moves to
_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


@dataclass
class Outcome:
    """How a launch went: status, reason, what the ranks wrote, wall seconds."""

    status: str
    reason: str
    events: Events
    seconds: float


def launch(
    system: System,
    case: Mapping[str, Any],
    folder: Path,
    binary: Path,
    grace_seconds: float = 3.0,
    check_interrupt: Callable[[], None] = lambda: None,
    share: Share | None = None,
) -> Outcome:
    """Run one worker to its end or its deadline. Nothing it started is left running, also when this is interrupted.

    `case` is the worker's JSON object; `folder` is emptied first; `check_interrupt` is called about once a second and
    may raise; `share` is this machine's part where several share the launch. Raises OSError when the folder cannot be
    written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(json.dumps(case | {"target": system.target}))
    kills_before = _kernel_kills()
    start = time.monotonic()
    late, started = False, []
    try:
        for arguments, variables in processes(system, case, folder, binary, share):
            started.append(_start(arguments, variables, folder))
        while not _wait(started, min(1.0, start + case["deadline_seconds"] - time.monotonic())):
            check_interrupt()
            if time.monotonic() - start >= case["deadline_seconds"]:
                late = True
                break
        codes = [code for code in (each.poll() for each in started) if code is not None]
    except ChildProcessError as problem:
        return Outcome("crashed", f"cannot start: {problem}", Events(folder), 0.0)
    finally:
        _end(started, folder, grace_seconds)
    events = Events.read(folder)
    seconds = time.monotonic() - start
    if late:
        return Outcome("timeout", _lateness(events, case["deadline_seconds"]), events, seconds)
    code = next((code for code in codes if code), 0)  # of the process that failed first: the others were ended for it
    status, reason = _classify(events, code, _kernel_kills() > kills_before, folder)
    return Outcome(status, reason, events, seconds)


def _start(arguments: list[str], variables: Mapping[str, str], folder: Path) -> subprocess.Popen:
    """Start a worker, its output going to FOLDER/log.txt. Raises ChildProcessError when there is no such program."""
    with open(folder / "log.txt", "ab") as log:
        try:
            return subprocess.Popen(
                arguments,
                cwd=ROOT,
                env={**os.environ, **variables, FOLDER_VARIABLE: str(folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_in_child,
            )
        except OSError as problem:
            raise ChildProcessError(problem.strerror) from None


def _wait(started: Sequence[subprocess.Popen], seconds: float) -> bool:
    """Whether all ended, or one failed, within `seconds`. Sleeps meanwhile: polling would disturb what is measured."""
    end = time.monotonic() + seconds
    while True:
        codes = [process.poll() for process in started]
        if None not in codes or any(codes):
            return True
        left = end - time.monotonic()
        if left <= 0:
            return False
        _sleep_until_one_ends([process for process in started if process.returncode is None], left)


def _sleep_until_one_ends(running: Sequence[subprocess.Popen], seconds: float) -> None:
    descriptors = []
    try:
        for process in running:
            descriptors.append(os.pidfd_open(process.pid))
        select.select(descriptors, [], [], seconds)
    except OSError:  # an old kernel, or gone already
        try:
            running[0].wait(timeout=min(seconds, 0.2) if len(running) > 1 else seconds)
        except subprocess.TimeoutExpired:
            pass
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _in_child() -> None:
    """In the new process, before exec: die with the harness, and be the kernel's first choice when memory runs out."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("1000")
    except OSError:
        pass


def _end(started: Sequence[subprocess.Popen], folder: Path, grace_seconds: float) -> None:
    """SIGTERM to whatever is left of a launch, then SIGKILL. Ranks in sessions of their own are found by their mark.

    `started` is empty when an interrupt fell between the start and our knowing it: the mark finds it too, though only
    once it has become the worker, so it is looked for a little longer.
    """
    running = [process for process in started if process.poll() is None]
    for process in running:
        _signal(process, signal.SIGTERM)
    end = time.monotonic() + grace_seconds
    for process in running:
        try:
            process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
    for process in started:
        _signal(process, signal.SIGKILL)
    for _ in range(5 if started else 25):
        left = marked_processes(folder)
        for pid in left:
            kill(pid)
        if not left and started:
            break
        time.sleep(0.02)
    for process in started:
        process.wait()


def _signal(process: subprocess.Popen, number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def kill(pid: int) -> None:
    """SIGKILL, without complaint when it is gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def marked_processes(folder: Path) -> list[int]:
    """Processes whose environment says that they belong to launches in `folder` or below it."""
    mark = os.fsencode(f"{FOLDER_VARIABLE}={folder}")
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(variable == mark or variable.startswith(mark + b"/") for variable in variables):
                found.append(int(entry.name))
    return found


def _classify(events: Events, code: int, kernel_killed: bool, folder: Path) -> tuple[str, str]:
    ended = events.ended()
    if ended and (ended[0] != "ok" or code == 0):
        return ended
    if kernel_killed:
        return "out_of_memory", "killed by the kernel: main memory ran out"
    last = _last_line(folder / "log.txt")
    if code < 0:
        how = f"killed by {_signal_name(-code)}"
    elif ended:
        how = f"exit status {code} after its last line"
    else:
        how = f"exit status {code}, no last line"
    return "crashed", f"{how}: {last}" if last else how


def _lateness(events: Events, deadline: float) -> str:
    seen = {rank: lines[-1].get("event") if lines else "nothing" for rank, lines in events.ranks.items()}
    unfinished = [f"rank {rank} after {event}" for rank, event in seen.items() if event != "end"]
    return f"no end within {deadline:.0f} s; {', '.join(unfinished[:4]) or 'no rank wrote an event'}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_line(path: Path) -> str:
    """The last line of the log that says something, cut to a readable length. Rulers, as torchrun draws, do not."""
    text = path.read_text(encoding="utf-8", errors="replace")[-20000:]
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    return lines[-1].removeprefix("traceback : ")[:200] if lines else ""


def _kernel_kills() -> int:
    """How often the kernel has killed for memory: on this machine, and in this container."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events"):
        try:
            for line in Path(path).read_text().splitlines():
                if line.startswith("oom_kill "):
                    total += int(line.split()[1])
        except OSError:
            pass
    return total
