"""The two matrix products a one-set loss step is made of, and nothing else: the yardstick, not a peer.

`S = X X^T` and `dX = S X` over bf16 `[R, dims]` through `torch.mm`, which on CUDA is cuBLAS; there both are captured
into one CUDA graph and replayed. No prefixes, no logits, no loss: its rows are never checked against the reference, and
its time is what ratios in reports divide by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from baselines.interface import Declaration, Outputs, Unsupported
from baselines.torch_runtime import TorchSystem

_WARM_UP_STEPS = 3  # cuBLAS makes its workspace on first use, which a capture must not see


class CublasProducts(TorchSystem):
    """Options: `products_only` and `check: none` tell the harness that there is nothing to check."""

    declares = Declaration(sets=1, negatives="none", normalisation="none", notes="two matrix products, no loss")

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["dtype"] != case["gradient_dtype"]:
            return "the products return the embeddings' own dtype"
        if case["world_size"] > 1:
            return "two products on one device"
        return super().unsupported(case)

    def prepare(self) -> None:
        self.rows = self.leaves[0].detach()
        self.cells = self.rows.new_empty(len(self.rows), len(self.rows))
        self.result = torch.empty_like(self.rows)
        self.graph = None
        if self.device.type == "cuda":
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP_STEPS):
                    self._products()
            torch.cuda.current_stream(self.device).wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self._products()

    def _products(self) -> None:
        torch.mm(self.rows, self.rows.T, out=self.cells)
        torch.mm(self.cells, self.rows, out=self.result)

    def step(self) -> None:
        if self.graph is not None:
            self.graph.replay()
        else:
            self._products()

    def outputs(self) -> Outputs:
        raise Unsupported("two matrix products have no loss or gradients to check")

    def close(self) -> None:
        self.rows = self.cells = self.result = self.graph = None
        super().close()
