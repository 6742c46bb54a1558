"""The one-set sigmoid loss in Triton, as a good afternoon of it: the anchor that the native engine must leave behind.

One pass over the upper triangle scores all five prefixes from one product and keeps five planes of weights, and one
product per band of columns turns them into the gradient (`baselines.triton_one_set_kernels`). So a step runs about
3 R R 1024 FLOPs instead of the 4 R R 1984 of separate prefixes, at 5 R R bytes of scratch.

Written for the article's ladder alone: 64 to 1024 columns in equal weights, bf16 embeddings and gradients, positives
that are neighbours (rows 2i and 2i + 1), one GPU with bulk tensor copies. Rows are padded to a multiple of 128.

With `graph: true` the three launches are captured into one CUDA graph in `build` and replayed: at small sizes launches
take longer than the kernels.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

import torch

from baselines.interface import Declaration
from baselines.torch_runtime import TorchSystem

LADDER = (64, 128, 256, 512, 1024)
BLOCK = 128
_SCORE = {"TILE_M": 64, "TILE_N": 64, "TILE_K": 64, "STAGES": 3}
_GRADIENT = {"TILE_M": 128, "TILE_K": 64, "TILE_K3": 32, "STAGES": 3}
_SCORE_REGISTERS = 168  # a thread: two thread blocks of `score` then share a multiprocessor
_PREPARE_ROWS = 4
_WARM_UP_STEPS = 2  # compilation must not fall into a capture
_EIGHT_LIMIT = 11.0  # eight logits below it add up to less than the 88 that float32's exponential takes


class OneSetStep:
    """Buffers of one shape, and the three launches. After a call, `dx` `[rows, 1024]` and `results` hold the step's.

    `x` is bf16 `[rows, 1024]`, dense, with an even number of rows; `scale` and `bias` are float32 tensors of one
    element on its device, read there. `largest_logit` (scale + bias) picks how logarithms are taken.
    """

    def __init__(self, x: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor, largest_logit: float) -> None:
        from triton.tools.tensor_descriptor import TensorDescriptor

        from baselines import triton_one_set_kernels

        self.kernels, self.scale, self.bias = triton_one_set_kernels, scale, bias
        self.source, self.rows = x, len(x)
        self.padded = -(-len(x) // BLOCK) * BLOCK
        self.x = x if self.padded == len(x) else x.new_zeros(self.padded, x.shape[1])
        self.eight = largest_logit < _EIGHT_LIMIT
        edge = self.padded // BLOCK
        self.group = next(size for size in (4, 2, 1) if edge % size == 0)
        self.blocks = edge * (edge + 1) // 2
        groups = edge // self.group
        self.grid_blocks = groups * (groups + 1) // 2 * self.group**2
        self.inverse, self.positive, self.sums = (
            torch.empty(5, self.padded, dtype=torch.float32, device=x.device) for _ in range(3)
        )
        self.results = torch.zeros(4, dtype=torch.float32, device=x.device)
        self.planes = x.new_empty(5 * self.blocks * BLOCK, BLOCK)
        self.padded_dx = torch.empty_like(self.x)
        self.dx = self.padded_dx[: self.rows]

        tile = TensorDescriptor.from_tensor
        m, n, k = (_SCORE[name] for name in ("TILE_M", "TILE_N", "TILE_K"))
        self.score_tiles = tile(self.x, [m, k]), tile(self.x, [n, k]), tile(self.planes, [m, n])
        m, k, k3 = (_GRADIENT[name] for name in ("TILE_M", "TILE_K", "TILE_K3"))
        planes = [tile(self.planes, shape) for shape in ([m, k], [k, m], [m, k3], [k3, m])]
        self.gradient_tiles = *planes, tile(self.x, [k, 256]), tile(self.x, [k3, 128]), tile(self.x, [k3, 64])

    def __call__(self) -> None:
        if self.x is not self.source:
            self.x[: self.rows].copy_(self.source)
        rows_data = self.inverse, self.positive, self.sums
        self.kernels.prepare[(self.padded // _PREPARE_ROWS,)](
            self.x, *rows_data, self.results, self.padded, ROWS=_PREPARE_ROWS, num_warps=4
        )
        tiles_per_block = (BLOCK // _SCORE["TILE_M"]) * (BLOCK // _SCORE["TILE_N"])
        self.kernels.score[(self.grid_blocks * tiles_per_block,)](
            *self.score_tiles,
            *(self.inverse, self.sums, self.results, self.scale, self.bias),
            *(self.rows, self.padded, self.blocks),
            GROUP=self.group,
            EIGHT=self.eight,
            **_SCORE,
            num_warps=4,
            maxnreg=_SCORE_REGISTERS,
        )
        self.kernels.gradient[(self.padded // _GRADIENT["TILE_M"] * 4,)](
            *self.gradient_tiles,
            *(self.x, self.padded_dx, *rows_data, self.results, self.scale, self.bias),
            *(self.rows, self.padded, self.blocks),
            **_GRADIENT,
            num_warps=8,
        )


class TritonOneSet(TorchSystem):
    """Options: `graph`."""

    declares = Declaration(
        sets=1,
        negatives="global",
        normalisation="x / norm per prefix; a prefix of zeros has cosine 0",
        notes="one GPU, the article's ladder; positives are neighbours, self pairs left out",
    )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] != "one_set_sigmoid":
            return f"written for one_set_sigmoid, not {case['loss']}"
        if case["device"] != "cuda":
            return "these Triton kernels need an NVIDIA GPU: they use its bulk tensor copies and PTX"
        if case["world_size"] > 1:
            return "written for one GPU"
        weights = case.get("prefix_weights") or [0.2] * len(case["prefixes"])
        if case["dims"] != LADDER[-1] or tuple(case["prefixes"]) != LADDER or max(weights) != min(weights):
            return f"written for the ladder {', '.join(map(str, LADDER))} of 1024 columns in equal weights"
        if case["labels"] != "pairs" or case["self_pairs"] or case["rows"] % 2:
            return "written for pairs of neighbours, an even number of rows, without self pairs"
        if case["dtype"] != "bfloat16" or case["gradient_dtype"] != "bfloat16":
            return "written for bf16 embeddings and bf16 gradients"
        return super().unsupported(case)

    def prepare(self) -> None:
        self.outer_weight *= len(LADDER)  # the kernels average over prefixes themselves
        x = self.leaves[0].detach()
        scale, bias = self.scale_parameter.detach(), self.bias.detach()
        self.run = OneSetStep(x, scale, bias, self.case["scale"] + self.case["bias"])
        self.graph = None
        if self.options.get("graph"):
            side = torch.cuda.Stream(self.device)
            side.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(side):
                for _ in range(_WARM_UP_STEPS):
                    self.run()
            torch.cuda.current_stream(self.device).wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.run()
        self.leaves[0].grad = self.run.dx

    def step(self) -> None:
        self.graph.replay() if self.graph is not None else self.run()
        self._scalars = self.run.results[:3]

    def versions(self) -> dict[str, str]:
        return {**super().versions(), "triton": importlib.metadata.version("triton")}

    def close(self) -> None:
        self.run = self.graph = None
        super().close()
