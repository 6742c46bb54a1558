"""Ends a run at each of its writes in turn, continues it, and looks at what is left.

A write is whatever changes a file or a folder below the results: opening to write, fsync, rename, remove, making and
removing folders. Python's audit hooks tell of each before it happens, and of a file that is being synced half is cut
off first: what a power failure may leave. Ways to end: `kill` (SIGKILL), `interrupt` (SIGINT), `full` (no space left).

The oracle knows nothing of the harness but the names of its files: a check or round whose file lies in `state/` at the
end must not be measured again, all others must be, once each, and the finished run must hold the very times that the
launches gave. Launches take no time. Of the two cases one is noisy until it is measured once more, the other for good.

    python -m tests.harness.killed_at_each_write REGISTRY RESULTS WAY [STRIDE]
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import json
import os
import shutil
import signal
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from harness import bench, configuration, environment, gate, launch, plan, records, samples
from harness.cases import ConfigurationError
from harness.events import Events
from harness.machine import Machine
from harness.store import Store

HERE = Machine(2, 1 << 33, "a CPU", "cpu")
OVERRIDES = "rows=[8] dims=32 prefixes=[8,32] device=cpu on_cpu={} systems=null budget=null binary=none".split()
OVERRIDES += "protocol.rounds=2 protocol.retries=2 protocol.maximum_range=0.5".split()
# Variant: its rounds on record, retries included, and its row: status, rounds that count, retries.
ENDS = {"once": (3, ("ok", "2", "1")), "noisy": (4, ("too_noisy", "2", "2"))}
WHOLE = {"rows.csv", "environment.json", "samples.parquet"}
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "fsync")


class End:
    """An audit hook that counts writes below `top` and ends the process, or the write, at number `last`."""

    def __init__(self, top: Path, way: str, last: int | None) -> None:
        self._top, self._way, self._last, self.count = str(top), way, last, 0

    def hear(self, event: str, arguments: tuple) -> None:
        """Called by Python before each event."""
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & (os.O_WRONLY | os.O_RDWR):
                return
        elif event not in _CHANGES or (event == "os.mkdir" and not _can_be_made(arguments[0])):
            return
        path = arguments[0]
        # a name without a folder: what shutil.rmtree removes, which is only used below `top` here
        if event in ("os.remove", "os.rmdir") or str(path).startswith(self._top):
            self.count += 1
            if self.count == self._last:
                self._end(path)

    def sync(self, descriptor: int) -> None:
        """In the place of os.fsync: nobody pulls the plug here."""
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            self._descriptor = descriptor
            self.hear("fsync", (os.readlink(f"/proc/self/fd/{descriptor}"),))

    def _end(self, path: str) -> None:
        if self._way == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if self._way == "interrupt":
            return signal.raise_signal(signal.SIGINT)
        with contextlib.suppress(AttributeError, OSError):  # the last file synced, if it is this one
            found = os.fstat(self._descriptor)
            if os.path.samestat(found, os.stat(path)):
                os.ftruncate(self._descriptor, found.st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)


def _can_be_made(folder: str) -> bool:
    """Whether making a folder will change anything."""
    return os.path.isdir(os.path.dirname(folder)) and not os.path.exists(folder)


def child(parts: tuple, way: str, last: int | None, number: int) -> tuple[int, list[list]]:
    """Run or continue in a process of its own. Returns its wait status and what it told: launches, saves, its end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        with os.fdopen(reading) as stream:
            told = [json.loads(line) for line in stream]
        return os.waitpid(pid, 0)[1], told
    try:
        os.close(reading)
        _run(parts, way, last, number, lambda *what: os.write(writing, (json.dumps(what) + "\n").encode()))
    except BaseException as problem:
        os.write(2, f"{way} at {last}: {problem!r}\n".encode())
        os._exit(1)
    os._exit(0)


def _run(parts: tuple, way: str, last: int | None, number: int, tell: Callable) -> None:
    chosen, planned, parent, top = parts
    launches = itertools.count()

    def stub(system, case, folder, binary, *rest, **more):
        """A launch that ends at once: two ranks, blocks whose times no other launch has."""
        kinds = [{"event": "memory", "allocated_peak_bytes": 1000}]
        if case["actions"] == ["memory"]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        else:
            before = len(list((folder.parents[1] / "state").glob(folder.name.partition(".")[0] + ".[0-9].json")))
            slow = (case["variant"] == "noisy" and before % 2) or (case["variant"] == "once" and before == 0)
            seconds = (3 if slow else 1) + number * 1e-3 + next(launches) * 1e-5
            kinds = [{"event": "block", "block": n, "steps": 1, "seconds": seconds + n * 1e-6} for n in range(3)]
        return launch.Outcome("ok", "", Events(folder, {0: kinds, 1: kinds}), 0.001)

    save = Store.save

    def telling(self, case_id, phase, record):
        save(self, case_id, phase, record)
        tell("saved", self.run_id, f"{case_id}.{phase}", seconds_of(record))

    launch.launch, Store.save = stub, telling
    end = End(top, way, last)
    os.fsync = end.sync
    sys.addaudithook(end.hear)
    with open(os.devnull, "w") as nowhere:
        try:
            bench.measure(chosen, HERE, planned, parent, nowhere)
        except KeyboardInterrupt:
            tell("interrupted")
        except ConfigurationError as problem:
            assert way == "full" and "No space left" in str(problem), problem
    tell("writes", end.count)


def seconds_of(record: dict) -> list[float]:
    """The times of a round's first rank; of a check none."""
    return sorted(block[3] for block in record.get("blocks", ()) if block[0] == 0)


def kept(parent: Path) -> dict[tuple[str, str], list[float]]:
    """What lies in the runs' states, read without the harness; and no table is torn."""
    found = {}
    for path in parent.glob("*/state/*.json"):
        found[path.parts[-3], path.name.removesuffix(".json")] = seconds_of(json.loads(path.read_text()))
    for folder in parent.iterdir() if parent.exists() else ():
        if (folder / "rows.csv").exists():
            records.read_rows(folder / "rows.csv")
        if (folder / "environment.json").exists():
            json.loads((folder / "environment.json").read_text())
    return found


def finished(parent: Path) -> set[str]:
    """Runs that need not be continued."""
    paths = parent.glob("*/environment.json")
    return {path.parent.name for path in paths if json.loads(path.read_text()).get("complete")}


def look(parent: Path, measured: dict[tuple[str, str], list[float]], old: set[str]) -> None:
    """Raises AssertionError unless each run is whole and holds what was measured; `old`: finished before the last."""
    runs = finished(parent)
    assert runs, "the run did not come to its end"
    for folder in parent.iterdir():
        names = {path.name for path in folder.iterdir()}
        if not (folder / "environment.json").exists():
            assert not names - {"state"} - {name for name in names if name.endswith(".tmp")}, names
            assert [path.name for path in folder.glob("state/*")] in ([], ["writer.lock"]), "a run was lost"
            continue
        assert folder.name in runs and names == WHOLE, (folder.name in runs, names)
        rows = records.read_rows(folder / "rows.csv")
        ends = {row["variant"]: (row["status"], row["rounds"], row["retries"]) for row in rows}
        assert len(rows) == len(ENDS) and ends == {name: end for name, (_, end) in ENDS.items()}, ends
        blocks = [block for block in samples.read(folder) if block["rank"] == 0]
        assert Counter(block["variant"] for block in blocks) == {name: 3 * count for name, (count, _) in ENDS.items()}
        times = {}
        for block in blocks:
            times.setdefault(f"{block['case_id']}.{block['round']}", []).append(block["seconds"])
        if folder.name not in old:
            mine = {name: seconds for (run, name), seconds in measured.items() if run == folder.name and seconds}
            assert {name: sorted(each) for name, each in times.items()} == mine, "times lost, changed or counted twice"
    checks = sorted(path.name for path in (parent.parent / "checks").iterdir())
    assert checks == sorted(f"{run}.jsonl" for run in runs), checks


def attempt(parts: tuple, way: str, lasts: Iterable[int]) -> int:
    """A run that is ended at each of `lasts` until it is whole, then once more in peace; the last child's writes."""
    _, _, parent, top = parts
    shutil.rmtree(top, ignore_errors=True)
    measured, number = {}, 0
    for number, last in enumerate(lasts):
        _measure(parts, way, last, number, measured)
        if finished(parent):
            break
    old = finished(parent)
    writes = _measure(parts, way, None, number + 1, measured)
    look(parent, measured, old)
    return writes


def _measure(parts: tuple, way: str, last: int | None, number: int, measured: dict) -> int:
    """One child; `measured` gets what it has kept. Raises AssertionError when a record was lost or made twice."""
    parent = parts[2]
    status, told = child(parts, way, last, number)
    assert status == 0 or (way == "kill" and os.WIFSIGNALED(status)), (way, last, status)
    for word, *what in told:
        if word == "saved":
            run, name, seconds = what
            assert (run, name) not in measured, f"{name} was measured again"
            measured[run, name] = seconds
    left, complete = kept(parent), finished(parent)
    for key, seconds in left.items():  # perhaps renamed when the child was ended before it could say so
        assert measured.setdefault(key, seconds) == seconds, f"{key} has changed"
    lost = {run for run, _ in measured.keys() - left.keys()} - complete
    assert not lost, f"records of {lost} are lost"
    return told[-1][1] if status == 0 else 0


def main(registry: str, results: str, way: str, stride: int = 1) -> None:
    """End a run at every `stride`-th of its writes, then print how many there were."""
    environment.revision = lambda: {"revision": "r", "dirty": False, "changes_sha256": ""}
    environment.moment = lambda here: {"time": "now"}
    chosen = configuration.compose([*OVERRIDES, f"registry={registry}", f"results={results}"])
    planned = plan.enumerate_cases(chosen, HERE)
    gate.load_reference(chosen.reference)  # imported here, so that no child has to
    facts = environment.describe(HERE, [each.system.package for each in planned])
    environment.describe = lambda here, packages=(): dict(facts)
    environment.versions = lambda packages: {}
    top = Path(results)
    parts = chosen, planned, top / "measured" / "here" / "quick", top
    writes = attempt(parts, way, ())
    gc.freeze()
    for last in range(1, writes + 1, stride):
        attempt(parts, way, [last])
    for last in (20, 31):  # again and again, each time a little further
        attempt(parts, way, itertools.repeat(last, 40))
    print(json.dumps({"writes": writes}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
