"""A PyTorch system whose eager step may be captured once as a CUDA graph and replayed, on one GPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from baselines.interface import World
from baselines.torch_runtime import TorchSystem


class GraphedSystem(TorchSystem):
    """Option: `graph`. The step is captured when it is first asked for."""

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if (case.get("options") or {}).get("graph") and (case["device"] != "cuda" or case["world_size"] > 1):
            return "a CUDA graph of the step is captured on one NVIDIA GPU"
        return super().unsupported(case)

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        super().__init__(case, world)
        self._graph: torch.cuda.CUDAGraph | None = None

    def step(self) -> None:
        if not self.options.get("graph"):
            return super().step()
        self._graph = self._graph or self.captured(super().step)
        self._graph.replay()

    def close(self) -> None:
        self._graph = None
        super().close()
