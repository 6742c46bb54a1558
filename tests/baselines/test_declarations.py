"""The stored table of declarations is what the registry and the adapters say."""

from __future__ import annotations

import csv
import importlib.util

import pytest

from baselines import declarations


def test_the_stored_rows_are_current() -> None:
    """Of every system in the file; a new one is no failure before it is added."""
    for package in ("torch", "jax"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    with declarations.FILE.open(encoding="utf-8", newline="") as stream:
        stored = list(csv.DictReader(stream))
    known = {row["system"] for row in stored}
    current = [row for row in declarations.rows() if row["system"] in known]
    assert stored == current, "out of date: run python -m baselines.declarations"


def test_variants_that_differ_have_lines_of_their_own() -> None:
    pytest.importorskip("torch")
    found = {(row["system"], variant): row for row in declarations.rows() for variant in row["variants"].split()}
    assert found["inf_cl", "single"]["scalar_gradient_factor"] == "1"
    assert found["inf_cl", "ring"]["scalar_gradient_factor"] == "1/world_size^2"
    assert found["open_clip", "clip_default"]["feature_gradient_factor"] == "1"
    assert found["open_clip", "clip_global"]["feature_gradient_factor"] == "1/world_size"
    assert (
        found["open_clip", "bidir"]["bias_gradient"] == "bias"
        and found["open_clip", "clip_global"]["bias_gradient"] == "none"
    )
    assert found["metric_learning", "nt_xent"]["scale_gradient"] == "none"
    assert found["cublas_products", "graph"]["loss"] == "none"


def test_the_native_loss_has_its_lines() -> None:
    pytest.importorskip("torch")
    found = {(row["system"], variant): row for row in declarations.rows() for variant in row["variants"].split()}
    factors = ("loss_factor", "feature_gradient_factor", "scalar_gradient_factor")
    for variant, sets, bias in (("one_set", "1", "bias"), ("two_set", "2", "bias"), ("info_nce", "2", "none")):
        row = found["native", variant]
        assert (row["sets"], row["negatives"], row["bias_gradient"]) == (sets, "global", bias)
        assert [row[name] for name in factors] == ["1", "1", "1"], "all outputs are of the global mean loss"
    forward = found["native", "two_set_forward"]
    assert [forward[name] for name in factors] == ["1", "", ""] and forward["scale_gradient"] == "none"
    assert ("native_all_reduce", "auto") not in found, "no loss of its own, and no declaration"
