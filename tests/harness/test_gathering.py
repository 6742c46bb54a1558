"""What the results of several nodes come to, and what each of them starts."""

from pathlib import Path

import pytest

from harness import command
from harness.gathering import verdict
from harness.share import ADDRESS_VARIABLE, Share
from harness.systems import System
from tests.harness.test_launch import payload

OK, CUT = ("ok", ""), ("cut", "")
MUTE = ("crashed", "killed by SIGKILL")
SHADOW = ("crashed", "RuntimeError: connection closed by peer")
MEMORY = ("out_of_memory", "no room")


@pytest.mark.parametrize(
    ("notes", "said", "want"),
    [
        ([OK, OK], ("ok", ""), ("ok", "")),
        ([SHADOW, MUTE], SHADOW, ("crashed", "n1: killed by SIGKILL")),
        ([SHADOW, MEMORY], MEMORY, ("out_of_memory", "n1: no room")),
        (
            [SHADOW, ("crashed", "ValueError: first")],
            ("crashed", "ValueError: first"),
            ("crashed", "n1: ValueError: first"),
        ),
        ([("timeout", "late"), SHADOW], None, ("timeout", "n0: late")),
        ([CUT, SHADOW], None, ("crashed", "n1: RuntimeError: connection closed by peer")),
        ([OK, CUT], None, ("crashed", "n1 ended before it was done")),
    ],
)
def test_the_node_that_failed_first_explains_a_launch(notes, said, want):
    assert verdict({f"n{number}": note for number, note in enumerate(notes)}, said) == want


def share(node, **changes):
    known = {"nodes": 2, "master_address": "10.0.0.1", "master_port": 7, "own_address": "10.0.0.2", "interface": "eth3"}
    return Share(node, **(known | {"token_file": Path("/token")} | changes))


def starts(launcher, world_size, part):
    system = System(launcher, "m:C", launcher, (), None, ("cpu",), 8.0, {}, {})
    return command.processes(system, payload(world_size=world_size) | {"nodes": 2}, Path("/f"), Path("/binary"), part)


def test_every_device_of_a_node_is_a_rank_of_its_own_under_torchruns_names():
    ranks = [variables for _, variables in starts("torchrun", 6, share(1))]
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    found = [tuple(variables[name] for name in names) for variables in ranks]
    assert found == [(str(3 + local), "6", str(local), "3", "1", "10.0.0.1", "7") for local in range(3)]
    assert {variables["TORCHELASTIC_USE_AGENT_STORE"] for variables in ranks} == {"True"}


def test_one_process_drives_all_devices_of_a_node(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    ((arguments, variables),) = starts("single", 6, share(1))
    assert arguments[-2:] == ["harness.worker", "/f"]
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_RANK"]) == ("1", "2", "0")
    assert variables["XLA_FLAGS"] == "--xla_force_host_platform_device_count=3"
    assert variables[ADDRESS_VARIABLE] == "10.0.0.2"
    ((arguments, _),) = starts("native", 6, share(1))
    text = " ".join(arguments)
    assert "--world-size 6 --nodes 2" in text
    assert text.endswith("--node-rank 1 --rendezvous 10.0.0.1:7 --token-file /token --interface eth3")
    ((arguments, _),) = starts("native", 6, share(0, master_address="fd00::1", interface=None))
    assert " ".join(arguments).endswith("--node-rank 0 --rendezvous [fd00::1]:7 --token-file /token")


def test_libraries_are_told_the_interface_unless_the_user_did(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    ((_, variables),) = starts("torchrun", 2, share(0))
    assert variables["GLOO_SOCKET_IFNAME"] == "eth3" and "NCCL_SOCKET_IFNAME" not in variables
