"""The rendezvous: who is let in, who is turned away, and that strangers disturb nobody."""

import json
import socket
import threading
import time

import pytest

from harness import rendezvous
from harness.cases import ConfigurationError
from harness.rendezvous import Refused, Unreachable

TOKEN = b"a secret of the tests"


@pytest.fixture
def server():
    """A rendezvous on 127.0.0.1 that admits everybody with the token: (port, hellos, what it said)."""
    hellos, said = [], []

    def admit(hello, address):
        hellos.append((hello, address))
        if hello.get("refuse"):
            raise Refused("not you", again=hello["refuse"] == "later")
        return {"rank": len(hellos)}

    listener = rendezvous.listen("127.0.0.1", 0)
    running = rendezvous.Server(listener, TOKEN, admit, said.append)
    yield listener.getsockname()[1], hellos, said
    running.close()


def test_a_node_is_admitted(server):
    port, hellos, _ = server
    assert rendezvous.join("127.0.0.1", port, TOKEN, {"host": "b"}) == ({"rank": 1}, "127.0.0.1", "127.0.0.1")
    assert hellos == [({"host": "b"}, "127.0.0.1")]
    big = {"text": "x" * 500_000}
    assert rendezvous.join("localhost", port, TOKEN, big)[0] == {"rank": 2}


def test_a_wrong_token_is_refused_and_learns_nothing(server):
    port, hellos, said = server
    with pytest.raises(Refused, match="RENDEZVOUS_TOKEN_FILE must hold the same") as caught:
        rendezvous.join("127.0.0.1", port, TOKEN + b"!", {"host": "b"})
    assert not caught.value.again
    assert hellos == []
    _until(lambda: said == ["turned away 127.0.0.1: wrong token"])


def test_a_refusal_says_why_and_whether_to_come_back(server):
    port, _, _ = server
    for refuse in ("later", "never"):
        with pytest.raises(Refused, match="not you") as caught:
            rendezvous.join("127.0.0.1", port, TOKEN, {"refuse": refuse})
        assert caught.value.again == (refuse == "later")


@pytest.mark.parametrize(
    "message",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"nonce": 1, "proof"',
        b"[]\n",
        b"{}\n",
        b"\xff\xfe\n",
        b"x" * 10000,
        b"",
        b"9" * 9000 + b"\n",
        b"[" * 4000 + b"\n",
    ],
)
def test_strangers_are_turned_away_and_disturb_nobody(server, message, monkeypatch):
    monkeypatch.setattr(rendezvous, "EXCHANGE_SECONDS", 0.5)
    port, hellos, said = server
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(message)
        assert rendezvous.join("127.0.0.1", port, TOKEN, {"host": "b"})[0] == {"rank": 1}
        stranger.settimeout(5)
        while stranger.recv(4096):  # node 0 hangs up, within a bounded time
            pass
    assert len(hellos) == 1
    _until(lambda: len(said) == 1 and said[0].startswith("turned away 127.0.0.1: "))


def test_half_a_message_with_the_right_token_is_turned_away(server):
    port, hellos, said = server
    with socket.create_connection(("127.0.0.1", port)) as stream, stream.makefile("rwb") as lines:
        nonce = json.loads(lines.readline())["nonce"]
        proof = rendezvous.derive(TOKEN, "node", nonce, "n").hex()
        lines.write(json.dumps({"nonce": "n", "proof": proof}).encode() + b"\n" + b'{"body": "{')
        lines.flush()
        assert "proof" in json.loads(lines.readline())
    _until(lambda: said == ["turned away 127.0.0.1: the connection ended in the middle of a message"])
    assert hellos == []


def test_more_silent_strangers_than_are_served_hold_nobody_up(server):
    """The one who has been there longest has to go, so that whoever says what is right at once gets in."""
    port, hellos, said = server
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(rendezvous._CONNECTIONS + 8)]
    assert all(json.loads(stranger.makefile("rb").readline())["nonce"] for stranger in strangers[-8:])
    assert rendezvous.join("127.0.0.1", port, TOKEN, {"host": "b"})[0] == {"rank": 1}
    _until(lambda: len(said) == 9)  # the newest of them are still waited for
    for stranger in strangers:
        stranger.close()
    assert len(hellos) == 1


def test_a_replayed_exchange_is_worthless(server):
    """What one node sent, word for word, does not get another in: the nonce is new."""
    port, hellos, _ = server
    with socket.create_connection(("127.0.0.1", port)) as first:
        nonce = json.loads(first.makefile("rb").readline())["nonce"]
    answer = json.dumps({"nonce": "n", "proof": rendezvous.derive(TOKEN, "node", nonce, "n").hex()}).encode() + b"\n"
    with socket.create_connection(("127.0.0.1", port)) as second:
        stream = second.makefile("rb")
        assert json.loads(stream.readline())["nonce"] != nonce
        second.sendall(answer)
        assert "refused" in json.loads(stream.readline())
    assert hellos == []


def test_an_impostor_in_place_of_node_0_is_found_out():
    """It knows the protocol and not the token: the node sends it nothing of itself."""
    received = []
    with rendezvous.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        def pretend():
            connection, _ = listener.accept()
            with connection:
                stream = connection.makefile("rwb")
                greeting = {"service": rendezvous.SERVICE, "protocol": rendezvous.PROTOCOL, "nonce": "0"}
                stream.write(json.dumps(greeting).encode() + b"\n")
                stream.flush()
                received.append(stream.readline())
                stream.write(b'{"proof": "00"}\n')
                stream.flush()
                received.append(stream.read())

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(Refused, match="does not hold this node's token"):
            rendezvous.join("127.0.0.1", port, TOKEN, {"host": "secret"})
        thread.join()
    assert received[1] == b"" and TOKEN not in received[0]


def test_another_service_on_the_port_is_named():
    with rendezvous.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        threading.Thread(target=lambda: listener.accept()[0].sendall(b"220 mail\r\n")).start()
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} is no node 0 of this project"):
            rendezvous.join("127.0.0.1", port, TOKEN, {})
    with pytest.raises(Unreachable, match="nobody answers"):
        rendezvous.join("127.0.0.1", port, TOKEN, {})


def test_who_leads_is_who_can_listen(monkeypatch):
    with rendezvous.listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert rendezvous.try_to_lead("127.0.0.1", port, None) is None
        assert rendezvous.try_to_lead("127.0.0.1", port, 1) is None
        with pytest.raises(ConfigurationError, match=f"port {port} of 127.0.0.1 is taken"):
            rendezvous.try_to_lead("127.0.0.1", port, 0)
    with rendezvous.try_to_lead("127.0.0.1", port, None) as leading:
        assert leading.getsockname() == ("127.0.0.1", port)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))  # nothing listens beside the named address
    assert rendezvous.try_to_lead("192.0.2.1", port, None) is None
    with pytest.raises(ConfigurationError, match="no address of this machine"):
        rendezvous.try_to_lead("192.0.2.1", port, 0)
    for everywhere in ("0.0.0.0", "::"):
        with pytest.raises(ConfigurationError, match="means every interface"):
            rendezvous.try_to_lead(everywhere, port, None)
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", port))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(ConfigurationError, match=r"MASTER_ADDR=box means 127\.0\.1\.1 on this machine"):
        rendezvous.try_to_lead("box", port, None)


def _until(done, seconds=20.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)
