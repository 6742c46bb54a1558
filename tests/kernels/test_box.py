"""Several GPUs, or virtual devices of one, against the float64 oracle, through the worker contract. Needs a GPU."""

import json

import pytest

from tests.kernels.binary import base_case, check, run
from tests.kernels.test_outputs import LOSSES, compare

pytestmark = pytest.mark.gpu

LIVES = {2: [70, 33], 3: [70, 0, 65], 5: [70, 70, 1, 70, 69], 8: [70] * 7 + [5]}


@pytest.fixture(scope="module")
def here():
    """What the binary can do on this machine, which has a GPU."""
    capabilities = json.loads(run("--capabilities").stdout)
    if not capabilities["device_names"].get("cuda"):
        pytest.skip("no CUDA device")
    return capabilities


def engines(here, loss):
    """Engines of this GPU that have the loss."""
    usable = here["engines_usable"]
    return [name for name in usable if name == "sm80" or (name == "sm90" and loss == "one_set_sigmoid")]


@pytest.mark.parametrize("virtual", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 5, 8])
@pytest.mark.parametrize("loss", LOSSES)
def test_devices_agree_with_the_oracle(tmp_path, here, loss, world_size, virtual):
    gpus = len(here["device_names"]["cuda"])
    if not virtual and world_size > gpus:
        pytest.skip(f"{gpus} GPUs")
    meetings = ["events"] if virtual else ["flags", "events"]
    for live in (None, LIVES[world_size]):
        case = base_case(loss=loss, rows=70, prefixes=[64, 128], scale=5.0, bias=-1.0, world_size=world_size, live=live)
        case |= {"device": "cuda", "labels": "mixed"}
        for engine in engines(here, loss):
            for meeting in meetings:
                options = f"virtual_devices={str(virtual).lower()},meeting={meeting}"
                words = ["--engine", engine, "--options", options, "--fabric", "peer"]
                compare(check(tmp_path, case, *words), case, 3e-3)


@pytest.mark.parametrize("loss", LOSSES)
def test_devices_agree_with_one(tmp_path, here, loss):
    """The shape of the benchmark, several tiles a device: N devices equal one to rounding."""
    gpus = len(here["device_names"]["cuda"])
    world_size, virtual = (gpus, "false") if gpus > 1 else (4, "true")
    shared = {"loss": loss, "dims": 1024, "prefixes": [64, 128, 256, 512, 1024], "device": "cuda"}
    many = base_case(rows=1200 // world_size, world_size=world_size, **shared)
    one = base_case(rows=1200 // world_size * world_size, **shared)
    words = ["--fabric", "peer", "--options", f"virtual_devices={virtual}"]
    for case in (one, many):
        compare(check(tmp_path, case, *words), case, 3e-3)
