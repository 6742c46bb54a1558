"""Which engines the tests of several GPUs ask, chosen without a GPU."""

import pytest

from tests.kernels.box_cases import LIVES, LOSSES, large_cases, refusal, small_cases

USABLE = ["sm90", "sm80"]


def asked(cases, engine):
    """`(gradients, prefixes, pairs scored once)` of the cases that an engine is asked."""
    return {
        (case["gradient_dtype"], len(case["prefixes"]), any("pairs=once" in word for word in words))
        for case, name, words in cases
        if name == engine
    }


@pytest.mark.parametrize("loss", LOSSES)
def test_both_engines_are_asked_what_they_take(loss):
    every = {("float32", 2, False), ("float32", 1, False), ("bfloat16", 2, False)}
    once = {(*case[:2], True) for case in every}
    both_sides = loss.endswith("sigmoid")
    for virtual in (False, True):
        cases = list(small_cases(USABLE, loss, 3, virtual))
        assert asked(cases, "sm80") == every | (once if both_sides else set())
        if loss == "one_set_sigmoid":
            assert asked(cases, "sm90") == every | once
        else:
            assert asked(cases, "sm90") == every - {("float32", 2, False)}
    ladder = {("float32", 5, False), ("bfloat16", 5, False)}
    once = {(*case[:2], True) for case in ladder}
    cases = list(large_cases(USABLE, loss, 1))
    assert asked(cases, "sm80") == ladder | (once if both_sides else set())
    assert asked(cases, "sm90") == ladder | (once if both_sides else set())
    assert {case["world_size"] for case, *_ in cases} == {1, 4}
    assert {case["world_size"] for case, *_ in large_cases(USABLE, loss, 2)} == {1, 2}


def test_other_gpus_ask_what_they_have():
    for usable in (["sm80"], ["sm100", "sm80"]):
        assert {engine for _, engine, _ in small_cases(usable, "info_nce", 2, True)} == {"sm80"}
    for case, engine, words in small_cases(USABLE, "two_set_sigmoid", 5, False):
        assert not refusal(engine, case, once=any("pairs=once" in word for word in words))
        assert case["live"] in (None, LIVES[5]) and words[:2] == ["--engine", engine]
    meetings = {words[3].rpartition("meeting=")[2] for *_, words in small_cases(USABLE, "info_nce", 2, False)}
    assert meetings == {"flags", "events"}
