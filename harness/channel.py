"""What nodes tell one another: signed JSON and files in PyTorch's TCPStore, which listens on the named address only.

The store itself knows no passwords. Every value is signed with a secret that only the nodes have, so a stranger on the
network can disturb a run, and cannot make a node start anything or forge a result.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness import rendezvous
from harness.cases import ConfigurationError

_CHUNK = 4 << 20  # the store takes values of 8 MiB at most
_MOST_BYTES = 1 << 30  # of the files of one launch on one node
_SIGNATURE = hashlib.sha256().digest_size
# Of a folder's files, what a launch's result is made of.
RESULT_FILES = ("events.*.jsonl", "*.npy", "log.txt")


def store_class() -> type:
    """PyTorch's TCPStore. Raises ConfigurationError where there is no PyTorch."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else a lost peer fills the screen with stack traces
    try:
        from torch.distributed import TCPStore
    except ImportError:
        raise ConfigurationError("several nodes are coordinated by PyTorch's store; install torch on all") from None
    return TCPStore


def open_store(address: str, port: int = 0, serve: bool = False, seconds: float = 30.0) -> tuple[Any, int]:
    """A TCPStore and its port: a new server that listens on `address` alone, or a client of one.

    Raises ConfigurationError where PyTorch is missing or too old, OSError when the store cannot be had.
    """
    store = store_class()
    options = {"timeout": timedelta(seconds=seconds), "wait_for_workers": False}
    try:
        if not serve:
            return store(address, port, None, False, **options), port
        listener = rendezvous.listen(address, port)
        port = listener.getsockname()[1]
        return store(address, port, None, True, master_listen_fd=listener.detach(), **options), port
    except TypeError:
        raise ConfigurationError("this PyTorch's store cannot be told where to listen; install 2.4 or newer") from None
    except RuntimeError as problem:  # DistError is one
        raise OSError(f"the store of {address} does not answer: {str(problem).splitlines()[0]}") from None


def free_port(address: str) -> int:
    """A port of this machine's `address` that is free now."""
    with rendezvous.listen(address, 0) as listener:
        return listener.getsockname()[1]


class Channel:
    """Signed values by name. Raises OSError when the store is gone."""

    def __init__(self, store: Any, secret: bytes) -> None:
        self._store, self._secret = store, secret

    def put(self, name: str, value: Any) -> None:
        """Write a JSON value."""
        self._set(name, json.dumps(value).encode())

    def get(self, name: str) -> Any:
        """A JSON value; None where there is none yet, or none that a node wrote."""
        data = self._get(name)
        return None if data is None else json.loads(data)

    def put_files(self, name: str, folder: Path, note: dict[str, Any]) -> None:
        """Write a note with the result files of a folder; the note comes last, so whoever sees it sees all."""
        files = []
        for path in sorted({path for pattern in RESULT_FILES for path in folder.glob(pattern) if path.is_file()}):
            data = path.read_bytes()
            for start in range(0, len(data), _CHUNK):
                self._set(f"{name}/{len(files)}/{start}", data[start : start + _CHUNK])
            files.append({"name": path.name, "bytes": len(data)})
        self.put(name, note | {"files": files})

    def get_files(self, name: str, folder: Path) -> dict[str, Any] | None:
        """The note of `put_files`, its files written into `folder`; a log gets the name `log.<its node>.txt`."""
        note = self.get(name)
        if note is None:
            return None
        if sum(file["bytes"] for file in note["files"]) > _MOST_BYTES:
            raise OSError(f"{name}: more than {_MOST_BYTES} bytes")
        for number, file in enumerate(note["files"]):
            target = folder / Path(file["name"]).name
            if target.name == "log.txt":
                target = folder / f"log.{note['node']}.txt"
            with open(target, "wb") as stream:
                for start in range(0, file["bytes"], _CHUNK):
                    chunk = self._get(f"{name}/{number}/{start}")
                    if chunk is None:
                        raise OSError(f"{name}: {file['name']} is not whole")
                    stream.write(chunk)
                    self._delete(f"{name}/{number}/{start}")
        self._delete(name)
        return note

    def delete(self, name: str) -> None:
        """Forget a value."""
        self._delete(name)

    def _sign(self, name: str, data: bytes) -> bytes:
        return hmac.digest(self._secret, name.encode() + b"\0" + data, hashlib.sha256)

    def _set(self, name: str, data: bytes) -> None:
        signed = self._sign(name, data) + data
        self._ask(lambda: self._store.set(name, signed))

    def _get(self, name: str) -> bytes | None:
        if not self._ask(lambda: self._store.check([name])):
            return None
        found = self._ask(lambda: self._store.get(name))
        signature, data = found[:_SIGNATURE], found[_SIGNATURE:]
        return data if hmac.compare_digest(signature, self._sign(name, data)) else None

    def _delete(self, name: str) -> None:
        self._ask(lambda: self._store.delete_key(name))

    @staticmethod
    def _ask(question: Any) -> Any:
        try:
            return question()
        except RuntimeError as problem:  # DistError is one
            raise OSError(f"the store is gone: {str(problem).splitlines()[0]}") from None


def interface_of(address: str) -> str | None:
    """The name of the network interface that holds a numeric address of this machine; None where it is not known."""
    try:
        import psutil
    except ImportError:
        return None
    if address.startswith("127."):
        return "lo"  # all of 127.0.0.0/8, listed or not
    for name, addresses in psutil.net_if_addrs().items():
        for each in addresses:
            if each.family in (socket.AF_INET, socket.AF_INET6) and each.address.partition("%")[0] == address:
                return name
    return None
