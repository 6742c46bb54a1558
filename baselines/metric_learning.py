"""Package pytorch-metric-learning (2.9.0): losses over one labelled set, at the settings of its performance page.

The package builds lists of pairs or triplets and gathers their distances; its distances normalise rows inside the loss.
Settings are the page's where it states them: Contrastive margins 0 and 1.4, triplet margin 0.2, the pair miner's
margins 0.2 and 1.4, ArcFace margin 0.5 radians; where it states none they are the package's defaults. NT-Xent and
SupCon take the case's scale as a constant 1/temperature, as the package has it: scale gets no gradient.
`baselines/metric_reference.py` defines the losses.

Option `form` goes with `one_set_info_nce`, `classes` with the proxy losses, whose proxies get gradients too, inside the
step. With `precision: bf16` rows and proxies stay bf16 throughout,
as on the page, instead of float32.

With ranks, `DistributedLossWrapper` gathers all rows, without gradients for the others', computes the whole loss on
every rank and multiplies it by the number of ranks: a rank's gradient of its own rows is world_size times that of the
global loss, and the losses' sum over ranks world_size^2 times it.
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from baselines import torch_inputs
from baselines.interface import Declaration, World
from baselines.torch_runtime import TorchSystem

_ARC_DEGREES = math.degrees(0.5)
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
# By torch.cdist; the others take cosines.
_BY_CDIST = ("one_set_contrastive", "one_set_triplet", "one_set_triplet_hard", "one_set_mined_triplet")
_FEW_ROWS = 25  # up to as many torch.cdist multiplies no matrices, and has no bf16


class MetricLearning(TorchSystem):
    """Options: `form`, `classes`, `precision`."""

    declares = Declaration(
        sets=1,
        negatives="global",
        normalisation="the package's distance, inside the loss: x / max(norm, 1e-12)",
        gradient_scale="1/world_size",
        loss_scale="1/world_size^2",
        scalars=(),
        notes="temperature is a constant; every rank computes the whole loss",
        mirrors="pytorch-metric-learning 2.9.0",
    )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] not in _LOSSES:
            return f"written for {', '.join(sorted(set(_LOSSES)))}, not {case['loss']}"
        if case.get("self_pairs"):
            return "the package leaves self pairs out"
        bf16 = (case.get("options") or {}).get("precision") == "bf16"
        if bf16 and case["loss"] in _BY_CDIST and case["rows"] * case["world_size"] <= _FEW_ROWS:
            return f"torch.cdist has no bf16 for {_FEW_ROWS} rows or fewer, and all ranks' rows are no more"
        return super().unsupported(case)

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        super().__init__(case, world)
        precision = self.options.get("precision", "fp32")
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r} is unknown; choose one of {', '.join(PRECISIONS)}")
        self.compute_dtype = PRECISIONS[precision]

    def prepare(self) -> None:
        from pytorch_metric_learning import miners

        self.losses = {prefix: self._loss(prefix) for prefix, _ in self.ladder}
        self.miner = _MINERS[self.case["loss"]](miners) if self.case["loss"] in _MINERS else None
        self.proxies = [parameter for loss in self.losses.values() for parameter in loss.parameters()]
        self.targets = self.labels.long()
        if self.proxies:
            rows = torch.arange(self.case["rows"], device=self.device) + self.world.rank * self.case["rows"]
            self.targets = rows % self.options["classes"]
        if self.world.world_size > 1:
            from pytorch_metric_learning.utils import distributed

            self.losses = {prefix: distributed.DistributedLossWrapper(loss) for prefix, loss in self.losses.items()}
            self.miner = self.miner and distributed.DistributedMinerWrapper(self.miner)

    def prefix_loss(self, heads: list[torch.Tensor], scale: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        (rows,) = heads
        mined = self.miner(rows, self.targets) if self.miner else None
        return self.losses[rows.shape[1]](rows, self.targets, mined)

    def step(self) -> None:
        for proxies in self.proxies:
            proxies.grad = None
        super().step()

    def close(self) -> None:
        self.losses, self.miner, self.proxies = {}, None, []
        super().close()

    def versions(self) -> dict[str, str]:
        name = "pytorch-metric-learning"
        return {**super().versions(), name: importlib.metadata.version(name)}

    def _loss(self, prefix: int) -> torch.nn.Module:
        from pytorch_metric_learning import losses

        loss = _LOSSES[self.case["loss"]](losses, self.case, prefix)
        for proxies in loss.parameters():  # `[classes, prefix]`, or its transpose
            own = self._proxies()[:, :prefix]
            proxies.data = (own if proxies.shape == own.shape else own.T).contiguous()
        return loss

    def _proxies(self) -> torch.Tensor:
        groups = np.arange(self.options["classes"])
        return torch_inputs.embeddings(
            self.case["seed"], 1, 0, groups, self.case["dims"], self.compute_dtype, self.device
        )


# What makes a loss: called with the package's module `losses`, the case and a prefix.
_LOSSES: dict[str, Callable[[ModuleType, Mapping[str, Any], int], torch.nn.Module]] = {
    "one_set_info_nce": lambda losses, case, prefix: getattr(losses, _FORMS[case["options"]["form"]])(
        temperature=1.0 / case["scale"]
    ),
    "one_set_contrastive": lambda losses, case, prefix: losses.ContrastiveLoss(pos_margin=0.0, neg_margin=1.4),
    "one_set_multi_similarity": lambda losses, case, prefix: losses.MultiSimilarityLoss(),
    "one_set_triplet": lambda losses, case, prefix: losses.TripletMarginLoss(margin=0.2),
    "one_set_triplet_hard": lambda losses, case, prefix: losses.TripletMarginLoss(margin=0.2),
    "one_set_mined_triplet": lambda losses, case, prefix: losses.TripletMarginLoss(margin=0.2),
    "one_set_arcface": lambda losses, case, prefix: losses.ArcFaceLoss(
        case["options"]["classes"], prefix, margin=_ARC_DEGREES, scale=64
    ),
    "one_set_proxy_anchor": lambda losses, case, prefix: losses.ProxyAnchorLoss(case["options"]["classes"], prefix),
}
_FORMS = {"nt_xent": "NTXentLoss", "sup_con": "SupConLoss"}
# What makes a miner, for the losses that have one: called with the package's module `miners`.
_MINERS: dict[str, Callable[[ModuleType], torch.nn.Module]] = {
    "one_set_triplet_hard": lambda miners: miners.BatchHardMiner(),
    "one_set_mined_triplet": lambda miners: miners.PairMarginMiner(pos_margin=0.2, neg_margin=1.4),
}
