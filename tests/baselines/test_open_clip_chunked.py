"""A release of open_clip whose SigLipLoss takes chunk_size: stood in for, as the installed one has none."""

from __future__ import annotations

import importlib.util
import textwrap
from pathlib import Path

import pytest

from tests.baselines import driver

if importlib.util.find_spec("open_clip") is None:
    pytest.skip("open_clip is not installed", allow_module_level=True)
FLOAT32 = {"dtype": "float32", "gradient_dtype": "float32"}


def stand_in(folder: Path) -> None:
    """A package open_clip in `folder`: the installed losses, its SigLipLoss with chunks of image rows."""
    installed = Path(importlib.util.find_spec("open_clip").submodule_search_locations[0]) / "loss.py"
    (folder / "open_clip").mkdir()
    (folder / "open_clip" / "__init__.py").write_text("")
    source = """

    class SigLipLoss(SigLipLoss):
        def __init__(self, *args, chunk_size=None, **settings):
            super().__init__(*args, **settings)
            self.chunk_size = chunk_size

        def _loss(self, images, captions, scale, bias=None, negative_only=False):
            total = 0.0
            for first in range(0, len(images), self.chunk_size):
                part = slice(first, first + self.chunk_size)
                logits = scale * images[part] @ captions.T + bias[part]
                signs = -torch.ones_like(logits)
                if not negative_only:
                    signs[:, part] += 2 * torch.eye(len(logits))
                total = total - F.logsigmoid(signs * logits).sum() / len(images)
            return total
    """
    (folder / "open_clip" / "loss.py").write_text(installed.read_text() + textwrap.dedent(source))


def test_chunks_of_rows_on_three_ranks_are_the_whole_loss(tmp_path: Path) -> None:
    """One row a rank, and chunks that do not divide the rows: the argument arrives and nothing is lost."""
    stand_in(tmp_path)
    (tmp_path / "open_clip.yaml").write_text((driver.CONFIGS / "open_clip.yaml").read_text())
    cases = [
        driver.make_case("open_clip", "chunked", rows=rows, world_size=3, scale=5.0, bias=-1.0, **FLOAT32)
        | {"options": {"dist_impl": exchange, "chunk_size": 3, "precision": "fp32"}}
        for rows, exchange in ((1, "bidir"), (7, "bidir"), (7, "gather"), (7, "shift"), (7, "reduce"))
    ]
    for case, outputs in zip(cases, driver.run_ranks(cases, folder=tmp_path), strict=True):
        driver.within(case, outputs, loss=1e-5, gradients=1e-4, scale_gradient=1e-5, bias_gradient=1e-5)
