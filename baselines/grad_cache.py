"""GradCache (arXiv 2101.06983), written from the paper: a large batch's true gradient through a tower, in pieces.

Unlike the other peers this one has a model in front: a two-layer tower, Linear, ReLU, Linear, all of width dims, shared
by both sets. A step includes the tower's forward and backward passes and the gradients of its weights, so its time and
memory compare within this system only. The weights are set so that the tower returns its input unchanged: identity
matrices, biases +512 and -512 around the ReLU, and embeddings within +-254 (docs/contracts.md, section 2). Forward that
is exact in float32 and in TF32; backward, TF32 rounds gradients by 2^-11 in each layer. So loss and gradients of the
embeddings are those of the loss alone, and the oracle that holds for every other peer holds for this one.

Option `method`, with `accumulation` micro-batches a step:

`cached`  the paper's: features of all micro-batches without a graph; loss and feature gradients over the whole batch;
          then micro-batch by micro-batch again, forward with a graph and backward from the kept feature gradients. The
          result is the whole batch's, whatever the number of micro-batches.
`naive`   gradient accumulation as for a loss that is a mean over samples: every micro-batch is scored on its own and
          the results averaged. It sees rows / accumulation negatives instead of rows: another loss, and wrong.

open_clip's `--accum-freq` gives the same embedding and weight gradients by recomputing each micro-batch against the
others' kept features, the whole loss every time; so the scale's gradient comes out `accumulation` times too large.
`tests/baselines/test_open_clip_accumulation.py` runs the installed package's own training step to show both.

The loss is CLIP's, with DisCo-CLIP's exchange between ranks, in that module's precision. `accumulation: 1` with
`cached` is the plain step: one forward and backward pass, nothing cached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed, nn

from baselines.disco_clip import DiscoClip
from baselines.interface import Declaration, World

METHODS = ("cached", "naive")
_LIFT = 512.0  # more than any embedding is below zero, so the ReLU lets everything through


def identity_tower(dims: int, device: torch.device) -> nn.Module:
    """Linear, ReLU, Linear of width `dims`, float32, that returns integers within +-254 unchanged."""
    tower = nn.Sequential(nn.Linear(dims, dims, device=device), nn.ReLU(), nn.Linear(dims, dims, device=device))
    with torch.no_grad():
        for layer, lift in ((tower[0], _LIFT), (tower[2], -_LIFT)):
            nn.init.eye_(layer.weight)
            layer.bias.fill_(lift)
    return tower


class GradCache(DiscoClip):
    """Options: `method`, `accumulation`, and DiscoClip's `precision` (of the loss; the tower is float32)."""

    declares = Declaration(
        sets=2,
        negatives="global",
        normalisation="adapter, after the tower: x / max(norm, 1e-12)",
        gradient_scale="1/world_size",
        loss_scale="1/world_size",
        scalar_scale="1/world_size",
        scale_parameter="log_scale",
        notes="a two-layer tower is part of the step; method naive scores each micro-batch on its own",
        mirrors="arXiv 2101.06983, written from the paper",
    )

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        super().__init__(case, world)
        self.method, self.accumulation = self.options["method"], int(self.options["accumulation"])
        if self.method not in METHODS or self.accumulation < 1:
            raise ValueError(f"method is one of {', '.join(METHODS)}, and accumulation is at least 1")

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        pieces = (case.get("options") or {}).get("accumulation", 1)
        if case["rows"] % pieces:
            return f"{case['rows']} rows do not split into {pieces} equal micro-batches"
        return super().unsupported(case)

    def prepare(self) -> None:
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True  # what trainers turn on
        self.tower = identity_tower(self.case["dims"], self.device)

    def step(self) -> None:
        self.tower.zero_grad(set_to_none=True)
        for tensor in (*self.leaves, self.scale_parameter, self.bias):
            tensor.grad = None
        rows = math.ceil(self.case["rows"] / self.accumulation)
        if self.accumulation == 1:
            loss = self._ladder_loss([self.tower(leaf.float()) for leaf in self.leaves])
            loss.backward()
        else:
            loss = self._cached(rows) if self.method == "cached" else self._naive(rows)
        self._scalars = torch.stack([loss.detach(), self.scale_parameter.grad, torch.zeros_like(loss.detach())])
        if self.world.world_size > 1:
            distributed.all_reduce(self._scalars)

    def _cached(self, rows: int) -> torch.Tensor:
        with torch.no_grad():
            features = [torch.cat([self.tower(part.float()) for part in leaf.split(rows)]) for leaf in self.leaves]
        features = [values.requires_grad_() for values in features]
        loss = self._ladder_loss(features)
        loss.backward()
        for leaf, values in zip(self.leaves, features, strict=True):
            for part, kept in zip(leaf.split(rows), values.grad.split(rows), strict=True):
                self.tower(part.float()).backward(kept)
        return loss

    def _naive(self, rows: int) -> torch.Tensor:
        total = torch.zeros((), device=self.device)
        for parts in zip(*(leaf.split(rows) for leaf in self.leaves), strict=True):
            loss = self._ladder_loss([self.tower(part.float()) for part in parts]) / self.accumulation
            loss.backward()
            total += loss.detach()
        return total

    def _ladder_loss(self, values: list[torch.Tensor]) -> torch.Tensor:
        """The loss over the ladder of features `[rows, dims]`, float32."""
        scale = self.scale()
        total = torch.zeros((), dtype=torch.float32, device=self.device)
        for prefix, weight in self.ladder:
            total = total + weight * self.prefix_loss([value[:, :prefix] for value in values], scale, self.bias).float()
        return total

    def close(self) -> None:
        self.tower = None
        super().close()
