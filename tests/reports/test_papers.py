"""Published figures beside measured ones, from rows made up with known deviations."""

import pytest

from reports import papers, store
from tests.reports.made_up_results import add_run, row

GIB = 2**30


def measured(results, *rows, **settings):
    """The papers' tables by id, with these rows measured on a GPU."""
    shape = {"dims": 768, "prefixes": "768", "dtype": "float32", "device": "cuda"} | settings
    add_run(results, "gpu", "papers", "20260101T000000Z-aaaa", [each | shape for each in rows])
    return {table.id: table for table in papers.tables(store.load(results))}


def cells(table, system, batch, ranks):
    heads = [column.name for column in table.columns]
    (found,) = [line for line in table.rows if line[:3] == (system, str(batch), str(ranks))]
    return dict(zip(heads, found, strict=True))


def test_memory_is_compared_in_binary_gigabytes_by_rank_or_by_batch(results):
    tables = measured(
        results,
        row("open_clip", "info_nce", "clip_fp32", 65536, 300.0, step_peak_bytes=int(66.11 * 1.1 * GIB)),
        row("open_clip", "two_set_rank_info_nce", "clip_rank_of_8", 8192, 40.0, step_peak_bytes=int(8.63 * GIB)),
        row("inf_cl", "info_nce", "inf", 2048, 9.0, step_peak_bytes=int(0.09 * 0.5 * GIB)),
    )
    table = tables["paper-inf-cl-table-1"]
    vanilla = cells(table, "clip_vanilla full_matrix", 65536, 8)
    assert (vanilla["memory"], vanilla["deviation of memory"]) == ("66.11 GB (77.94 GB)", "+10.0%")
    assert vanilla["time"] == vanilla["deviation"] == "", "no loss-only time is published"
    assert cells(table, "open_clip local", 65536, 8)["deviation of memory"] == "+0.0%"
    assert cells(table, "inf_cl tiled", 65536, 32)["deviation of memory"] == "-50.0%"
    unplayed = cells(table, "open_clip local", 65536, 32)
    assert unplayed["measured as"] == "not measured" and unplayed["memory"] == "2.45 GB (43.06 GB)"
    assert len(table.rows) == len(store.load(results).literature["inf_cl_table_1"]), "a line for each published figure"


def test_times_are_compared_and_wrong_rows_say_so(results):
    settings = {"dims": 128, "prefixes": "128", "labels": "fours", "state": "clip"}
    wrong = row(
        "metric_learning", "one_set_contrastive", "contrastive_bf16", 2048, 7.63, status="wrong", reason="dX off"
    )
    tables = measured(results, wrong | {"mean_seconds": 0.00763 * 2}, **settings, **{"dtype": "bfloat16"})
    lines = [line for line in tables["paper-metric-learning-page"].rows if line[0].endswith("contrastive_bf16")]
    found = {line[3]: line for line in lines}
    assert found["A100"][8:10] == ("15.3 ms (wrong)", "+100.0%") and found["A100"][-1] == "dX off"


def test_labels_tell_two_published_rows_apart(results):
    settings = {"dims": 128, "prefixes": "128", "labels": "fours", "state": "clip"}
    pairs = row("metric_learning", "one_set_info_nce", "nt_xent", 512, 9.0, allocated_peak_bytes=6485 * 2**20)
    lines = measured(results, pairs, **settings)["paper-metric-learning-page"].rows
    (line,) = [line for line in lines if line[6] != "not measured"]
    assert line[5] == "6485 MiB" and line[-3] == "+0.0%"


def test_what_was_not_measured_is_no_table(results):
    assert papers.tables(store.load(results)) == []


@pytest.mark.parametrize("status", ["out_of_memory", "unsupported"])
def test_a_case_that_did_not_run_is_a_line(results, status):
    tables = measured(results, row("open_clip", "info_nce", "clip_fp32", 65536, status=status, reason="x"))
    found = cells(tables["paper-inf-cl-table-1"], "clip_vanilla full_matrix", 65536, 8)
    assert found["time here"] == status.replace("_", " ") and found["deviation"] == ""
