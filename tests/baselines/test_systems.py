"""Every system of the registry, through its YAML, on 1 to 4 CPU ranks against the float64 reference."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from baselines import reference
from baselines.interface import Outputs, Unsupported, World
from tests.baselines import driver

STATES = {"init": {"scale": 10.0, "bias": -10.0}, "negatives": {"scale": 5.0, "bias": -1.0}}
TRAINED = {"scale": 100.0, "bias": -10.0}
# Float32 throughout (where a system has no such option, nothing reads it), and how close it must come.
FLOAT32 = {"dtype": "float32", "gradient_dtype": "float32", "options": {"precision": "fp32"}}
CLOSE = {"loss": 1e-5, "gradients": 1e-4, "scale_gradient": 1e-5, "bias_gradient": 1e-5}
# What is wrong of variants that are `wrong` as expected: the least and the largest error. Other outputs are right.
_BF16_DISTANCES = {"gradients": (0.02, 0.4)}
_MICRO_BATCHES = {"loss": (0.3, 1.0), "gradients": (0.2, 1.0), "scale_gradient": (0.05, 1.0)}
WRONG = {
    "clip_local_no_gather_grad": {"gradients": (0.4, 0.8)},
    "naive_4": _MICRO_BATCHES,
    "naive_16": _MICRO_BATCHES,
    "contrastive_bf16": _BF16_DISTANCES,
    # Their loss is near the gate's limit, on either side of it.
    "triplet_bf16": _BF16_DISTANCES | {"loss": (0.0, 0.05)},
    "triplet_hard_bf16": _BF16_DISTANCES | {"loss": (0.0, 0.05)},
}
REGISTRY = driver.registry()
# Systems that run on CPU and are checked, by the way they are launched.
CHECKED = [name for name, data in REGISTRY.items() if "cpu" in data["devices"]]


def missing(name: str) -> list[str]:
    return [package for package in REGISTRY[name]["requires"] if importlib.util.find_spec(package) is None]


def needs(name: str) -> None:
    if missing(name):
        pytest.skip(f"{missing(name)[0]} is not installed")


def load(name: str) -> type:
    return driver.load(REGISTRY[name]["target"])


def quick_variants(name: str, world_size: int) -> list[str]:
    """Variants that run on CPU and start in no time; compiled ones have a test of their own."""
    return [
        variant
        for variant, data in REGISTRY[name]["variants"].items()
        if world_size in (data["world_sizes"] or [world_size])
        and not data["options"].get("compile")
        and data["options"].get("classes", 0) < 10000  # the same loss with more proxies: seconds a case
        and not data["options"].get("plays_rank_of")  # test_rank_reference.py
        and not load(name).unsupported(driver.make_case(name, variant, world_size=world_size))
    ]


def single(case: dict) -> Outputs:
    """One step in this process."""
    system = driver.load(REGISTRY[case["system"]]["target"])(case, World())
    system.build()
    system.step()
    system.synchronize()
    return system.outputs()


def expects_ok(name: str, variant: str) -> bool:
    """Whether a variant is to pass its gate with few rows in state init: what these tests' settings are closest to."""
    data = REGISTRY[name]["variants"][variant]
    given = data["expected_status"]
    return "expected_from_rows" in data or (given.get("init", "ok") if isinstance(given, dict) else given) == "ok"


def check_expectation(case: dict, outputs: list[Outputs], **limits: float) -> None:
    """What is expected to be wrong is wrong in the outputs that WRONG says, and right in the others."""
    if expects_ok(case["system"], case["variant"]):
        driver.within(case, outputs, **limits)
        return
    found, allowed = driver.errors(case, outputs), driver.LIMITS | limits
    wrong = WRONG.get(case["variant"])
    if wrong is None:
        assert any(found[name] > allowed[name] for name in found), (case["variant"], found)
        return
    for name, error in found.items():
        least, most = wrong.get(name, (0.0, allowed[name]))
        assert least <= error <= most, (case["variant"], name, found)


def reference_cases(name: str, world_size: int) -> list[dict]:
    """On 4 ranks under torchrun in state init alone: their strided cases are of the other one."""
    crowded = world_size == 4 and REGISTRY[name]["launcher"] == "torchrun"
    states = [STATES["init"]] if crowded else list(STATES.values())
    return [
        driver.make_case(name, variant, world_size=world_size, rows=32, **state)
        for variant in quick_variants(name, world_size)
        for state in (*states, *([TRAINED] if world_size == 2 else []))
        if not (state is TRAINED and REGISTRY[name]["variants"][variant]["loss"].endswith("info_nce"))
    ]


def strided_cases(name: str, world_size: int) -> list[dict]:
    """Both layouts, as far as `odd_cases` and `few_rows_cases` do not bring them; three rows a micro-batch."""
    if REGISTRY[name]["launcher"] != "torchrun":
        return []
    cases = []
    for variant in quick_variants(name, world_size):
        options = REGISTRY[name]["variants"][variant]["options"]
        pieces = options.get("accumulation", 1)
        elsewhere = {3: ("transposed", "sliced"), 4: ("sliced",)}.get(world_size, ())
        if pieces > 1 or options.get("precision") == "bf16":  # of even sizes alone
            elsewhere = ()
        # 32 rows: up to 25, torch.cdist takes a path that has no bf16
        shape = {"rows": 32} if pieces == 1 else {"rows": 3 * pieces, "prefixes": (48, 96)}
        case = driver.make_case(name, variant, world_size=world_size, **shape, **STATES["negatives"])
        layouts = [layout for layout in ("transposed", "sliced") if layout not in elsewhere]
        cases += [{**case, "test_layout": layout} for layout in layouts]
    return cases


def odd_cases(name: str, world_size: int) -> list[dict]:
    """On 3 ranks with transposed rows as well, so that strides are seen at every number of ranks."""
    if world_size not in (1, 3):
        return []
    layout = {"test_layout": "transposed"} if world_size == 3 and REGISTRY[name]["launcher"] == "torchrun" else {}
    shape = {"world_size": world_size, "rows": 37, "dims": 96, "prefixes": (16, 80, 96), **STATES["negatives"]}
    cases = [driver.make_case(name, variant, **shape) for variant in quick_variants(name, world_size)]
    # All-bf16 variants do not claim it: 1/rows is then a bf16 number as well (configs/system/open_clip.yaml).
    cases = [case for case in cases if case["options"].get("precision") != "bf16"]
    return [case | layout for case in cases if not load(name).unsupported(case)]


def few_rows_cases(name: str, world_size: int) -> list[dict]:
    """1, 7 and 33 rows a rank, cut out of larger tensors, in float32: one process and the ranks then agree closely.

    Left out: bf16 twins of a variant, and all sizes but one of what JAX compiles for each shape.
    """
    torchrun = REGISTRY[name]["launcher"] == "torchrun"
    sizes = {1: (), 2: (1, 7, 33), 3: (1, 7), 4: (33,)} if torchrun else {1: (), 2: (1,), 3: (7,), 4: (33,)}
    cases = [
        driver.make_case(name, variant, world_size=world_size, rows=rows, **FLOAT32, **STATES["negatives"])
        | ({"test_layout": "sliced"} if torchrun and rows > 1 else {})
        for variant in quick_variants(name, world_size)
        if REGISTRY[name]["variants"][variant]["options"].get("precision") != "bf16"
        for rows in sizes[world_size]
    ]
    return [case for case in cases if not load(name).unsupported(case)]


MAKERS = (reference_cases, strided_cases, odd_cases, few_rows_cases)


@cache
def outcomes(launcher: str, world_size: int) -> dict[str, list[tuple[dict, list[Outputs]]]]:
    """All cases of all systems of a launcher that are here, run in one start of the ranks.

    By what makes the cases and by system: each case with the ranks' outputs, or what they raised.
    """
    cases = [
        (f"{make.__name__} {name}", case)
        for name in CHECKED
        if REGISTRY[name]["launcher"] == launcher and not missing(name)
        for make in MAKERS
        for case in make(name, world_size)
    ]
    found: dict[str, list[tuple[dict, list[Outputs]]]] = {}
    results = driver.run_ranks([case for _, case in cases], timeout=900, keep_errors=True)
    for (key, case), outputs in zip(cases, results, strict=True):
        found.setdefault(key, []).append((case, outputs))
    return found


def outcomes_of(make: Callable[[str, int], list[dict]], name: str, world_size: int) -> list[tuple[dict, list[Outputs]]]:
    needs(name)
    found = outcomes(REGISTRY[name]["launcher"], world_size).get(f"{make.__name__} {name}", [])
    for case, outputs in found:
        for output in outputs:
            assert not isinstance(output, str), f"{case['variant']} {case.get('test_layout', '')}: {output}"
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CHECKED)
def test_ranks_equal_the_reference(name: str, world_size: int) -> None:
    for case, outputs in outcomes_of(reference_cases, name, world_size):
        check_expectation(case, outputs)
        memory = outputs[0].extra["memory"]
        sets = len(outputs[0].gradients)
        labels = 4 * 32 if sets == 1 else 0
        assert memory["input_bytes"] == sets * 32 * 96 * 2 + labels and memory["gradient_bytes"] == sets * 32 * 96 * 2
        assert outputs[0].extra["versions"] and outputs[0].extra["device_name"]
        assert {out.loss for out in outputs} == {outputs[0].loss}


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("name", CHECKED)
def test_compiled_variants_equal_the_reference(name: str, world_size: int) -> None:
    variants = [
        variant
        for variant, data in REGISTRY[name]["variants"].items()
        if data["options"].get("compile") and world_size in (data["world_sizes"] or [world_size])
    ]
    if not variants:
        pytest.skip("nothing compiled")
    needs(name)
    shape = {"world_size": world_size, "rows": 16, "prefixes": (32, 96)}
    # One state: another one is other numbers in the same program.
    cases = [driver.make_case(name, variant, **shape, **STATES["negatives"]) for variant in variants]
    try:
        results = driver.run_ranks(cases, timeout=500)
    except AssertionError as problem:
        if "Unsupported: torch.compile does not work here" in str(problem):
            pytest.skip("no working compiler")
        raise
    for case, outputs in zip(cases, results, strict=True):
        check_expectation(case, outputs)


@pytest.mark.parametrize("name", CHECKED)
def test_float32_inputs_and_gradients_are_close(name: str) -> None:
    """In float32 a wrong factor, weight or mask has nowhere to hide."""
    needs(name)
    for variant in quick_variants(name, 1):
        weights = {"prefix_weights": (0.2, 0.5, 0.1)}
        case = driver.make_case(name, variant, rows=40, **weights, **FLOAT32, **STATES["negatives"])
        if expects_ok(name, variant):
            driver.within(case, [single(case)], **CLOSE)


@pytest.mark.parametrize("name", CHECKED)
def test_float32_gradients_of_bf16_inputs(name: str) -> None:
    needs(name)
    variant = next(iter(quick_variants(name, 1)), None)
    if variant is None:
        pytest.skip("runs on several CPU ranks only")
    case = driver.make_case(name, variant, gradient_dtype="float32", prefix_weights=(1.0, 1.0, 1.0), **STATES["init"])
    out = single(case)
    driver.within(case, [out])
    gradient = next(iter(out.gradients.values()))
    assert (gradient.view(np.uint32) & np.uint32(0xFFFF)).any(), "float32 gradients came back rounded to bf16"


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", [name for name in CHECKED if REGISTRY[name]["launcher"] == "torchrun"])
def test_every_variant_is_seen_in_every_layout(name: str, world_size: int) -> None:
    needs(name)
    for variant in quick_variants(name, world_size):
        cases = [case for make in MAKERS for case in make(name, world_size) if case["variant"] == variant]
        layouts = {case.get("test_layout", "contiguous") for case in cases}
        assert layouts == {"contiguous", "transposed", "sliced"}, variant
        pieces = {case["rows"] // case["options"].get("accumulation", 1) for case in cases}
        assert any(rows % 2 for rows in pieces) or cases[0]["options"].get("precision") == "bf16"


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", [name for name in CHECKED if REGISTRY[name]["launcher"] == "torchrun"])
def test_strides_do_not_matter(name: str, world_size: int) -> None:
    for case, outputs in outcomes_of(strided_cases, name, world_size):
        check_expectation(case, outputs)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("name", CHECKED)
def test_sizes_that_nothing_divides(name: str, world_size: int) -> None:
    """Odd rows and prefixes, for every variant that does not refuse them."""
    for case, outputs in outcomes_of(odd_cases, name, world_size):
        check_expectation(case, outputs)


@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("name", CHECKED)
def test_few_and_odd_rows_a_rank(name: str, world_size: int) -> None:
    """Every distributed variant equals the reference of all rows in one process, at its float32 best."""
    for case, outputs in outcomes_of(few_rows_cases, name, world_size):
        check_expectation(case, outputs, **CLOSE)


@pytest.mark.parametrize("name", CHECKED)
def test_nan_is_not_hidden(name: str) -> None:
    needs(name)
    if not load(name).declares.scalars:
        pytest.skip("takes no scale or bias as tensors")
    for variant in quick_variants(name, 1):
        out = single(driver.make_case(name, variant, scale=float("nan"), bias=-10.0))
        assert math.isnan(out.loss) and math.isnan(out.scale_gradient), variant
        assert all(np.isnan(gradient).any() for gradient in out.gradients.values()), variant


@pytest.mark.parametrize("name", list(REGISTRY))
def test_what_cannot_run_is_said_in_one_clause(name: str) -> None:
    needs(name)
    adapter = driver.load(REGISTRY[name]["target"])
    for variant, data in REGISTRY[name]["variants"].items():
        if data["loss"] not in reference.LOSSES:
            continue
        # Peers that run on a GPU only may be written for the article's ladder and whole tiles.
        shape = {"rows": 64} if name in CHECKED else {"rows": 128, "dims": 1024, "prefixes": (64, 128, 256, 512, 1024)}
        if data["options"].get("unit_rows"):
            shape |= {"dims": 768, "prefixes": (768,)}
        case = driver.make_case(name, variant, **shape)
        refused = adapter.unsupported({**case, "device": REGISTRY[name]["devices"][-1]})
        assert refused is None or ("open_clip_torch" in refused and "no chunk_size" in refused)
        reason = adapter.unsupported({**case, "world_size": 2, "live": [32, 5]})
        assert reason and "\n" not in reason and reason[0].islower()
        others = [
            loss for loss in reference.LOSSES if loss not in {v["loss"] for v in REGISTRY[name]["variants"].values()}
        ]
        for loss in others:
            reason = adapter.unsupported({**case, "loss": loss})
            assert name == "cublas_products" or (reason and loss in reason)


def test_self_pairs_and_labels_of_one_set() -> None:
    for name in CHECKED:
        if {data["loss"] for data in REGISTRY[name]["variants"].values()} == {"one_set_sigmoid"}:
            needs(name)
            for change in ({"self_pairs": True}, {"labels": "mixed"}, {"labels": "equal"}, {"labels": "distinct"}):
                for variant in quick_variants(name, 1):
                    case = driver.make_case(name, variant, rows=38, **change, **STATES["negatives"])
                    driver.within(case, [single(case)])


def test_chunks_do_not_change_the_loss_and_bound_memory() -> None:
    """Chunks that do not divide evenly over rows are refused; four devices' chunks give what one grid gives."""
    needs("jax_reference")
    adapter = driver.load(REGISTRY["jax_reference"]["target"])
    uneven = driver.make_case("jax_reference", "chunked", rows=24, options={"chunk_rows": 7})
    assert "not a multiple" in adapter.unsupported(uneven)
    cases = [
        driver.make_case("jax_reference", "chunked", rows=24, world_size=4, options={"chunk_rows": chunk}, **change)
        for chunk, change in ((8, STATES["negatives"]), (6, {"labels": "mixed", **STATES["init"]}))
    ]
    for case, outputs in zip(cases, driver.run_ranks(cases), strict=True):
        driver.within(case, outputs, loss=1e-5, scale_gradient=1e-5, bias_gradient=1e-5)
    needed = []
    for chunk in (None, 32):
        system = adapter(driver.make_case("jax_reference", "chunked", rows=512, options={"chunk_rows": chunk}), World())
        system.build()
        system.step()
        needed.append(system.memory()["allocated_peak_bytes"])
    assert needed[0] > 3 * 4 * 512 * 512 and needed[1] < needed[0] / 4


def test_products_are_two_products() -> None:
    torch = pytest.importorskip("torch")
    case = driver.make_case("cublas_products", "graph", rows=8)
    system = driver.load(REGISTRY["cublas_products"]["target"])(case, World())
    system.build()
    system.step()
    rows = system.leaves[0].detach().double()
    expected = (rows @ rows.T) @ rows
    assert torch.linalg.norm(system.result.double() - expected) / torch.linalg.norm(expected) < 5e-3
    with pytest.raises(Unsupported, match="no loss"):
        system.outputs()
