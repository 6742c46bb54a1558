"""Loss, dt, db and gradients of the native binary against the float64 oracle, through the worker contract."""

import itertools
import json

import numpy as np
import pytest

from tests.kernels import oracle
from tests.kernels.binary import SET_NAMES, base_case, batch, check, checked, events_of, flags, live_inputs, run

LADDER = [64, 128, 256, 512, 1024]
STATES = [(10.0, -10.0), (5.0, -1.0), (100.0, -10.0)]
LOSSES = ["one_set_sigmoid", "two_set_sigmoid", "info_nce"]


@pytest.fixture(scope="module")
def engines():
    """CPU engines that this machine runs."""
    usable = json.loads(run("--capabilities").stdout)["engines_usable"]
    return [name for name in usable if name.startswith("cpu-")]


def compare(event, case, gradient_tolerance):
    """Holds one check event to the oracle: loss 1e-5, dt and db 1e-4 of the sums of absolute terms, dX per band."""
    keep, sets, labels = live_inputs(case)
    want = oracle.evaluate(case, sets, labels)
    assert event["loss_value"] == pytest.approx(want["loss"], rel=1e-5, abs=1e-9)
    assert abs(event["scale_gradient"] - want["dt"]) <= 1e-4 * want["dt_terms"] + 1e-9
    if case["loss"].endswith("info_nce"):
        assert event["bias_gradient"] is None
    else:
        assert abs(event["bias_gradient"] - want["db"]) <= 1e-4 * want["db_terms"] + 1e-9
    assert event["rows"] == list(range(case["rows"] * case["world_size"]))
    dead = np.setdiff1d(event["rows"], keep)
    for name, gradient in zip(SET_NAMES[len(sets)], want["gradients"], strict=True):
        got = event["arrays"][name]
        assert got.dtype == np.float32 and got.shape == (case["rows"] * case["world_size"], case["dims"])
        assert not np.any(got[dead])
        assert oracle.worst_band_error(got[keep], gradient, case["prefixes"]) <= gradient_tolerance


@pytest.mark.parametrize("scale, bias", STATES)
@pytest.mark.parametrize("loss", LOSSES)
def test_the_ladder_of_the_benchmark(tmp_path, engines, loss, scale, bias):
    for engine in engines:
        case = base_case(loss=loss, rows=129, dims=1024, prefixes=LADDER, scale=scale, bias=bias)
        # bf16 weights round at 2^-9; engines that widen to fp32 keep fp32 logits' error, scale * 2^-24, and sums'
        compare(check(tmp_path, case, "--engine", engine), case, 2e-3 if engine.endswith("bf16") else 5e-5)
        case["gradient_dtype"] = "bfloat16"
        compare(check(tmp_path, case, "--engine", engine), case, 3e-3)


@pytest.mark.parametrize("labels", ["pairs", "distinct", "equal", "mixed"])
@pytest.mark.parametrize("self_pairs", [False, True])
def test_label_layouts(tmp_path, labels, self_pairs):
    case = base_case(rows=150, labels=labels, self_pairs=self_pairs, scale=5.0, bias=-1.0, prefixes=[64, 128])
    compare(check(tmp_path, case), case, 2e-3)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("world_size, live", [(1, None), (2, None), (3, [40, 0, 17]), (5, None), (8, [40] * 7 + [1])])
def test_devices_and_ragged_batches(tmp_path, loss, world_size, live):
    case = base_case(
        loss=loss, rows=40, world_size=world_size, live=live, prefixes=[32, 100], prefix_weights=[0.3, 1.1]
    )
    compare(check(tmp_path, case), case, 2e-3)


ODD = [(1, None), (7, None), (7, "ragged"), (33, "ragged")]


def test_few_and_odd_rows_a_device(tmp_path, engines):
    """Every loss with 1, 7 and 33 rows on each of 2, 3 and 4 devices; ragged: one device empty or down to one row."""
    cases = {}
    every = itertools.product(engines, [*LOSSES, "nt_xent", "sup_con"], [2, 3, 4], ODD)
    for engine, loss, world_size, (rows, live) in every:
        form = {} if loss in LOSSES else {"form": loss}
        live = [rows, 1, 0, rows - 2][:world_size] if live else None
        shape = {"rows": rows, "world_size": world_size, "live": live, "labels": "mixed", "scale": 5.0, "bias": -1.0}
        case = base_case(loss="one_set_info_nce" if form else loss, **shape) | form
        cases[f"{engine}-{loss}-{world_size}-{rows}-{len(live or [])}"] = (case, "--engine", engine)
    batch(tmp_path, cases)
    for name, (case, _, engine) in cases.items():
        # among so few rows little averages the rounding of bf16 weights out, 2^-9 each
        compare(checked(tmp_path / name), case, 5e-3 if engine.endswith("bf16") else 5e-5)


@pytest.mark.parametrize("form", ["nt_xent", "sup_con"])
@pytest.mark.parametrize("labels", ["pairs", "distinct", "equal", "mixed"])
def test_one_set_info_nce(tmp_path, engines, form, labels):
    """Both forms, as variants of the registry pass them, on every layout of labels, at every scale."""
    for engine in engines:
        for number, (scale, bias) in enumerate(STATES):
            prefixes = [[64], [64, 128], [32, 64, 96, 112, 128]][number]
            case = base_case(
                loss="one_set_info_nce", rows=150 - number, labels=labels, scale=scale, bias=bias, prefixes=prefixes
            ) | {"options": f"form={form},engine={engine}"}
            # at t = 100 the projection off the row takes more of a bf16 weight than of its rounding, most where all
            # rows lie close together (docs/one_set_info_nce.md)
            share = 1 if scale < 50 else 1.5 if labels == "equal" else 1.05
            compare(check(tmp_path, case), case | {"form": form}, share * 2e-3 if engine.endswith("bf16") else 5e-5)
    case = base_case(loss="one_set_info_nce", form=form, labels=labels, rows=40, world_size=3, live=[40, 0, 17])
    compare(check(tmp_path, case), case, 2e-3)


def test_sampled_rows_are_those_of_the_whole(tmp_path):
    case = base_case(loss="two_set_sigmoid", rows=30, world_size=2)
    whole = check(tmp_path, case)
    some = check(tmp_path, case, check_flag="name=some,sample_rows=59:0:31")
    assert some["rows"] == [59, 0, 31]
    for name in ("images", "captions"):
        np.testing.assert_array_equal(some["arrays"][name], whole["arrays"][name][[59, 0, 31]])


@pytest.mark.parametrize("loss", [*LOSSES, "one_set_info_nce"])
def test_forward_only(tmp_path, engines, loss):
    """The same loss, no gradients, no dt and db; asked for by flag and by a variant's option."""
    for engine in engines:
        case = base_case(loss=loss, rows=150, world_size=2, live=[150, 40], scale=5.0, bias=-1.0)
        _, sets, labels = live_inputs(case)
        want = oracle.evaluate(case | {"form": "nt_xent"}, sets, labels)["loss"]
        for words in (["--forward-only", "true"], ["--options", "forward_only=true"]):
            event = check(tmp_path, case, "--engine", engine, *words)
            assert event["loss_value"] == pytest.approx(want, rel=1e-5)
            assert event["scale_gradient"] is None and event["bias_gradient"] is None
            assert event["gradients"] == {} and not event["arrays"]


def test_profile(tmp_path):
    """Whole step, forward and backward and the stages: as an event, and for people."""
    case = base_case(rows=200)
    assert run("--folder", tmp_path, *flags(case), "--actions", "profile").returncode == 0
    (event,) = [event for event in events_of(tmp_path) if event["event"] == "profile"]
    assert 0 < event["forward_seconds"] and 0 < event["step_seconds"]
    assert event["backward_seconds"] == pytest.approx(event["step_seconds"] - event["forward_seconds"])
    assert list(event["stages"]) == ["norms", "scores and gradients", "rounding and scalars"]
    assert all(seconds > 0 for seconds in event["stages"].values())
    text = run("--profile", *flags(case))
    assert text.returncode == 0
    for word in ("step", "forward", "backward", *event["stages"]):
        assert word in text.stdout


def test_profile_of_steps_that_are_queued_takes_few_of_them():
    """A GPU's step returns at once, so that the clock says nothing of it before it is waited for."""
    text = run("--profile", "--system", "sleep", "--options", "sleep_seconds=0.05,queued=1")
    assert text.returncode == 0
    assert "db 28" in text.stdout, text.stdout  # the sleeper's db counts: the first, 2 to warm up, then 5 blocks of 5
