"""The losses that metric_learning alone declares: their reference against loops, the package against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from baselines import metric_reference
from baselines.interface import World
from harness import inputs
from harness.cases import Case
from tests.baselines import driver, metric_oracle, oracle

LOSSES = ("contrastive", "multi_similarity", "triplet", "mined_triplet", "triplet_hard", "arcface", "proxy_anchor")
PROXIES = ("arcface", "proxy_anchor")
CLASSES = 5


def make_case(loss: str, **changes) -> dict:
    fields = {"rows": 8, "dims": 6, "prefixes": (4, 6), "labels": "fours", "options": {"classes": CLASSES}}
    return Case(system="reference", loss=f"one_set_{loss}", variant="x", **{**fields, **changes}).to_json()


def raw(case: dict) -> tuple[list, list, list[int]]:
    """Rows, proxies and labels as Python lists."""
    total = case["rows"] * case["world_size"]
    ((_, rows, labels),) = inputs.case_rows(case, 0, total)
    proxies = inputs.embeddings(case["seed"], 1, 0, np.arange(CLASSES), case["dims"])
    if case["loss"].removeprefix("one_set_") in PROXIES:
        labels = np.arange(total) % CLASSES
    return rows.astype(float).tolist(), proxies.astype(float).tolist(), labels.tolist()


@pytest.mark.parametrize(("rows", "world_size", "runs"), [(25, 1, False), (26, 1, True), (8, 3, False), (13, 2, True)])
def test_bf16_distances_of_few_rows_are_refused(rows: int, world_size: int, runs: bool) -> None:
    """What is not refused steps; what is refused would not."""
    pytest.importorskip("pytorch_metric_learning")
    adapter = driver.load("baselines.metric_learning:MetricLearning")
    for variant in ("contrastive_bf16", "triplet_bf16", "triplet_hard_bf16"):
        case = driver.make_case("metric_learning", variant, rows=rows, world_size=world_size)
        assert (adapter.unsupported(case) is None) == runs
        if world_size == 1:
            system = adapter(case, World())
            system.build()
            if runs:
                system.step()
            else:
                with pytest.raises(NotImplementedError, match="cdist"):
                    system.step()
    assert adapter.unsupported(driver.make_case("metric_learning", "multi_similarity_bf16", rows=7)) is None


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"labels": "mixed", "rows": 7, "world_size": 2, "prefix_weights": (0.3, 1.1)},
        {"labels": "distinct", "rows": 6},
    ],
    ids=["fours", "mixed", "distinct"],
)
def test_reference_equals_loops_and_numerical_derivatives(loss: str, changes: dict) -> None:
    case = make_case(loss, **changes)
    rows, proxies, labels = raw(case)
    result = metric_reference.evaluate(case)
    expected = metric_oracle.loss(case, rows, proxies, labels)
    assert result["loss"] == pytest.approx(expected, rel=1e-10, abs=1e-14)
    assert result["scale_gradient"] is None and result["bias_gradient"] is None
    checked = [(rows, result["gradients"]["rows"])]
    if loss in PROXIES:
        checked.append((proxies, result["proxies"]))
    for values, gradient in checked:
        numerical = np.zeros_like(gradient)
        for i in range(len(values)):
            for column in range(case["dims"]):
                centre = values[i][column]

                def shifted(value: float, row=values[i], column=column) -> float:
                    row[column] = value
                    return metric_oracle.loss(case, rows, proxies, labels)

                numerical[i, column] = oracle.derivative(shifted, centre, 1e-3)
                values[i][column] = centre
        np.testing.assert_allclose(gradient, numerical, rtol=0, atol=1e-6 * max(np.abs(numerical).max(), 1e-9) + 1e-12)


def test_the_pair_miner_leaves_out_near_positives_and_far_negatives() -> None:
    """At a prefix of one column rows are 0 or 2 apart, at two some positives nearer than 0.2: both margins count."""
    case = make_case("mined_triplet", rows=24, dims=3, prefixes=(1, 2, 3))
    rows, _, labels = raw(case)
    apart = {True: [], False: []}
    for prefix in case["prefixes"]:
        units = [metric_oracle.unit(row[:prefix]) for row in rows]
        for i in range(24):
            for j in range(i):
                apart[labels[i] == labels[j]].append(metric_oracle.distance(units[i], units[j]))
    assert min(apart[True]) < 0.2 < max(apart[True]) and min(apart[False]) < 1.4 < max(apart[False])
    mined = metric_reference.evaluate(case)["loss"]
    assert mined == pytest.approx(metric_oracle.loss(case, rows, [], labels), rel=1e-10)
    assert abs(mined - metric_reference.evaluate({**case, "loss": "one_set_triplet"})["loss"]) > 0.01


@pytest.mark.parametrize("loss", LOSSES)
def test_sampled_rows_and_blocks_do_not_change_the_reference(loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make_case(loss, rows=12)
    whole = metric_reference.evaluate(case)
    monkeypatch.setattr(metric_reference, "_BLOCK_CELLS", 30)
    sampled = metric_reference.evaluate(case, [11, 0, 5])
    assert sampled["loss"] == pytest.approx(whole["loss"], rel=1e-12)
    rows = whole["gradients"]["rows"]
    np.testing.assert_allclose(sampled["gradients"]["rows"], rows[[11, 0, 5]], rtol=1e-9, atol=1e-18)


def test_an_unknown_loss_is_refused() -> None:
    with pytest.raises(ValueError, match="no loss 'one_set_circle'; known: one_set_contrastive"):
        metric_reference.evaluate(make_case("circle"))


def test_proxies_get_their_gradients() -> None:
    """What a row's gate cannot see: the package's gradients of its own parameters."""
    pytest.importorskip("pytorch_metric_learning")
    for variant in PROXIES:
        case = driver.make_case("metric_learning", variant, prefixes=(96,), options={"classes": 40}, dtype="float32",
                                gradient_dtype="float32")  # fmt: skip
        system = driver.load("baselines.metric_learning:MetricLearning")(case, World())
        system.build()
        system.step()
        system.step()
        (proxies,) = system.proxies
        gradient = proxies.grad.numpy() if proxies.shape == (40, 96) else proxies.grad.numpy().T
        expected = metric_reference.evaluate(case)["proxies"]
        assert np.linalg.norm(gradient - expected) < 1e-5 * np.linalg.norm(expected), variant


@pytest.mark.parametrize(("variant", "least"), [("nt_xent_bf16", 0.01), ("sup_con_bf16", 0.02)])
def test_bf16_logits_at_the_page_s_temperature_are_off_by_rounding(variant: str, least: float) -> None:
    """State clip, where these rows are `wrong` as expected: their errors are about the gate's limits, and no larger."""
    pytest.importorskip("pytorch_metric_learning")
    shape = {"rows": 32, "dims": 128, "prefixes": (128,), "labels": "fours"}
    case = driver.make_case("metric_learning", variant, state="clip", scale=1 / 0.07, **shape)
    system = driver.load("baselines.metric_learning:MetricLearning")(case, World())
    system.build()
    system.step()
    found = driver.errors(case, [system.outputs()])
    assert least < found["gradients"] < 0.1 and found["loss"] < 0.02, found


@pytest.mark.parametrize(("rows", "least", "most"), [(512, 0.0, 0.015), (2048, 0.02, 0.03)])
def test_bf16_sums_over_rows_of_proxy_anchor_are_off_more_the_more_rows(rows: int, least: float, most: float) -> None:
    """Within the gate at the smaller batch of the page, past it at the larger one, where `wrong` is expected."""
    pytest.importorskip("pytorch_metric_learning")
    assert driver.registry()["metric_learning"]["variants"]["proxy_anchor_bf16"]["expected_from_rows"] == 2048
    shape = {"rows": rows, "dims": 128, "prefixes": (128,), "labels": "fours"}
    case = driver.make_case("metric_learning", "proxy_anchor_bf16", state="clip", scale=1 / 0.07, **shape)
    system = driver.load("baselines.metric_learning:MetricLearning")(case, World())
    system.build()
    system.step()
    found = driver.errors(case, [system.outputs()])
    assert least < found["gradients"] < most and found["loss"] < driver.LIMITS["loss"], found


@pytest.mark.parametrize("world_size", [1, 2])
def test_ragged_groups_and_sizes(world_size: int) -> None:
    """Groups that straddle ranks, of 1 to 8 rows, at a number of rows that nothing divides."""
    pytest.importorskip("pytorch_metric_learning")
    shape = {"world_size": world_size, "rows": 37, "labels": "mixed", "dtype": "float32", "gradient_dtype": "float32"}
    variants = ("nt_xent", "sup_con", *LOSSES)
    options = {name: {"classes": 11} if name in PROXIES else {} for name in variants}
    cases = [driver.make_case("metric_learning", name, options=options[name], **shape) for name in variants]
    for case, outputs in zip(cases, driver.run_ranks(cases), strict=True):
        driver.within(case, outputs, loss=1e-5, gradients=1e-4)
