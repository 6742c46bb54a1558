"""open_clip's own SigLipLoss and ClipLoss (package open_clip_torch), one process per device, over a Matryoshka ladder.

Settings follow `--precision amp_bf16`, the package's recommendation for training: unit features are float32, as
`F.normalize` leaves them under autocast, and the loss runs under bf16 autocast, so products take bf16 operands and give
bf16 logits, while log-sigmoid and cross-entropy run in float32. Two other settings of the option `precision`:

`fp32`   float32 throughout, products in TF32 on GPU (the package's trainer turns TF32 on).
`bf16`   features, logits and losses all bf16, as under `--precision pure_bf16`, with two mercies: features are
         normalised and images scaled in float32 before they are rounded (the loss gets the scale 1). Otherwise unit
         rows are rounded twice, and dt is a sum rounded to bf16. bf16 logits near -10 are still 1/16 apart, and the
         loss is a bf16 scalar.

With `compile: true` the whole ladder goes through `torch.compile`, one graph a shape, on one rank: exchanges between
ranks would break it up. With `graph: true` the eager step is captured once as a CUDA graph and replayed, on one GPU.
`chunk_size` is for releases whose SigLipLoss has that argument; with an older one the row is `unsupported`.

With `plays_rank_of: N` one process plays rank 0 of N: ClipLoss scores its R rows against N * R; the others' are made
here as constants instead of gathered. That shows what a rank of a larger machine holds in memory; the loss is that
rank's own (`baselines/rank_reference.py`), and there is no exchange in its time.

The bias goes in as a column, one entry a row, all views of the one parameter: autograd then rounds n row sums to bf16
and adds them in float32. For a bias without dimensions it rounds the sum over all cells to bf16, up to 0.2% off.

With ranks, every rank's loss is the mean over its own rows of the sum over all columns (SigLIP) or its own rows' mean
cross-entropy (CLIP), so the mean over ranks is the global loss, and a rank's feature gradient, after the exchange's
backward pass has summed what every rank contributed, is world_size times that of the mean. ClipLoss without either
flag, its default, is the exception: every rank scores the whole grid with the others' rows as constants, so a rank's
feature gradient is that of the mean itself: after a trainer's mean over ranks, 1 / world_size of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.nn import functional

from baselines import torch_inputs
from baselines.interface import Declaration, World
from baselines.torch_graph import GraphedSystem
from baselines.torch_runtime import compiled

PRECISIONS = ("amp_bf16", "fp32", "bf16")


def load_loss_module() -> ModuleType:
    """The installed package's `open_clip/loss.py`, without importing the package (which loads every model).

    Raises ImportError if the package is not installed.
    """
    name = "baselines._open_clip_loss"
    if name not in sys.modules:
        package = importlib.util.find_spec("open_clip")
        if package is None or not package.submodule_search_locations:
            raise ImportError("the package open_clip_torch is not installed")
        path = Path(package.submodule_search_locations[0]) / "loss.py"
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[name] = module
    return sys.modules[name]


class OpenClip(GraphedSystem):
    """Options: `dist_impl`, `chunk_size` (SigLIP); `local_loss`, `gather_with_grad` (CLIP); for both `precision`,
    `compile` and `graph`; `plays_rank_of` (CLIP)."""

    declares = Declaration(
        sets=2,
        negatives="global",
        normalisation="adapter, before the loss: x / max(norm, 1e-12), as the package's models do",
        gradient_scale="1/world_size",
        loss_scale="1/world_size",
        scalar_scale="1/world_size",
        scale_parameter="log_scale",
    )

    @classmethod
    def declared(cls, options: Mapping[str, Any]) -> Declaration:
        if options.get("plays_rank_of"):
            notes = f"rank 0 of {options['plays_rank_of']}, alone: its own loss, the other ranks' rows constants"
            return dataclasses.replace(cls.declares, notes=notes)
        flags = options.get("local_loss"), options.get("gather_with_grad")
        if flags == (False, False):
            notes = "a rank's feature gradient is that of the mean loss, its scalars' are world_size times theirs"
            return dataclasses.replace(cls.declares, gradient_scale=1.0, notes=notes)
        if flags == (True, False):
            return dataclasses.replace(cls.declares, notes="gradients through the other ranks' rows are missing")
        return cls.declares

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] not in ("two_set_sigmoid", "info_nce", "two_set_rank_info_nce"):
            return f"open_clip has no loss like {case['loss']}"
        options = case.get("options") or {}
        if options.get("plays_rank_of") and case["world_size"] > 1:
            return "one process plays the rank of many; it needs one device"
        if (
            options.get("chunk_size")
            and "chunk_size" not in inspect.signature(load_loss_module().SigLipLoss).parameters
        ):
            return (
                f"the SigLipLoss of open_clip_torch {importlib.metadata.version('open_clip_torch')} has no chunk_size"
            )
        return super().unsupported(case)

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        super().__init__(case, world)
        self.precision = self.options.get("precision", PRECISIONS[0])
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision {self.precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        if self.precision == "fp32" and self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = True
        self.others: dict[int, list[torch.Tensor]] = {}

    def prepare(self) -> None:
        package = load_loss_module()
        place = {"rank": self.world.rank, "world_size": self.world.world_size}
        if self.case["loss"] == "two_set_sigmoid":
            chunks = {"chunk_size": self.options["chunk_size"]} if self.options.get("chunk_size") else {}
            self.loss = package.SigLipLoss(dist_impl=self.options["dist_impl"], **chunks, **place)
        else:
            flags = {name: self.options[name] for name in ("local_loss", "gather_with_grad")}
            if self.options.get("plays_rank_of"):
                place["world_size"] = self.options["plays_rank_of"]
                self.others = self._others()
            # Compiled, labels are part of the graph; kept ones would change under it and have it compiled again.
            self.loss = package.ClipLoss(cache_labels=not self.options.get("compile"), **flags, **place)
        if self.options.get("compile"):
            self.objective = compiled(self.objective)

    def prefix_loss(self, heads: list[torch.Tensor], scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        # The ring exchanges refuse rows that are not dense. A model's features are, and so are ours: nothing is copied.
        units = [functional.normalize(head, dim=-1).contiguous() for head in heads]
        if self.precision == "bf16":
            units, scale = [(scale * units[0]).bfloat16(), units[1].bfloat16()], 1.0
        with self._autocast():
            if self.case["loss"] == "two_set_sigmoid":
                return self.loss(*units, scale, bias.expand(len(units[0]), 1))
            if self.others:
                load_loss_module().gather_features = self._gathered
            return self.loss(*units, scale)

    def _others(self) -> dict[int, list[torch.Tensor]]:
        """By prefix, the unit rows of the ranks that nobody plays, images and captions, float32 `[rows, prefix]`."""
        first, count = self.case["rows"], self.case["rows"] * (self.options["plays_rank_of"] - 1)
        sets = torch_inputs.case_rows(self.case, first, count, torch.float32, self.device)
        return {
            prefix: [functional.normalize(values[:, :prefix], dim=-1) for values, _ in sets.values()]
            for prefix, _ in self.ladder
        }

    def _gathered(self, images: torch.Tensor, captions: torch.Tensor, **_: Any) -> list[torch.Tensor]:
        """In place of the package's exchange: this rank's rows, then what the others would have sent."""
        others = self.others[images.shape[1]]
        return [torch.cat([own, theirs]) for own, theirs in zip((images, captions), others, strict=True)]

    def memory(self) -> dict[str, int | None]:
        """What the other ranks hold is no memory of this step."""
        figures = super().memory()
        held = sum(values.numel() * values.element_size() for pair in self.others.values() for values in pair)
        return figures | {"input_bytes": figures["input_bytes"] + held}

    def _autocast(self) -> contextlib.AbstractContextManager:
        if self.precision == "amp_bf16":
            return torch.autocast(self.device.type, dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def close(self) -> None:
        self.others = {}
        super().close()

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "open_clip_torch": importlib.metadata.version("open_clip_torch")}
