"""Virtual devices on the CPU: in turns or at once, pairs of devices scored twice or once: all alike."""

import itertools

import numpy as np
import pytest

from tests.kernels.binary import base_case, batch, check, checked, events_of, flags, run
from tests.kernels.test_outputs import compare

LOSSES = ["one_set_sigmoid", "two_set_sigmoid"]
# World size 4 cuts its opposite pairs into halves, of which 70 rows leave the second one 6.
LIVES = {2: [150, 97], 3: [70, 0, 65], 4: [70, 1, 70, 70], 8: [70] * 7 + [5]}
KEYS = list(itertools.product(LOSSES, LIVES))
OPTIONS = [f"pairs={pairs},devices={devices}" for pairs in ("twice", "once") for devices in ("turns", "threads")]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """`(folder, case)` of every case by key and options, after one run of all of them."""
    folder, cases = tmp_path_factory.mktemp("pairs"), {}
    for n, (loss, world_size) in enumerate(KEYS):
        case = base_case(loss=loss, rows=max(LIVES[world_size]), prefixes=[64, 128], scale=5.0, bias=-1.0)
        case |= {"world_size": world_size, "live": LIVES[world_size], "labels": "mixed"}
        for i, options in enumerate(OPTIONS):
            cases[(loss, world_size), options] = (f"{n}.{i}", case, options)
    batch(folder, {name: (case, "--options", options) for name, case, options in cases.values()})
    return {key: (folder / name, case) for key, (name, case, _) in cases.items()}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key)))
def test_devices_agree_with_the_oracle(done, key):
    events = {}
    for options in OPTIONS:
        folder, case = done[key, options]
        events[options] = checked(folder)
        compare(events[options], case, 2e-3)
    for pairs in ("twice", "once"):  # the schedule is the same, so the bits are
        turns, threads = (events[f"pairs={pairs},devices={devices}"] for devices in ("turns", "threads"))
        assert all(np.array_equal(turns["arrays"][name], threads["arrays"][name]) for name in turns["arrays"])
        assert turns["loss_value"] == threads["loss_value"]


def test_softmax_losses_run_at_once_too(tmp_path):
    for loss in ("info_nce", "one_set_info_nce"):
        folder = tmp_path / loss
        folder.mkdir()
        case = base_case(loss=loss, rows=21, world_size=3, live=[21, 0, 13], prefixes=[64, 128]) | {"form": "nt_xent"}
        compare(check(folder, case, "--options", "devices=threads"), case, 2e-3)


@pytest.mark.parametrize(
    "options, more, reason",
    [
        ("devices=fork", {}, "known are turns and threads"),
        ("pairs=once", {"loss": "info_nce"}, "pairs=once is for the sigmoid losses"),
        ("pairs=once,forward_only=true", {}, "a forward pass alone has none"),
    ],
)
def test_what_cannot_be_is_unsupported(tmp_path, options, more, reason):
    done = run(
        "--folder", tmp_path, *flags(base_case(world_size=2) | more), "--options", options, "--actions", "memory"
    )
    assert done.returncode == 1
    end = events_of(tmp_path)[-1]
    assert end["status"] == "unsupported" and reason in end["reason"]


def test_a_device_that_comes_too_late_is_named(tmp_path):
    """Device 1 has all the work, and the others no patience."""
    case = base_case(rows=1500, world_size=3, live=[1, 1500, 1], dims=1024)
    words = ["--options", "devices=threads,deadline_ms=0.001", "--actions", "time"]
    done = run("--folder", tmp_path, *flags(case), *words)
    assert done.returncode == 1
    end = events_of(tmp_path)[-1]
    assert end["status"] == "timeout" and "which did not arrive (" in end["reason"]


def test_the_record_says_how_it_was_done(tmp_path):
    words = ["--options", "pairs=once,devices=threads", "--actions", "time", "--blocks", 1, "--warmup-seconds", 0]
    assert run("--folder", tmp_path, *flags(base_case(world_size=2)), *words).returncode == 0
    (first,) = [event for event in events_of(tmp_path) if event["event"] == "first_step"]
    assert first["note"] == "pairs of devices scored once; devices run at once"


def test_a_batch_says_which_line_is_wrong(tmp_path):
    (tmp_path / "lines").write_text("--rows 8\n\n--rosw 8\n")
    done = run("--batch", tmp_path / "lines")
    assert done.returncode == 2 and "lines, line 3: unknown flag '--rosw'" in done.stderr
    assert run("--batch", tmp_path / "none").returncode == 2
