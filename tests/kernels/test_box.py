"""Several GPUs, or virtual devices of one, against the float64 oracle, through the worker contract. Needs a GPU.

All cases run in one process of the binary: the first test waits for them.
"""

import itertools
import json

import numpy as np
import pytest

from tests.kernels.binary import base_case, batch, checked, run
from tests.kernels.test_outputs import LOSSES, compare

pytestmark = pytest.mark.gpu

WORLDS = [2, 3, 5, 8]
LIVES = {2: [70, 33], 3: [70, 0, 65], 5: [70, 70, 1, 70, 69], 8: [70] * 7 + [5]}
SIGMOID = [loss for loss in LOSSES if loss.endswith("sigmoid")]
KEYS = list(itertools.product(LOSSES, WORLDS, [False, True]))


def engines(here, loss):
    """Engines of this GPU that have the loss."""
    usable = here["engines_usable"]
    return [name for name in usable if name == "sm80" or (name == "sm90" and loss == "one_set_sigmoid")]


def small_cases(here, loss, world_size, virtual):
    """Few rows a device, all live or not; every engine, every way to meet, pairs of devices scored twice and once."""
    meetings = ["events"] if virtual else ["flags", "events"]
    for live, meeting in itertools.product((None, LIVES[world_size]), meetings):
        case = base_case(loss=loss, rows=70, prefixes=[64, 128], scale=5.0, bias=-1.0, world_size=world_size, live=live)
        case |= {"device": "cuda", "labels": "mixed"}
        options = f"virtual_devices={str(virtual).lower()},meeting={meeting}"
        for engine in engines(here, loss):
            yield case, "--engine", engine, "--options", options, "--fabric", "peer"
            for _ in range(2 if loss in SIGMOID else 0):  # to the same bits
                yield case, "--engine", engine, "--options", f"{options},pairs=once", "--fabric", "peer"


def large_cases(loss, gpus):
    """The shape of the benchmark, several tiles a device: one device of all rows, then many."""
    world_size, virtual = (gpus, "false") if gpus > 1 else (4, "true")
    shared = {"loss": loss, "dims": 1024, "prefixes": [64, 128, 256, 512, 1024], "device": "cuda"}
    one = base_case(rows=1200 // world_size * world_size, **shared)
    many = base_case(rows=1200 // world_size, world_size=world_size, **shared)
    words = ("--fabric", "peer", "--options", f"virtual_devices={virtual}")
    once = [(many, *words[:-1], words[-1] + ",pairs=once")] if loss in SIGMOID else []
    return [(one, *words), (many, *words), *once]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """`(folder, case, flags)` of every case by key, after one run of all of them."""
    here = json.loads(run("--capabilities").stdout)
    gpus = len(here["device_names"].get("cuda") or [])
    if not gpus:
        pytest.skip("no CUDA device")
    wanted = {key: list(small_cases(here, *key)) for key in KEYS if key[2] or key[1] <= gpus}
    wanted |= {loss: large_cases(loss, gpus) for loss in LOSSES}
    folder = tmp_path_factory.mktemp("box")
    names = {(key, i): f"{n}.{i}" for n, (key, cases) in enumerate(wanted.items()) for i in range(len(cases))}
    batch(folder, {names[key, i]: case for key, cases in wanted.items() for i, case in enumerate(cases)})
    return {
        key: [(folder / names[key, i], case, words) for i, (case, *words) in enumerate(cases)]
        for key, cases in wanted.items()
    }


@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key)))
def test_devices_agree_with_the_oracle(done, key):
    if key not in done:
        pytest.skip(f"fewer than {key[1]} GPUs")
    before = {}
    for folder, case, words in done[key]:
        event = checked(folder)
        compare(event, case, 3e-3)
        same = before.setdefault(str((case, words)), event)
        assert all(np.array_equal(event["arrays"][name], same["arrays"][name]) for name in event["arrays"])
        assert event["loss_value"] == same["loss_value"]


@pytest.mark.parametrize("loss", LOSSES)
def test_devices_agree_with_one(done, loss):
    for folder, case, _ in done[loss]:
        compare(checked(folder), case, 3e-3)
