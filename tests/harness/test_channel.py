"""The signed store: what nodes tell one another, and what a stranger on the network can do with it."""

import socket

import pytest

from harness import channel
from harness.channel import Channel

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def store():
    """A store that listens on 127.0.0.2, and its port."""
    return channel.open_store("127.0.0.2", serve=True)


def client(port):
    return channel.open_store("127.0.0.2", port, seconds=10)[0]


def test_the_store_listens_on_the_named_address_only(store):
    _, port = store
    socket.create_connection(("127.0.0.2", port)).close()
    for other in ("127.0.0.1", "127.0.0.3"):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((other, port))


def test_values_travel_between_nodes(store):
    one, other = Channel(store[0], b"secret"), Channel(client(store[1]), b"secret")
    assert other.get("absent") is None
    one.put("number", {"a": [1, None, "x"]})
    assert other.get("number") == {"a": [1, None, "x"]}
    other.delete("number")
    assert one.get("number") is None


def test_what_a_stranger_writes_is_not_believed(store):
    """He reaches the store, and does not have the secret: neither new values, nor old ones in another place."""
    node, stranger = Channel(store[0], b"secret"), client(store[1])
    Channel(stranger, b"guess").put("job", {"run": "evil"})
    assert node.get("job") is None
    node.put("true", {"run": "good"})
    stranger.set("job", stranger.get("true"))
    assert node.get("true") == {"run": "good"} and node.get("job") is None
    stranger.set("true", b"")
    assert node.get("true") is None
    with socket.create_connection(("127.0.0.2", store[1])) as garbage:
        garbage.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        node.put("still", 1)
        assert node.get("still") == 1


def test_the_files_of_a_launch_arrive_whole(store, tmp_path, monkeypatch):
    monkeypatch.setattr(channel, "_CHUNK", 1000)
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    here.mkdir()
    (there / "events.3.jsonl").write_text('{"event": "start"}\n')
    (there / "own.rows.3.npy").write_bytes(bytes(range(256)) * 17)
    (there / "log.txt").write_bytes(b"")
    (there / "case.json").write_text("not a result")
    one, other = Channel(store[0], b"secret"), Channel(client(store[1]), b"secret")
    other.put_files("result/1", there, {"node": 1, "status": "ok"})
    assert one.get("result/1")["status"] == "ok"
    note = one.get_files("result/1", here)
    assert (note["node"], note["status"]) == (1, "ok")
    assert sorted(path.name for path in here.iterdir()) == ["events.3.jsonl", "log.1.txt", "own.rows.3.npy"]
    assert (here / "own.rows.3.npy").read_bytes() == bytes(range(256)) * 17
    assert one.get_files("result/1", here) is None, "fetched once, and forgotten"


def test_a_file_name_cannot_leave_the_folder(store, tmp_path):
    node = Channel(store[0], b"secret")
    node.put("result/2", {"node": 1, "files": [{"name": "../../outside", "bytes": 0}]})
    node.get_files("result/2", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["outside"]


def test_a_lost_store_is_an_os_error():
    with pytest.raises(OSError, match="does not answer"):
        channel.open_store("127.0.0.2", channel.free_port("127.0.0.2"), seconds=0.5)


def test_interfaces_are_found_by_their_address():
    assert channel.interface_of("127.0.0.7") == "lo"
    assert channel.interface_of("192.0.2.1") is None
