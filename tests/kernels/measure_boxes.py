"""What the TCP rails cost on this machine: `python -m tests.kernels.measure_boxes [--device cuda]`. It asserts nothing.

Two boxes of one device, as network namespaces of this machine where there are any, so that a wire is memory and its
speed the processor's. CPU boxes have a thread each. GPU boxes have a GPU each, or share the only one; they are first
compared with the float64 oracle. Writes rails_tcp[_cuda].log, for people, and .csv, a line a run, to
results/measured/<machine>/checks.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import machine
from tests.kernels.binary import ROOT, base_case, flags, run
from tests.kernels.boxes import Network, check, free_port, running, why_no_namespaces
from tests.kernels.test_boxes import LOSSES, case_of
from tests.kernels.test_outputs import compare

ROUNDS = 3
TIMED = ["--actions", "time", "--warmup-steps", 3, "--warmup-seconds", 0, "--blocks", 9, "--max-block-seconds", 5]
LADDER = {"dims": 1024, "prefixes": [64, 128, 256, 512, 1024], "gradient_dtype": "bfloat16", "world_size": 2}
SIZES = {"cpu": [1024], "cuda": [4096, 16384]}
THIN = {  # hardly anything to compute, 32 MiB to send
    "cpu": {"rows": 256, "dims": 65536, "prefixes": [16]},
    "cuda": {"rows": 4096, "dims": 4096, "prefixes": [64]},
}
COLUMNS = [
    "what",
    "round",
    "rows",
    "dims",
    "options",
    "best_seconds",
    "median_seconds",
    "bytes_a_step",
    "bits_a_second",
]


class Measurement:
    """The machine, the log and the table of one call."""

    def __init__(self, device, network):
        self.device, self.network, self.lines, self.rows = device, network, [], []
        gpus = len(machine.detect().gpus)
        self.boxes_see = (
            [{"CUDA_VISIBLE_DEVICES": str(box % max(1, gpus))} for box in (0, 1)] if device == "cuda" else None
        )
        self.words = ["--options", "several_boxes=true"] if device == "cuda" else []
        self.alone = ["--options", f"virtual_devices={str(gpus < 2).lower()}"] if device == "cuda" else []

    def say(self, text):
        print(text, flush=True)
        self.lines.append(text)

    def note(self, what, case, times=(None, None), **more):
        best, median = times
        known = {
            "what": what,
            "rows": case["rows"],
            "dims": case["dims"],
            "best_seconds": best,
            "median_seconds": median,
        }
        self.rows.append(known | more)

    def case(self, **changes):
        return base_case(**LADDER) | {"device": self.device, "threads": 1} | changes

    def together(self, case, per_block, **options):
        """Two boxes: (best, median) seconds of a step on box 0, and its rails event."""
        with tempfile.TemporaryDirectory() as folder:
            with running(folder, 2, self.network, environments=self.boxes_see, rails_seconds=60, **options) as boxes:
                for box in (1, 0):
                    boxes.start(box, case, *TIMED, "--steps-per-block", per_block, *self.words)
                codes = boxes.finish(300)
                if set(codes.values()) != {0}:
                    raise RuntimeError(f"a box failed: {boxes.log(0)} {boxes.log(1)}")
                events = boxes.events(0)
        return seconds(events), next(event for event in events if event["event"] == "rails")

    def apart(self, case, per_block):
        """The same two devices in one process: (best, median) seconds."""
        done = run(*flags(case), "--json", *TIMED, "--steps-per-block", per_block, *self.alone)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return seconds([json.loads(line) for line in done.stdout.splitlines()])

    def right(self):
        """Every loss on two boxes against the float64 oracle. Returns how many are wrong."""
        wrong = 0
        for loss in LOSSES:
            case = case_of(loss, world_size=2, rows=70, dims=128, prefixes=[64, 128]) | {"device": self.device}
            with tempfile.TemporaryDirectory() as folder:
                try:
                    events, arrays = check(folder, case, 2, self.network, self.words, environments=self.boxes_see)
                    compare(events[0] | {"arrays": arrays, "rows": list(range(140))}, case, 3e-3)
                    self.say(f"ok      {loss} equals the float64 oracle")
                except AssertionError as problem:
                    wrong += 1
                    self.say(f"FAILED  {loss}: {str(problem).splitlines()[0]}")
        return wrong

    def steps(self, what, rows):
        """A step in one process, with rails, and with rails that wait first; the rounds take turns."""
        case, found = self.case(rows=rows), {}
        variants = {"one process": None, "rails": {}, "rails, overlap=false": {"rails_options": "overlap=false"}}
        for number in range(ROUNDS):
            for name, options in variants.items():
                if options is None:
                    times, more = self.apart(case, 5), {}
                else:
                    times, report = self.together(case, 5, **options)
                    more = {
                        "options": options.get("rails_options"),
                        "bytes_a_step": report["bytes_sent"] / report["steps"],
                    }
                    embeddings = report["embedding_bytes"]
                self.note(f"{what}, {name}", case, times, round=number, **more)
                found.setdefault(name, []).append(times)
        for name, times in found.items():
            best, medians = min(best for best, _ in times), [median for _, median in times]
            ranges = f"{1e3 * min(medians):.2f} to {1e3 * max(medians):.2f}"
            self.say(f"{what} R={rows}, {name:<22}{1e3 * best:9.2f} ms best, medians of {ROUNDS} rounds {ranges} ms")
        self.say(f"bytes sent a step and counterpart: {more['bytes_a_step']:.1f}; embeddings R x D x 2 = {embeddings}")

    def speeds(self):
        """The rails' own speed, and iperf3's between the same two."""
        thin = self.case(**THIN[self.device])
        for sockets in (1, 2, 4):
            times, report = self.together(thin, 5, rails_options=f"sockets={sockets}")
            speed = report["embedding_bytes"] * 8 / times[0]
            self.note("thin step", thin, times, options=f"sockets={sockets}", bits_a_second=speed)
            self.say(f"32 MiB each way, sockets={sockets}: {1e3 * times[0]:8.2f} ms, {speed / 1e9:.2f} Gbit/s each way")
        for name, speed in iperf(self.network).items():
            self.note(name, thin, bits_a_second=speed)
            self.say(f"{name}: {speed / 1e9:.2f} Gbit/s")


def seconds(events):
    """(best, median) of a step, over blocks."""
    steps = [event["seconds"] / event["steps"] for event in events if event["event"] == "block"]
    return min(steps), statistics.median(steps)


def iperf(network):
    """iperf3 between the same ends, two connections each way at once as a rail has: bits a second by name."""
    if not shutil.which("iperf3"):
        return {}
    enter = network.enter if network else lambda _: []
    host, port = network.host(0) if network else "127.0.0.1", str(free_port())
    server = subprocess.Popen([*enter(0), "iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        words = [*enter(1), "iperf3", "-c", host, "-p", port, "-t", "4", "-P", "2", "--bidir", "-J"]
        end = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["end"]
        names = {"iperf3, there": "sum_received", "iperf3, back": "sum_received_bidir_reverse"}
        return {name: end[key]["bits_per_second"] for name, key in names.items()}
    finally:
        server.kill()
        server.wait()


def slow_wire(network):
    """Makes every box's wire one of 400 Mbit/s; whether the kernel can."""
    shape = "tbf rate 400mbit burst 64kb latency 50ms".split()
    words = [["tc", "-n", name, "qdisc", "replace", "dev", "wire", "root", *shape] for name in network.names]
    return all(subprocess.run(each, capture_output=True).returncode == 0 for each in words)


def measure(found):
    """All of it. Returns how many comparisons failed."""
    load = os.getloadavg()[0]
    where = "network namespaces" if found.network else "the loopback"
    found.say(
        f"Two boxes of one {found.device} device, over {where}, {os.cpu_count()} cores, load average {load:.1f} before."
    )
    found.say("one_set_sigmoid, D=1024, five prefixes, TCP rails; R is of each device.")
    found.note("load average at the start", found.case(rows=0), options=f"{load:.2f}")
    wrong = found.right() if found.device == "cuda" else 0  # the CPU's is in the test suite
    for rows in SIZES[found.device]:
        found.steps("step", rows)
    found.speeds()
    if found.network and found.device == "cpu":
        if slow_wire(found.network):
            found.steps("step, wire of 400 Mbit/s", SIZES["cpu"][0])
        else:
            found.say("a wire of 400 Mbit/s: this kernel cannot shape traffic (tc tbf)")
    return wrong


def main(words):
    """Prints and keeps the lines. Exit status 1 where a comparison failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.measure_boxes", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--folder", type=Path, help="default: results/measured/<machine>/checks")
    chosen = parser.parse_args(words)
    folder = chosen.folder or ROOT / "results" / "measured" / machine.detect().slug(chosen.device) / "checks"
    reason = why_no_namespaces()
    if reason:
        print(f"measure_boxes: {reason}; the boxes meet on the loopback", flush=True)
        found = Measurement(chosen.device, None)
        wrong = measure(found)
    else:
        with Network(2) as network:
            found = Measurement(chosen.device, network)
            wrong = measure(found)
    folder.mkdir(parents=True, exist_ok=True)
    name = "rails_tcp" + ("_cuda" if chosen.device == "cuda" else "")
    (folder / f"{name}.log").write_text("\n".join(found.lines) + "\n")
    with open(folder / f"{name}.csv", "w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found.rows)
    print(f"kept in {folder / name}.log and .csv")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
