"""The float64 reference against loops over cells and numerical derivatives, and its own consistency."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines import reference
from harness import inputs
from harness.cases import Case
from tests.baselines import oracle


def make_case(loss: str, **changes) -> dict:
    fields = {"rows": 5, "dims": 12, "prefixes": (3, 8, 12), "scale": 4.0, "bias": -1.5}
    return Case(system="reference", loss=loss, variant="x", **{**fields, **changes}).to_json()


CASES = {
    "one set": make_case("one_set_sigmoid"),
    "one set, self pairs": make_case("one_set_sigmoid", self_pairs=True),
    "one set, groups": make_case("one_set_sigmoid", rows=9, labels="mixed", prefix_weights=(0.5, 0.2, 1.3)),
    "one set, all equal": make_case("one_set_sigmoid", labels="equal"),
    "one set, none equal": make_case("one_set_sigmoid", labels="distinct", scale=10.0, bias=-10.0),
    "one set, one row": make_case("one_set_sigmoid", rows=1, self_pairs=True),
    "one set, one row, no cell": make_case("one_set_sigmoid", rows=1),
    "one set, ragged": make_case("one_set_sigmoid", world_size=3, live=(5, 0, 3)),
    "one set, short ladder": make_case("one_set_sigmoid", prefixes=(5,)),
    "one set, steep": make_case("one_set_sigmoid", scale=100.0, bias=-10.0),
    "two sets": make_case("two_set_sigmoid"),
    "two sets, ranks": make_case("two_set_sigmoid", rows=3, world_size=2),
    "two sets, ragged": make_case("two_set_sigmoid", world_size=2, live=(2, 5), prefix_weights=(1.0, 0.0, 2.0)),
    "info_nce": make_case("info_nce"),
    "info_nce, ragged": make_case("info_nce", world_size=2, live=(4, 1)),
    "info_nce, one pair": make_case("info_nce", rows=1),
    **{
        f"{form}, {name}": make_case("one_set_info_nce", options={"form": form}, **changes)
        for form in ("nt_xent", "sup_con")
        for name, changes in {
            "pairs and one alone": {},
            "groups": {"rows": 9, "labels": "mixed", "prefix_weights": (0.5, 0.2, 1.3)},
            "all equal": {"labels": "equal"},
            "none equal": {"labels": "distinct"},
            "one row": {"rows": 1},
            "ragged": {"world_size": 3, "live": (5, 0, 3), "labels": "mixed"},
            "steep": {"rows": 9, "labels": "mixed", "scale": 30.0},
        }.items()
    },
}


def live_inputs(case: dict) -> tuple[list, list[int], list[int]]:
    """Sets and labels of live rows as Python lists, and their global row numbers, by a loop over ranks."""
    live = case["live"] or [case["rows"]] * case["world_size"]
    rows = [rank * case["rows"] + i for rank in range(case["world_size"]) for i in range(live[rank])]
    sets, labels = [], []
    for _, values, groups in inputs.case_rows(case, 0, case["rows"] * case["world_size"]):
        sets.append([values[row].astype(float).tolist() for row in rows])
        labels = [int(groups[row]) for row in rows]
    return sets, labels, rows


def close(value: float, expected: float, scale: float) -> None:
    assert abs(value - expected) <= 1e-9 * max(scale, 1e-3), (value, expected)


@pytest.mark.parametrize("name", CASES)
def test_scalars_equal_loops_and_numerical_derivatives(name: str) -> None:
    case = CASES[name]
    sets, labels, _ = live_inputs(case)
    scale, bias = case["scale"], case["bias"]
    result = reference.evaluate(case)
    close(result["loss"], oracle.loss(case, sets, labels, scale, bias), result["loss_scale"])
    slope = oracle.derivative(lambda t: oracle.loss(case, sets, labels, t, bias), scale, 1e-3)
    close(result["scale_gradient"], slope, result["scale_gradient_scale"])
    if case["loss"].endswith("info_nce"):
        assert result["bias_gradient"] is None and result["bias_gradient_scale"] is None
    else:
        slope = oracle.derivative(lambda b: oracle.loss(case, sets, labels, scale, b), bias, 1e-3)
        close(result["bias_gradient"], slope, result["bias_gradient_scale"])


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_numerical_derivatives(name: str) -> None:
    case = CASES[name]
    sets, labels, rows = live_inputs(case)
    result = reference.evaluate(case)
    for set_number, gradient in enumerate(result["gradients"].values()):
        assert gradient.shape == (case["rows"] * case["world_size"], case["dims"])
        expected = np.zeros_like(gradient)
        for local, row in enumerate(rows):
            for column in range(case["dims"]):
                values = sets[set_number][local]
                centre = values[column]

                def shifted(value: float, values=values, column=column) -> float:
                    values[column] = value
                    return oracle.loss(case, sets, labels, case["scale"], case["bias"])

                expected[row, column] = oracle.derivative(shifted, centre, 0.03)
                values[column] = centre
        np.testing.assert_allclose(gradient, expected, rtol=0, atol=2e-7 * max(np.abs(expected).max(), 1e-6) + 1e-13)


@pytest.mark.parametrize("loss", ["one_set_sigmoid", "two_set_sigmoid", "info_nce"])
def test_zero_prefixes_have_cosine_zero_and_no_gradient(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(loss)
    original = inputs.embeddings

    def with_zeros(seed, set_index, first_row, groups, dims):
        values = original(seed, set_index, first_row, groups, dims)
        values[1, :3] = 0.0
        values[3] = 0.0
        return values

    monkeypatch.setattr(inputs, "embeddings", with_zeros)
    sets, labels, _ = live_inputs(case)
    result = reference.evaluate(case)
    expected = oracle.loss(case, sets, labels, case["scale"], case["bias"])
    close(result["loss"], expected, result["loss_scale"])
    for gradient in result["gradients"].values():
        assert np.isfinite(gradient).all()
        assert not gradient[3].any()
        assert gradient[1, 3:].any() and gradient[0].all()


@pytest.mark.parametrize("name", CASES)
def test_sampled_rows_are_rows_of_the_whole(name: str) -> None:
    case = CASES[name]
    whole = reference.evaluate(case)
    total = case["rows"] * case["world_size"]
    sample = list(range(total - 1, -1, -2))
    with_scalars = reference.evaluate(case, sample)
    without = reference.evaluate(case, sample, scalars=False)
    for key in ("loss", "scale_gradient", "bias_gradient", "loss_scale", "scale_gradient_scale", "bias_gradient_scale"):
        assert without[key] is None
        if whole[key] is not None:
            close(with_scalars[key], whole[key], whole[key])
    for key, gradient in whole["gradients"].items():
        np.testing.assert_allclose(without["gradients"][key], gradient[sample], rtol=1e-12, atol=1e-18)
        np.testing.assert_allclose(with_scalars["gradients"][key], gradient[sample], rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("loss", ["one_set_sigmoid", "two_set_sigmoid", "info_nce"])
def test_blocks_do_not_change_the_result(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(loss, rows=11)
    whole = reference.evaluate(case)
    monkeypatch.setattr(reference, "_BLOCK_CELLS", 30)
    blocked = reference.evaluate(case)
    close(blocked["loss"], whole["loss"], whole["loss"])
    for key, gradient in whole["gradients"].items():
        np.testing.assert_allclose(blocked["gradients"][key], gradient, rtol=1e-11, atol=1e-15)


def test_one_set_is_the_sum_of_its_two_set_parts() -> None:
    """n L_one([A; T]) = AA + TT + 2 AT, and B L_two(A, T) = AT: the two losses check one another."""
    case = make_case("one_set_sigmoid", rows=6, self_pairs=True)
    sets, _, _ = live_inputs(make_case("two_set_sigmoid", rows=3))
    images, captions = sets
    both, labels = images + captions, [0, 1, 2, 0, 1, 2]
    arguments = (case["scale"], case["bias"])
    parts = [3 * oracle.loss({**case, "loss": "two_set_sigmoid"}, pair, [0, 1, 2], *arguments)
             for pair in ([images, images], [captions, captions], [images, captions])]  # fmt: skip
    close(6 * oracle.loss(case, [both], labels, *arguments), parts[0] + parts[1] + 2 * parts[2], 1.0)
    two = reference.evaluate(make_case("two_set_sigmoid", rows=3))
    close(3 * two["loss"], parts[2], 1.0)


def test_both_forms_agree_where_each_row_has_one_positive() -> None:
    first, second = (
        reference.evaluate(make_case("one_set_info_nce", rows=8, options={"form": form}))
        for form in ("nt_xent", "sup_con")
    )
    close(first["loss"], second["loss"], first["loss"])
    np.testing.assert_allclose(first["gradients"]["rows"], second["gradients"]["rows"], rtol=1e-10, atol=1e-15)


def test_a_dominating_positive_keeps_its_small_terms() -> None:
    """At scale 100 a loss of 1e-20 and its gradient are the terms themselves, not what subtraction leaves."""
    case = make_case("one_set_info_nce", rows=4, dims=512, prefixes=(512,), scale=100.0, options={"form": "sup_con"})
    sets, labels, _ = live_inputs(case)
    result = reference.evaluate(case)
    expected = 0.0
    for i in range(4):
        logits = [100.0 * oracle.cosine(sets[0][i], sets[0][j]) for j in range(4)]
        own = logits[i ^ 1]
        expected += sum(math.exp(logits[j] - own) for j in range(4) if labels[j] != labels[i]) / 4
    assert 0 < expected < 1e-10 and abs(result["loss"] / expected - 1) < 1e-9
    assert np.abs(result["gradients"]["rows"]).max() < 1e-10


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no loss"):
        reference.evaluate({"loss": "two_set_softmax"})
    with pytest.raises(ValueError, match=r"options.form is None; known: nt_xent, sup_con"):
        reference.evaluate({**make_case("info_nce"), "loss": "one_set_info_nce"})
    with pytest.raises(ValueError, match=r"0 \.\. 4"):
        reference.evaluate(make_case("one_set_sigmoid"), [5])
