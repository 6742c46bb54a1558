"""What the TCP rails cost on this machine: `python -m tests.kernels.measure_boxes --log FILE`. It asserts nothing.

Two boxes are two network namespaces that share this machine's cores, so a wire here is memory and its speed the
processor's. Where the kernel can shape traffic (`tc tbf`), one part runs over a slower wire, on which overlap shows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kernels.binary import base_case, flags, run
from tests.kernels.boxes import Network, free_port, running, why_no_namespaces

TIMED = ["--actions", "time", "--warmup-steps", 3, "--warmup-seconds", 0, "--blocks", 9, "--max-block-seconds", 5]
CASE = base_case(rows=1024, dims=1024, prefixes=[64, 128, 256, 512, 1024], gradient_dtype="bfloat16", threads=1)


def milliseconds(events):
    """(best, median) of a step, over blocks."""
    steps = [1e3 * event["seconds"] / event["steps"] for event in events if event["event"] == "block"]
    return min(steps), statistics.median(steps)


def two_boxes(network, case, per_block, **options):
    """A timed run of two boxes: (best, median) in ms of box 0, and its rails event."""
    with tempfile.TemporaryDirectory() as folder, running(folder, 2, network, rails_seconds=60, **options) as boxes:
        for box in (1, 0):
            boxes.start(box, case | {"world_size": 2}, *TIMED, "--steps-per-block", per_block)
        codes = boxes.finish(300)
        if set(codes.values()) != {0}:
            raise RuntimeError(f"a box failed: {boxes.log(0)} {boxes.log(1)}")
        events = boxes.events(0)
        return milliseconds(events), next(event for event in events if event["event"] == "rails")


def one_process(case, per_block):
    """The same two devices in one process with two threads: (best, median) in ms."""
    words = [*flags(case | {"world_size": 2}), "--json", *TIMED, "--steps-per-block", per_block]
    return milliseconds([json.loads(line) for line in run(*words).stdout.splitlines()])


def iperf(network):
    """iperf3 between the same namespaces, two connections as a rail has: Gbit/s, or None without iperf3."""
    if not shutil.which("iperf3"):
        return None
    port = str(free_port())
    server = subprocess.Popen([*network.enter(0), "iperf3", "-s", "-1", "-p", port], stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        words = [*network.enter(1), "iperf3", "-c", network.host(0), "-p", port, "-t", "4", "-P", "2", "--bidir", "-J"]
        done = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)["end"]
        return [done[name]["bits_per_second"] / 1e9 for name in ("sum_received", "sum_received_bidir_reverse")]
    finally:
        server.kill()
        server.wait()


def main(words):
    """Prints and keeps the lines. Exit status 2 where there are no namespaces."""
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.measure_boxes", description=__doc__.splitlines()[0])
    parser.add_argument("--log", type=Path, required=True)
    log = parser.parse_args(words).log
    reason = why_no_namespaces()
    if reason:
        print(f"measure_boxes: {reason}", file=sys.stderr)
        return 2
    lines = []

    def say(text):
        print(text, flush=True)
        lines.append(text)

    say(f"Two boxes of one CPU device and one thread each, network namespaces, {os.cpu_count()} cores, load average")
    say(f"{os.getloadavg()[0]:.1f} at the start. one_set_sigmoid, R=1024 a device, D=1024, five prefixes, TCP rails.")
    (best, median) = one_process(CASE, 5)
    say(f"step, one process of two devices, two threads       {best:8.2f} ms best {median:8.2f} ms median")
    with Network(2) as network:
        for title, options in (("rails", ""), ("rails, overlap=false", "overlap=false")):
            (best, median), report = two_boxes(network, CASE, 5, **({"rails_options": options} if options else {}))
            say(f"step, two boxes, {title:<35}{best:8.2f} ms best {median:8.2f} ms median")
        per_step = report["bytes_sent"] / report["steps"]
        say(f"bytes sent a step and counterpart: {per_step:.1f}; embeddings R x D x 2 = {report['embedding_bytes']}")
        # A step with hardly anything to compute is the rails' own speed.
        thin = CASE | {"rows": 256, "dims": 65536, "prefixes": [16], "gradient_dtype": "bfloat16"}
        for sockets in (1, 2, 4):
            (best, _), report = two_boxes(network, thin, 5, rails_options=f"sockets={sockets}")
            speed = report["embedding_bytes"] * 8 / best / 1e6
            say(f"TCP rails, 32 MiB each way, sockets={sockets}: {best:8.2f} ms a step, {speed:.2f} Gbit/s each way")
        speeds = iperf(network)
        say(
            "iperf3: not installed"
            if speeds is None
            else f"iperf3, 2 connections each way: {speeds[0]:.2f} and {speeds[1]:.2f} Gbit/s"
        )
        shape = "tbf rate 400mbit burst 64kb latency 50ms"
        slow = [
            subprocess.run(
                ["tc", "-n", name, "qdisc", "replace", "dev", "wire", "root", *shape.split()], capture_output=True
            )
            for name in network.names
        ]
        if any(done.returncode for done in slow):
            say("a wire of 400 Mbit/s: this kernel cannot shape traffic (tc tbf)")
        else:
            for title, options in (("rails", {}), ("rails, overlap=false", {"rails_options": "overlap=false"})):
                (best, median), _ = two_boxes(network, CASE, 5, **options)
                say(f"step, wire of 400 Mbit/s, {title:<26}{best:8.2f} ms best {median:8.2f} ms median")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
