"""Every system's YAML is complete, and a new system needs its own two files only."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import yaml

from harness.cases import LOSSES, STATUSES
from tests.baselines import driver

KEYS = {"name", "target", "launcher", "requires", "package", "devices", "minimum_capability", "variants", "predict"}
PREDICT = {
    "bytes_per_cell",
    "bytes_per_element",
    "startup_seconds",
    "cpu_flops_per_second",
    "cuda_flops_per_second",
    "step_overhead_seconds",
}


def expected_of(variant: dict) -> list[str]:
    """The statuses that a variant names, one or by state."""
    given = variant.get("expected_status", "ok")
    return list(given.values()) if isinstance(given, dict) else [given]


@pytest.mark.parametrize("path", sorted(driver.CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_yaml_is_complete(path: Path) -> None:
    data = yaml.safe_load(path.read_text())
    assert KEYS <= set(data) <= KEYS | {"losses"} and data["name"] == path.stem
    declared = data.get("losses") or {}
    for loss in declared.values():
        assert callable(driver.load(loss["reference"])) and len(loss["computes"]) > 20
    assert data["launcher"] in ("torchrun", "single", "native", "published")
    assert set(data["devices"]) <= {"cpu", "cuda"} and data["variants"]
    for variant in data["variants"].values():
        assert variant["loss"] in (*LOSSES, *declared) and set(expected_of(variant)) <= set(STATUSES)
        assert bool(variant.get("because")) == (set(expected_of(variant)) != {"ok"}), "what is not ok is explained"
    if data["target"]:
        assert set(data["predict"]) == PREDICT and all(value > 0 for value in data["predict"].values())
        assert (driver.ROOT / (data["target"].split(":")[0].replace(".", "/") + ".py")).is_file()


def test_a_new_system_is_one_module_and_one_yaml(tmp_path: Path) -> None:
    """Two new files, no edit: the driver finds the system, runs it, and the reference agrees."""
    pytest.importorskip("torch")
    (tmp_path / "newcomer.yaml").write_text(
        textwrap.dedent(
            """
            name: newcomer
            target: newcomer_adapter:Newcomer
            launcher: torchrun
            devices: [cpu]
            variants: {only: {loss: one_set_sigmoid, options: {}, expected_status: ok, world_sizes: null}}
            """
        )
    )
    (tmp_path / "newcomer_adapter.py").write_text(
        textwrap.dedent(
            """
            from baselines.interface import Declaration
            from baselines.torch_reference import TorchReference

            class Newcomer(TorchReference):
                declares = Declaration(sets=1, negatives="global", normalisation="none of its own")
            """
        )
    )
    cases = [driver.make_case("newcomer", "only", folder=tmp_path, scale=5.0, bias=-1.0)]
    (outputs,) = driver.run_ranks(cases, folder=tmp_path)
    driver.within(cases[0], outputs)
