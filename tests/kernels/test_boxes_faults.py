"""What goes wrong between boxes ends every box, in time, with the other box's name and what was awaited."""

import os
import secrets
import signal
import socket
import struct
import time

import pytest

from tests.kernels.binary import base_case
from tests.kernels.boxes import Network, needs_namespaces, running
from tests.kernels.handshake import HELLO, Impostor, frame

SMALL = base_case(loss="one_set_sigmoid", rows=64, dims=64, prefixes=[64], world_size=2, labels="pairs")
ENDLESS = ["--actions", "time", "--warmup-steps", 2, "--warmup-seconds", 0, "--blocks", 1000000, "--steps-per-block", 4]
SHORT = ["--actions", "time", "--warmup-steps", 1, "--warmup-seconds", 0, "--blocks", 2, "--steps-per-block", 2]


def start_all(run, boxes, case=SMALL, words=ENDLESS):
    """All boxes, the leader last."""
    for box in reversed(range(boxes)):
        run.start(box, case | {"world_size": boxes}, *words)


def wait_for_blocks(run, boxes):
    """Returns once every box is in the middle of its steps."""
    deadline = time.monotonic() + 60
    while not all(any(event["event"] == "block" for event in run.events(box)) for box in range(boxes)):
        assert time.monotonic() < deadline, [run.log(box) for box in range(boxes)]
        time.sleep(0.05)


def assert_crashed(run, boxes, culprit):
    """The boxes ended with exit status 1 and a reason that names the culprit and the phase."""
    for box in boxes:
        end = run.events(box)[-1]
        assert end["event"] == "end" and end["status"] == "crashed", end
        assert f"box {culprit} (" in end["reason"] and "while this box waited for" in end["reason"], end
        assert len(run.log(box).splitlines()) == 1 and end["reason"] in run.log(box)


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_killed_box_ends_the_others_at_once(tmp_path, culprit):
    with running(tmp_path, 3) as run:
        start_all(run, 3)
        wait_for_blocks(run, 3)
        run.processes[culprit].kill()
        others = [box for box in range(3) if box != culprit]
        codes = run.finish(15)  # far under the 20 s that a silent box would have
        assert [codes[box] for box in others] == [1, 1]
        assert_crashed(run, others, culprit)


def test_a_frozen_box_ends_the_others_at_the_deadline_and_itself_when_it_thaws(tmp_path):
    with running(tmp_path, 3, rails_seconds=2) as run:
        start_all(run, 3)
        wait_for_blocks(run, 3)
        run.processes[1].send_signal(signal.SIGSTOP)
        others = {box: run.processes[box].wait(15) for box in (0, 2)}
        assert others == {0: 1, 2: 1}
        assert_crashed(run, [0, 2], 1)
        assert any("silent for 2 s" in run.reason(box) for box in (0, 2))
        run.processes[1].send_signal(signal.SIGCONT)
        assert run.finish(15)[1] == 1
        assert "box 0 (" in run.reason(1) or "box 2 (" in run.reason(1)


def test_a_link_that_drops_and_delays_changes_no_bit(tmp_path):
    needs_namespaces()
    case = SMALL | {"rows": 256, "dims": 256}
    with Network(2) as network:
        results = []
        for disturbed in (False, True):
            for box in (0, 1) if disturbed else ():
                network.disturb(box)
            folder = tmp_path / str(disturbed)
            folder.mkdir()
            with running(folder, 2, network) as run:
                start_all(run, 2, case, ["--actions", "check,time", "--check", "name=all", *SHORT[2:]])
                assert set(run.finish(90).values()) == {0}, [run.log(box) for box in (0, 1)]
                results.append(next(event for event in run.events(0) if event["event"] == "check")["loss_value"])
        assert results[0] == results[1]
        assert network.dropped(0) + network.dropped(1) > 0, "the link was to drop packets"


def test_a_link_that_is_cut_ends_both_boxes(tmp_path):
    needs_namespaces()
    with Network(2) as network, running(tmp_path, 2, network, rails_seconds=2) as run:
        start_all(run, 2)
        wait_for_blocks(run, 2)
        network.cut(1)
        assert run.finish(20) == {0: 1, 1: 1}
        assert_crashed(run, [0], 1)
        assert_crashed(run, [1], 0)


def test_a_port_that_is_taken_is_one_line_and_exit_status_2(tmp_path):
    with running(tmp_path, 2) as run, socket.socket() as holder:
        holder.bind(("127.0.0.1", run.port))
        holder.listen()
        run.start(0, SMALL, *SHORT)
        assert run.finish(20) == {0: 2}
        assert "the port is taken" in run.reason(0) and len(run.log(0).splitlines()) == 1


def test_a_wrong_token_is_said_on_both_sides(tmp_path):
    with running(tmp_path, 2, join_seconds=3) as run:
        other = tmp_path / "other"
        other.write_text(secrets.token_hex(16))
        other.chmod(0o600)
        run.start(0, SMALL, *SHORT)
        run.start(1, SMALL, *SHORT, token_file=other)
        assert run.finish(20) == {0: 1, 1: 1}
        assert "wrong token" in run.reason(1) and "box 0 (" in run.reason(1)
        assert "box 1 did not come within 3 s" in run.reason(0) and "wrong token" in run.reason(0)


@pytest.mark.parametrize(
    "words, message",
    [
        ({"token_file": "/nonexistent"}, "cannot read the token file"),
        ({"token_file": "/etc/passwd"}, "can be read by others; chmod 600"),
        ({"token_file": "/dev/null"}, "can be read by others; chmod 600"),
        ({"interface": "no_such_interface"}, "no_such_interface"),
        ({"rendezvous": "127.0.0.1"}, "give HOST:PORT"),
        ({"rendezvous": "192.0.2.1:29500"}, "is not an address of box 0"),
    ],
)
def test_what_cannot_work_here_is_one_line_and_exit_status_2(tmp_path, words, message):
    with running(tmp_path, 2) as run:
        run.start(0, SMALL, *SHORT, **words)
        assert run.finish(20) == {0: 2}
        assert message in run.log(0) and len(run.log(0).splitlines()) == 1


@pytest.mark.parametrize(
    "changes, field",
    [
        ({"rows": 32}, "rows is 64"),
        ({"loss": "two_set_sigmoid", "labels": "distinct"}, "l"),
        ({"seed": 7}, "seed is 42"),
        ({"world_size": 4}, "world_size is 2"),
        ({"prefixes": [32, 64]}, "prefixes is 64"),
    ],
)
def test_boxes_that_differ_say_so_on_both_sides_before_any_timing(tmp_path, changes, field):
    with running(tmp_path, 2) as run:
        run.start(0, SMALL, *SHORT)
        run.start(1, SMALL | changes, *SHORT)
        assert run.finish(20) == {0: 1, 1: 1}
        for box in (0, 1):
            assert "the boxes do not agree: " + field in run.reason(box)
            assert [event["event"] for event in run.events(box)] == ["start", "ready", "end"]


def test_a_late_box_is_waited_for_and_a_box_that_never_comes_is_named(tmp_path):
    with running(tmp_path, 2) as run:
        run.start(0, SMALL, *SHORT)
        time.sleep(1.5)
        run.start(1, SMALL, *SHORT)
        assert run.finish(30) == {0: 0, 1: 0}
    with running(tmp_path, 3, join_seconds=2) as run:
        for box in (0, 1):
            run.start(box, SMALL | {"world_size": 3}, *SHORT)
        assert run.finish(20) == {0: 1, 1: 1}
        assert run.reason(0) == "box 2 did not come within 2 s"
        assert "box 2 did not come" in run.reason(1) or "box 0 (" in run.reason(1)


def test_a_box_too_many_is_refused_and_disturbs_nobody(tmp_path):
    with running(tmp_path, 2, join_seconds=5) as run:
        start_all(run, 2)
        wait_for_blocks(run, 2)
        twin = running(tmp_path / "twin", 2) if (tmp_path / "twin").mkdir() else None
        assert twin is None
        with running(tmp_path / "twin", 2, join_seconds=5) as other:
            other.port, other.token = run.port, run.token
            other.start(1, SMALL, *ENDLESS)
            assert other.finish(20) == {1: 1}
            assert "box 1 has joined already" in other.reason(1)
        blocks = len(run.events(0))
        time.sleep(0.5)
        assert len(run.events(0)) > blocks, "the run goes on"


def test_strangers_are_turned_away_and_disturb_nobody(tmp_path):
    with running(tmp_path, 2) as run:
        run.start(0, SMALL, *SHORT)
        deadline = time.monotonic() + 20
        strangers = []
        for words in (
            b"",
            b"GET / HTTP/1.0\r\n\r\n",
            frame(HELLO, b"x" * 68)[:40],
            frame(HELLO, b"x" * 68),
            b"\xff" * 4096,
        ):
            while True:
                try:
                    strangers.append(socket.create_connection(("127.0.0.1", run.port), timeout=5))
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            strangers[-1].sendall(words)
        time.sleep(0.3)
        strangers[0].close()  # one leaves, the others stay and say no more
        run.start(1, SMALL, *SHORT)
        assert run.finish(30) == {0: 0, 1: 0}, run.log(0)
        for stranger in strangers[1:]:
            stranger.close()


@pytest.mark.parametrize("how", ["half a frame", "half a frame, then gone", "nonsense", "a rail's half message"])
def test_a_half_written_message_ends_the_box_that_waits_for_the_rest(tmp_path, how):
    with running(tmp_path, 2, join_seconds=5, rails_seconds=2) as run, Impostor(run) as leader:
        run.start(1, SMALL, *ENDLESS)
        leader.meet()
        if how == "half a frame":
            leader.control.sendall(frame(leader.EXCHANGE, b"12345678")[:11])
        if how == "half a frame, then gone":
            leader.control.sendall(frame(leader.EXCHANGE, b"12345678")[:11])
            leader.close()
        if how == "nonsense":
            leader.control.sendall(b"\xff" * 64)
        if how == "a rail's half message":
            leader.exchange(b"")
            rail = leader.take_rail()
            rail.sendall(struct.pack("<IIQQQ", 0x4C494152, 0, 1, 0, 64 * 4) + b"12345")
        assert run.finish(20) == {1: 1}
        assert "box 0 (127.0.0.1)" in run.reason(1) and "while this box " in run.reason(1)
        expected = {
            "half a frame": "silent for 5 s",
            "half a frame, then gone": "closed the connection within a message",
            "nonsense": "sent a message that makes no sense",
            "a rail's half message": "silent for 2 s, while this box waited",
        }
        assert expected[how] in run.reason(1)


def test_no_process_is_left(tmp_path):
    with running(tmp_path, 2, rails_seconds=2) as run:
        start_all(run, 2)
        wait_for_blocks(run, 2)
        run.processes[0].kill()
        run.finish(15)
        for process in run.processes.values():
            assert not os.path.exists(f"/proc/{process.pid}/task")
