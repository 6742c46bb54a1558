"""The rendezvous of native boxes, written a second time in Python from its description (handshake.hpp, docs/rails.md):
what a test needs to play a box that then misbehaves.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import socket
import struct

HELLO, CHALLENGE, PROOF, REFUSE, JOIN, TABLE, EXCHANGE = range(0x31524353, 0x31524353 + 7)
JOIN_PURPOSE, CONTROL_PURPOSE, RAIL_PURPOSE = 1, 2, 3


def frame(kind, payload):
    """A control frame's bytes."""
    return struct.pack("<II", kind, len(payload)) + payload


def receive(connection, size):
    """Exactly `size` bytes."""
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the connection ended"
        data += part
    return data


def read_frame(connection):
    """(kind, payload)"""
    kind, length = struct.unpack("<II", receive(connection, 8))
    return kind, receive(connection, length)


class Impostor:
    """Plays box 0 of a Run of two boxes: it knows the token, and box 1 believes it."""

    EXCHANGE = EXCHANGE

    def __init__(self, run):
        self.token = run.token.read_bytes().strip()
        self.listener = socket.create_server(("127.0.0.1", run.port))
        self.listener.settimeout(20)
        self.connections = []
        self.session = secrets.token_bytes(16)
        self.control = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        self.listener.close()

    def close(self):
        """Ends all connections."""
        for connection in self.connections:
            connection.close()

    def accept(self):
        """A proved caller: its connection and the purpose it named."""
        connection, _ = self.listener.accept()
        connection.settimeout(20)
        self.connections.append(connection)
        kind, hello = read_frame(connection)
        assert kind == HELLO and len(hello) == 68
        nonce = secrets.token_bytes(32)
        connection.sendall(frame(CHALLENGE, nonce))
        kind, proof = read_frame(connection)
        assert kind == PROOF and proof == self.proof(b"caller", hello, nonce)
        connection.sendall(frame(PROOF, self.proof(b"listener", hello, nonce)))
        return connection, struct.unpack("<I", hello[:4])[0]

    def proof(self, side, hello, nonce):
        """What a side shows to have the token."""
        return hmac.new(self.token, side + hello + nonce, hashlib.sha256).digest()

    def meet(self):
        """Box 1 joins and gets the table; returns what it said it runs."""
        self.control, purpose = self.accept()
        assert purpose == JOIN_PURPOSE
        kind, said = read_frame(self.control)
        assert kind == JOIN
        port, host = said.decode().splitlines()[0].split()
        table = f"127.0.0.1 {self.listener.getsockname()[1]}\n{host} {port}\n"
        self.control.sendall(frame(TABLE, self.session + table.encode()))
        self.exchange(b"")  # both know where all boxes are
        return said.decode()

    def exchange(self, part):
        """One collective of two boxes."""
        self.control.sendall(frame(EXCHANGE, part))
        kind, theirs = read_frame(self.control)
        assert kind == EXCHANGE
        return theirs

    def take_rail(self):
        """The first rail's connection, when all have come."""
        first, purpose = self.accept()
        assert purpose == RAIL_PURPOSE
        self.accept()
        return first
