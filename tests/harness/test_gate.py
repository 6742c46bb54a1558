"""The gate against answers made here, not by the reference: each output is caught on its own."""

import dataclasses
import json

import numpy as np
import pytest

from harness import gate
from harness.cases import Case, ConfigurationError
from harness.events import Events

CASE = Case("s", "one_set_sigmoid", "v", rows=4, dims=8, prefixes=(2, 6), world_size=2)
ROWS = 8
RNG = np.random.default_rng(1)
GRADIENT = RNG.normal(size=(ROWS, 8))
GRADIENT[:, 6:] = 0.0  # past the last prefix
ANSWER = {
    "loss": 4.0,
    "scale_gradient": 0.5,
    "bias_gradient": -0.25,
    "loss_scale": 4.0,
    "scale_gradient_scale": 10.0,
    "bias_gradient_scale": 5.0,
    "gradients": {"rows": GRADIENT},
}
CHECK = {"name": "own", "sample_rows": None}


def written(folder, gradient=GRADIENT, rows=range(ROWS), name="own", **scalars):
    """What two ranks would have written; `scalars` may be a pair, one value per rank."""
    values = {"loss_value": 4.0, "scale_gradient": 0.5, "bias_gradient": -0.25} | scalars
    rows = list(rows)
    for rank in (0, 1):
        part = slice(None, len(rows) // 2) if rank == 0 else slice(len(rows) // 2, None)
        np.save(folder / f"{name}.{rank}.npy", gradient[part].astype(np.float32))
        mine = {key: value[rank] if isinstance(value, tuple) else value for key, value in values.items()}
        event = {
            "event": "check",
            "name": name,
            "rows": rows[part],
            "gradients": {"rows": f"{name}.{rank}.npy"},
            **mine,
        }
        (folder / f"events.{rank}.jsonl").write_text(json.dumps(event) + "\n")
    return Events.read(folder)


def errors(events, check=CHECK, answer=ANSWER):
    return gate.compare(answer, events, check, CASE.to_json())


def test_right_answers_have_no_error(tmp_path):
    found, problem = errors(written(tmp_path))
    assert problem == ""
    assert found["loss"] == found["scale_gradient"] == found["bias_gradient"] == 0.0
    assert found["embedding_gradient"] < 1e-7  # float32 files


def test_forward_only_is_held_to_the_loss_alone(tmp_path):
    event = {"event": "check", "name": "own", "rows": [], "gradients": {}, "loss_value": 4.4, "scale_gradient": None}
    (tmp_path / "events.0.jsonl").write_text(json.dumps(event) + "\n")
    case = CASE.to_json() | {"options": {"forward_only": True}}
    found, problem = gate.compare(ANSWER, Events.read(tmp_path), CHECK, case)
    assert problem == ""
    assert found.pop("loss") == pytest.approx(0.1)
    assert set(found.values()) == {None}


def test_each_scalar_is_measured_in_its_own_unit(tmp_path):
    found, _ = errors(written(tmp_path, loss_value=4.4, scale_gradient=0.7, bias_gradient=0.25))
    assert found["loss"] == pytest.approx(0.1)
    assert found["scale_gradient"] == pytest.approx(0.2 / 10)
    assert found["bias_gradient"] == pytest.approx(0.5 / 5)
    assert found["embedding_gradient"] < 1e-7


def test_every_rank_must_report_the_same_scalars(tmp_path):
    found, _ = errors(written(tmp_path, loss_value=(4.0, 4.4)))
    assert found["loss"] == pytest.approx(0.1)


def test_the_worst_band_counts(tmp_path):
    off = GRADIENT.copy()
    off[:, 2:6] *= 1.03
    found, _ = errors(written(tmp_path, off))
    assert found["embedding_gradient"] == pytest.approx(0.03, rel=1e-3)
    whole = np.linalg.norm(off - GRADIENT) / np.linalg.norm(GRADIENT)
    assert whole < 0.029, "the plain norm would have hidden part of it"


def test_anything_past_the_last_prefix_is_an_error(tmp_path):
    off = GRADIENT.copy()
    off[3, 7] = 1e-6
    assert errors(written(tmp_path, off))[0]["embedding_gradient"] == float("inf")


def test_a_dropped_row_is_caught(tmp_path):
    off = GRADIENT.copy()
    off[5] = 0.0
    assert errors(written(tmp_path, off))[0]["embedding_gradient"] > 0.1


def test_rows_are_matched_by_number_not_by_place(tmp_path):
    order = RNG.permutation(ROWS)
    found, problem = errors(written(tmp_path, GRADIENT[order], order.tolist()))
    assert problem == "" and found["embedding_gradient"] < 1e-7
    wanted = [6, 1, 3]
    check = {"name": "own", "sample_rows": wanted}
    answer = ANSWER | {"gradients": {"rows": GRADIENT[wanted]}}
    found, problem = errors(written(tmp_path, GRADIENT[[1, 3, 6]], [1, 3, 6]), check, answer)
    assert problem == "" and found["embedding_gradient"] < 1e-7


@pytest.mark.parametrize("rows", [range(7), [0, 1, 2, 3, 4, 5, 6, 6], [*range(8), 8]])
def test_rows_that_are_missing_or_repeated_are_a_problem(tmp_path, rows):
    rows = list(rows)
    _, problem = errors(written(tmp_path, np.zeros((len(rows), 8)), rows))
    assert "rows" in problem


def test_missing_outputs_are_named(tmp_path):
    assert errors(written(tmp_path, bias_gradient=None))[1] == "bias_gradient is missing"
    two_sets = ANSWER | {"gradients": {"images": GRADIENT, "captions": GRADIENT}}
    assert errors(written(tmp_path), answer=two_sets)[1] == "the gradient of images is missing"
    assert errors(written(tmp_path, name="other"))[1] == "loss is missing"
    narrow = written(tmp_path, GRADIENT[:, :4])
    assert "shape" in errors(narrow)[1]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_values_are_called_so(tmp_path, value):
    assert errors(written(tmp_path, loss_value=value))[1] == gate.NONFINITE
    off = GRADIENT.copy()
    off[0, 0] = value
    assert errors(written(tmp_path, off))[1] == gate.NONFINITE


def test_a_loss_without_bias_and_checks_without_scalars_leave_cells_empty(tmp_path):
    none = dict.fromkeys(("loss", "scale_gradient", "bias_gradient"))
    found, problem = errors(written(tmp_path, loss_value=99.0), answer=ANSWER | none)
    assert problem == ""
    assert [found[name] for name in gate.OUTPUTS] == [None, found["embedding_gradient"], None, None]


@pytest.mark.parametrize(
    ("scalars", "output"),
    [
        ({"loss_value": 4.1}, "loss"),
        ({"scale_gradient": 0.6}, "scale_gradient"),
        ({"bias_gradient": 0.0}, "bias_gradient"),
    ],
)
def test_the_verdict_names_the_output_and_keeps_the_worst(tmp_path, scalars, output):
    judge = gate.Gate("unused:unused")
    judge._answer = lambda case, rows, scalars, reference: ANSWER
    verdict = judge.judge(CASE, "single", [CHECK], written(tmp_path, **scalars))
    assert verdict.failure.startswith(f"{output} off by ")
    assert "in check own" in verdict.failure
    assert verdict.loss_value == scalars.get("loss_value", 4.0)
    assert judge.judge(CASE, "single", [CHECK], written(tmp_path)).failure == ""


def test_with_few_rows_in_all_a_failure_says_what_rounding_may_do(tmp_path):
    judge = gate.Gate("unused:unused")
    judge._answer = lambda case, rows, scalars, reference: ANSWER
    events = written(tmp_path, loss_value=4.1)
    for changes, words in (
        ({}, "with 8 rows in all"),
        ({"dtype": "float32", "gradient_dtype": "float32"}, ""),
        ({"world_size": 4}, ""),
    ):
        case = dataclasses.replace(CASE, **changes)
        failure = judge.judge(case, "torchrun", [CHECK], events).failure
        assert failure and ("rows in all" in failure) == bool(words) and words in failure


def test_native_code_is_held_tighter_than_its_peers():
    for dtype in ("bfloat16", "float32"):
        case = Case("s", "one_set_sigmoid", "v", rows=4, gradient_dtype=dtype)
        native, peer = gate.tolerances(case, "native"), gate.tolerances(case, "torchrun")
        assert set(native) == set(peer) == set(gate.OUTPUTS)
        assert all(native[output][0] <= peer[output][0] for output in gate.OUTPUTS)
    bf16 = gate.tolerances(Case("s", "one_set_sigmoid", "v", rows=4), "native")
    assert [bf16[output][0] for output in gate.OUTPUTS] == [1e-5, 3e-3, 1e-4, 1e-4]
    peers = gate.tolerances(Case("s", "one_set_sigmoid", "v", rows=4), "single")
    assert [peers[output][0] for output in gate.OUTPUTS] == [5e-3, 2e-2, 2e-3, 2e-3]
    assert all(reason for table in gate.TOLERANCES.values() for _, reason in table.values())


def test_gradients_that_cancel_are_judged_by_their_terms():
    """info_nce at scale 100: a prefix's gradient may be 1e-12 of the terms it is the difference of."""
    case = {
        "loss": "info_nce",
        "scale": 100.0,
        "rows": 50,
        "world_size": 2,
        "prefixes": [4, 16],
        "prefix_weights": None,
    }
    term_4, term_16 = (100 * 0.5 / 100 / (gate.INPUT_DEVIATION * p**0.5) for p in (4, 16))  # of one row's prefix
    narrow, wide = gate.cancellation_units(case, rows=9)
    assert narrow == pytest.approx(1e-4 * 3 * (term_4 + term_16 * (4 / 16) ** 0.5))
    assert wide == pytest.approx(1e-4 * 3 * term_16 * (12 / 16) ** 0.5)
    reference = np.zeros((9, 16))
    reference[:, :4] = 1.0
    reference[:, 4:] = 1e-15
    noisy = reference.copy()
    noisy[0, 5] += 1e-3 * wide
    assert gate.band_error(noisy, reference, [4, 16]) > 1e3
    assert gate.band_error(noisy, reference, [4, 16], [narrow, wide]) == pytest.approx(1e-3)
    assert gate.band_error(-reference, reference, [4, 16], [narrow, wide]) == 2.0, "what does not cancel is caught"
    assert gate.cancellation_units(case | {"loss": "two_set_sigmoid"}, 9) == [0.0, 0.0]


def test_the_three_checks_of_a_case():
    case = Case("s", "one_set_sigmoid", "v", rows=1000, world_size=2)
    (small, negatives, own), notes = gate.checks_of(case)
    assert small == {"name": "small", "rows": 64, "sample_rows": None}
    assert negatives == {"name": "negatives", "rows": 64, "scale": 5.0, "bias": -1.0, "sample_rows": None}
    assert set(own) == {"name", "sample_rows"} and 60 <= len(own["sample_rows"]) <= 64
    assert notes == []


def test_what_the_reference_cannot_afford_is_said():
    big = Case("s", "two_set_sigmoid", "v", rows=65536)
    (_, _, own), notes = gate.checks_of(big)
    assert "rows" not in own and "loss, dt, db not checked" in notes[0]
    for loss, options in (("info_nce", {}), ("one_set_info_nce", {"form": "sup_con"})):
        (_, _, own), notes = gate.checks_of(Case("s", loss, "v", rows=16384, world_size=8, options=options))
        n = own["rows"] * 8
        assert n * n * 1984 <= gate.AFFORDABLE_PRODUCTS < 4 * n * n * 1984
        assert f"R={own['rows']}" in notes[0] and f"needs {loss}'s whole grid" in notes[0]
        assert max(own["sample_rows"]) < n


def test_rows_that_the_reference_would_take_minutes_to_make_are_checked_at_fewer():
    """4,194,304 rows of 768 elements; of 2^28 elements in all 262,144 rows are the most that halving reaches."""
    case = Case("s", "two_set_sigmoid", "v", rows=1 << 22, dims=768, prefixes=(768,))
    (_, _, own), notes = gate.checks_of(case)
    assert (own["rows"], len(own["sample_rows"]), own["sample_rows"][-1]) == (262144, 64, 262143)
    assert notes == ["own: checked at R=262144, dX alone, because the reference makes all rows"]
    (_, _, own), notes = gate.checks_of(Case("s", "two_set_sigmoid", "v", rows=262144))
    assert "rows" not in own and own["sample_rows"][-1] == 262143


def test_ragged_cases_get_ragged_checks():
    case = Case("s", "one_set_sigmoid", "v", rows=100, live=(100, 30), world_size=2)
    (small, _, own), _ = gate.checks_of(case)
    assert small["live"] == [64, 30]
    assert {0, 99, 100, 129, 130} <= set(own["sample_rows"]), "ends of live rows, and a dead row that must get zeros"


def test_samples_spread_over_ranks_and_ends():
    rows = gate.sample_rows(1024, 4, None)
    assert rows == sorted(set(rows)) and len(rows) == 64
    for rank in range(4):
        mine = [row - 1024 * rank for row in rows if row // 1024 == rank]
        assert len(mine) == 16 and mine[0] == 0 and mine[-1] == 1023
    assert gate.sample_rows(1, 1, None) == [0]
    assert gate.sample_rows(4, 2, [0, 2]) == [0, 4, 5, 6]


def test_the_two_forms_have_answers_of_their_own() -> None:
    asked = []
    judge = gate.Gate("baselines.reference:evaluate")
    for form in ("nt_xent", "sup_con"):
        case = Case("s", "one_set_info_nce", "v", rows=38, labels="mixed", options={"form": form}).to_json()
        asked.append(judge._answer(case, None, True, "baselines.reference:evaluate")["loss"])
    assert abs(asked[0] - asked[1]) > 1e-3
    with pytest.raises(ConfigurationError, match="s:v has no form; give its options form: nt_xent or sup_con"):
        Case("s", "one_set_info_nce", "v", rows=38)


def test_a_declared_loss_is_judged_by_its_own_reference(tmp_path, monkeypatch) -> None:
    """By the function that the system's YAML names, with its options, and without the scalars the system leaves out."""
    asked = []

    def evaluate(case, rows, scalars):
        asked.append(case["options"])
        return {"loss": 2.0, "scale_gradient": 1.0, "scale_gradient_scale": 1.0, "bias_gradient": None,
                "bias_gradient_scale": None, "gradients": {}}  # fmt: skip

    monkeypatch.setattr(gate, "evaluate", evaluate, raising=False)
    start = {"event": "start", "declares": {"scalars": []}}
    values = {"loss_value": 2.5, "scale_gradient": None, "bias_gradient": None}
    events = Events(tmp_path, {0: [start, {"event": "check", "name": "own", "gradients": {}, "rows": [], **values}]})
    judge = gate.Gate("baselines.reference:evaluate")
    for classes in (3, 4):
        case = Case("s", "one_set_arcface", "v", rows=8, options={"classes": classes})
        verdict = judge.judge(case, "torchrun", [CHECK], events, "harness.gate:evaluate")
        assert verdict.errors["loss"] == 0.25 and verdict.errors["scale_gradient"] is None
        assert verdict.failure.startswith("loss off by 0.25")
    assert asked == [{"classes": 3}, {"classes": 4}]


def test_a_variant_may_limit_the_rows_of_its_own_check() -> None:
    """For a reference that visits more cells than the case has; the small check stays small."""
    case = Case("s", "two_set_rank_info_nce", "v", rows=1024, options={"check_rows": 256})
    checks, notes = gate.checks_of(case)
    assert [check.get("rows") for check in checks] == [64, 64, 256]
    assert max(checks[-1]["sample_rows"]) < 256 and "checked at R=256" in notes[0]
    whole, _ = gate.checks_of(Case("s", "two_set_rank_info_nce", "v", rows=1024))
    assert "rows" not in whole[-1]
