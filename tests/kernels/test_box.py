"""Several GPUs, or virtual devices of one, against the float64 oracle, through the worker contract. Needs a GPU.

All cases run in one process of the binary: the first test waits for them.
"""

import itertools
import json

import numpy as np
import pytest

from tests.kernels.binary import batch, checked, run
from tests.kernels.box_cases import LOSSES, large_cases, small_cases, tolerance
from tests.kernels.test_outputs import compare

pytestmark = pytest.mark.gpu

WORLDS = [2, 3, 5, 8]
KEYS = list(itertools.product(LOSSES, WORLDS, [False, True]))


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """`(folder, case, engine, flags)` of every case by key, after one run of all of them."""
    here = json.loads(run("--capabilities").stdout)
    gpus = len(here["device_names"].get("cuda") or [])
    if not gpus:
        pytest.skip("no CUDA device")
    usable = [name for name in here["engines_usable"] if name.startswith("sm")]
    wanted = {key: list(small_cases(usable, *key)) for key in KEYS if key[2] or key[1] <= gpus}
    wanted |= {loss: list(large_cases(usable, loss, gpus)) for loss in LOSSES}
    folder = tmp_path_factory.mktemp("box")
    names = {(key, i): f"{n}.{i}" for n, (key, cases) in enumerate(wanted.items()) for i in range(len(cases))}
    batch(
        folder,
        {names[key, i]: (case, *words) for key, cases in wanted.items() for i, (case, _, words) in enumerate(cases)},
    )
    return {key: [(folder / names[key, i], *case) for i, case in enumerate(cases)] for key, cases in wanted.items()}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key)))
def test_devices_agree_with_the_oracle(done, key):
    if key not in done:
        pytest.skip(f"fewer than {key[1]} GPUs")
    before = {}
    for folder, case, engine, words in done[key]:
        event = checked(folder)
        compare(event, case, tolerance(engine, case))
        same = before.setdefault(str((case, words)), event)
        assert all(np.array_equal(event["arrays"][name], same["arrays"][name]) for name in event["arrays"])
        assert event["loss_value"] == same["loss_value"]


@pytest.mark.parametrize("loss", LOSSES)
def test_devices_agree_with_one(done, loss):
    for folder, case, *_ in done[loss]:
        compare(checked(folder), case, 3e-3)
