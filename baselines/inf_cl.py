"""Package inf-cl (1.2.1; Inf-CL, arXiv 2410.17243): CLIP's loss in Triton tiles, on one GPU.

The package scores one direction a call, so the loss is half of each direction, as its own example has it. Unit rows
stay float32, as it casts to float32 anyway; its products take TF32 operands, as published. Labels and their order are
the diagonal.

On one GPU its functions `cal_inf_loss` and `cal_ring_loss` come down to the same tiles, but with a scale passed in they
sum the scale's gradient over a process group, which need not exist; so `cal_flash_loss`, which they call, is called.
The several-GPU paths are not wired up: there the scale's gradient comes back summed over ranks already.

By reading the source of 1.2.1, not worked around but refused: the gradient kernel masks the upstream gradient by the
tile's own row numbers, so a batch that is no multiple of 64 reads past its end; a row is cut into heads of a power of
two of at least 16 columns. And the tiles take rows to be dense whatever their strides: rows are made dense first.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import torch
from torch.nn import functional

from baselines.interface import Declaration
from baselines.torch_runtime import TorchSystem

_TILE_ROWS = 64
_LEAST_HEAD, _LARGEST_HEAD = 16, 256


def head_columns(prefix: int) -> int:
    """Columns of a head: the largest power of two, at most 256 (the package's default), that divides the prefix."""
    return min(prefix & -prefix, _LARGEST_HEAD)


class InfCl(TorchSystem):
    """No options: the package's tile shapes are fixed."""

    declares = Declaration(
        sets=2,
        negatives="global",
        normalisation="adapter, before the loss: x / max(norm, 1e-12)",
        scale_parameter="log_scale",
        notes="one GPU; float32 features, TF32 products, each direction scored on its own",
        mirrors="inf-cl 1.2.1",
    )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] != "info_nce":
            return f"inf-cl computes info_nce, not {case['loss']}"
        if case["device"] != "cuda":
            return "inf-cl needs an NVIDIA GPU: its kernels are Triton's, with PTX in them"
        if case["world_size"] > 1:
            return "only inf-cl's single-GPU path is wired up: its ring sums the scale's gradient over ranks itself"
        if case["rows"] % _TILE_ROWS:
            return f"inf-cl's gradient reads past the end unless rows are a multiple of {_TILE_ROWS}"
        narrow = [prefix for prefix in case["prefixes"] if head_columns(prefix) < _LEAST_HEAD]
        if narrow:
            return (
                f"inf-cl cuts rows into heads of 16 to 256 columns, a power of two that {narrow[0]} is no multiple of"
            )
        return super().unsupported(case)

    def prepare(self) -> None:
        from inf_cl import cal_flash_loss

        self.loss = cal_flash_loss
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
