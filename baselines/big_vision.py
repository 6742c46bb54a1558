"""big_vision's SigLIP loss under `jax.jit`, its rows split over all devices by a NamedSharding.

The loss is a closure inside big_vision's trainer (`big_vision/trainers/proj/image_text/siglip.py`) and big_vision is
not on the package index, so the maths here is our own, written to match: float32 logits `t * <x, y> + b` of unit rows
`z / (norm + 1e-8)`, the mean over rows of the sum over columns of `-log sigmoid(+-logits)`, one global program.

If the environment variable BIG_VISION_ROOT names a checkout, the closure `loss_fn` is taken from that checkout's source
instead, unchanged, with a stand-in for the model that hands it our embeddings; the versions in the record say so.

Option `matmul_precision`: null is JAX's default for float32 products (on GPU XLA may use TF32); another name is passed
to `jax.default_matmul_precision`, such as BF16_BF16_F32, which is what float32 products are on TPU by default.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from baselines.interface import Declaration, Unsupported
from baselines.jax_runtime import JaxSystem

UPSTREAM_COMMIT = "0127fb6b"
TRAINER = Path("big_vision/trainers/proj/image_text/siglip.py")
ROOT_VARIABLE = "BIG_VISION_ROOT"


def siglip_loss(images: jax.Array, captions: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """Mean over rows of the sum over columns; `images`, `captions` are unit rows `[n, dims]`, float32."""
    logits = jnp.dot(images, captions.T) * scale + bias
    signs = 2 * jnp.eye(len(images)) - 1
    return jnp.mean(-jnp.sum(jax.nn.log_sigmoid(signs * logits), axis=-1))


class _Model:
    """Stands where the trainer's flax model stands: its outputs are its parameters."""

    @staticmethod
    def apply(variables: Mapping[str, Any], *_: Any, **__: Any) -> Any:
        return variables["params"]


def loss_from_checkout(root: Path) -> Callable[..., jax.Array]:
    """`siglip_loss` made from the function `loss_fn` in a checkout's trainer.

    Only that function is compiled, in a namespace that holds jax, jnp, np and the stand-in model; nothing of the
    trainer is imported. Raises Unsupported when the file or the function is missing or it needs more than that.
    """
    path = root / TRAINER
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as problem:
        raise Unsupported(f"{ROOT_VARIABLE}: {TRAINER} cannot be read ({type(problem).__name__})") from None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "loss_fn"]
    if len(found) != 1 or found[0].decorator_list:
        raise Unsupported(f"{ROOT_VARIABLE}: {TRAINER} holds {len(found)} plain functions loss_fn, not one")
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "np": np, "functools": functools, "model": _Model}
    names |= {"images": None, "labels": None, "rng_model": None}
    exec(compile(ast.Module(body=found, type_ignores=[]), str(path), "exec"), names)

    def loss(images: jax.Array, captions: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
        try:
            return names["loss_fn"]((images, captions, {"t": scale, "b": bias}))
        except (NameError, KeyError) as problem:
            raise Unsupported(f"{ROOT_VARIABLE}: loss_fn of {TRAINER} needs {problem}") from None

    return loss


def checkout_version(root: Path) -> str:
    """The checkout's commit, where git knows it, and the trainer file's SHA-256."""
    digest = hashlib.sha256((root / TRAINER).read_bytes()).hexdigest()[:12]
    try:
        command = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = "unknown"
    return f"{ROOT_VARIABLE} checkout, commit {commit}, {TRAINER.name} sha256 {digest}"


class BigVision(JaxSystem):
    """Options: `matmul_precision`."""

    declares = Declaration(
        sets=2,
        negatives="global",
        normalisation="adapter, before the loss: x / (norm + 1e-8), as the package's models do",
        scale_parameter="log_scale",
        mirrors=f"google-research/big_vision@{UPSTREAM_COMMIT} {TRAINER}",
    )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] != "two_set_sigmoid":
            return f"big_vision's SigLIP trainer has no loss like {case['loss']}"
        return super().unsupported(case)

    def prepare(self) -> None:
        root = os.environ.get(ROOT_VARIABLE)
        self.loss = loss_from_checkout(Path(root)) if root else siglip_loss

    def prefix_loss(self, heads: list[jax.Array], scale: jax.Array, bias: jax.Array, labels: jax.Array) -> jax.Array:
        units = [head / (jnp.linalg.norm(head, axis=1, keepdims=True) + 1e-8) for head in heads]
        precision = self.options.get("matmul_precision")
        with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
            return self.loss(*units, scale, bias)

    def versions(self) -> dict[str, str]:
        root = os.environ.get(ROOT_VARIABLE)
        source = f"own maths after commit {UPSTREAM_COMMIT}"
        if root:
            known = (Path(root) / TRAINER).is_file()
            source = checkout_version(Path(root)) if known else f"{ROOT_VARIABLE} without {TRAINER}"
        return {**super().versions(), "big_vision": source}
