"""open_clip's accumulation (`--accum-freq`) as the installed package has it: `open_clip_train.train.train_one_epoch`.

Nothing of it is replaced: the function gets a model, its loss, and a loader of micro-batches, all float64 on the CPU.
The model is grad_cache's two-layer tower before one prefix; embeddings are leaves, so that their gradients are seen.
"""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

from baselines import reference
from baselines.interface import World
from harness import inputs
from tests.baselines import driver

torch = pytest.importorskip("torch")
pytest.importorskip("open_clip_train")
SCALE = 5.0
PREFIX = 48


def small_case(pieces: int) -> dict:
    return driver.make_case("grad_cache", "whole" if pieces == 1 else f"cached_{pieces}", rows=48, dims=PREFIX,
                            prefixes=(PREFIX,), scale=SCALE, bias=-1.0, dtype="float32", gradient_dtype="float32",
                            options={"precision": "fp32"})  # fmt: skip


class Model(torch.nn.Module):
    """What `train_one_epoch` asks of a model: unit features of both towers (here one), and a log scale."""

    def __init__(self) -> None:
        from baselines.grad_cache import identity_tower

        super().__init__()
        self.tower = identity_tower(PREFIX, torch.device("cpu")).double()
        self.logit_scale = torch.nn.Parameter(torch.tensor(math.log(SCALE), dtype=torch.float64))

    def forward(self, images: torch.Tensor, texts: torch.Tensor) -> dict[str, torch.Tensor]:
        images, texts = (torch.nn.functional.normalize(self.tower(rows), dim=-1) for rows in (images, texts))
        return {"image_features": images, "text_features": texts, "logit_scale": self.logit_scale.exp()}


def train_step(pieces: int) -> tuple[Model, dict[str, np.ndarray]]:
    """The model after one optimizer step of `pieces` micro-batches, and the embeddings' gradients by set."""
    from open_clip_train.train import train_one_epoch

    from baselines.open_clip import load_loss_module

    sets = {name: torch.tensor(values).double() for name, values, _ in inputs.case_rows(small_case(pieces), 0, 48)}
    parts = {name: [part.clone().requires_grad_() for part in rows.chunk(pieces)] for name, rows in sets.items()}

    class Batches(list):
        num_batches, num_samples = pieces, 48

    batches = types.SimpleNamespace(dataloader=Batches(zip(*parts.values(), strict=True)), set_epoch=lambda epoch: None)
    arguments = types.SimpleNamespace(
        device="cpu", precision="fp32", distill=False, accum_freq=pieces, skip_scheduler=True, horovod=False,
        grad_clip_norm=None, rank=0, local_rank=0, log_local=False, world_size=1, log_every_n_steps=100, batch_size=48,
        wandb=False,
    )  # fmt: skip
    model = Model()
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    train_one_epoch(model, {"train": batches}, load_loss_module().ClipLoss(), 0, still, None, None, None, arguments)
    return model, {name: torch.cat([part.grad for part in rows]).numpy() for name, rows in parts.items()}


@pytest.mark.parametrize("pieces", [1, 4, 16])
def test_gradients_are_the_whole_batch_s_and_grad_cache_s(pieces: int) -> None:
    """Embeddings against the reference; the tower's weights against grad_cache, cached, in float64."""
    case = small_case(pieces)
    model, gradients = train_step(pieces)
    truth = reference.evaluate(case)
    for name, expected in truth["gradients"].items():
        assert np.linalg.norm(gradients[name] - expected) < 1e-10 * np.linalg.norm(expected), name

    system = driver.load("baselines.grad_cache:GradCache")(case, World())
    system.build()
    system.tower.double()
    system.leaves = [leaf.detach().double().requires_grad_() for leaf in system.leaves]
    # grad_cache casts embeddings to float32, which holds them exactly
    system.tower.register_forward_pre_hook(lambda tower, rows: rows[0].double())
    system.step()
    for one, other in zip(model.tower.parameters(), system.tower.parameters(), strict=True):
        assert torch.linalg.norm(one.grad - other.grad) < 1e-10 * torch.linalg.norm(other.grad)
    # What is not alike: every micro-batch's backward pass has the whole loss, so the scale gets its gradient each time.
    through_scale = float(model.logit_scale.grad) / SCALE
    assert through_scale == pytest.approx(pieces * truth["scale_gradient"], rel=1e-10)
    assert float(system.scale_parameter.grad) / SCALE == pytest.approx(truth["scale_gradient"], rel=1e-6)
