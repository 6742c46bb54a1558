from pathlib import Path

import pytest
import yaml

from harness import systems
from harness.cases import ConfigurationError

GOOD = {
    "name": "one",
    "target": "module:Class",
    "launcher": "single",
    "variants": {"a": {"loss": "one_set_sigmoid"}, "b": {"loss": "info_nce", "expected_status": "wrong"}},
}


def registry(folder: Path, *files: dict):
    for data in files:
        (folder / f"{data['name']}.yaml").write_text(yaml.safe_dump(data))
    return systems.load(folder)


def test_the_repository_s_own_registry_loads():
    folder = Path(systems.__file__).parent.parent / "configs" / "system"
    for name, system in systems.load(folder).items():
        assert system.name == name
        assert system.variants or not system.runs_here


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "other"}, "name is 'other'"),
        ({"launcher": "ssh"}, "launcher is 'ssh'; known: torchrun, single, native, published"),
        ({"target": "module.Class"}, "give module:Class"),
        ({"colour": 1}, "unknown key 'colour'"),
        ({"variants": {"a": {"loss": "siglip"}}}, "variant 'a' has loss 'siglip'; known: one_set_sigmoid"),
        ({"variants": {"a": None}}, "variant 'a'"),
        ({"variants": {"a": {"loss": "info_nce", "speed": 1}}}, "unknown key 'speed'"),
        ({"variants": {"a": {"loss": "info_nce", "expected_status": "fine"}}}, "expects status 'fine'; known: ok"),
        ({"variants": {"a": {"loss": "info_nce", "expected_status": {"init": "no"}}}}, "expects status 'no'; known"),
        ({"variants": {"a": {"loss": "info_nce", "expected_status": {"x": "ok"}}}}, "state 'x'; known: init, trained"),
        ({"variants": {"a": {"loss": "info_nce", "because": ["x"]}}}, r"because is \['x'\]; give a text"),
        ({"variants": {"a": {"loss": "info_nce", "expected_from_rows": True}}}, "from_rows is True; give a whole"),
        ({"variants": {"a": {"loss": "info_nce", "expected_from_rows": -1}}}, "from_rows is -1; give a whole"),
        ({"variants": {"a": {"loss": "info_nce", "world_sizes": 2}}}, "world_sizes is 2; give a list"),
        ({"variants": {"a": {"loss": "info_nce", "world_sizes": [0]}}}, r"world_sizes is \[0\]"),
        ({"variants": {"a": {"loss": "info_nce", "options": ["x"]}}}, r"options is \['x'\]; give a mapping"),
        ({"variants": {"a": {"loss": "info_nce", "predict": {"speed": 1}}}}, "unknown key 'speed'; known: bytes_per"),
        ({"variants": {"a": {"loss": "info_nce", "devices": ["gpu"]}}}, "'a': devices holds 'gpu'; known: cpu, cuda"),
        ({"variants": ["a"]}, "variants is .*; give a mapping"),
        ({"variants": {"a": {"loss": "info_nce", "by_name_only": 1}}}, "by_name_only is 1; give true or false"),
        ({"requires": "torch"}, "requires is 'torch'; give a list"),
        ({"devices": ["gpu"]}, "devices holds 'gpu'; known: cpu, cuda"),
        ({"minimum_capability": "ampere"}, "minimum_capability is 'ampere'; give a number"),
        ({"predict": {"bytes_per_cell": "many"}}, "predict.bytes_per_cell is 'many'; give a number"),
        ({"predict": {"bytes_per_cell": -1}}, "predict.bytes_per_cell is -1; give a number, 0 or more"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path, change, words):
    (tmp_path / "one.yaml").write_text(yaml.safe_dump(GOOD | change))
    with pytest.raises(ConfigurationError, match=words) as caught:
        systems.load(tmp_path)
    assert "one.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", ""])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, text):
    (tmp_path / "one.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match=r"one\.yaml"):
        systems.load(tmp_path)


def test_selection_by_system_variant_and_loss(tmp_path):
    two = GOOD | {"name": "two", "launcher": "published", "target": None}
    found = registry(tmp_path, GOOD, two)

    def titles(names, losses=None):
        return [f"{system.name}:{variant.name}" for system, variant in systems.select(found, names, losses)]

    assert titles(None) == ["one:a", "one:b"], "published rows are not launched"
    assert titles(["one:b"]) == ["one:b"]
    assert titles(["one:b", "one"]) == ["one:b", "one:a"], "each once"
    assert titles(["one"], ["info_nce"]) == ["one:b"]
    for names, losses, words in (
        (["three"], None, "unknown system 'three'; known: one$"),
        (["two"], None, "unknown system 'two'"),
        (["one:c"], None, "unknown variant 'one:c'; known: one:a, one:b"),
        (["one:a"], ["info_nce"], "none of these systems computes info_nce; losses offered: info_nce, one_set_sigmoid"),
        ("one", None, "give a list"),
        (
            None,
            ["siglip"],
            "unknown losses 'siglip'; known: one_set_sigmoid, two_set_sigmoid, info_nce, one_set_info_nce",
        ),
    ):
        with pytest.raises(ConfigurationError, match=words):
            systems.select(found, names, losses)


def test_a_system_may_declare_losses_with_a_reference_each(tmp_path):
    declared = {"one_set_circle": {"reference": "some.module:evaluate", "computes": "circles"}}
    variants = {"c": {"loss": "one_set_circle"}}
    found = registry(tmp_path, GOOD | {"losses": declared, "variants": variants})
    assert found["one"].references == {"one_set_circle": "some.module:evaluate"}
    assert [variant.loss for _, variant in systems.select(found, None, ["one_set_circle"])] == ["one_set_circle"]
    for losses, words in (
        ({"circle": declared["one_set_circle"]}, "must begin with one_set_ or two_set_"),
        ({"one_set_sigmoid": declared["one_set_circle"]}, "be none of one_set_sigmoid"),
        ({"one_set_circle": {"reference": "some.module:evaluate"}}, "must give reference"),
        ({"one_set_circle": {"reference": "some.module", "computes": "circles"}}, "give module:function"),
        ({}, "variant 'c' has loss 'one_set_circle'"),
    ):
        (tmp_path / "one.yaml").write_text(yaml.safe_dump(GOOD | {"losses": losses, "variants": variants}))
        with pytest.raises(ConfigurationError, match=words):
            systems.load(tmp_path)


def test_a_variant_by_name_only_needs_its_name(tmp_path):
    variants = {"a": {"loss": "info_nce"}, "b": {"loss": "info_nce", "by_name_only": True}}
    known = registry(tmp_path, GOOD | {"variants": variants})
    chosen = {names: [v.name for _, v in systems.select(known, list(names))] for names in (("one",), ("one:b",))}
    assert chosen == {("one",): ["a"], ("one:b",): ["b"]}
    assert [variant.name for _, variant in systems.select(known, None)] == ["a"]
