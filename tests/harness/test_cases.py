import dataclasses
import json

import pytest

from harness.cases import Case, ConfigurationError


def case(**changes):
    return Case(**{"system": "s", "loss": "one_set_sigmoid", "variant": "v", "rows": 8} | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prefixes": (64, 32)}, "ascend"),
        ({"prefixes": (64, 64)}, "ascend"),
        ({"prefixes": ()}, "ascend"),
        ({"prefixes": (0, 64)}, "ascend"),
        ({"prefixes": (2048,)}, "exceeds dims"),
        ({"prefix_weights": (1.0,)}, "prefix_weights"),
        ({"live": (9,)}, "live"),
        ({"live": (8, 8)}, "live"),
        ({"live": (0,)}, "at least one"),
        ({"world_size": 3, "nodes": 2}, "divisible"),
        ({"rows": 0}, "rows"),
    ],
)
def test_impossible_cases_are_refused_in_one_line(changes, words):
    with pytest.raises(ConfigurationError, match=words) as caught:
        case(**changes)
    assert "\n" not in str(caught.value)


def test_json_round_trip_gives_the_same_case():
    original = case(live=(5, 8), world_size=2, prefix_weights=(0.5,), prefixes=(16,), dims=16, options={"a": [1, "b"]})
    again = Case.from_json(json.loads(json.dumps(original.to_json() | {"actions": ["time"]})))
    assert again == original
    assert again.case_id == original.case_id


def test_every_defining_field_changes_the_id():
    base = case()
    different = {
        "system": "x", "loss": "info_nce", "variant": "x", "rows": 9, "state": "trained", "live": (4,), "dims": 2048,
        "prefixes": (64,), "prefix_weights": (1.0, 1.0, 1.0, 1.0, 1.0), "dtype": "float32", "gradient_dtype": "float32",
        "scale": 11.0, "bias": 0.0, "seed": 1, "labels": "equal", "self_pairs": True, "world_size": 2, "nodes": 2,
        "device": "cuda", "options": {"a": 1},
    }  # fmt: skip
    assert set(different) == {field.name for field in dataclasses.fields(Case)}
    ids = {
        case(**({"world_size": 2} if name == "nodes" else {}) | {name: value}).case_id
        for name, value in different.items()
    }
    assert base.case_id not in ids
    assert len(ids) == len(different)


def test_live_rows_counts_all_ranks():
    assert case(world_size=2).live_rows == 16
    assert case(world_size=2, live=(3, 8)).live_rows == 11
