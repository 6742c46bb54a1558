"""The one-set sigmoid loss as a competent JAX user would write it: the same-loss peer of the native one in JAX.

One global program over all devices, rows split by a NamedSharding. Unit rows, products, logits and terms are float32;
`matmul_precision` is as in `baselines.big_vision`.

Variants: `jit` holds the whole n x n grid of every prefix; `chunked` scores `chunk_rows` rows of every device at a time
in a scan and recomputes their cells in the backward pass, so that memory grows with n, not with n squared.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from baselines.interface import Declaration
from baselines.jax_runtime import JaxSystem


class JaxReference(JaxSystem):
    """Options: `chunk_rows` (null: no chunks), `matmul_precision`."""

    declares = Declaration(
        sets=1,
        negatives="global",
        normalisation="x / max(norm, 1e-12) per prefix",
        notes="self pairs as the case says; positives by label",
    )

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case["loss"] != "one_set_sigmoid":
            return f"written for one_set_sigmoid, not {case['loss']}"
        chunk = (case.get("options") or {}).get("chunk_rows")
        if chunk and case["rows"] > chunk and case["rows"] % chunk:
            return f"{case['rows']} rows are not a multiple of chunk_rows {chunk}"
        return super().unsupported(case)

    def prefix_loss(self, heads: list[jax.Array], scale: jax.Array, bias: jax.Array, labels: jax.Array) -> jax.Array:
        squares = jnp.sum(heads[0] * heads[0], axis=1, keepdims=True)
        unit = heads[0] * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
        precision = self.options.get("matmul_precision")
        with jax.default_matmul_precision(precision) if precision else contextlib.nullcontext():
            chunk = self.options.get("chunk_rows")
            summed = (
                self._chunked(unit, scale, bias, labels, chunk) if chunk else self._whole(unit, scale, bias, labels)
            )
        return summed / len(unit)

    def _whole(self, unit: jax.Array, scale: jax.Array, bias: jax.Array, labels: jax.Array) -> jax.Array:
        return self._terms(unit, jnp.arange(len(unit)), labels, unit, scale, bias, labels)

    def _chunked(
        self, unit: jax.Array, scale: jax.Array, bias: jax.Array, labels: jax.Array, chunk_rows: int
    ) -> jax.Array:
        """The same sum, over chunks that take the same number of rows from every device."""
        devices = len(self.devices)
        size = min(chunk_rows, len(unit) // devices)

        def split(values: jax.Array) -> jax.Array:
            parts = values.reshape(devices, -1, size, *values.shape[1:]).swapaxes(0, 1)
            return parts.reshape(-1, devices * size, *values.shape[1:])

        @jax.checkpoint
        def body(total: jax.Array, chunk: tuple) -> tuple[jax.Array, None]:
            return total + self._terms(*chunk, unit, scale, bias, labels), None

        chunks = (split(unit), split(jnp.arange(len(unit))), split(labels))
        return jax.lax.scan(body, jnp.zeros(()), chunks)[0]

    def _terms(
        self,
        rows: jax.Array,
        numbers: jax.Array,
        row_labels: jax.Array,
        unit: jax.Array,
        scale: jax.Array,
        bias: jax.Array,
        labels: jax.Array,
    ) -> jax.Array:
        """Sum of the loss terms of some rows, whose global `numbers` and labels are given, against all of `unit`."""
        logits = scale * jnp.dot(rows, unit.T) + bias
        terms = jax.nn.softplus(jnp.where(row_labels[:, None] == labels[None, :], -logits, logits))
        if not self.case["self_pairs"]:
            terms = jnp.where(numbers[:, None] == jnp.arange(len(unit))[None, :], 0.0, terms)
        return jnp.sum(terms)
