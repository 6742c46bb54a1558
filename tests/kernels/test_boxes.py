"""Several boxes compute what one process does, and what the float64 oracle says: every loss, 1 to 4 boxes."""

import numpy as np
import pytest

from tests.kernels import oracle
from tests.kernels.binary import base_case, live_inputs
from tests.kernels.binary import check as check_alone
from tests.kernels.boxes import Network, check, needs_namespaces, running

LOSSES = ["one_set_sigmoid", "two_set_sigmoid", "info_nce", "nt_xent", "sup_con"]


def case_of(loss, **overrides):
    """A small case; the two forms of one_set_info_nce go by their own names."""
    form = {"form": loss} if loss in ("nt_xent", "sup_con") else {}
    loss = "one_set_info_nce" if form else loss
    return (
        base_case(loss=loss, rows=37, dims=96, prefixes=[32, 80], scale=5.0, bias=-1.0, labels="mixed")
        | form
        | overrides
    )


def compare(case, boxes, folder, network=None):
    events, arrays = check(folder, case, boxes, network)
    for name in ("loss_value", "scale_gradient", "bias_gradient"):
        assert len({event[name] for event in events}) == 1, f"{name} is the same on every box, bit for bit"
    alone_folder = folder / "alone"
    alone_folder.mkdir()
    alone = check_alone(alone_folder, case)
    for name in ("loss_value", "scale_gradient", "bias_gradient"):
        if alone[name] is not None:
            assert events[0][name] == pytest.approx(alone[name], rel=1e-6, abs=1e-9), name
    for name, values in arrays.items():
        scale = np.abs(alone["arrays"][name]).max()
        assert np.abs(values - alone["arrays"][name]).max() < 2e-6 * scale, name
    return events, arrays


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("boxes, each", [(2, 1), (2, 2), (3, 1)])
def test_boxes_equal_one_process(tmp_path, loss, boxes, each):
    compare(case_of(loss, world_size=boxes * each), boxes, tmp_path)


@pytest.mark.parametrize("loss", ["one_set_sigmoid", "two_set_sigmoid", "info_nce"])
def test_boxes_equal_the_oracle(tmp_path, loss):
    case = case_of(loss, world_size=4, live=[37, 0, 20, 1])
    events, arrays = compare(case, 2, tmp_path)
    keep, sets, labels = live_inputs(case)
    want = oracle.evaluate(case, sets, labels)
    assert events[0]["loss_value"] == pytest.approx(want["loss"], rel=1e-5)
    assert events[0]["scale_gradient"] == pytest.approx(want["dt"], abs=1e-5 * want["dt_terms"])
    for values, gradient in zip(arrays.values(), want["gradients"], strict=True):
        assert oracle.worst_band_error(values[keep], gradient, case["prefixes"]) < 5e-3
        dead = np.setdiff1d(np.arange(len(values)), keep)
        assert not values[dead].any()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("boxes", [2, 4])
def test_boxes_in_network_namespaces_equal_one_process(tmp_path, loss, boxes):
    needs_namespaces()
    with Network(boxes) as network:
        compare(case_of(loss, world_size=boxes), boxes, tmp_path, network)


TIMED = ["--actions", "time", "--warmup-steps", 2, "--warmup-seconds", 0, "--blocks", 2]
HEADER = 32  # of a stripe
SCALARS = 3 * 8 + HEADER  # loss, dt and db, once a step and counterpart


@pytest.mark.parametrize(
    "loss, sets, statistics", [("one_set_sigmoid", 1, 0), ("two_set_sigmoid", 2, 0), ("info_nce", 2, 4)]
)
@pytest.mark.parametrize("boxes, each, sockets", [(2, 1, 1), (2, 2, 3), (3, 1, 2)])
def test_bytes_on_the_wire_are_the_embeddings_and_a_constant(tmp_path, loss, sets, statistics, boxes, each, sockets):
    """Per step and counterpart: sets x R x D x 2 bytes of each device; info_nce's log-sums; headers and scalars."""
    case = case_of(loss, rows=512, dims=96, world_size=boxes * each)
    with running(tmp_path, boxes, rails_options=f"sockets={sockets}") as run:
        for box in reversed(range(boxes)):
            run.start(box, case, *TIMED, "--steps-per-block", 3)
        assert set(run.finish().values()) == {0}, [run.log(box) for box in range(boxes)]
        reports = [next(event for event in run.events(box) if event["event"] == "rails") for box in range(boxes)]
    embeddings = sets * 512 * 96 * 2
    log_sums = statistics * 2 * 512 * 4  # two prefixes
    labels = 512 * 4 + HEADER if sets == 1 else 0  # once, not a step
    stripes = sockets if embeddings >= 65536 else 1
    step = each * (embeddings + stripes * HEADER + (log_sums + HEADER if log_sums else 0)) + SCALARS
    for report in reports:
        assert report["embedding_bytes"] == embeddings
        expected = (boxes - 1) * (report["steps"] * step + each * labels)
        assert report["bytes_sent"] == report["bytes_received"] == expected


def test_the_interface_sends_what_the_rails_say(tmp_path):
    """Two runs that differ by a known number of steps differ by their embeddings on the wire, and little more."""
    needs_namespaces()
    case = case_of("one_set_sigmoid", rows=1024, dims=512, prefixes=[32], world_size=2)
    sent = []
    with Network(2) as network:
        for steps in (2, 12):
            before = network.sent_bytes(0)
            folder = tmp_path / str(steps)
            folder.mkdir()
            with running(folder, 2, network) as run:
                for box in (1, 0):
                    run.start(box, case, *TIMED, "--steps-per-block", steps, "--max-block-seconds", 100)
                assert set(run.finish().values()) == {0}, run.log(0)
            sent.append(network.sent_bytes(0) - before)
    more = 20 * 1024 * 512 * 2  # two blocks of ten steps more
    assert more < sent[1] - sent[0] < 1.1 * more
