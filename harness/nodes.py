"""Where this process stands among the machines of a run: torchrun's names, Slurm's variables, `configs/launch`."""

from __future__ import annotations

import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.cases import ConfigurationError

# Fields of configs/launch that may differ from node to node and from one start of a run to the next.
LOCAL_FIELDS = (
    *("node_rank", "master_addr", "master_port", "token_file"),
    *("lost_seconds", "wait_seconds", "follower_status", "queue", "queue_options"),
)
QUEUES = ("slurm", "local")  # local: processes on this machine, to try it
SOURCES = ("auto", "environment", "slurm", "none")
_VARIABLES = {
    "nodes": "NNODES",
    "node_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "token_file": "RENDEZVOUS_TOKEN_FILE",
}
_TOKEN_BYTES = (16, 4096)  # least and most


@dataclass(frozen=True)
class Place:
    """One of `nodes` machines. `rank` None: assigned by the rendezvous. `address`, `port`: where node 0 listens."""

    nodes: int
    rank: int | None
    address: str
    port: int
    token_file: Path | None = None
    job: str = ""  # Slurm's job and step; a token is made for them when none is given

    def __str__(self) -> str:
        who = "one of them" if self.rank is None else f"node {self.rank}"
        where = f"; node 0 listens on {endpoint(self.address, self.port)}" if self.address and self.port else ""
        return f"{self.nodes} nodes, this is {who}{where}"


def endpoint(address: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 address."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def place(launch: Mapping[str, Any], environ: Mapping[str, str] = os.environ, to_start: bool = True) -> Place | None:
    """This process's place, or None for a run on one machine. Fields of `launch` overrule the environment.

    Without `to_start` the number of nodes is enough: nothing will be started. Raises ConfigurationError, one line, for
    what is missing or bad.
    """
    source, nodes = launch["source"], launch["nodes"]
    if source == "none":
        return None
    given = {field: environ[name] for field, name in _VARIABLES.items() if environ.get(name)}
    job = ""
    if source == "slurm" or (source == "auto" and nodes is None and "nodes" not in given and _in_large_step(environ)):
        slurm, job = _slurm(environ), f"{environ.get('SLURM_JOB_ID', '0')}-{environ.get('SLURM_STEP_ID', '0')}"
        given = slurm | {name: value for name, value in given.items() if name not in ("nodes", "node_rank")}
    if nodes is not None and "nodes" in given and str(nodes) != given["nodes"]:
        raise ConfigurationError(f"launch.nodes is {nodes}, {_name('nodes', job)} {given['nodes']}; give one of them")
    given |= {name: str(launch[name]) for name in _VARIABLES if launch[name] is not None}
    count = _whole(given, "nodes", 1, 1024, job) if "nodes" in given else 1
    if count == 1:
        return None
    for field in ("master_addr", "master_port") if job else ("master_addr", "master_port", "token_file"):
        if field not in given and to_start:
            raise ConfigurationError(f"a run on {count} nodes needs {_VARIABLES[field]}; {_HELP[field]}")
    return Place(
        nodes=count,
        rank=_whole(given, "node_rank", 0, count - 1, job) if "node_rank" in given else None,
        address=given.get("master_addr", "").strip("[]"),
        port=_whole(given, "master_port", 1, 65535, job) if "master_port" in given else 0,
        token_file=Path(given["token_file"]).expanduser() if "token_file" in given else None,
        job=job,
    )


_HELP = {
    "master_addr": "give the address of node 0 on the network that joins the machines",
    "master_port": "give a free port of node 0, the same on every node",
    "token_file": "give a file that holds the same secret on every node, such as openssl rand -hex 32 makes",
}


def _name(field: str, job: str) -> str:
    return "Slurm's number of nodes" if job and field == "nodes" else _VARIABLES[field]


def _whole(given: Mapping[str, str], field: str, least: int, most: int, job: str) -> int:
    text = str(given[field]).strip()
    if not text.isdecimal() or not least <= int(text) <= most:
        raise ConfigurationError(f"{_name(field, job)} is {text!r}; give a whole number from {least} to {most}")
    return int(text)


def _in_large_step(environ: Mapping[str, str]) -> bool:
    """Whether srun started this process on several nodes. Inside salloc or a batch script alone it did not."""
    return environ.get("SLURM_STEP_NUM_NODES", "1") not in ("", "0", "1")


def _slurm(environ: Mapping[str, str]) -> dict[str, str]:
    """The fields that srun's variables give. Raises ConfigurationError outside srun, or with several tasks a node."""
    names = ("SLURM_STEP_NUM_NODES", "SLURM_NODEID", "SLURM_STEP_NODELIST", "SLURM_JOB_ID")
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise ConfigurationError(f"{missing[0]} is not set; start it inside a Slurm job with: srun make bench")
    nodes, tasks = environ["SLURM_STEP_NUM_NODES"], environ.get("SLURM_STEP_NUM_TASKS", "")
    if tasks and tasks != nodes:
        raise ConfigurationError(
            f"srun started {tasks} tasks on {nodes} nodes; one a node is right, it starts the workers itself: "
            "srun --ntasks-per-node=1 make bench"
        )
    job = environ["SLURM_JOB_ID"]
    return {
        "nodes": nodes,
        "node_rank": environ["SLURM_NODEID"],
        "master_addr": first_host(environ["SLURM_STEP_NODELIST"]),
        "master_port": str(20000 + int(job) % 10000) if job.isdecimal() else "29500",
    }


def first_host(hosts: str) -> str:
    """The first name of a Slurm list: `gpu[07-09,12],other` gives `gpu07`. Raises ConfigurationError."""
    match = re.match(r"([^\[\],]*)(?:\[(\d+)[^\]]*\]([^\[\],]*))?", hosts)
    name = "".join(part or "" for part in match.groups())
    if not name:
        raise ConfigurationError(f"SLURM_STEP_NODELIST is {hosts!r}; give MASTER_ADDR")
    return name


def token(where: Place, folder: Path, wait_seconds: float) -> bytes:
    """The secret that the nodes share. Under Slurm without a file of the user's, node 0 makes one in `folder`.

    Raises ConfigurationError when the file cannot be read, is readable by others, or holds no sensible secret.
    """
    path = where.token_file
    if path is None:
        path = job_token_file(where, folder)
        if where.rank == 0:
            _make(path)
        end = time.monotonic() + wait_seconds
        while not path.is_file() and time.monotonic() < end:
            time.sleep(0.1)
    least, most = _TOKEN_BYTES
    try:
        with open(path, "rb") as stream:
            mode, data = os.fstat(stream.fileno()).st_mode, stream.read(2 * most).strip()
    except OSError as problem:
        raise ConfigurationError(f"cannot read the token file {path}: {problem.strerror}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(f"the token file {path} can be read by others; chmod 600 {path}")
    if not least <= len(data) <= most:
        raise ConfigurationError(f"the token file {path} holds {len(data)} bytes; give {least} to {most}")
    return data


def job_token_file(where: Place, folder: Path) -> Path:
    """Where the token of a Slurm job lies: beside the results, which its nodes share."""
    return folder / f".token-{where.job}"


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + f".{secrets.token_hex(4)}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(secrets.token_hex(32) + "\n")
    temporary.replace(path)
