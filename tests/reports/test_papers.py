"""Published figures beside measured ones, from rows made up with known deviations."""

import pytest

from harness.records import write_capacity
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
    assert {"time", "deviation", "remarks"}.isdisjoint(vanilla), "no loss-only time is published, nothing is wrong"
    assert vanilla["time here"] == "300 ms"
    assert "Published on A800. Measured on gpu, protocol quick." in table.note, "no columns of one word"
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
    lines = [line for line in tables["paper-metric-learning-page"].rows if "contrastive_bf16" in line[0]]
    found = {line[3]: line for line in lines}
    assert found["A100"][8:10] == ("15.3 ms (wrong)", "+100.0%") and found["A100"][-1] == "dX off"


METRIC_LEARNING = {"dims": 128, "prefixes": "128", "state": "clip", "gradient_dtype": "float32"}


def metric_lines(results, *rows, **settings):
    table = measured(results, *rows, **(METRIC_LEARNING | settings))["paper-metric-learning-page"]
    heads = [column.name for column in table.columns]
    lines = [dict(zip(heads, line, strict=True)) for line in table.rows]
    return [line for line in lines if line["measured as"] != "not measured"]


def test_a_remark_says_why_a_wrong_row_is_expected(results):
    wrong = {"status": "wrong", "expected_status": "wrong", "labels": "fours", "dtype": "bfloat16"}
    because = {"reason": "loss off by 1; dX off by 2. Expected: distances are rounded"}
    before = {"reason": "loss off by 1; dX off by 2"}
    lines = metric_lines(
        results,
        row("metric_learning", "one_set_contrastive", "contrastive_bf16", 2048, 7.63, **wrong | because),
        row("metric_learning", "one_set_triplet_hard", "triplet_hard_bf16", 2048, 4.93, **wrong | before),
        dtype="bfloat16",
    )
    assert [line["remarks"] for line in lines] == ["distances are rounded"] * 2 + ["loss off by 1"] * 2


def test_memory_has_the_unit_of_the_published_figure(results):
    """640 MB, 1.4 GB of 10^9 bytes, and none."""
    peak = {"allocated_peak_bytes": 1_280_000_000, "dtype": "bfloat16"}
    names = ("minimum_memory", "default")
    steps = [row("siglip_kernel", "two_set_sigmoid", name, 65536, 9.0) for name in names]
    table = measured(results, *steps, **peak)["paper-siglip-kernel-readme"]
    here = {
        name: cells(table, f"siglip_kernel {name}", 65536, 1)["allocated_peak_bytes"]
        for name in ("chunk_1024", "chunk_4096", "ring")
    }
    assert here == {"chunk_1024": "1280 MB", "chunk_4096": "1.28 GB", "ring": "1.28 GB"}


def test_labels_tell_two_published_rows_apart(results):
    pairs = row("metric_learning", "one_set_info_nce", "nt_xent", 512, 9.0)
    (line,) = metric_lines(results, pairs, labels="fours")
    assert line["memory"] == "6485 MiB above baseline"


@pytest.mark.parametrize(
    "variant, labels, step_peak, published, here, deviation",
    [  # of an H200, run 20261130T061022Z-3afc: step_peak less 64 MiB of workspaces, and 256 KiB of gradients
        ("nt_xent", "fours", 6866360320, "6485 MiB above baseline", "6485 MiB above baseline", "-0.0%"),
        ("nt_xent", "sixteens", 33229731840, "31627 MiB above baseline", "31627 MiB above baseline", "-0.0%"),
        ("triplet", "fours", 220724736, "148 MiB above baseline", "147 MiB above baseline", "-0.8%"),
    ],
)
def test_memory_above_the_baseline_counts_gradients_and_no_workspaces(
    results, variant, labels, step_peak, published, here, deviation
):
    step = row("metric_learning", "one_set_info_nce", variant, 512, 9.0, step_peak_bytes=step_peak)
    (line,) = metric_lines(results, step | {"allocated_peak_bytes": 1}, labels=labels, device_name="NVIDIA H200")
    assert (line["memory"], line["allocated_peak_bytes"]) == (published, here)
    assert line["deviation of memory"] == deviation.replace("-0.0", "+0.0")


def test_a_sum_of_medians_is_compared_with_a_median(results):
    """185.5 and 143.7 ms: twice their sum is 658.4 ms."""
    slow = row("metric_learning", "one_set_info_nce", "nt_xent", 512, 9.0, median_seconds=0.6584, mean_seconds=5.0)
    (line,) = metric_lines(results, slow, labels="sixteens")
    assert (line["time"], line["time here"], line["deviation"]) == ("185.5 / 143.7 ms", "658 ms", "+100.0%")


def test_figures_of_a_cpu_stand_beside_a_cpu_s_and_no_gpu_s(results):
    """Published: 15,202 and 15,781 ms on an M1 Pro, 331.6 ms of a forward pass alone."""
    settings = {"device": "cpu", "threads": 2}
    whole = row("metric_learning", "one_set_info_nce", "nt_xent", 512, 9.0, labels="sixteens", median_seconds=15.4915)
    forward = row("metric_learning", "one_set_triplet", "triplet", 512, 100.0, labels="fours")
    lines = metric_lines(results, whole, forward, **settings)
    assert [line["on"] for line in lines] == ["M1 Pro", "M1 Pro"]
    assert lines[0]["measured as"] == "metric_learning nt_xent, CPU of 2 threads"
    assert (lines[0]["time here"], lines[0]["deviation"]) == ("15.5 s", "-50.0%")
    assert (lines[1]["time"], lines[1]["deviation"]) == ("331.6 ms forward", "")


def test_a_published_limit_stands_beside_a_capacity_search(results):
    """Published: 768 rows on an RTX 5090, 1024 on an H100. Found: 1152, half as many again and an eighth more."""
    found = METRIC_LEARNING | {"prefixes": "128", "dtype": "float32", "labels": "fours", "device": "cuda"}
    found |= {"schema_version": 1, "system": "metric_learning", "loss": "one_set_info_nce", "variant": "nt_xent"}
    found |= {"world_size": 1, "nodes": 1, "status": "ok", "largest_rows": 1152}
    folder = results / "measured" / "gpu" / "capacity" / "20260101T000000Z-cccc"
    folder.mkdir(parents=True)
    write_capacity(folder / "capacity.csv", [found, found | {"dims": 512, "prefixes": "512", "largest_rows": 64}])
    (table,) = papers.tables(store.load(results))
    heads = [column.name for column in table.columns]
    lines = [dict(zip(heads, line, strict=True)) for line in table.rows if "largest" in line[5]]
    assert [(line["batch"], line["on"], line["R"], line["deviation of memory"]) for line in lines] == [
        ("768", "RTX 5090", "1152", "+50.0%"),
        ("1024", "H100", "1152", "+12.5%"),
    ]
    assert "Measured on gpu, capacity." in table.note


def test_a_run_on_as_many_ranks_redoes_a_published_one(results):
    """Inf-CL's table 4 and siglip-kernel's four GPUs, by a made-up run on four."""
    four = {"world_size": 4}
    readme = [
        row("siglip_kernel", "two_set_sigmoid", "default", 16384, 26.2, **four),
        row("siglip_kernel", "two_set_sigmoid", "default", 16384, 99.0, world_size=8),
    ]
    shape = {"dims": 768, "prefixes": "768", "device": "cuda"}
    add_run(results, "gpu", "readme", "20260101T000000Z-bbbb", [each | shape for each in readme])
    tables = measured(
        results,
        row("inf_cl", "info_nce", "ring", 16384, 9.0, step_peak_bytes=int(4.81 * 1.5 * GIB), **four),
        row("inf_cl", "info_nce", "inf", 16384, 9.0, step_peak_bytes=int(0.81 * GIB), **four),
        row("open_clip", "info_nce", "clip_local_fp32", 16384, 9.0, step_peak_bytes=int(16.96 * GIB), **four),
        row("open_clip", "info_nce", "clip_fp32", 16384, 9.0, step_peak_bytes=int(66.21 * 0.5 * GIB), **four),
    )
    table = tables["paper-inf-cl-table-4"]
    found = {line[0]: line for line in table.rows}
    heads = [column.name for column in table.columns]
    for system, name, deviation in (
        ("inf_cl ring", "inf_cl ring, 4 ranks", "+50.0%"),
        ("inf_cl tiled", "inf_cl inf, 4 ranks", "+0.0%"),
        ("open_clip local", "open_clip clip_local_fp32, 4 ranks", "+0.0%"),
        ("clip_vanilla full_matrix", "open_clip clip_fp32, 4 ranks", "-50.0%"),
    ):
        line = dict(zip(heads, found[system], strict=True))
        assert (line["measured as"], line["deviation of memory"]) == (name, deviation)
    readme = cells(tables["paper-siglip-kernel-readme"], "siglip_kernel ring", 65536, 4)
    assert (readme["time"], readme["time here"], readme["deviation"]) == ("13.1 ms", "26.2 ms", "+100.0%")
    two_boxes = cells(tables["paper-siglip-kernel-readme"], "siglip_kernel ring", 131072, 8)
    assert two_boxes["measured as"] == "not measured", "published on two nodes, run on one"
    assert "paper-inf-cl-table-1" not in tables, "its columns are of 8 and of 32 ranks"


def test_siglip_kernel_s_readme_is_redone_in_its_setting_and_in_the_peers(results):
    """48.8 ms of 65,536 pairs, made up twice: with unit rows as inputs, and normalising in the step."""
    shape = {"dims": 768, "prefixes": "768", "device": "cuda"}
    made_up = [("default_unit_rows", 48.8), ("default", 61.0), ("minimum_memory_unit_rows", 54.3)]
    rows = [row("siglip_kernel", "two_set_sigmoid", name, 65536, ms) | shape for name, ms in made_up]
    add_run(results, "gpu", "readme", "20260101T000000Z-bbbb", rows)
    table = measured(results)["paper-siglip-kernel-readme"]
    heads = [column.name for column in table.columns]
    lines = [dict(zip(heads, line, strict=True)) for line in table.rows]
    found = [(each["system"], each["measured as"], each["deviation"]) for each in lines if each["deviation"]]
    assert ("siglip_kernel chunk_4096", "siglip_kernel default_unit_rows", "+0.0%") in found
    assert ("siglip_kernel chunk_4096", "siglip_kernel default", "+25.0%") in found
    assert ("siglip_kernel chunk_1024", "siglip_kernel minimum_memory_unit_rows", "+0.0%") in found


def test_data_offload_stands_beside_the_native_loss_s_by_batch(results):
    """Published: 4,194,304 pairs on 8 GPUs, 26.12 GB each; 1,048,576, 6.53 GB. Made up: 2.1 GB and 2 GB on one."""
    step = {"state": "init", "rounds": 1, "dtype": "bfloat16"}
    tables = measured(
        results,
        row("native", "two_set_sigmoid", "two_set_offload", 4194304, 334e3, step_peak_bytes=int(2.612 * GIB), **step),
        row("native", "info_nce", "info_nce_offload", 1048576, 40e3, step_peak_bytes=int(0.653 * GIB), **step),
        row("native", "info_nce", "info_nce_offload", 524288, 10e3, step_peak_bytes=GIB, **step),
    )
    four = cells(tables["paper-inf-cl-table-2"], "inf_cl tiled_data_offload (D = 768)", 4194304, 8)
    assert (four["memory"], four["measured as"]) == ("26.12 GB", "native two_set_offload")
    assert (four["R"], four["time here"], four["deviation of memory"]) == ("4194304", "334 s", "-90.0%")
    one = cells(tables["paper-inf-cl-table-1"], "inf_cl tiled_data_offload", 1048576, 8)
    assert (one["measured as"], one["deviation of memory"]) == ("native info_nce_offload", "-90.0%")
    measured_lines = [line for table in tables.values() for line in table.rows if "not measured" not in line]
    assert len(measured_lines) == 2, "524,288 pairs are the published rank's, not its batch"


def test_the_largest_batches_are_whole_numbers_of_pairs_a_rank(results):
    """Of table 2, batches in thousands of 1024 over the ranks; typed from the paper's notes."""
    rows = store.load(results).literature["inf_cl_table_2"]
    thousands = [int(each["rows"]) * int(each["world_size"]) / 1024 for each in rows]
    assert thousands == [68, 172, 800, 68, 360, 3456, 64, 152, 448, 64, 352, 2048, 64, 184, 4096, 64, 368, 12288]
    memory = [each["published_memory_text"].removesuffix(" GB") for each in rows]
    assert " ".join(memory).split() == (
        "74.39 59.95 3.01 66.29 3.27 66.11 47.23 2.52 64.13 2.89 69.10 26.12 64.13 19.59".split()
    )


def test_a_rank_that_is_played_stands_beside_the_run_on_many(results):
    played = row("open_clip", "two_set_rank_info_nce", "clip_rank_of_4", 16384, 9.0, step_peak_bytes=int(16.96 * GIB))
    absent = {"world_size": 4, "status": "unsupported", "reason": "needs 4 GPUs per machine, 1 visible"}
    many = row("open_clip", "info_nce", "clip_local_fp32", 16384, **absent)
    alone = row("inf_cl", "info_nce", "inf", 16384, **absent)
    table = measured(results, played, many, alone)["paper-inf-cl-table-4"]
    lines = {line[0]: line for line in table.rows if "not measured" not in line}
    assert lines["open_clip local"][4:7] == ("open_clip clip_rank_of_4", "16384", "9.00 ms"), "what ran, alone"
    assert lines["inf_cl tiled"][4:7] == ("inf_cl inf, 4 ranks", "16384", "unsupported"), "nothing else ran"


def test_what_was_not_measured_is_no_table(results):
    assert papers.tables(store.load(results)) == []


def test_a_case_that_a_run_did_not_reach_is_no_line_beside_one_that_did(results):
    step = {"dims": 768, "prefixes": "768", "dtype": "bfloat16", "device": "cuda"}
    timed = row("siglip_kernel", "two_set_sigmoid", "default", 65536, 41.0, case_id="a", **step)
    unit = row("siglip_kernel", "two_set_sigmoid", "default_unit_rows", 65536, 37.0, case_id="b", **step)
    missed = timed | {"best_seconds": None, "status": "interrupted", "reason": "Ctrl-C"}
    add_run(results, "h200-x1", "siglip_kernel_readme", "20260101T000000Z-aaaa", [timed])
    add_run(results, "h200-x1", "siglip_kernel_readme", "20260102T000000Z-bbbb", [unit, missed], {"finished": False})
    (table,) = papers.tables(store.load(results))
    place = [column.name for column in table.columns].index("measured as")
    found = [line[place] for line in table.rows if line[:2] == ("siglip_kernel chunk_4096", "65536")]
    assert found == ["siglip_kernel default", "siglip_kernel default_unit_rows"]


@pytest.mark.parametrize("status", ["out_of_memory", "unsupported"])
def test_a_case_that_did_not_run_is_a_line(results, status):
    tables = measured(results, row("open_clip", "info_nce", "clip_fp32", 65536, status=status, reason="x"))
    found = cells(tables["paper-inf-cl-table-1"], "clip_vanilla full_matrix", 65536, 8)
    assert found["time here"] == found["step_peak_bytes"] == status.replace("_", " ")
