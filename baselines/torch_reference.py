"""The one-set sigmoid loss as a competent PyTorch user would write it: the same-loss peer of the native one.

Every rank gathers all rows once, as they come and with gradient, then scores its own rows against all of them, prefix
by prefix: unit rows in float32, products of bf16 operands, logits and everything after in float32. Each rank's loss is
the sum over its rows divided by n, so the ranks' losses add up to the global mean, and the gather's backward pass,
which sums over ranks, returns the gradient of that sum.

Variants: `eager`, and `compiled`, where the ladder after the gather goes through `torch.compile`. Its first step is the
compilation, unless PyTorch's cache on disk already holds the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn import functional

from baselines.interface import Declaration
from baselines.torch_runtime import DTYPES, TorchSystem, compiled


class GatherRows(torch.autograd.Function):
    """All ranks' rows `[rows * ranks, dims]` from each rank's `[rows, dims]`; backward sums over ranks."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        everyone = rows.new_empty(len(rows) * distributed.get_world_size(), rows.shape[1])
        distributed.all_gather_into_tensor(everyone, rows.contiguous())
        return everyone

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        size = distributed.get_world_size()
        own = gradient.new_empty(len(gradient) // size, gradient.shape[1])
        distributed.reduce_scatter_tensor(own, gradient.contiguous())
        return own


class TorchReference(TorchSystem):
    """Options: `compile`."""

    declares = Declaration(
        sets=1,
        negatives="global",
        normalisation="x / max(norm, 1e-12) per prefix",
        notes="self pairs as the case says; positives by label",
    )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] != "one_set_sigmoid":
            return f"written for one_set_sigmoid, not {case['loss']}"
        return super().unsupported(case)

    def prepare(self) -> None:
        size = self.world.world_size
        self.all_labels = self.labels
        if size > 1:
            self.all_labels = self.labels.new_empty(len(self.labels) * size)
            distributed.all_gather_into_tensor(self.all_labels, self.labels)
        self.ladder_loss = compiled(self._ladder_loss) if self.options.get("compile") else self._ladder_loss

    def objective(self) -> torch.Tensor:
        rows = self.leaves[0]
        everyone = GatherRows.apply(rows) if self.world.world_size > 1 else rows
        return self.ladder_loss(rows, everyone, self.labels, self.all_labels, self.scale(), self.bias)

    def _ladder_loss(
        self,
        rows: torch.Tensor,
        everyone: torch.Tensor,
        labels: torch.Tensor,
        all_labels: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """This rank's part of the loss: `rows` `[R, dims]` against `everyone` `[n, dims]`, labels `[R]` and `[n]`."""
        operands = DTYPES[self.case["dtype"]]
        local, candidates = rows.float(), everyone.float()
        own = torch.arange(len(rows), device=rows.device)
        signs = torch.where(labels[:, None] == all_labels[None, :], -1.0, 1.0)
        total = torch.zeros((), device=rows.device)
        for prefix, weight in self.ladder:
            x = functional.normalize(local[:, :prefix], dim=1).to(operands)
            y = functional.normalize(candidates[:, :prefix], dim=1).to(operands)
            terms = functional.softplus(signs * (scale * (x @ y.T).float() + bias))
            loss = terms.sum()
            if not self.case["self_pairs"]:
                loss = loss - terms[own, own + self.world.rank * len(rows)].sum()
            total = total + weight * loss
        return total / len(everyone)
