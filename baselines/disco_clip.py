"""DisCo-CLIP's decomposition of CLIP's loss (arXiv 2304.08480), written from the paper.

Every rank gathers all unit features and scores only its own rows: images against all captions, captions against all
images, `[rows, n]` logits each, so logit memory falls from n^2 to n^2 / ranks (the paper's section 3.2). Backward, the
same logits give two kinds of gradient: of this rank's own rows, and of everyone's gathered rows. The second kind is
summed over ranks by one all-reduce, from which each rank keeps its own rows, instead of every rank scoring everything.

Published code of the same name averages in that all-reduce and omits the half before the two directions; here, as in
the paper, gradients are summed and the loss is half of each direction. So a rank's loss is its own rows' mean
cross-entropy, the mean over ranks is the global loss, and a feature gradient is world_size times that of the mean.

Precision follows mixed-precision training: unit features are float32, products take bf16 operands under autocast, and
cross-entropy runs in float32. With the option `precision: fp32` everything is float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn import functional

from baselines.interface import Declaration, World
from baselines.torch_runtime import TorchSystem

PRECISIONS = ("amp_bf16", "fp32")


class DiscoGather(torch.autograd.Function):
    """All ranks' rows `[rows * ranks, dims]` from each rank's `[rows, dims]`; backward all-reduces, keeps its own."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor) -> torch.Tensor:
        everyone = rows.new_empty(len(rows) * distributed.get_world_size(), rows.shape[1])
        distributed.all_gather_into_tensor(everyone, rows.contiguous())
        return everyone

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone(memory_format=torch.contiguous_format)  # autograd may still need the one it handed over
        distributed.all_reduce(total)
        count = len(total) // distributed.get_world_size()
        return total[distributed.get_rank() * count :][:count]


def local_clip_loss(
    images: torch.Tensor, captions: torch.Tensor, scale: torch.Tensor, rank: int, world_size: int
) -> torch.Tensor:
    """Mean cross-entropy of this rank's rows, half of each direction; unit features `[rows, dims]`, loss float32."""
    gather = DiscoGather.apply if world_size > 1 else lambda rows: rows
    targets = torch.arange(len(images), device=images.device) + rank * len(images)
    by_image = functional.cross_entropy(scale * images @ gather(captions).T, targets)
    by_caption = functional.cross_entropy(scale * captions @ gather(images).T, targets)
    return 0.5 * (by_image + by_caption)


class DiscoClip(TorchSystem):
    """Options: `precision`."""

    declares = Declaration(
        sets=2,
        negatives="global",
        normalisation="adapter, before the loss: x / max(norm, 1e-12)",
        gradient_scale="1/world_size",
        loss_scale="1/world_size",
        scalar_scale="1/world_size",
        scale_parameter="log_scale",
        mirrors="arXiv 2304.08480, written from the paper",
    )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] != "info_nce":
            return f"written for info_nce, not {case['loss']}"
        return super().unsupported(case)

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        super().__init__(case, world)
        self.precision = self.options.get("precision", PRECISIONS[0])
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")

    def prefix_loss(self, heads: list[torch.Tensor], scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        images, captions = (functional.normalize(head, dim=-1) for head in heads)
        with self._autocast():
            return local_clip_loss(images, captions, scale, self.world.rank, self.world.world_size)

    def _autocast(self) -> contextlib.AbstractContextManager:
        if self.precision == "amp_bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()
