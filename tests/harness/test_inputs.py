"""The inputs against a second writing of docs/contracts.md section 2, in plain integers."""

import struct

import numpy as np
import pytest

from harness import inputs

MASK = 0xFFFFFFFF


def mix(h):
    h ^= h >> 16
    h = h * 0x85EBCA6B & MASK
    h ^= h >> 13
    h = h * 0xC2B2AE35 & MASK
    return h ^ (h >> 16)


def key(seed, stream, row, column):
    return mix(mix(mix((seed + stream * 0x9E3779B9) & MASK) ^ row) ^ column)


def value(seed, set_index, row, group, column):
    g, k = key(seed, 2, group, column), key(seed, set_index, row, column)
    return (g & 127) + ((g >> 8) & 127) + ((k >> 16) & 127) + ((k >> 24) & 127) - 254


@pytest.mark.parametrize("set_index", [0, 1])
def test_values_are_the_contract_s(set_index):
    groups = np.array([4, 4, 5])
    got = inputs.embeddings(0xFFFFFFF0, set_index, 9, groups, 7)
    want = [[value(0xFFFFFFF0, set_index, 9 + i, int(group), j) for j in range(7)] for i, group in enumerate(groups)]
    assert got.dtype == np.float32
    assert got.tolist() == want


def test_rows_do_not_depend_on_where_a_rank_begins():
    groups = inputs.labels("pairs", 0, 20)
    whole = inputs.embeddings(42, 0, 0, groups, 16)
    assert np.array_equal(inputs.embeddings(42, 0, 13, groups[13:], 16), whole[13:])


def test_values_fit_bf16_exactly_and_look_normal():
    values = inputs.embeddings(42, 0, 0, inputs.labels("pairs", 0, 512), 64)
    bits = values.view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    assert np.abs(values).max() <= 254
    assert abs(values.mean()) < 1.0 and 70 < values.std() < 78  # four uniform lanes: sqrt(4 * (128^2 - 1) / 12) = 73.9


def test_label_layouts():
    assert inputs.labels("pairs", 3, 4).tolist() == [1, 2, 2, 3]
    assert inputs.labels("distinct", 3, 2).tolist() == [3, 4]
    assert inputs.labels("equal", 3, 2).tolist() == [0, 0]
    assert inputs.labels("fours", 3, 6).tolist() == [0, 1, 1, 1, 1, 2]
    assert inputs.labels("sixteens", 15, 3).tolist() == [0, 1, 1]
    mixed = inputs.labels("mixed", 0, 38).tolist()
    assert [mixed.count(group) for group in range(10)] == [1, 2, 3, 5, 8] * 2
    with pytest.raises(ValueError, match="known: pairs"):
        inputs.labels("triples", 0, 1)


@pytest.mark.parametrize("loss", ["one_set_sigmoid", "info_nce"])
def test_the_digest_is_over_bf16_bytes_set_by_set(loss):
    import hashlib

    case = {"loss": loss, "rows": 3, "world_size": 2, "dims": 5, "seed": 1, "labels": "pairs"}
    sha = hashlib.sha256()
    for set_index in range(1 if loss == "one_set_sigmoid" else 2):
        for row in range(6):
            group = row // 2 if loss == "one_set_sigmoid" else row
            for column in range(5):
                sha.update(struct.pack("<f", value(1, set_index, row, group, column))[2:])
    assert inputs.digest(case, chunk_rows=4) == sha.hexdigest()
