"""GPU-only peers, as far as a machine without a GPU can tell: what they declare, and what they refuse and why.

Their kernels are not replaced by stand-ins: what users run is checked by the gate, on a GPU.
"""

from __future__ import annotations

import importlib

import pytest

from baselines.interface import Declaration, World
from tests.baselines import driver

ARTICLE = {"rows": 128, "dims": 1024, "prefixes": (64, 128, 256, 512, 1024)}
SIGLIP = tuple(driver.registry()["siglip_kernel"]["variants"])


def adapter(name: str) -> type:
    pytest.importorskip("torch")
    return driver.load(driver.registry()[name]["target"])


def reason(name: str, variant: str, **changes) -> str | None:
    """What the adapter says to a case on CUDA, or on the `device` in `changes`. No package is imported for it."""
    case = {**driver.make_case(name, variant, **ARTICLE), "device": "cuda"} | changes
    return adapter(name).unsupported(case)


@pytest.mark.parametrize(
    ("name", "sets", "scale_parameter"),
    [("siglip_kernel", 2, "log_scale"), ("inf_cl", 2, "log_scale"), ("triton_one_set", 1, "scale")],
)
def test_declarations(name: str, sets: int, scale_parameter: str) -> None:
    declared: Declaration = adapter(name).declares
    assert (declared.sets, declared.negatives, declared.scale_parameter) == (sets, "global", scale_parameter)
    assert declared.normalisation


@pytest.mark.parametrize("name", ["siglip_kernel", "inf_cl", "triton_one_set"])
def test_adapters_import_without_their_packages_and_refuse_the_cpu(name: str) -> None:
    importlib.import_module(f"baselines.{name}")
    for variant, data in driver.registry()[name]["variants"].items():
        shape = {"dims": 768, "prefixes": [768]} if data["options"].get("unit_rows") else {}
        assert reason(name, variant, **shape) is None
        assert "an NVIDIA GPU" in reason(name, variant, device="cpu")
    assert name != "inf_cl" or reason(name, "ring", device="cpu", world_size=2) is None


@pytest.mark.parametrize("variant", SIGLIP)
def test_siglip_kernel_takes_one_prefix_of_768(variant: str) -> None:
    assert reason("siglip_kernel", variant, rows=65536, dims=768, prefixes=[768]) is None


def test_siglip_kernel_refuses_what_it_cannot_take() -> None:
    assert "multiples of 16, not 40" in reason("siglip_kernel", "fp8", prefixes=[40, 1024])
    assert "multiples of 16, not 100" in reason("siglip_kernel", "fp8", rows=100)
    assert reason("siglip_kernel", "default", rows=100, prefixes=[40, 1024]) is None
    assert reason("siglip_kernel", "default", world_size=2) is None
    for variant in ("fp8", "fused_fp32"):
        assert "distributed" in reason("siglip_kernel", variant, world_size=2)


def test_siglip_kernel_takes_unit_rows_of_one_prefix_and_graphs_on_one_gpu() -> None:
    readme = {"rows": 65536, "dims": 768, "prefixes": [768]}
    for changes, said in (
        ({"prefixes": [768]}, "one prefix"),
        (readme | {"prefixes": [384, 768]}, "one prefix"),
        (readme | {"gradient_dtype": "float32"}, "bf16"),
        (readme | {"world_size": 2}, "one GPU"),
    ):
        assert said in reason("siglip_kernel", "default_unit_rows", **changes), changes
    assert "one NVIDIA GPU" in reason("siglip_kernel", "default_graph", world_size=2)


def test_siglip_kernel_s_unit_rows_are_inputs_and_gradients_are_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter around unit rows with the package's own PyTorch loss, on the CPU, against the float64 reference."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("triton")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))  # the package's import asks for it
    package = pytest.importorskip("siglip_kernel")
    loss, seen = package.fused_siglip_loss, []
    monkeypatch.setattr(package, "fused_siglip_loss", lambda *sets, **named: seen.append(sets) or loss(*sets, **named))
    case = driver.make_case("siglip_kernel", "reference_unit_rows", rows=24, prefixes=(96,), scale=5.0, bias=-1.0)
    system = adapter("siglip_kernel")(case, World())
    system.build()
    system.step()
    system.step()
    driver.within(case, [system.outputs()])
    images, captions, *_ = seen[-1]
    assert [images is system.leaves[0], captions is system.leaves[1]] == [True, True], "no copy and no cast in the step"
    assert images.dtype == torch.bfloat16 and torch.allclose(images.float().norm(dim=1), torch.ones(24), atol=5e-3)


def test_inf_cl_refuses_what_reads_past_the_end() -> None:
    for rows in (1, 63, 65, 100):
        assert "multiple of 64" in reason("inf_cl", "single", rows=rows)
    assert "40" in reason("inf_cl", "single", prefixes=[40, 1024])
    assert "single-GPU" in reason("inf_cl", "single", world_size=2)
    assert "multiple of 64" in reason("inf_cl", "inf", world_size=2, rows=100)
    assert reason("inf_cl", "inf", world_size=2) is None and reason("inf_cl", "ring", world_size=2, rows=100) is None
    assert reason("inf_cl", "single", rows=192, dims=768, prefixes=[768]) is None


def test_inf_cl_heads_divide_the_prefix() -> None:
    module = importlib.import_module("baselines.inf_cl")
    heads = {prefix: module.head_columns(prefix) for prefix in (16, 48, 64, 96, 256, 768, 1024)}
    assert heads == {16: 16, 48: 16, 64: 64, 96: 32, 256: 256, 768: 256, 1024: 256}


def test_triton_one_set_refuses_all_but_the_article() -> None:
    for changes, said in (
        ({"prefixes": [512, 1024]}, "ladder"),
        ({"prefix_weights": [0.1, 0.2, 0.2, 0.2, 0.3]}, "equal weights"),
        ({"labels": "mixed"}, "neighbours"),
        ({"self_pairs": True}, "self pairs"),
        ({"rows": 65}, "even number"),
        ({"gradient_dtype": "float32"}, "bf16"),
        ({"world_size": 2}, "one GPU"),
    ):
        assert said in reason("triton_one_set", "eager", **changes), changes
    assert reason("triton_one_set", "graph", rows=66, prefix_weights=[1.0] * 5) is None
