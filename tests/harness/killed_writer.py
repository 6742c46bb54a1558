"""Kills a run at random points, again and again, and looks at what is left: `python -m tests.harness.killed_writer`.

Each child is forked from this process, so that it starts at once; it runs whole campaigns with launches that take no
time, and is killed with SIGKILL after a random time. Every check and round that a child has acknowledged (its store's
`save` has returned) must be there ever after, bit for bit, and no table may be torn.

    arguments: registry results kills seed
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from harness import bench, configuration, environment, launch, plan, records, samples
from harness.events import Events
from harness.machine import Machine
from harness.store import Store

HERE = Machine(2, 1 << 33, "a CPU", "cpu")
OVERRIDES = (
    "rows=[8,16] dims=32 prefixes=[8,32] device=cpu on_cpu={} systems=null protocol.rounds=4 budget=null".split()
)


def stub(system, case, folder, binary, *rest, **more):
    """A launch that ends at once, with three blocks of two ranks."""
    kinds = [{"event": "memory", "allocated_peak_bytes": 1000}]
    if case["actions"] == ["time"]:
        # times that differ, and never by so much that a case would be measured again or be too noisy
        lengths = [1 + random.random() / 10 for _ in range(3)]
        kinds = [{"event": "block", "block": n, "steps": 2, "seconds": length} for n, length in enumerate(lengths)]
    return launch.Outcome("ok", "", Events(folder, {0: kinds, 1: kinds}), 0.001)


def child(chosen, planned, parent: Path, pipe: int) -> None:
    """One run, or what is left of one; tells the pipe what it has kept."""
    save = Store.save

    def told(self, case_id, phase, record):
        save(self, case_id, phase, record)
        os.write(pipe, f"{self.run_id} {case_id}.{phase}\n".encode())

    Store.save = told
    random.seed(os.getpid())
    with open(os.devnull, "w") as nowhere:
        bench.measure(chosen, HERE, planned, parent, nowhere)


def look(parent: Path, seen: dict[tuple[str, str], str], acknowledged: list[tuple[str, str]]) -> None:
    """Raises AssertionError when something acknowledged is lost or has changed, or a file is torn."""
    for run_id, name in acknowledged:
        seen.setdefault((run_id, name), "")
    for folder in parent.iterdir():
        if (folder / "looked").exists():
            continue  # a finished run, looked at before
        mine = {name for run_id, name in seen if run_id == folder.name}
        if (folder / "rows.csv").exists():
            rows = records.read_rows(folder / "rows.csv")  # raises when torn
        data = json.loads((folder / "environment.json").read_text()) if (folder / "environment.json").exists() else {}
        if data.get("finished"):
            whole = {(block["case_id"], block["round"]) for block in samples.read(folder)}
            rounds = {name for name in mine if not name.endswith(".check")}
            assert {(name.partition(".")[0], int(name.partition(".")[2])) for name in rounds} <= whole, "samples lost"
            assert {name.partition(".")[0] for name in mine} <= {row["case_id"] for row in rows}, "rows lost"
            ends = {(row["status"], row["rounds"], row["reason"]) for row in rows}
            assert {end[:2] for end in ends} == {("ok", "4")}, ends
            (folder / "looked").touch()
            continue
        for name in mine:
            text = (folder / "state" / f"{name}.json").read_text()
            assert text == (seen[folder.name, name] or text), f"{name} has changed"
            seen[folder.name, name] = text
            json.loads(text)


def main(registry: str, results: str, kills: int, seed: int) -> None:
    """Kill so many times, then print how the kills fell."""
    launch.launch = stub
    environment.revision = lambda: {"revision": "r", "dirty": False, "changes_sha256": ""}
    environment.moment = lambda here: {"time": "now"}
    chosen = configuration.compose([*OVERRIDES, f"registry={registry}", f"results={results}"])
    planned = plan.enumerate_cases(chosen, HERE)
    parent = Path(results) / "measured" / "here" / "quick"
    generator, seen = random.Random(seed), {}
    longest, killed, midway, finished, idle = 0.1, 0, 0, 0, 0
    while killed < kills:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            try:
                child(chosen, planned, parent, writing)
            except BaseException as problem:
                os.write(2, f"{problem!r}\n".encode())
                os._exit(1)
            os._exit(0)
        os.close(writing)
        time.sleep(generator.uniform(0, longest))
        os.kill(pid, signal.SIGKILL)
        with os.fdopen(reading) as stream:
            lines = [tuple(line.split()) for line in stream.read().split("\n") if line]
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            killed += 1
            midway += bool(lines)
            idle = 0 if lines else idle + 1
            if idle > 5:  # the machine is slower than we thought: let a child get somewhere
                longest, idle = 1.5 * longest, 0
        else:
            assert os.WEXITSTATUS(status) == 0, "a child failed of itself"
            finished += 1
            longest *= 0.9
        if parent.exists():
            look(parent, seen, lines)
    print(json.dumps({"killed": killed, "midway": midway, "finished": finished, "acknowledged": len(seen)}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
