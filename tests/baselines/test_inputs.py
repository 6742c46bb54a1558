"""Inputs against Python integers, and the same bytes from NumPy, PyTorch and JAX."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from harness import inputs
from harness.cases import Case

WORD = 0xFFFFFFFF


def mix(h: int) -> int:
    h ^= h >> 16
    h = h * 0x85EBCA6B & WORD
    h ^= h >> 13
    h = h * 0xC2B2AE35 & WORD
    return h ^ h >> 16


def key(seed: int, stream: int, row: int, column: int) -> int:
    return mix(mix(mix(seed + stream * 0x9E3779B9 & WORD) ^ row) ^ column)


def value(seed: int, set_index: int, row: int, group: int, column: int) -> int:
    g, k = key(seed, 2, group, column), key(seed, set_index, row, column)
    return (g & 127) + (g >> 8 & 127) + (k >> 16 & 127) + (k >> 24 & 127) - 254


def make_case(loss: str, **changes) -> dict:
    return Case(system="x", loss=loss, variant="x", **{"rows": 40, "dims": 48, "prefixes": (48,)} | changes).to_json()


CASES = [
    make_case("one_set_sigmoid"),
    make_case("one_set_sigmoid", labels="mixed", seed=0xFFFFFFFF, world_size=2),
    make_case("two_set_sigmoid", seed=7, world_size=3, rows=17),
    make_case("two_set_sigmoid", rows=9001, dims=64, prefixes=(64,)),  # more than one chunk of rows
]


@pytest.mark.parametrize("case", CASES[:3])
def test_values_are_the_contract_s_integers(case: dict) -> None:
    total = case["rows"] * case["world_size"]
    for number, (_, values, groups) in enumerate(inputs.case_rows(case, 0, total)):
        assert values.dtype == np.float32 and values.shape == (total, case["dims"])
        expected = [
            [value(case["seed"], number, row, int(groups[row]), column) for column in range(case["dims"])]
            for row in range(total)
        ]
        np.testing.assert_array_equal(values, np.array(expected, dtype=np.float32))


def test_labels_follow_their_layouts() -> None:
    assert inputs.labels("pairs", 3, 4).tolist() == [1, 2, 2, 3]
    assert inputs.labels("distinct", 3, 4).tolist() == [3, 4, 5, 6]
    assert inputs.labels("equal", 3, 4).tolist() == [0, 0, 0, 0]
    first = [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4]
    assert inputs.labels("mixed", 0, 38).tolist() == first + [5 + label for label in first]
    assert inputs.labels("mixed", 25, 5).tolist() == inputs.labels("mixed", 0, 30).tolist()[25:]
    with pytest.raises(ValueError, match="known: pairs, distinct, equal, mixed"):
        inputs.labels("triples", 0, 1)


def test_values_are_spread_exact_in_bf16_and_correlated_within_groups() -> None:
    (_, values, _), *_ = inputs.case_rows(make_case("one_set_sigmoid", dims=4096, prefixes=(4096,)), 0, 40)
    assert np.abs(values).max() <= 254 and abs(values.mean()) < 1.0 and 70 < values.std() < 77
    truncated = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    np.testing.assert_array_equal(truncated, values)
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    cosines = unit @ unit.T
    assert 0.4 < cosines[0, 1] < 0.6 and abs(cosines[0, 2]) < 0.1


def test_a_part_is_a_part_of_the_whole() -> None:
    case = CASES[2]
    whole = list(inputs.case_rows(case, 0, 51))
    part = list(inputs.case_rows(case, 17, 17))
    for (name, values, groups), (part_name, part_values, part_groups) in zip(whole, part, strict=True):
        assert name == part_name
        np.testing.assert_array_equal(values[17:34], part_values)
        np.testing.assert_array_equal(groups[17:34], part_groups)


def test_digest_is_of_all_sets_in_order() -> None:
    case = CASES[2]
    images, captions = (values for _, values, _ in inputs.case_rows(case, 0, 51))
    words = [(values.view(np.uint32) >> np.uint32(16)).astype("<u2").tobytes() for values in (images, captions)]
    assert inputs.digest(case) == inputs.digest(case, chunk_rows=7) == hashlib.sha256(b"".join(words)).hexdigest()
    assert inputs.digest({**case, "seed": 8}) != inputs.digest(case)


@pytest.mark.parametrize("case", CASES)
def test_torch_makes_the_same_bytes(case: dict) -> None:
    torch = pytest.importorskip("torch")
    from baselines import torch_inputs

    sha = hashlib.sha256()
    ranks = [
        torch_inputs.case_rows(case, rank * case["rows"], case["rows"], torch.bfloat16, torch.device("cpu"))
        for rank in range(case["world_size"])
    ]
    for name in ranks[0]:
        for rank, sets in enumerate(ranks):
            values, labels = sets[name]
            sha.update(values.view(torch.int16).numpy().astype("<i2").tobytes())
            layout = case["labels"] if name == "rows" else "distinct"
            np.testing.assert_array_equal(labels, inputs.labels(layout, rank * case["rows"], case["rows"]))
    assert sha.hexdigest() == inputs.digest(case)


@pytest.mark.parametrize("case", CASES)
def test_jax_makes_the_same_bytes(case: dict) -> None:
    jax = pytest.importorskip("jax")
    from baselines import jax_inputs

    sharding = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    sha = hashlib.sha256()
    for values, labels in jax_inputs.case_rows(case, jax.numpy.bfloat16, sharding).values():
        sha.update(np.asarray(values).view(np.uint16).astype("<u2").tobytes())
        assert labels.dtype == np.int32
    assert sha.hexdigest() == inputs.digest(case)
