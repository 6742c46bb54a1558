"""A campaign queued through submitit, with its local executor in place of a cluster."""

import sys

import pytest

from tests.harness.several_nodes import Nodes


def test_without_submitit_one_line_says_what_to_install(bench, monkeypatch):
    bench.system("probe", {"a": {}})
    monkeypatch.setitem(sys.modules, "submitit", None)
    from harness import configuration, queue
    from harness.cases import ConfigurationError

    with pytest.raises(ConfigurationError, match=r"needs the package submitit.*locks/slurm.txt"):
        queue.submit(configuration.compose(["launch.queue=local"]), [])


def test_a_queued_campaign_runs_on_its_nodes(bench):
    pytest.importorskip("torch")
    pytest.importorskip("submitit")
    nodes = Nodes(bench, None)
    nodes.stub("a", "b")
    done = bench.run(
        "launch.queue=local",
        "launch.nodes=2",
        "protocol.rounds=1",
        f"binary={nodes.binary}",
        f"machine.lock_folder={bench.folder}/lock-${{oc.env:NODE_RANK,0}}",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "queued as job" in done.stdout and "on 2 nodes" in done.stdout
    assert {name: (row["status"], row["nodes"]) for name, row in bench.rows().items()} == {
        "a": ("ok", "2"),
        "b": ("ok", "2"),
    }
    assert not list((bench.results / ".queue").glob("token-*")), "the secret goes with the job"


def test_what_submitit_refuses_is_one_line(bench):
    pytest.importorskip("submitit")
    bench.system("probe", {"a": {}})
    done = bench.run("launch.queue=slurm")
    assert done.returncode == 2
    assert done.stderr.startswith("harness bench: submitit does not take the job (slurm): ")
    assert done.stderr.count("\n") == 1
