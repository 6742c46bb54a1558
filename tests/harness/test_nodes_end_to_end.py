"""Real systems over two nodes: each in a network of its own where that can be had, else on the loopback one.

The gate holds every system to the float64 reference over all ranks' rows: N nodes give one process's answer.
"""

import os
import shutil
import subprocess

import pytest

from tests.harness.several_nodes import Nodes, factory
from tests.kernels.binary import BINARY

pytest.importorskip("torch")
NAMES = ("sc-test-a", "sc-test-b")
ADDRESSES = ("10.213.7.1", "10.213.7.2")


@pytest.fixture(scope="module")
def forks():
    process = factory()
    yield process
    process.stdin.close()
    process.wait(timeout=30)


@pytest.fixture
def nodes(bench, forks):
    made = Nodes(bench, forks)
    yield made
    made.close()
    assert made.workers() == []


@pytest.fixture
def networks():
    """Two network namespaces joined by a cable, as two machines are."""
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")

    def ip(words, check=True):
        return subprocess.run(["ip", *words.split()], check=check, capture_output=True, text=True)

    for name in NAMES:
        ip(f"netns del {name}", check=False)
    made = ip(f"netns add {NAMES[0]}", check=False)
    if made.returncode:
        pytest.skip(f"network namespaces cannot be made here: {made.stderr.strip()}")
    try:
        ip(f"netns add {NAMES[1]}")
        ip(f"link add veth0 netns {NAMES[0]} type veth peer name veth0 netns {NAMES[1]}")
        for name, address in zip(NAMES, ADDRESSES, strict=True):
            ip(f"-n {name} addr add {address}/24 dev veth0")
            ip(f"-n {name} link set veth0 up")
            ip(f"-n {name} link set lo up")
        yield NAMES
    finally:
        for name in NAMES:
            ip(f"netns del {name}", check=False)


def measure(nodes, bench, systems, *overrides, namespaces=(None, None)):
    given = [f"systems=[{','.join(systems)}]", "registry=configs/system", f"binary={BINARY}", *overrides]
    leading = nodes.lead(*given, namespace=namespaces[0])
    following = nodes.start(*given, namespace=namespaces[1])
    both = leading.status(300), following.status(300)
    assert both == (0, 0), leading.said + following.said
    return {f"{row['system']}:{row['variant']}": row for row in bench.rows().values()}, leading.said


def test_machines_in_networks_of_their_own_measure_together(nodes, bench, networks):
    """Two devices on each node. The machines have one host name, which means 127.0.0.1 on both: nobody may use it."""
    nodes.address = ADDRESSES[0]
    systems = ["torch_reference:eager", "jax_reference:jit"]
    rows, said = measure(nodes, bench, systems, "world_sizes=[4]", namespaces=networks)
    assert f"({os.uname().nodename}, {ADDRESSES[1]}) is here" in said
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(systems, "ok")
    assert {(row["nodes"], row["world_size"]) for row in rows.values()} == {("2", "4")}
    losses = [float(row["loss_value"]) for row in rows.values()]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_the_quick_campaigns_peers_run_on_two_nodes(nodes, bench):
    systems = ["open_clip:bidir", "big_vision:jit_sharded"]
    rows, _ = measure(nodes, bench, systems)
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(systems, "ok")
    assert {(row["nodes"], row["world_size"]) for row in rows.values()} == {("2", "2")}


def test_the_native_binary_runs_on_two_nodes(nodes, bench):
    if not BINARY.is_file():
        pytest.skip("the native binary is not built; run make native")
    systems = ["native:one_set", "native:two_set"]
    rows, said = measure(nodes, bench, systems, "world_sizes=[4]")
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(systems, "ok"), said
