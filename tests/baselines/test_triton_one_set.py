"""The kernels of triton_one_set under Triton's interpreter on CPU: the same source, not what a GPU compiles it to."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from baselines.interface import Outputs
from tests.baselines import driver

if importlib.util.find_spec("torch") is None or importlib.util.find_spec("triton") is None:
    pytest.skip("torch and triton are needed", allow_module_level=True)

LADDER = (64, 128, 256, 512, 1024)


def make_case(rows: int, scale: float, bias: float) -> dict:
    shape = {"dims": 1024, "prefixes": LADDER, "rows": rows}
    return driver.make_case("triton_one_set", "eager", **shape, scale=scale, bias=bias)


# At scale 100 positives saturate too: their weight of 1 is rounded to bf16 before the exact correction takes it off.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "scale", "bias", "gradients"),
    [(130, 5.0, -1.0, 4e-3), (66, 10.0, -10.0, 3e-3), (66, 100.0, -10.0, 1.5e-2)],
)
def test_interpreted_kernels_equal_the_reference(
    tmp_path: Path, rows: int, scale: float, bias: float, gradients: float
) -> None:
    """Ragged sizes of one and of three blocks, both ways to take logarithms; scratch starts as NaN; two steps."""
    case = make_case(rows, scale, bias)
    (tmp_path / "case.pickle").write_bytes(pickle.dumps(case))
    command = [sys.executable, "-m", "tests.baselines.test_triton_one_set", str(tmp_path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=driver.ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    outputs = pickle.loads((tmp_path / "outputs.pickle").read_bytes())
    driver.within(case, [outputs], loss=1e-5, gradients=gradients, scale_gradient=1e-5, bias_gradient=1e-5)


def _main(folder: Path) -> None:
    import torch

    from baselines import torch_inputs
    from baselines.triton_one_set import OneSetStep

    case = pickle.loads((folder / "case.pickle").read_bytes())
    ((rows, _),) = torch_inputs.case_rows(case, 0, case["rows"], torch.bfloat16, torch.device("cpu")).values()
    scale, bias = torch.tensor(case["scale"]), torch.tensor(case["bias"])
    step = OneSetStep(rows, scale, bias, case["scale"] + case["bias"])
    step.planes.fill_(float("nan"))
    step.padded_dx.fill_(float("nan"))
    step()
    step()  # a second step must not add to the first
    loss, scale_gradient, bias_gradient, _ = step.results.tolist()
    outputs = Outputs(loss, scale_gradient, bias_gradient, {"rows": step.dx.float().numpy()})
    (folder / "outputs.pickle").write_bytes(pickle.dumps(outputs))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
