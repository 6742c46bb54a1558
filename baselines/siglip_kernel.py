"""Package siglip-kernel (0.1.2): chunked SigLIP on library products and one element-wise Triton kernel, GPU only.

Single GPU: `fused_siglip_loss` as the package's router calls it, or a named backend, over a Matryoshka ladder; it takes
the LOGARITHM of the scale and differentiates it. Several GPUs: `DistributedSigLIPLoss`, which takes the exponentiated
scale and divides every rank's loss by its own rows, as open_clip does.

Features are normalised in float32 and handed over in bf16, the dtype the package is tuned for; its router then takes
`chunked_bf16`. With `precision: fp32` they stay float32 and the router takes its fully fused Triton kernel (`hopper`
from compute capability 8.9), whose products are TF32 and which reads scale and bias back to the host in every call.

With `unit_rows: true` the setting is the README's: unit bf16 rows come as inputs, so that normalising them is not in
the step, and gradients are of those rows; `outputs` takes them through the norm, untimed. With `graph: true` the step
is captured once as a CUDA graph and replayed: the README calls the forward path capturable, and the chunked backward
pass only scales what that has made. Of the README's other backends `chunked_epilogue`, `hopper`, `fused` and `fused_v2`
read scale and bias back to the host in every call, so they do not capture.

By reading the source of 0.1.2: the loss comes back in the features' dtype, so it is a bf16 scalar; caption gradients
are added up over chunks in bf16; both gradients are made in the forward pass and multiplied by the upstream gradient
in the backward pass; offsets within a tensor are 32-bit. Importing the package asks for the GPU's compute capability,
so the import waits until a device is there.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from baselines import torch_inputs
from baselines.interface import Declaration, Outputs, World
from baselines.torch_graph import GraphedSystem

PRECISIONS = {"bf16": torch.bfloat16, "fp32": torch.float32}
_FP8_MULTIPLE = 16  # sizes that the 8-bit product accepts


class SiglipKernel(GraphedSystem):
    """Options: `backend` (the router's name; `auto` lets it choose), `chunk_size` (0: the package's), `precision`,
    `unit_rows`, `graph`."""

    declares = Declaration(
        sets=2,
        negatives="global",
        normalisation="adapter, before the loss: x / max(norm, 1e-12)",
        gradient_scale="1/world_size",
        loss_scale="1/world_size",
        scalar_scale="1/world_size",
        scale_parameter="log_scale",
        notes="loss returned in the features' dtype; caption gradients added over chunks in it",
        mirrors="siglip-kernel 0.1.2",
    )

    @classmethod
    def declared(cls, options: Mapping[str, Any]) -> Declaration:
        if options.get("unit_rows"):
            return dataclasses.replace(cls.declares, normalisation="none in the step: unit rows are its inputs")
        return cls.declares

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] != "two_set_sigmoid":
            return f"siglip-kernel computes two_set_sigmoid, not {case['loss']}"
        if case["device"] != "cuda":
            return "siglip-kernel needs an NVIDIA GPU: its kernels are Triton's and its import asks for the device"
        options = case.get("options") or {}
        if case["world_size"] > 1 and (options.get("backend", "auto") != "auto" or options.get("precision") == "fp32"):
            return "siglip-kernel's distributed loss knows no backend but chunked_bf16"
        if "fp8" in options.get("backend", "auto"):
            uneven = [size for size in (case["rows"], *case["prefixes"]) if size % _FP8_MULTIPLE]
            if uneven:
                return f"its fp8 product takes sizes that are multiples of {_FP8_MULTIPLE}, not {uneven[0]}"
        if options.get("unit_rows"):
            if case["world_size"] > 1:
                return "unit rows as inputs are for one GPU"
            if len(case["prefixes"]) > 1 or case["prefixes"][0] != case["dims"]:
                return "unit rows as inputs have one prefix, all of their columns"
            if case["gradient_dtype"] != "bfloat16":
                return "unit rows as inputs are bf16, and so are their gradients"
        return super().unsupported(case)

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        super().__init__(case, world)
        precision = self.options.get("precision", "bf16")
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        self.feature_dtype = PRECISIONS[precision]

    def prepare(self) -> None:
        self.loss = _loss(self.options, self.world)
        if self.options.get("unit_rows"):
            units = [functional.normalize(leaf.detach().float(), dim=-1) for leaf in self.leaves]
            self.leaves = [unit.to(self.feature_dtype).requires_grad_() for unit in units]

    def scale(self) -> torch.Tensor:
        """The logarithm on one GPU, the scale itself for the distributed loss: each as the package takes it."""
        return self.scale_parameter if self.world.world_size == 1 else self.scale_parameter.exp()

    def objective(self) -> torch.Tensor:
        if not self.options.get("unit_rows"):
            return super().objective()
        return self.loss(*self.leaves, self.scale(), self.bias).float()

    def prefix_loss(self, heads: list[torch.Tensor], scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        images, captions = (functional.normalize(head, dim=-1).to(self.feature_dtype).contiguous() for head in heads)
        return self.loss(images, captions, scale, bias)

    def outputs(self) -> Outputs:
        out = super().outputs()
        if self.options.get("unit_rows"):
            sets = torch_inputs.case_rows(self.case, 0, self.case["rows"], torch.float32, torch.device("cpu"))
            for name, (rows, _) in sets.items():
                out.gradients[name] = _through_norm(rows.numpy(), out.gradients[name])
        return out

    def versions(self) -> dict[str, str]:
        known = {name: importlib.metadata.version(name) for name in ("siglip-kernel", "triton")}
        return {**super().versions(), **known}


def _loss(options: Mapping[str, Any], world: World) -> Callable[..., torch.Tensor]:
    """The package's loss for these options. Raises ValueError for a chunk size where the package takes none."""
    import siglip_kernel

    backend, chunk_size = options.get("backend", "auto"), int(options.get("chunk_size", 0))
    if world.world_size > 1:
        return siglip_kernel.DistributedSigLIPLoss(
            chunk_size=chunk_size, strategy="ring", rank=world.rank, world_size=world.world_size
        )
    if not chunk_size:
        return functools.partial(siglip_kernel.fused_siglip_loss, backend=backend)
    if backend not in ("auto", "chunked_bf16", "chunked_bf16_fp8"):
        raise ValueError(f"chunk_size goes with the chunked backends, not with {backend!r}")
    # The router passes no chunk size on; the README says to call the loss behind it.
    return functools.partial(
        siglip_kernel.fused_chunked_bf16_siglip_loss, chunk_size=chunk_size, use_fp8=backend == "chunked_bf16_fp8"
    )


def _through_norm(rows: np.ndarray, of_unit: np.ndarray) -> np.ndarray:
    """d(loss)/d(row) from d(loss)/d(unit row), both float32 `[rows, dims]`."""
    norm = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    unit = rows / norm
    return (of_unit - (of_unit * unit).sum(axis=1, keepdims=True) * unit) / norm
