"""Campaigns over several nodes: who is turned away, who gets lost and comes back, that rows and processes are right."""

import contextlib
import json
import os
import signal
import socket

import pytest

from harness import records
from tests.harness.several_nodes import Nodes, factory, until
from tests.kernels.binary import BINARY
from tests.kernels.boxes import Network, why_no_namespaces

pytest.importorskip("torch")


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
    assert made.workers() == [], "no launch outlives its node"


def statuses(bench):
    return {name: row["status"] for name, row in bench.rows().items()}


def test_two_nodes_measure_together_whoever_else_knocks(nodes, bench):
    nodes.stub("a", "b")
    wrong = Nodes.secret(bench.folder / "wrong", "another secret of the tests")
    leading = nodes.start(where="0")
    until(lambda: "listens on 127.0.0.1" in leading.said, leading)
    stranger = socket.create_connection((nodes.address, nodes.port))
    stranger.sendall(b'{"nonce": "half a mess')
    liar = nodes.start(RENDEZVOUS_TOKEN_FILE=str(wrong))
    assert liar.status() == 2
    assert "refused by node 0: the token is not node 0's" in liar.said
    following = nodes.start("launch.follower_status=10")
    assert (leading.status(), following.status()) == (0, 10), leading.said + following.said
    stranger.close()
    assert "turned away 127.0.0.1: wrong token" in leading.said
    assert "node 1 of 2, led by 127.0.0.1" in following.said
    assert "time stub:a one_set_sigmoid R=8 init: ok" in following.said
    assert statuses(bench) == {"a": "ok", "b": "ok"}
    row = bench.rows()["a"]
    assert (row["nodes"], row["world_size"]) == ("2", "2")
    assert float(row["best_seconds"]) == pytest.approx(1.3 / 3), "the slower node counts"
    assert row["allocated_peak_bytes"] == "101", "the larger node counts"
    run = bench.runs()[-1]
    record = json.loads((run / "environment.json").read_text())
    assert [node["node"] for node in record["nodes"]] == [0, 1]
    pandas = pytest.importorskip("pandas")
    samples = next(path for path in run.iterdir() if path.name.startswith("samples"))
    table = pandas.read_parquet(samples) if samples.suffix == ".parquet" else pandas.read_csv(samples)
    assert sorted(table["rank"].unique()) == [0, 1]
    assert not list(bench.folder.glob("lock.*/node")), "a node that followed leaves nothing"


def test_nodes_that_would_measure_something_else_are_refused_on_both_sides(nodes, bench):
    nodes.stub("a")
    leading = nodes.lead()
    other = nodes.start("rows=[16]")
    assert (leading.status(), other.status()) == (2, 2)
    assert "rows is [16] there, [8] on node 0" in leading.said
    assert "refused by node 0: this node differs from node 0: rows is [16] there, [8] on node 0" in other.said
    assert not bench.results.exists(), "before anything is timed"


def test_what_one_node_cannot_run_is_a_row_that_names_it(nodes, bench):
    nodes.stub("a")
    leading, other = nodes.lead(), nodes.start("machine.memory_bytes=1")
    assert (leading.status(), other.status()) == (0, 0)
    row = bench.rows()["a"]
    assert row["status"] == "unsupported"
    assert f"node 1 ({socket.gethostname()}, 127.0.0.1): predicted to need" in row["reason"]


def test_under_srun_slurms_variables_are_enough(nodes, bench):
    """Two nodes as srun would start them; the job makes its own secret beside the results, and removes it."""
    nodes.stub("a")
    job = {"NNODES": "", "MASTER_ADDR": "", "RENDEZVOUS_TOKEN_FILE": "", "MASTER_PORT": str(nodes.port)}
    job |= {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "127.0.0.1,127.0.0.2"}
    job |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "2"}
    both = [nodes.start("launch=slurm", SLURM_NODEID=str(node), **job) for node in (1, 0)]
    assert [node.status() for node in both] == [0, 0], both[0].said + both[1].said
    assert statuses(bench) == {"a": "ok"}
    assert not list(bench.results.glob(".token*"))


def test_a_taken_port_is_one_line(nodes):
    nodes.stub("a")
    with socket.create_server(("127.0.0.1", nodes.port)) as taken:
        leading = nodes.start(NODE_RANK="0")
        assert leading.status() == 2
        assert f"port {nodes.port} of 127.0.0.1 is taken; choose another MASTER_PORT" in leading.said
        other = nodes.start(NODE_RANK="1")
        connection, _ = taken.accept()
        connection.sendall(b"220 mail\r\n")
        assert other.status() == 2
        assert f"what listens on 127.0.0.1:{nodes.port} is no node 0" in other.said
        connection.close()


def test_nodes_that_are_killed_or_frozen_cost_one_row_each(nodes, bench):
    held = nodes.stub("a", "b", "c", "d")
    for file in held.values():
        file.touch()
    leading = nodes.lead()
    following = nodes.start(where="1")
    host = socket.gethostname()

    def in_case(number):
        until(lambda: len(nodes.workers()) == 2 and said(number), leading, following)

    def said(number):  # both nodes' workers belong to case `number`, counted from the rows before it
        path = bench.runs()
        return path and len([row for row in records.read_rows(path[-1] / "rows.csv") if row["status"]]) >= number

    in_case(0)
    following.signal(signal.SIGKILL)
    assert following.status() == -signal.SIGKILL
    until(lambda: "a one_set_sigmoid R=8 init on 2 cpu of 2 nodes: crashed" in leading.said, leading)
    assert f"node 1 ({host}, 127.0.0.1) with rank 1 disappeared: no sign of life for 3 s" in leading.said
    assert nodes.workers() == []

    following = nodes.start(where="1")  # the same command
    in_case(1)
    following.signal(signal.SIGSTOP)
    until(lambda: "b one_set_sigmoid R=8 init on 2 cpu of 2 nodes: crashed" in leading.said, leading)
    following.signal(signal.SIGCONT)

    in_case(2)
    leading.signal(signal.SIGSTOP)
    until(lambda: "lost node 0: no sign of life for 3 s" in following.said, following)
    until(lambda: len(nodes.workers()) == 1, leading)  # node 0's own, which stands still with nobody to end it
    leading.signal(signal.SIGCONT)
    until(lambda: "c one_set_sigmoid R=8 init on 2 cpu of 2 nodes: crashed" in leading.said, leading)

    held["d"].unlink()
    assert (leading.status(), following.status()) == (1, 1)
    rows = bench.rows()
    assert statuses(bench) == {"a": "crashed", "b": "crashed", "c": "crashed", "d": "ok"}
    assert f"node 1 ({host}" in rows["b"]["reason"]
    assert rows["c"]["reason"] == f"node 0 ({host}) stood still for longer than 3 s"


def test_a_node_that_does_not_come_back_ends_the_run_and_the_same_commands_continue_it(nodes, bench):
    held = nodes.stub("a", "b")
    held["a"].touch()
    leading, following = nodes.lead("launch.wait_seconds=10"), nodes.start()
    until(lambda: len(nodes.workers()) == 2, leading, following)
    following.signal(signal.SIGKILL)
    assert leading.status() == 130
    assert "did not come back within 10 s; finished rows are in" in leading.said
    assert statuses(bench) == {"a": "crashed", "b": "interrupted"}
    leading, following = nodes.lead(), nodes.start()
    assert (leading.status(), following.status()) == (1, 1)
    assert "continuing" in leading.said
    assert statuses(bench) == {"a": "crashed", "b": "ok"}
    assert len(bench.runs()) == 1


@pytest.mark.parametrize("who", ["node 0", "node 1"])
def test_an_interrupt_on_any_node_ends_all_of_them(nodes, bench, who):
    held = nodes.stub("a")
    held["a"].touch()
    leading, following = nodes.lead(), nodes.start()
    until(lambda: len(nodes.workers()) == 2, leading, following)
    (leading if who == "node 0" else following).signal(signal.SIGINT)
    assert (leading.status(), following.status()) == (130, 130), leading.said + following.said
    assert statuses(bench) == {"a": "interrupted"}
    assert nodes.workers() == []


def test_a_killed_node_0_is_waited_for(nodes, bench):
    held = nodes.stub("a", "b")
    held["a"].touch()
    leading, following = nodes.lead(), nodes.start()
    until(lambda: len(nodes.workers()) == 2, leading, following)
    leading.signal(signal.SIGKILL)
    leading.status()
    until(lambda: "lost node 0" in following.said, following)
    until(lambda: nodes.workers() == [], following)
    held["a"].unlink()
    leading = nodes.lead()
    assert (leading.status(), following.status()) == (0, 0), leading.said + following.said
    assert "continuing" in leading.said
    assert statuses(bench) == {"a": "ok", "b": "ok"}


def test_a_worker_that_fails_on_one_node_ends_the_launch_on_all(nodes, bench):
    nodes.stub("a", fail_node="1")
    nodes.count = 3
    leading = nodes.lead("world_sizes=[3]")
    others = [nodes.start("world_sizes=[3]") for _ in range(2)]
    assert [node.status() for node in (leading, *others)] == [1, 1, 1]
    row = bench.rows()["a"]
    assert row["status"] == "crashed"
    assert row["reason"] == f"node 1 ({socket.gethostname()}, 127.0.0.1): exit status 3, no last line: no such engine"


def test_real_systems_run_on_nodes_in_networks_of_their_own(nodes, bench):
    """Each launcher once, two devices on each node. The gate holds rows to the float64 reference over all ranks' rows.

    The machines have one host name, which means 127.0.0.1 on both: nobody may use it. Without namespaces: the loopback.
    """
    systems = ["open_clip:bidir", "big_vision:jit_sharded"]
    systems += ["native:two_set"] if BINARY.is_file() else []
    given = [f"systems=[{','.join(systems)}]", "registry=configs/system", f"binary={BINARY}", "world_sizes=[4]"]
    network = None if why_no_namespaces() else Network(2)
    with network or contextlib.nullcontext():
        nodes.address = network.host(0) if network else nodes.address
        leading = nodes.lead(*given, namespace=network and network.names[0])
        following = nodes.start(*given, namespace=network and network.names[1])
        assert (leading.status(300), following.status(300)) == (0, 0), leading.said + following.said
    other = network.host(1) if network else nodes.address
    assert f"({os.uname().nodename}, {other}) is here" in leading.said
    rows = records.read_rows(bench.runs()[-1] / "rows.csv")
    assert {f"{row['system']}:{row['variant']}": row["status"] for row in rows} == dict.fromkeys(systems, "ok")
    assert {(row["nodes"], row["world_size"]) for row in rows} == {("2", "4")}
    losses = [float(row["loss_value"]) for row in rows]
    assert losses == pytest.approx([losses[0]] * len(rows), rel=1e-2)
