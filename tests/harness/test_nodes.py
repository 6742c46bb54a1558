"""Where a process stands among several machines: torchrun's names, Slurm's, the secret, what must be equal."""

import pytest

from harness import configuration, identity, nodes
from harness.cases import ConfigurationError

TWO = {"NNODES": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "RENDEZVOUS_TOKEN_FILE": "/token"}
STEP = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[07-08]",
    "SLURM_NODEID": "1",
}


def place(environ, *overrides):
    return nodes.place(configuration.compose(overrides).launch, environ)


def test_without_variables_a_run_has_one_machine():
    assert place({}) is None
    assert place({"NNODES": "1", "MASTER_ADDR": "somewhere"}) is None
    assert place({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}) is None


def test_torchrun_names_are_read_and_overruled():
    found = place(TWO)
    assert (found.nodes, found.rank, found.address, found.port) == (2, None, "10.0.0.1", 29500)
    assert str(found.token_file) == "/token"
    assert place(TWO | {"NODE_RANK": "1"}).rank == 1
    assert place(TWO, "launch.node_rank=0", "launch.master_port=4000").port == 4000
    assert place(TWO, "launch=one_box") is None
    assert place({k: v for k, v in TWO.items() if k != "NNODES"}, "launch=two_boxes").nodes == 2
    assert place(TWO | {"MASTER_ADDR": "[fd00::1]"}).address == "fd00::1"
    assert nodes.endpoint("fd00::1", 5) == "[fd00::1]:5"


@pytest.mark.parametrize(
    ("changes", "overrides", "words"),
    [
        ({"NNODES": "two"}, [], "NNODES is 'two'; give a whole number"),
        ({"NNODES": "0"}, [], "NNODES is '0'"),
        ({"NNODES": "3"}, ["launch=two_boxes"], "launch.nodes is 2, NNODES 3"),
        ({"NODE_RANK": "2"}, [], "NODE_RANK is '2'; give a whole number from 0 to 1"),
        ({"MASTER_PORT": "99999"}, [], "MASTER_PORT is '99999'"),
        ({"MASTER_PORT": ""}, [], "needs MASTER_PORT; give a free port"),
        ({"MASTER_ADDR": ""}, [], "needs MASTER_ADDR; give the address"),
        ({"RENDEZVOUS_TOKEN_FILE": ""}, [], "needs RENDEZVOUS_TOKEN_FILE; give a file"),
        ({}, ["launch=slurm"], "start it inside a Slurm job with: srun make bench"),
    ],
)
def test_what_is_missing_or_bad_is_one_line(changes, overrides, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        place(TWO | changes, *overrides)
    assert "\n" not in str(caught.value)


def test_to_list_cases_the_number_of_nodes_is_enough():
    launch = configuration.compose([]).launch
    assert str(nodes.place(launch, {"NNODES": "2"}, to_start=False)) == "2 nodes, this is one of them"
    everything = str(nodes.place(launch, TWO | {"NODE_RANK": "0"}, to_start=False))
    assert everything == "2 nodes, this is node 0; node 0 listens on 10.0.0.1:29500"


def test_under_srun_slurm_says_where_everybody_is():
    found = place(STEP)
    assert (found.nodes, found.rank, found.address, found.port) == (2, 1, "gpu07", 20000 + 3456)
    assert found.token_file is None, "one is made for the job"
    assert place(STEP | {"MASTER_ADDR": "10.1.0.7"}).address == "10.1.0.7"
    assert place(STEP, "launch=one_box") is None
    assert place(STEP | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1"}) is None
    batch_script = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_NODEID": "0"}
    assert place(batch_script) is None, "without srun there is nobody on the other node"
    with pytest.raises(ConfigurationError, match=r"16 tasks on 2 nodes.*--ntasks-per-node=1"):
        place(STEP | {"SLURM_STEP_NUM_TASKS": "16"})


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("gpu07", "gpu07"), ("a,b", "a"), ("gpu[07-09,12],x", "gpu07"), ("n[3]-ib,n4", "n3-ib"), ("r1n[10,12]", "r1n10")],
)
def test_the_first_of_slurms_hosts(hosts, first):
    assert nodes.first_host(hosts) == first


def test_a_token_is_private_and_long_enough(tmp_path):
    file = tmp_path / "token"
    there = nodes.Place(2, 0, "10.0.0.1", 29500, file)
    with pytest.raises(ConfigurationError, match="cannot read the token file"):
        nodes.token(there, tmp_path, 0)
    file.write_text("x" * 32 + "\n")
    file.chmod(0o644)
    with pytest.raises(ConfigurationError, match="chmod 600"):
        nodes.token(there, tmp_path, 0)
    file.chmod(0o600)
    assert nodes.token(there, tmp_path, 0) == b"x" * 32
    file.write_text("short")
    with pytest.raises(ConfigurationError, match="holds 5 bytes"):
        nodes.token(there, tmp_path, 0)


def test_a_slurm_job_makes_its_own_token(tmp_path):
    leading, following = (nodes.Place(2, rank, "gpu07", 29500, job="12-0") for rank in (0, 1))
    with pytest.raises(ConfigurationError, match="cannot read"):
        nodes.token(following, tmp_path, 0)
    made = nodes.token(leading, tmp_path, 0)
    assert made == nodes.token(following, tmp_path, 0) and len(made) == 64
    assert nodes.job_token_file(leading, tmp_path).stat().st_mode & 0o777 == 0o600


def test_the_first_difference_of_two_nodes_is_named():
    def one(**changes):
        facts = {"git": {"revision": "a" * 40, "dirty": False}, "packages": {"torch": "2"}}
        same = {"contract": 1, "nodes": 2, "configuration": {"rows": [8], "seed": 1}, "device": "cpu", "devices": None}
        return same | {"cases": "c" * 64, "facts": facts | changes.pop("facts", {})} | changes

    assert identity.difference(one(), one()) == ""
    for changes, words in (
        ({"contract": 2}, "version of the contract is 2 there, 1 on node 0"),
        ({"nodes": 3}, "number of nodes is 3 there, 2 on node 0"),
        ({"configuration": {"rows": [9], "seed": 1}}, "rows is [9] there, [8] on node 0"),
        ({"devices": 4}, "devices is 4 there, null on node 0"),
        ({"facts": {"git": {"revision": "b" * 40, "dirty": False}}}, 'revision is "bbbbbbbbbbbb" there'),
        ({"facts": {"packages": {}}}, 'package torch is "none" there, "2" on node 0'),
        ({"cases": "d" * 64}, "list of cases"),
    ):
        assert words in identity.difference(one(), one(**changes))


def test_the_digest_ignores_how_the_nodes_were_reached():
    one = configuration.compose(["launch.master_port=1"]).on_nodes(2)
    other = configuration.compose(["launch.master_port=2", "launch.node_rank=1"]).on_nodes(2)
    assert one.digest == other.digest != configuration.compose([]).on_nodes(3).digest
