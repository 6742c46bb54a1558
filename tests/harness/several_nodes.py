"""Several nodes on one machine, each a process of its own that thinks it is a machine."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

from harness import launch
from tests.harness.conftest import ROOT, Bench

# Stands in for a native binary: an adapter of known behaviour that needs no framework. Options: hold=FILE waits while
# there is such a file, fail_node=N exits with status 3 there.
STUB = """#!{python}
import json, os, sys, time
if "--capabilities" in sys.argv:
    print(json.dumps({{"version": "stub"}}))
    sys.exit()
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
options = dict(pair.split("=", 1) for pair in flags["--options"].split(","))
node = flags.get("--node-rank", "0")
stream = open(flags["--folder"] + "/events." + node + ".jsonl", "w")
def emit(event, **fields):
    stream.write(json.dumps({{"event": event, "time": time.time(), **fields}}) + "\\n")
    stream.flush()
emit("start", rank=int(node), pid=os.getpid(), system="stub", versions={{}}, device_name="stub", declares=None,
     flags=sys.argv[1:])
emit("ready", rss_bytes=1, input_bytes=1)
while os.path.exists(options.get("hold", "")):
    time.sleep(0.02)
if options.get("fail_node") == node:
    print("no such engine")
    sys.exit(3)
if "memory" in flags["--actions"]:
    emit("memory", allocated_peak_bytes=100 + int(node), input_bytes=10, gradient_bytes=5, device_used_bytes=7)
if "time" in flags["--actions"]:
    emit("first_step", seconds=0.5)
    for block in range(int(flags["--blocks"])):
        emit("block", block=block, steps=3, seconds=0.3 + int(node))
emit("end", status="ok", reason="")
"""


class Node:
    """A running node; its log is what it said."""

    def __init__(self, nodes: "Nodes", pid: int, log: Path) -> None:
        self._nodes, self.pid, self._log = nodes, pid, log

    @property
    def said(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def status(self, seconds: float = 120.0) -> int:
        """Its exit status, once it has ended."""
        end = time.monotonic() + seconds
        while (status := self._nodes.ask({"wait": self.pid})) is None:
            assert time.monotonic() < end, f"node still runs; it said:\n{self.said}"
            time.sleep(0.05)
        self._nodes.running.remove(self)
        return status


class Nodes:
    """Starts nodes of one campaign of `bench`. They meet on `address`, a loopback one unless said otherwise."""

    def __init__(self, bench: Bench, factory: subprocess.Popen) -> None:
        self.bench, self._factory, self.running = bench, factory, []
        self.address, self.port, self.count = "127.0.0.1", free_port(), 2
        self._started = 0
        self.token = bench.folder / "token"
        self.secret(self.token)
        self.binary = bench.folder / "stub"
        self.binary.write_text(STUB.format(python=sys.executable))
        self.binary.chmod(self.binary.stat().st_mode | stat.S_IXUSR)

    @staticmethod
    def secret(path: Path, text: str = "a secret of the tests") -> Path:
        path.write_text(text)
        path.chmod(0o600)
        return path

    def stub(self, *names: str, **options: str) -> dict[str, Path]:
        """A system whose variants wait for the removal of a file each, by name."""
        held = {name: self.bench.folder / f"hold.{name}" for name in names}
        variants = {
            name: {"loss": "one_set_sigmoid", "options": {"check": "none", "hold": str(held[name]), **options}}
            for name in names
        }
        self.bench.system("stub", variants, target=None, launcher="native", requires=[])
        return held

    def ask(self, order: dict) -> int | None:
        self._factory.stdin.write(json.dumps(order) + "\n")
        self._factory.stdin.flush()
        return json.loads(self._factory.stdout.readline())

    def start(self, *overrides: str, namespace: str | None = None, where: str = "", **variables: str) -> Node:
        """`where` names the machine that the node pretends to be; it has one lock and one folder for work."""
        self._started += 1
        log = self.bench.folder / f"log.{self._started}"
        where = where or str(self._started)
        short = ["protocol.rounds=1", "launch.lost_seconds=3", "launch.grace_seconds=0.5", "machine.cores=1"]
        given = [f"binary={self.binary}", f"machine.lock_folder={self.bench.folder}/lock.{where}", *short, *overrides]
        known = {
            "NNODES": str(self.count),
            "MASTER_ADDR": self.address,
            "MASTER_PORT": str(self.port),
            "RENDEZVOUS_TOKEN_FILE": str(self.token),
            "CUDA_VISIBLE_DEVICES": "",
        }
        argv = ["bench", *self.bench.arguments(*given)]
        pid = self.ask({"argv": argv, "variables": known | variables, "log": str(log), "namespace": namespace})
        self.running.append(Node(self, pid, log))
        return self.running[-1]

    def lead(self, *overrides: str, **more: str) -> Node:
        """Start node 0, and return once it listens."""
        node = self.start(*overrides, where="0", **more)
        until(lambda: "listens on" in node.said, node)
        return node

    def workers(self) -> list[int]:
        """Processes of launches that still run."""
        return launch.marked_processes(self.bench.folder)

    def close(self) -> None:
        for node in list(self.running):
            for number in (signal.SIGCONT, signal.SIGKILL):
                node.signal(number)
            node.status()


def until(done, *nodes: Node, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "\n".join(node.said for node in nodes)
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def factory() -> subprocess.Popen:
    """The process that nodes are forks of."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.harness.node_factory"], cwd=ROOT, stdin=-1, stdout=-1, text=True
    )
