"""A tiny stand-in for the worker: load a system from its YAML alone, run steps, hand the results back.

`run_ranks` starts one process per rank for systems under `launcher: torchrun`; a `single` system gets one process with
as many forced host devices as ranks. Starting them takes longer than most cases do, so one start serves many cases.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

import numpy as np
import yaml

from baselines import reference
from baselines.interface import Outputs, World
from harness.cases import Case

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs" / "system"
# The gate's tolerances for peers in bf16.
LIMITS = {"loss": 5e-3, "gradients": 2e-2, "scale_gradient": 2e-3, "bias_gradient": 2e-3}


def registry(folder: Path = CONFIGS) -> dict[str, dict]:
    """name -> contents of every system YAML that a Python adapter stands behind."""
    systems = {path.stem: _read(path, path.stat().st_mtime_ns) for path in sorted(folder.glob("*.yaml"))}
    return {name: data for name, data in systems.items() if data["target"]}


@functools.cache
def _read(path: Path, changed: int) -> dict:
    """A YAML as it was when it last `changed`: read once, not for each of a thousand cases."""
    return yaml.safe_load(path.read_text())


def load(target: str) -> type:
    """What is behind `module:name`."""
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def make_case(system: str, variant: str, folder: Path = CONFIGS, **changes) -> dict:
    """A small case of a system's variant, as the worker gets it."""
    chosen = registry(folder)[system]["variants"][variant]
    fields = {"rows": 32, "dims": 96, "prefixes": (16, 48, 96)} | changes
    options = {**chosen.get("options", {}), **fields.pop("options", {})}
    case = Case(system=system, loss=chosen["loss"], variant=variant, options=options, **fields)
    return {**case.to_json(), "threads": 1}


def run_ranks(
    cases: list[dict], folder: Path = CONFIGS, timeout: float = 240, keep_errors: bool = False
) -> list[list[Outputs | str]]:
    """Run the cases, of one launcher and world size, one after another in the same processes.

    Returns the outputs of every case, rank by rank; `keep_errors`: or what a rank raised, as text.
    """
    if not cases:
        return []
    systems = registry(folder)
    size = cases[0]["world_size"]
    launchers = {systems[case["system"]]["launcher"] for case in cases}
    assert len(launchers) == 1 and {case["world_size"] for case in cases} == {size}
    single = launchers == {"single"}
    work = [(systems[case["system"]]["target"], case) for case in cases]
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "cases.json").write_text(json.dumps(work))
        common = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "OMP_NUM_THREADS": "1"}
        common["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])
        if single:
            common["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={size}"
            common["JAX_PLATFORMS"] = "cpu"
        processes = []
        for rank in range(1 if single else size):
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "1" if single else str(size)}
            command = [sys.executable, "-m", "tests.baselines.driver", scratch, str(rank)]
            processes.append(subprocess.Popen(command, env={**common, **place}, cwd=ROOT, stderr=subprocess.PIPE))
        errors = []
        try:
            for process in processes:
                _, error = process.communicate(timeout=timeout)
                errors.append(error.decode(errors="replace") if process.returncode else "")
        finally:
            for process in processes:
                process.kill()
        assert not any(errors), "\n".join(errors)
        per_rank = [pickle.loads((Path(scratch) / f"{rank}.pickle").read_bytes()) for rank in range(len(processes))]
    results = [list(outputs) for outputs in zip(*per_rank, strict=True)]
    raised = [output for outputs in results for output in outputs if isinstance(output, str)]
    assert keep_errors or not raised, "\n".join(raised)
    return results


def errors(case: dict, outputs: list[Outputs]) -> dict[str, float]:
    """Errors of a case's outputs against its reference, as the gate defines them; the worst rank counts.

    Where the truth is 0, as NT-Xent's is of a single pair, the error itself.
    """
    data = registry().get(case["system"], {})
    declared = (data.get("losses") or {}).get(case["loss"])
    truth = (load(declared["reference"]) if declared else reference.evaluate)(case)
    scalars = load(data["target"]).declares.scalars if data else ("scale", "bias")
    worst = {}
    for name in ("loss", "scale_gradient", "bias_gradient"):
        values = [getattr(out, name) for out in outputs]
        if truth[name] is None or name not in ("loss", *(f"{scalar}_gradient" for scalar in scalars)):
            assert values == [None] * len(values)
            continue
        worst[name] = max(abs(value - truth[name]) for value in values) / (truth[f"{name}_scale"] or 1.0)
    gradients = whole_gradients(outputs)
    assert set(gradients) == set(truth["gradients"])
    edges = [0, *case["prefixes"]]
    worst["gradients"] = 0.0
    for name, expected in truth["gradients"].items():
        assert gradients[name].dtype == np.float32 and gradients[name].shape == expected.shape
        assert not gradients[name][:, edges[-1] :].any()
        for start, stop in itertools.pairwise(edges):
            off = np.linalg.norm(gradients[name][:, start:stop] - expected[:, start:stop])
            worst["gradients"] = max(worst["gradients"], off / (np.linalg.norm(expected[:, start:stop]) or 1.0))
    return worst


def within(case: dict, outputs: list[Outputs], **limits: float) -> None:
    """Assert that errors are within the gate's tolerances for peers in bf16, or tighter `limits`."""
    found = errors(case, outputs)
    allowed = LIMITS | limits
    assert all(found[name] <= allowed[name] for name in found), (case["system"], case["variant"], found)


def whole_gradients(outputs: list[Outputs]) -> dict[str, np.ndarray]:
    """Every rank's gradient rows in global order."""
    ordered = sorted(outputs, key=lambda out: out.first_row)
    return {name: np.concatenate([out.gradients[name] for out in ordered]) for name in outputs[0].gradients}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def relayout(system: object, layout: str) -> None:
    """Give a PyTorch system's embeddings other strides: `transposed` storage, or `sliced` out of a larger tensor."""
    import torch

    leaves = []
    for leaf in system.leaves:
        with torch.no_grad():
            if layout == "transposed":
                other = leaf.T.contiguous().T
            else:
                larger = torch.full((2 * len(leaf), leaf.shape[1] + 5), float("nan"), dtype=leaf.dtype)
                other = larger[::2, 3:-2].copy_(leaf)
        assert not other.is_contiguous()
        leaves.append(other.detach().requires_grad_())
    system.leaves = leaves


def _run(target: str, case: dict, world: World) -> Outputs:
    system = load(target)(case, world)
    system.build()
    if case.get("test_layout"):
        relayout(system, case["test_layout"])
    system.step()
    system.step()  # a second step must not add to the first
    system.synchronize()
    system.barrier()
    assert system.maximum(float(world.rank)) == (case["world_size"] - 1.0 if world.world_size > 1 else 0.0)
    system.memory_reset()
    system.step()
    system.synchronize()
    out = system.outputs()
    out.extra = {"memory": system.memory(), "versions": system.versions(), "device_name": system.device_name}
    system.close()
    return out


def _main(scratch: str, rank: int, world_size: int) -> None:
    results: list[Outputs | str] = []
    for target, case in json.loads((Path(scratch) / "cases.json").read_text()):
        try:
            results.append(_run(target, case, World(rank, world_size, rank)))
        except Exception:
            results.append(traceback.format_exc())
    (Path(scratch) / f"{rank}.pickle").write_bytes(pickle.dumps(results))
    os._exit(0)  # as the worker ends: gloo's threads may abort a process that tears everything down


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]), int(os.environ["WORLD_SIZE"]))
