"""Package inf-cl (1.2.1; Inf-CL, arXiv 2410.17243): CLIP's loss in Triton tiles, on one GPU or around a ring of ranks.

The package scores one direction a call, so the loss is half of each direction, as its own example has it. Unit rows
stay float32, as it casts to float32 anyway; products take TF32 operands, as published. Labels and their order are the
diagonal. The option `path`:

`flash`  `cal_flash_loss`, one GPU. The other two come down to it where there is no process group.
`ring`   `cal_ring_loss`: captions travel around the ranks, each block's logits whole, by library products. The paper's
         "cross-GPU tiles". It is plain PyTorch, so it also runs on CPU.
`inf`    `cal_inf_loss`: the same ring with each block in Triton tiles, the paper's method.

Around the ring a rank's loss is its own rows' mean, so the mean over ranks is the global loss, and a feature gradient
is world_size times that of the mean. The scale's gradient is summed over ranks inside the package, in the backward pass
of the scale itself: after a trainer's usual mean over ranks it is world_size times the true one while the features' is
right. The declared factor takes that off; it is stated with the system, not repaired in it.

On one GPU the ring paths get a process group of one rank, which sends caption gradients to itself as the package does,
but no captions: of its steps it lacks the buffers of all after the first, five arrays of R x D floats by reading.

By reading the source of 1.2.1, not worked around but refused: the gradient kernel masks the upstream gradient by the
tile's own row numbers, so a batch that is no multiple of 64 reads past its end; a row is cut into heads of a power of
two of at least 16 columns. And the tiles take rows to be dense whatever their strides: rows are made dense first.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import torch
from torch import distributed
from torch.nn import functional

from baselines.interface import Declaration, World
from baselines.torch_runtime import TorchSystem

_TILE_ROWS = 64
_LEAST_HEAD, _LARGEST_HEAD = 16, 256


def head_columns(prefix: int) -> int:
    """Columns of a head: the largest power of two, at most 256 (the package's default), that divides the prefix."""
    return min(prefix & -prefix, _LARGEST_HEAD)


class InfCl(TorchSystem):
    """Options: `path`. The package's tile shapes are fixed."""

    declares = Declaration(
        sets=2,
        negatives="global",
        normalisation="adapter, before the loss: x / max(norm, 1e-12)",
        scale_parameter="log_scale",
        notes="float32 features, TF32 products, each direction scored on its own",
        mirrors="inf-cl 1.2.1",
    )

    @classmethod
    def declared(cls, options: Mapping[str, Any]) -> Declaration:
        if options.get("path", "flash") == "flash":
            return cls.declares
        return dataclasses.replace(
            cls.declares,
            gradient_scale="1/world_size",
            loss_scale="1/world_size",
            scalar_scale="1/world_size^2",
            notes=f"{cls.declares.notes}; the package sums the scale's gradient over ranks itself",
        )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        path = (case.get("options") or {}).get("path", "flash")
        if case["loss"] != "info_nce":
            return f"inf-cl computes info_nce, not {case['loss']}"
        if case["device"] != "cuda" and path != "ring":
            return (
                "inf-cl's tiles need an NVIDIA GPU: they are Triton kernels with PTX in them, and ask for CUDA tensors"
            )
        if case["device"] != "cuda" and case["world_size"] == 1:
            return "on one rank inf-cl's ring sends to itself, which only NCCL can, on an NVIDIA GPU"
        if case["world_size"] > 1 and path == "flash":
            return "inf-cl's single-GPU path scores one rank's rows; the paths ring and inf take more"
        if path != "ring" and case["rows"] % _TILE_ROWS:
            return f"inf-cl's gradient reads past the end unless rows are a multiple of {_TILE_ROWS}"
        narrow = [prefix for prefix in case["prefixes"] if head_columns(prefix) < _LEAST_HEAD]
        if narrow:
            return (
                f"inf-cl cuts rows into heads of 16 to 256 columns, a power of two that {narrow[0]} is no multiple of"
            )
        return super().unsupported(case)

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        super().__init__(case, world)
        self.path = self.options.get("path", "flash")
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True  # for the ring's library products; the tiles are TF32 anyway

    def prepare(self) -> None:
        import inf_cl

        if self.path != "flash" and not distributed.is_initialized():
            distributed.init_process_group("nccl", store=distributed.HashStore(), rank=0, world_size=1)
        self.loss = {"flash": inf_cl.cal_flash_loss, "ring": inf_cl.cal_ring_loss, "inf": inf_cl.cal_inf_loss}[
            self.path
        ]
        self.targets = torch.arange(len(self.labels), device=self.device)

    def prefix_loss(self, heads: list[torch.Tensor], scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        images, captions = (functional.normalize(head, dim=-1).contiguous() for head in heads)
        columns = head_columns(images.shape[1])
        by_image = self.loss(images, captions, self.targets, scale, columns).mean()
        by_caption = self.loss(captions, images, self.targets, scale, columns).mean()
        return 0.5 * (by_image + by_caption)

    def versions(self) -> dict[str, str]:
        known = {name: importlib.metadata.version(name) for name in ("inf-cl", "triton")}
        return {**super().versions(), **known}
