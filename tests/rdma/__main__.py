"""`make test-rdma`: the binary's verbs path between two guests with Soft-RoCE, held to one process of the same binary.

Every case runs on both guests at once, box 0 on the one and box 1 on the other; packets get lost and late where the
case says so. Exit status 0: all is right, or this machine cannot run guests (the reason is said); 1: a case is wrong;
2: something that can be installed is missing. Times are of an emulated processor: for correctness, never a speed.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from tests.kernels import boxes
from tests.kernels.binary import BINARY, ROOT, live_inputs
from tests.kernels.binary import check as check_alone
from tests.kernels.oracle import evaluate, worst_band_error
from tests.rdma import guests
from tests.rdma.cases import CASES, MEET, case_of, script

CACHE = ROOT / "build" / "rdma"


def expect(holds: bool, what: str) -> None:
    """Raises ValueError with `what` unless it holds."""
    if not holds:
        raise ValueError(what)


def compare(home: Path, changes: dict, transport: str, scratch: Path) -> str:
    """Holds a case to one process on this machine, and to the oracle. Returns what to print; raises ValueError."""
    case = case_of(changes)
    for box in (0, 1):
        code = (home / str(box) / "rc").read_text().strip()
        expect(code == "0", f"box {box} ended with {code}: {(home / str(box) / 'log.txt').read_text().strip()}")
    events, arrays = boxes.gathered(home, case, 2)
    alone = check_alone(scratch, case, "--engine", MEET["engine"])
    for name in ("loss_value", "scale_gradient", "bias_gradient"):
        expect(events[0][name] == events[1][name], f"{name} differs between the boxes")
        near = alone[name] is None or abs(events[0][name] - alone[name]) <= 1e-6 * max(abs(alone[name]), 1e-3)
        expect(near, f"{name} is {events[0][name]}, of one process {alone[name]}")
    worst = 0.0
    for name, values in arrays.items():
        expect(bool(np.isfinite(values).all()), f"some rows of {name} are missing")
        worst = max(worst, float(np.abs(values - alone["arrays"][name]).max() / np.abs(alone["arrays"][name]).max()))
    expect(worst < 2e-6, f"gradients differ from one process by {worst}")
    if case["loss"] != "one_set_info_nce":
        _, sets, labels = live_inputs(case)
        for values, want in zip(arrays.values(), evaluate(case, sets, labels)["gradients"], strict=True):
            expect(worst_band_error(values, want, case["prefixes"]) < 1e-2, "gradients differ from the oracle")
    lines = [json.loads(line) for line in (home / "0" / "events.0.jsonl").read_text().splitlines()]
    (rails,) = [line for line in lines if line["event"] == "rails"]
    expect(rails["transport"] == transport, f"the rails were {rails['transport']}")
    blocks = [line for line in lines if line["event"] == "block"]
    seconds = sum(block["seconds"] for block in blocks) / sum(block["steps"] for block in blocks)
    sent = rails["bytes_sent"] / rails["steps"]
    speed = f"{sent:.0f} B sent a step, {seconds * 1e3:.0f} ms a step, {sent / seconds / 1e6:.1f} MB/s"
    return f"gradients within {worst:.0e} of one process, {speed}"


def compare_killed(home: Path) -> str:
    """The box that is left says who died and what it waited for. Returns that; raises ValueError."""
    end = json.loads((home / "0" / "events.0.jsonl").read_text().splitlines()[-1])
    expect(end.get("status") == "crashed" and "box 1 (10.9.0.2)" in end["reason"], f"box 0 ended with {end}")
    expect("of step" in end["reason"], f"not in the middle of a step: {end['reason']}")
    expect((home / "0" / "rc").read_text().strip() == "1", "the exit status is not 1")
    return end["reason"]


def counters(share: Path) -> list[str]:
    """What the guests measured beside the cases."""
    lines = []
    for box in (0, 1):
        path = share / f"retries.{box}"
        lines += [f"        box {box}: rdma_rxe sent again {path.read_text().strip()} times"] if path.exists() else []
    path = share / "perftest.1"
    words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    for line in [line for line in words if line[:1] == ["65536"]]:
        lines.append(f"        ib_write_bw, 64 KiB writes: {line[3]} MB/s (emulation, correctness only)")
    return lines


def run(log: Path) -> int:
    """Boots, runs and compares; prints one line a case and keeps them in `log`. Returns how many cases are wrong."""
    guests.require_host(CACHE)
    share, scratch = CACHE / "share", CACHE / "alone"
    for folder in (share, scratch):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name in [*map(str, range(len(CASES))), "killed"]:
        for box in (0, 1):
            (share / name / str(box)).mkdir(parents=True)
    (share / "token").write_text(secrets.token_hex(16))
    (share / "token").chmod(0o600)
    (share / "run.sh").write_text(script())

    lines = []

    def say(text):
        print(text, flush=True)
        lines.append(text)

    begin = time.monotonic()
    perftest = shutil.which("ib_write_bw")
    consoles = guests.boot(CACHE, share, [BINARY, *([Path(perftest)] if perftest else [])], seconds=600)
    say(f"two guests, Linux {guests.kernel(CACHE)[1]}, rdma_rxe, a wire of qemu; emulated: no time is a speed")
    checks = {
        f"{name}{f' ({netem})' if netem else ''}": (
            compare,
            share / str(number),
            changes,
            (MEET | meet)["rails"],
            scratch,
        )
        for number, (name, (netem, changes, meet)) in enumerate(CASES.items())
    }
    failed = 0
    for title, (check, *arguments) in (checks | {"box 1 killed": (compare_killed, share / "killed")}).items():
        try:
            say(f"ok      {title}: {check(*arguments)}")
        except (AssertionError, OSError, ValueError, IndexError) as problem:
            failed += 1
            say(f"FAILED  {title}: {problem}")
    for line in counters(share):
        say(line)
    say(f"{len(checks) + 1 - failed} of {len(checks) + 1} cases right, {time.monotonic() - begin:.0f} s")
    for box, text in consoles.items() if failed else ():
        print(f"--- console of box {box}, its end\n" + "\n".join(text.splitlines()[-15:]))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(lines) + "\n")
    return failed


def main(words: list[str]) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.rdma", description=__doc__.splitlines()[0])
    parser.add_argument("--log", type=Path, default=CACHE / "log.txt", help="where the lines are kept")
    chosen = parser.parse_args(words)
    try:
        return 1 if run(chosen.log) else 0
    except guests.NotHereError as reason:
        print(f"test-rdma: skipped: {reason}")
        return 0
    except guests.CannotRunError as problem:
        print(f"test-rdma: {problem}", file=sys.stderr)
        return 2
    except TimeoutError as problem:
        print(f"test-rdma: {problem}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
