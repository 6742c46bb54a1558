"""One node's part of a launch that spans several: which ranks it starts, and how they find the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.nodes import endpoint

ADDRESS_VARIABLE = "SCALING_CONTRASTS_ADDRESS"  # this node's own, for libraries that would guess it from its host name


@dataclass(frozen=True)
class Share:
    """Node `node` of `nodes`. Ranks meet at `master_address:master_port`; traffic goes through `interface`."""

    node: int
    nodes: int
    master_address: str
    master_port: int
    own_address: str
    interface: str | None
    token_file: Path

    def variables(self, case: Mapping[str, Any], launcher: str) -> list[dict[str, str]]:
        """What each process of this node has in its environment: torchrun's names, one set for each process.

        A PyTorch process is one rank; a process that drives all of a node's devices counts as the node's only one.
        """
        local = case["world_size"] // self.nodes if launcher == "torchrun" else 1
        common = {
            "WORLD_SIZE": str(local * self.nodes),
            "LOCAL_WORLD_SIZE": str(local),
            "GROUP_RANK": str(self.node),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
            ADDRESS_VARIABLE: self.own_address,
        }
        if launcher == "torchrun":  # as torchrun does: node 0's harness holds the store, and every rank is its client
            common |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        for name, prefix in (("GLOO_SOCKET_IFNAME", ""), ("NCCL_SOCKET_IFNAME", "=")):
            if self.interface and not os.environ.get(name):
                common[name] = prefix + self.interface
        return [
            common | {"RANK": str(self.node * local + number), "LOCAL_RANK": str(number)} for number in range(local)
        ]

    def native_flags(self) -> list[str]:
        """The native binary's flags beside the case (docs/contracts.md, section 7)."""
        flags = ["--node-rank", str(self.node), "--rendezvous", endpoint(self.master_address, self.master_port)]
        flags += ["--token-file", str(self.token_file)]
        return [*flags, "--interface", self.interface] if self.interface else flags
