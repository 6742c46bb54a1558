"""All-reduces and scaling in reports, from rows made up with round numbers."""

import pytest

from reports import charts, claims, collectives, measured, page, store
from tests.reports.made_up_results import add_run, row


def reduced(system, variant, ranks, size, microseconds, **changes):
    """A row of an all-reduce of `size` bytes."""
    made = row(system, "one_set_all_reduce", variant, size // 4096, microseconds and microseconds / 1e3, **changes)
    return made | {
        "world_size": ranks,
        "device": "cuda",
        "device_name": "Some GPU",
        "gradient_dtype": "float32",
        "prefixes": "1024",
        "bytes": size,
        "schema_version": 2,
    }


@pytest.fixture
def run(results):
    """Two and eight ranks; a step of two systems on one and two."""
    rows = [
        reduced("native_all_reduce", "two_shot", 2, 4096, 8.0),
        reduced("native_all_reduce", "two_shot", 2, 1 << 30, 4000.0),
        reduced("torch_all_reduce", "nccl", 2, 1 << 30, 5000.0),
        reduced("native_all_reduce", "in_switch", 8, 1 << 30, 4000.0),
        reduced("torch_all_reduce", "nccl_graph", 8, 1 << 30, 5000.0),
        reduced("torch_all_reduce", "nccl", 8, 4096, None, status="crashed", reason="no"),
    ]
    for ranks, size, milliseconds in ((1, 1024, 1.0), (1, 2048, 4.0), (2, 1024, 2.5)):
        made = row("native", "one_set_sigmoid", "one_set", size, milliseconds, 9)
        skew = {"schema_version": 2, "skew_seconds": 1.5e-6} if ranks > 1 else {}
        rows.append(made | {"world_size": ranks, "device": "cuda", "device_name": "Some GPU"} | skew)
    add_run(results, "gpu-x8", "collectives", "20260101T000000Z-aaaa", rows)
    return next(each for each in store.load(results).runs if each.machine == "gpu-x8")


def test_bus_bandwidth_is_nccl_tests_definition(run):
    found = {
        (each["variant"], each["world_size"], each["bytes"]): collectives.bus_bandwidth(each)
        for each in run.rows
        if collectives.is_collective(each)
    }
    assert found["two_shot", "2", str(1 << 30)] == pytest.approx((1 << 30) / 4e-3)  # two ranks: 2 * 1/2 = 1
    assert found["in_switch", "8", str(1 << 30)] == pytest.approx((1 << 30) / 4e-3 * 1.75)
    assert found["nccl", "8", "4096"] is None


def test_a_table_for_each_number_of_ranks(run):
    two, eight = collectives.tables(run)
    assert two.title.startswith("All-reduce over 2x Some GPU") and eight.title.startswith("All-reduce over 8x Some GPU")
    assert [column.name for column in two.columns] == ["message", "native_all_reduce two_shot", "torch_all_reduce nccl"]
    assert two.rows[0] == ("4 KiB", "0.00800 ms, 512 MB/s", "not measured")
    assert two.rows[1] == ("1 GiB", "4.00 ms, 268 GB/s", "5.00 ms, 215 GB/s")
    assert (1, 1) in two.emphasis
    assert eight.rows[0][-2:] == ("crashed", "not measured")


def test_the_bandwidth_claim_is_judged_on_eight_ranks_alone(run, results):
    assert collectives.best_ratio(run, "in_switch") == (pytest.approx(1.25), 8)
    assert collectives.best_ratio(run, "two_shot") == (pytest.approx(1.25), 2)
    table = claims.table(store.load(results))
    line = next(cells for cells in table.rows if cells[0].startswith("all-reduce bus bandwidth"))
    assert line[3:5] == ("1.25x (gpu-x8)", "confirmed")


@pytest.mark.parametrize(
    ("told", "changes", "judged"),
    [
        ((0, 0), {}, ("the same bits at 2 of 2 sizes (gpu-x8)", "confirmed")),
        ((0, 3), {}, ("the same bits at 1 of 2 sizes (gpu-x8)", "refuted")),
        ((None, 0), {}, ("the same bits at 1 of 1 sizes (gpu-x8)", "confirmed")),
        ((None, None), {}, ("", "not run")),
        ((0, 0), {"world_size": 2}, ("", "not run")),
        ((0, 0), {"variant": "two_shot"}, ("", "not run")),
        ((0, 0), {"status": "wrong"}, ("", "not run")),
    ],
)
def test_the_switchs_bits_are_judged_on_eight_ranks_alone(results, told, changes, judged):
    rows = [
        reduced("native_all_reduce", "in_switch", 8, size, 10.0)
        | {"schema_version": 3, "differing_repetitions": differing}
        | changes
        for size, differing in zip((1 << 20, 1 << 30), told, strict=True)
    ]
    add_run(results, "gpu-x8", "collectives", "20260101T000000Z-aaaa", rows)
    table = claims.table(store.load(results))
    (line,) = (cells for cells in table.rows if cells[0].startswith("all-reduce repeats bit for bit"))
    assert line[3:5] == judged


def test_all_reduces_stand_in_no_table_of_losses(run):
    assert all(row["loss"] != "one_set_all_reduce" for shape in measured.shapes(run) for row in shape.rows)
    assert len(measured.timings(run).rows) == 3 and len(measured.statuses(run).rows) == 9


def test_efficiencies(run):
    (line,) = collectives.efficiencies(run)
    assert line[:5] == ("native one_set", "one-set sigmoid", "init", 2, 1024)
    # 2 x 1024 x 1024 cells a rank in 2.5 ms against 1024 x 1024 in 1 ms; 2048 rows in 4 ms against two ranks' 2.5 ms
    assert line[6:] == (pytest.approx(0.8), pytest.approx(0.8), 1.5e-6)
    assert collectives.scaling(run).rows[0][-3:] == ("80.0%", "80.0%", "0.00150 ms")


def test_charts_and_page(run, results):
    drawn = charts.all_reduces(run)
    assert "native_all_reduce two_shot 268 GB/s" in drawn.description and drawn.svg.startswith("<svg")
    assert "native one_set, one-set sigmoid 80.0%" in charts.scaling(run).description
    text = page.markdown(page.sections(store.load(results)), ())
    assert "All-reduce over 8x Some GPU" in text and "weak efficiency" in text
