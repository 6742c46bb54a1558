"""The kernels of triton_one_set under Triton's interpreter on CPU: the same source, not what a GPU compiles it to.

The interpreter takes seconds a step, and starting it as long, so all cases share one process.
"""

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
# Rows, scale, bias, steps, what dX may be off. Ragged sizes of three blocks and of one, both ways to take logarithms; a
# second step must not add to the first. At scale 100 positives saturate too: their weight of 1 is rounded to bf16
# before the exact correction takes it off.
CASES = [(130, 5.0, -1.0, 1, 4e-3), (66, 10.0, -10.0, 2, 3e-3), (66, 100.0, -10.0, 1, 1.5e-2)]


def make_case(rows: int, scale: float, bias: float) -> dict:
    shape = {"dims": 1024, "prefixes": LADDER, "rows": rows}
    return driver.make_case("triton_one_set", "eager", **shape, scale=scale, bias=bias)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory) -> list[Outputs]:
    """The outputs of every case."""
    folder = tmp_path_factory.mktemp("interpreted")
    command = [sys.executable, "-m", "tests.baselines.test_triton_one_set", str(folder)]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=driver.ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return pickle.loads((folder / "outputs.pickle").read_bytes())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_interpreted_kernels_equal_the_reference(interpreted: list[Outputs], number: int) -> None:
    rows, scale, bias, _, gradients = CASES[number]
    case = make_case(rows, scale, bias)
    driver.within(case, [interpreted[number]], loss=1e-5, gradients=gradients, scale_gradient=1e-5, bias_gradient=1e-5)


def _outputs(case: dict, steps: int) -> Outputs:
    """A step of the eager variant, adapter and all, with scratch and gradients that start as NaN."""
    from baselines.interface import World
    from baselines.triton_one_set import TritonOneSet

    system = TritonOneSet(case, World())
    system.build()
    system.run.planes.fill_(float("nan"))
    system.run.padded_dx.fill_(float("nan"))
    for _ in range(steps):
        system.step()
    system.synchronize()
    return system.outputs()


def _main(folder: Path) -> None:
    outputs = [_outputs(make_case(rows, scale, bias), steps) for rows, scale, bias, steps, _ in CASES]
    (folder / "outputs.pickle").write_bytes(pickle.dumps(outputs))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
