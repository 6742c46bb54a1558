"""How nodes find one another: a small authenticated exchange that hands out where the store listens.

Node 0 listens on the named address only. Both sides prove that they hold the token (HMAC-SHA-256 over fresh nonces);
the token itself never travels, and the store's secret is derived on both sides, never sent. One exchange is five JSON
lines of bounded length within a bounded time, each connection in a thread of its own, so that a stranger disturbs
nobody:

    node 0   {"service", "protocol", "nonce"}
    node     {"nonce", "proof"}
    node 0   {"proof"}                     or {"refused": reason}
    node     {"body": <JSON text>, "mac"}  what it is and measures
    node 0   {"body": <JSON text>, "mac"}  its number and the store's port, or the reason of a refusal
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import ipaddress
import json
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from harness.cases import ConfigurationError
from harness.nodes import endpoint

SERVICE, PROTOCOL = "scaling-contrasts", 1
EXCHANGE_SECONDS = 5.0  # for a whole exchange, whatever the other side does
_FIRST_BYTES = 4096  # of a line from somebody unknown
_BODY_BYTES = 1 << 20
_CONNECTIONS = 32  # at once; one more, and the oldest has to go: an exchange takes moments, only strangers take longer


# What a stranger's bytes may raise; RecursionError is JSON of a thousand brackets.
_NONSENSE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


class Refused(Exception):
    """Node 0 does not take this node. `again`: it may later, when the number is free."""

    def __init__(self, reason: str, again: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.again = reason, again


class Unreachable(Exception):
    """Nobody answers there (yet)."""


def derive(token: bytes, purpose: str, *parts: str) -> bytes:
    """HMAC-SHA-256 of a purpose and its parts, keyed by the token."""
    return hmac.digest(token, json.dumps([purpose, *parts]).encode(), hashlib.sha256)


def resolve(address: str, port: int) -> list[tuple[int, tuple]]:
    """`(family, socket address)` of a name or number. Raises ConfigurationError when there is none, or it means all."""
    try:
        found = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
    except OSError as problem:
        raise ConfigurationError(f"MASTER_ADDR={address} has no address ({problem.strerror}); give a number") from None
    places = list(dict.fromkeys((family, where) for family, _, _, _, where in found))
    if any(ipaddress.ip_address(where[0].partition("%")[0]).is_unspecified for _, where in places):
        raise ConfigurationError(
            f"MASTER_ADDR={address} means every interface; give the address of the one that joins the machines"
        )
    return places


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens on this address and no other. Raises OSError: EADDRNOTAVAIL when it is not of this machine.

    Raises ConfigurationError when a name means this machine's loopback, which no other machine reaches.
    """
    family, where = resolve(address, port)[0]
    if ipaddress.ip_address(where[0].partition("%")[0]).is_loopback and not _is_loopback(address):
        raise ConfigurationError(
            f"MASTER_ADDR={address} means {where[0]} on this machine, which no other reaches; give the address of the "
            "interface that joins the machines"
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def try_to_lead(address: str, port: int, rank: int | None) -> socket.socket | None:
    """The listening socket of node 0, or None where this machine follows. Raises ConfigurationError, one line."""
    if rank not in (0, None):
        return None
    try:
        return listen(address, port)
    except OSError as problem:
        if rank is None and problem.errno in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
            return None  # not this machine's address, or node 0 is here already
        why = {
            errno.EADDRNOTAVAIL: f"{address} is no address of this machine; node 0 must run where MASTER_ADDR is",
            errno.EADDRINUSE: f"port {port} of {address} is taken; choose another MASTER_PORT, on every node",
        }.get(problem.errno, f"{endpoint(address, port)}: {problem.strerror}")
        raise ConfigurationError(f"node 0 cannot listen: {why}") from None


class Server:
    """Answers at `listener` until closed. `admit(hello, address)` gives the reply's body, or raises Refused."""

    def __init__(
        self,
        listener: socket.socket,
        token: bytes,
        admit: Callable[[Mapping[str, Any], str], Mapping[str, Any]],
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._listener, self._token, self._admit, self._say = listener, token, admit, say
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # oldest first
        self._thread = threading.Thread(target=self._accept, name="rendezvous", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        _hang_up(self._listener)  # wakes accept
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, where = self._listener.accept()
            except OSError as problem:
                if problem.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    time.sleep(0.1)
                    continue
                return  # closed
            self._make_room(connection)
            threading.Thread(target=self._serve, args=(connection, where[0]), daemon=True).start()

    def _make_room(self, connection: socket.socket) -> None:
        """Count a connection in, and end the oldest where there are too many; its thread notices."""
        with self._lock:
            self._open[connection] = None
            if len(self._open) > _CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                _hang_up(oldest)

    def _serve(self, connection: socket.socket, address: str) -> None:
        try:
            self._exchange(_Lines(connection, EXCHANGE_SECONDS), address)
        except _NONSENSE as problem:
            self._say(f"turned away {address}: {_why(problem)}")
        finally:
            with self._lock:  # closed under the lock: else the oldest's number might be another's by now
                self._open.pop(connection, None)
                connection.close()

    def _exchange(self, lines: _Lines, address: str) -> None:
        nonce = secrets.token_hex(16)
        lines.send({"service": SERVICE, "protocol": PROTOCOL, "nonce": nonce})
        first = lines.receive(_FIRST_BYTES)
        theirs = str(first["nonce"])[:64]
        expected = derive(self._token, "node", nonce, theirs).hex()
        if not hmac.compare_digest(expected.encode(), str(first["proof"]).encode()):
            lines.send({"refused": "the token is not node 0's; RENDEZVOUS_TOKEN_FILE must hold the same on every node"})
            raise ValueError("wrong token")
        lines.send({"proof": derive(self._token, "leader", nonce, theirs).hex()})
        hello = lines.open(derive(self._token, "hello", nonce, theirs))
        try:
            reply = {"accepted": self._admit(hello, address)}
        except Refused as problem:
            reply = {"refused": problem.reason, "again": problem.again}
        lines.seal(reply, derive(self._token, "reply", nonce, theirs))


def join(address: str, port: int, token: bytes, hello: Mapping[str, Any]) -> tuple[dict[str, Any], str, str]:
    """One exchange as a node. Returns the reply, node 0's numeric address and this machine's own on that route.

    Raises Unreachable when nobody answers, Refused with node 0's reason, ConfigurationError when something else does.
    """
    problem: OSError | None = None
    for family, where in resolve(address, port):
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.settimeout(EXCHANGE_SECONDS)
        try:
            connection.connect(where)
        except OSError as this:
            connection.close()
            problem = this
            continue
        with connection:
            return _join(connection, endpoint(address, port), token, hello)
    raise Unreachable(f"nobody answers on {endpoint(address, port)} ({(problem and problem.strerror) or 'no answer'})")


def _join(
    connection: socket.socket, place: str, token: bytes, hello: Mapping[str, Any]
) -> tuple[dict[str, Any], str, str]:
    stranger = ConfigurationError(f"what listens on {place} is no node 0 of this project; choose another MASTER_PORT")
    lines = _Lines(connection, EXCHANGE_SECONDS)
    try:
        greeting = lines.receive(_FIRST_BYTES)
        nonce, mine = str(greeting["nonce"])[:64], secrets.token_hex(16)
        if greeting.get("service") != SERVICE:
            raise stranger
        if greeting.get("protocol") != PROTOCOL:
            raise Refused(f"node 0 speaks rendezvous protocol {greeting.get('protocol')}, this node {PROTOCOL}")
    except TimeoutError:
        raise Unreachable(
            f"{place} takes connections and says nothing"
        ) from None  # another service, or a frozen node 0
    except ConnectionError as problem:
        raise Unreachable(f"{place}: {problem.strerror}") from None
    except _NONSENSE:
        raise stranger from None
    try:
        lines.send({"nonce": mine, "proof": derive(token, "node", nonce, mine).hex()})
        answer = lines.receive(_FIRST_BYTES)
        if "refused" in answer:
            raise Refused(str(answer["refused"]))
        if not hmac.compare_digest(derive(token, "leader", nonce, mine).hex().encode(), str(answer["proof"]).encode()):
            raise Refused("node 0 does not hold this node's token; RENDEZVOUS_TOKEN_FILE must be the same")
        lines.seal(hello, derive(token, "hello", nonce, mine))
        reply = lines.open(derive(token, "reply", nonce, mine))
    except OSError as problem:
        raise Unreachable(f"{place} stopped answering: {problem.strerror or 'too slow'}") from None
    except _NONSENSE as problem:
        raise Unreachable(f"{place} answered nonsense: {_why(problem)}") from None
    if "refused" in reply:
        raise Refused(str(reply["refused"]), bool(reply.get("again")))
    return reply["accepted"], connection.getpeername()[0], connection.getsockname()[0]


class _Lines:
    """JSON lines over a socket, each no longer than asked for, all of them within one deadline."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._end, self._rest = connection, time.monotonic() + seconds, b""

    def send(self, value: Mapping[str, Any]) -> None:
        self._patience()
        self._connection.sendall(json.dumps(value).encode() + b"\n")

    def receive(self, most: int) -> dict[str, Any]:
        """The next line. Raises ValueError for what is no JSON object or too long, OSError for silence or an end."""
        while b"\n" not in self._rest:
            if len(self._rest) > most:
                raise ValueError(f"a line of more than {most} bytes")
            self._patience()
            piece = self._connection.recv(65536)
            if not piece:
                raise ConnectionError(errno.ECONNRESET, "the connection ended in the middle of a message")
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        if len(line) > most:
            raise ValueError(f"a line of more than {most} bytes")
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
        return value

    def seal(self, value: Mapping[str, Any], key: bytes) -> None:
        """Send with a signature."""
        body = json.dumps(value)
        self.send({"body": body, "mac": hmac.digest(key, body.encode(), hashlib.sha256).hex()})

    def open(self, key: bytes) -> dict[str, Any]:
        """Receive what was sealed. Raises ValueError when the signature is not right."""
        line = self.receive(_BODY_BYTES)
        body = str(line["body"])
        expected = hmac.digest(key, body.encode(), hashlib.sha256).hex()
        if not hmac.compare_digest(expected.encode(), str(line["mac"]).encode()):
            raise ValueError("a wrong signature")
        value = json.loads(body)
        if not isinstance(value, dict):
            raise ValueError("no JSON object")
        return value

    def _patience(self) -> None:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "too slow")
        self._connection.settimeout(left)


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is gone


def _why(problem: Exception) -> str:
    if isinstance(problem, TimeoutError):
        return f"no complete exchange within {EXCHANGE_SECONDS:.0f} s"
    if isinstance(problem, OSError):
        return problem.strerror or type(problem).__name__
    return str(problem).splitlines()[0][:120] if str(problem) and not isinstance(problem, KeyError) else "nonsense"
