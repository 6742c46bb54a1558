"""Starts nodes quickly: one process imports PyTorch, every node is a fork of it.

Reads JSON lines: {"argv", "variables", "log", "namespace"} starts `python -m harness ARGV` and answers its process id,
{"wait": pid} answers its exit status (minus the signal's number where one killed it), or null while it runs.
"""

import ctypes
import json
import os
import sys
from pathlib import Path

import torch.distributed  # noqa: F401

from harness import bench, configuration, machine  # noqa: F401
from harness.__main__ import main


def node(order):
    os.setsid()
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(log, descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if order.get("namespace"):
        handle = os.open(Path("/run/netns", order["namespace"]), os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(handle, 0):
            raise OSError(ctypes.get_errno(), "setns")
    os.environ.update(order["variables"])
    status = 70
    try:
        sys.argv = ["harness", *order["argv"]]
        status = main(order["argv"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    configuration.compose()  # imports what a node would import, once
    machine.detect()
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            pid, status = os.waitpid(order["wait"], os.WNOHANG)
            print(json.dumps(os.waitstatus_to_exitcode(status) if pid else None), flush=True)
            continue
        pid = os.fork()
        if not pid:
            node(order)
        print(pid, flush=True)
