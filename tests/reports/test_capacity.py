"""The table of largest batches, from a file made up for tests."""

import json

import pytest

from harness.records import write_capacity
from reports import page, store
from reports.__main__ import main

ROW = {"schema_version": 1, "loss": "two_set_sigmoid", "state": "init", "world_size": 1, "status": "ok"}


def add_search(results, run_id, rows, finished=True, machine="h200-x1"):
    folder = results / "measured" / machine / "capacity" / run_id
    folder.mkdir(parents=True)
    write_capacity(folder / "capacity.csv", rows)
    (folder / "environment.json").write_text(json.dumps({"finished": finished}))


def found(rows=1024, **changes):
    figures = {"allocated_peak_bytes": 90_000_000, "device_used_bytes": 2_950_000_000, "limit_bytes": 3 * 10**9}
    more = {"failing_rows": 1152, "failing_outcome": "out_of_memory", "predicted_bytes": 2_000_000_000}
    return ROW | {"system": "open_clip", "variant": "bidir", "largest_rows": rows} | figures | more | changes


def test_the_newest_finished_search_of_each_system_is_shown(results, tmp_path):
    refused = ROW | {"system": "jax", "variant": "jit", "status": "unsupported", "reason": "jax is not installed"}
    add_search(results, "20260101T000000Z-aaaa", [found(512)])
    add_search(results, "20260101T120000Z-abab", [found(384), found(4096, variant="gather")])
    add_search(results, "20260102T000000Z-bbbb", [found(), refused])
    add_search(results, "20260103T000000Z-cccc", [found(2048)], finished=False)
    loaded = store.load(results)
    (section,) = [section for section in page.sections(loaded) if section.id == "largest-batch"]
    (table,) = section.tables
    assert table.title == "Largest batch: h200-x1, runs 20260101T120000Z-abab, 20260102T000000Z-bbbb"
    head = ("open_clip bidir", "two-set sigmoid", "init", "1")
    older = ("open_clip gather", *head[1:], "4096", "2.95 GB", "2.00 GB", "3.00 GB", "1152", "out of memory", "")
    assert table.rows == (
        (*head, "1024", "2.95 GB", "2.00 GB", "3.00 GB", "1152", "out of memory", ""),
        ("jax jit", "two-set sigmoid", "init", "1", "", "", "", "", "", "", "unsupported: jax is not installed"),
        older,
    )
    assert loaded.passed_over == (
        "h200-x1/capacity/20260101T000000Z-aaaa: newer runs are shown",
        "h200-x1/capacity/20260103T000000Z-cccc: not finished",
    )
    assert main(["--results", str(results), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "tables" / "largest-batch-h200-x1.csv").is_file()
    assert '<section id="largest-batch">' in (tmp_path / "out" / "index.html").read_text()


def test_without_a_search_there_is_no_section(results):
    assert "largest-batch" not in [section.id for section in page.sections(store.load(results))]


@pytest.mark.parametrize(
    ("column", "value"), [("largest_rows", "many"), ("status", "fine"), ("limit_bytes", "1e9"), ("world_size", "")]
)
def test_broken_cells_name_line_and_column(results, column, value):
    add_search(results, "20260101T000000Z-aaaa", [found(), found() | {column: value}])
    with pytest.raises(store.ResultsError, match=f"capacity.csv: line 3, column '{column}'"):
        store.load(results)
