"""Starts one native process a box, on the loopback or each in a network namespace, and reads what they wrote."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.kernels.binary import BINARY, SET_NAMES, flags


def ip(*words):
    """One `ip` command; raises when it fails."""
    return subprocess.run(["ip", *map(str, words)], check=True, capture_output=True, text=True)


def why_no_namespaces():
    """Why network namespaces cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "network namespaces need ip and tc (Debian: iproute2)"
    name = f"sc{secrets.token_hex(3)}"
    try:
        ip("netns", "add", name)
        ip("netns", "del", name)
    except subprocess.CalledProcessError as problem:
        return f"network namespaces cannot be made here: {problem.stderr.strip()}"
    return None


def needs_namespaces():
    """Skips the test, with the reason, where there are none."""
    reason = why_no_namespaces()
    if reason:
        pytest.skip(reason)


def free_port():
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Network:
    """Boxes as network namespaces on one bridge: box r is 10.79.0.(r + 1) on its interface `wire`."""

    def __init__(self, boxes):
        self.names = [f"sc{secrets.token_hex(3)}b{box}" for box in range(boxes)]
        self.hub = f"sc{secrets.token_hex(3)}h"

    def __enter__(self):
        ip("netns", "add", self.hub)
        ip("-n", self.hub, "link", "add", "hub", "type", "bridge")
        ip("-n", self.hub, "link", "set", "hub", "up")
        for box, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("-n", self.hub, "link", "add", f"p{box}", "type", "veth", "peer", "name", "wire", "netns", name)
            ip("-n", self.hub, "link", "set", f"p{box}", "master", "hub", "up")
            ip("-n", name, "addr", "add", f"{self.host(box)}/24", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
            ip("-n", name, "link", "set", "lo", "up")
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.hub]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def host(self, box):
        """The box's address."""
        return f"10.79.0.{box + 1}"

    def enter(self, box):
        """The words that run a command on the box."""
        return ["ip", "netns", "exec", self.names[box]]

    def disturb(self, box):
        """Makes what the box sends late, and some of it lost: netem where the kernel has it, else a narrow tbf."""
        netem, tbf = "netem delay 5ms loss 3% reorder 10%", "tbf rate 8mbit burst 4kb limit 12kb"
        for shape in (netem, tbf):
            words = ["tc", "-n", self.names[box], "qdisc", "replace", "dev", "wire", "root", *shape.split()]
            if subprocess.run(words, capture_output=True).returncode == 0:
                return
        pytest.skip("this kernel has neither sch_netem nor sch_tbf; the guests of `make test-rdma` do")

    def dropped(self, box):
        """Packets that the box's queue dropped."""
        words = ["tc", "-n", self.names[box], "-s", "-j", "qdisc", "show", "dev", "wire"]
        return json.loads(subprocess.run(words, capture_output=True, check=True).stdout)[0]["drops"]

    def cut(self, box):
        """Nothing reaches the box any more, and nothing it sends arrives; its connections are not closed."""
        ip("-n", self.hub, "link", "set", f"p{box}", "down")

    def sent_bytes(self, box):
        """What the box's interface has sent, Ethernet frames included."""
        shown = ip("-n", self.names[box], "-s", "-j", "link", "show", "wire").stdout
        return json.loads(shown)[0]["stats64"]["tx"]["bytes"]


class Run:
    """N boxes of one run. `environments`: variables of each box, where boxes are to see other GPUs."""

    def __init__(self, folder, boxes, network=None, environments=None, **options):
        self.folder, self.boxes, self.network = Path(folder), boxes, network
        self.environments, self.options = environments or [{}] * boxes, options
        self.host = network.host(0) if network else "127.0.0.1"
        self.port = free_port()
        self.token = self.folder / "token"
        self.token.write_text(secrets.token_hex(16) + "\n")
        self.token.chmod(0o600)
        self.processes = {}

    def start(self, box, case, *more, **changed):
        """Starts one box; `changed` replaces flags of the run, `nodes=3`, say."""
        folder = self.folder / str(box)
        folder.mkdir(exist_ok=True)
        setting = {
            "nodes": self.boxes,
            "node_rank": box,
            "rendezvous": f"{self.host}:{self.port}",
            "token_file": self.token,
            "interface": "wire" if self.network else None,
            "rails": "tcp",
            "join_seconds": 20,
            "rails_seconds": 20,
        }
        case = {key: value for key, value in case.items() if key != "nodes"}
        words = [BINARY, "--folder", folder, *flags(case), *flags(setting | self.options | changed), *more]
        enter = self.network.enter(box) if self.network else []
        log = (folder / "log.txt").open("w")
        variables = os.environ | self.environments[box]
        self.processes[box] = subprocess.Popen([*enter, *map(str, words)], stdout=log, stderr=log, env=variables)
        return self.processes[box]

    def finish(self, seconds=120):
        """Waits for all boxes: their exit statuses, by box. Kills what is left."""
        deadline = time.monotonic() + seconds
        try:
            return {box: each.wait(max(0.1, deadline - time.monotonic())) for box, each in self.processes.items()}
        finally:
            for each in self.processes.values():
                each.kill()
                each.wait()

    def events(self, box):
        """What the box reported."""
        path = self.folder / str(box) / f"events.{box}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def reason(self, box):
        """The reason of the box's last line."""
        events = self.events(box)
        return events[-1]["reason"] if events and events[-1]["event"] == "end" else ""

    def log(self, box):
        """stdout and stderr of the box."""
        return (self.folder / str(box) / "log.txt").read_text()


@contextmanager
def running(folder, boxes, network=None, **options):
    """A Run whose processes are gone afterwards."""
    run = Run(folder, boxes, network, **options)
    try:
        yield run
    finally:
        for each in run.processes.values():
            each.kill()
            each.wait()


def check(folder, case, boxes, network=None, words=(), **options):
    """One step of `case` on that many boxes: every box's check event, and the gradients put together."""
    with running(folder, boxes, network, **options) as run:
        for box in reversed(range(boxes)):
            run.start(box, case, "--actions", "check", "--check", "name=all", *words)
        codes = run.finish()
        assert set(codes.values()) == {0}, [run.log(box) for box in range(boxes)]
        return gathered(run.folder, case, boxes)


def gathered(folder, case, boxes):
    """The check events of all boxes and the gradients of all rows, `[world_size * rows, dims]`, by set name."""
    names = SET_NAMES[1 if case["loss"].startswith("one_set") else 2]
    rows = case["rows"] * case["world_size"]
    arrays = {name: np.full((rows, case["dims"]), np.nan, np.float32) for name in names}
    events = []
    for box in range(boxes):
        home = Path(folder) / str(box)
        lines = (home / f"events.{box}.jsonl").read_text().splitlines()
        (event,) = [each for each in map(json.loads, lines) if each["event"] == "check"]
        events.append(event)
        for name in names:
            arrays[name][event["rows"]] = np.load(home / event["gradients"][name])
    return events, arrays
