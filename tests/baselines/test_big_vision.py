"""The loss taken from a checkout, shown with a small stand-in for one."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

pytest.importorskip("jax")

from baselines import big_vision
from baselines.interface import Unsupported, World
from tests.baselines import driver

# Not upstream's text: a trainer of the same build, whose loss is recognisable by a factor of three.
TRAINER = """
    import absl_is_not_installed

    def main(argv):
      def update_fn(train_state, batch):
        images, labels = batch["image"], batch["labels"]
        def loss_fn(params):
          zi, zt, extra = model.apply({"params": params}, images, labels, train=True, rngs={"dropout": rng_model})
          l = zi @ zt.T * extra["t"] + extra["b"]
          signs = 2 * jnp.eye(zi.shape[0]) - jnp.ones_like(l)
          return -3 * jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * l), axis=-1))
        return jax.value_and_grad(loss_fn)(train_state)
"""


def checkout(folder: Path, text: str) -> Path:
    path = folder / big_vision.TRAINER
    path.parent.mkdir(parents=True)
    path.write_text(textwrap.dedent(text))
    return folder


def run(case: dict) -> tuple:
    system = big_vision.BigVision(case, World())
    system.build()
    system.step()
    return system.outputs(), system.versions()["big_vision"]


def test_without_a_checkout_the_maths_is_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(big_vision.ROOT_VARIABLE, raising=False)
    case = driver.make_case("big_vision", "jit_sharded")
    outputs, version = run(case)
    driver.within(case, [outputs], loss=1e-5, scale_gradient=1e-5, bias_gradient=1e-5)
    assert version == "own maths after commit 0127fb6b"
    assert "0127fb6b" in big_vision.BigVision.declares.mirrors


def test_the_checkout_s_loss_is_used_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = driver.make_case("big_vision", "jit_sharded")
    monkeypatch.delenv(big_vision.ROOT_VARIABLE, raising=False)
    own, _ = run(case)
    monkeypatch.setenv(big_vision.ROOT_VARIABLE, str(checkout(tmp_path, TRAINER)))
    theirs, version = run(case)
    assert theirs.loss == pytest.approx(3 * own.loss, rel=1e-5)
    assert theirs.scale_gradient == pytest.approx(3 * own.scale_gradient, rel=1e-4)
    assert "checkout" in version and "sha256" in version and str(tmp_path) not in version


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("def other(): pass", "holds 0 plain functions loss_fn"),
        ("def loss_fn(p): return 0\ndef g():\n  def loss_fn(p): return 1", "holds 2 plain functions"),
        ("def loss_fn(params: return", "cannot be read"),
        ("def loss_fn(params): return optax.sigmoid(params)", "needs name 'optax' is not defined"),
    ],
)
def test_a_checkout_that_does_not_fit_is_unsupported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, words: str
) -> None:
    root = checkout(tmp_path, text) if text is not None else tmp_path
    monkeypatch.setenv(big_vision.ROOT_VARIABLE, str(root))
    with pytest.raises(Unsupported, match=words):
        run(driver.make_case("big_vision", "jit_sharded"))
