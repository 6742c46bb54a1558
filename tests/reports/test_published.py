"""The article's tables, cell for cell. Every expected text is typed from the article, never taken from the code."""

import csv
import re
from pathlib import Path

import pytest

from harness.records import read_rows
from reports import claims, published, store

RESULTS = Path(__file__).resolve().parents[2] / "results"

ONE_BOX = """\
| 8x B300 | ScalingContrasts | open_clip bidir | open_clip gather | open_clip CLIP | big_vision |
| :--- | ---: | ---: | ---: | ---: | ---: |
| R = 1024 | 1.89 ms · 19 MB | 26.4 ms · 241 MB | 22.8 ms · 270 MB | 11.0 ms · 1.71 GB | 3.27 ms · 484 MB |
| R = 4096 | 4.17 ms · 210 MB | 27.3 ms · 3.03 GB | 26.1 ms · 3.40 GB | 83.0 ms · 26.2 GB | 8.18 ms · 6.19 GB |
| R = 16384 | 39.0 ms · 2.95 GB | 142 ms · 45.1 GB | 153 ms · 50.6 GB | out of memory | 106 ms · 60.8 GB |
"""
TWO_BOXES = """\
| 16x B300 | ScalingContrasts | open_clip bidir | open_clip gather | open_clip CLIP | big_vision |
| :--- | ---: | ---: | ---: | ---: | ---: |
| R = 1024 | 3.62 ms · 24 MB | 45.7 ms · 474 MB | 39.3 ms · 503 MB | 25.4 ms · 6.64 GB | 4.57 ms · 883 MB |
| R = 4096 | 9.72 ms · 227 MB | 49.4 ms · 5.97 GB | 42.0 ms · 6.34 GB | 333 ms · 104 GB | 20.9 ms · 11.1 GB |
| R = 16384 | 77.7 ms · 3.02 GB | 362 ms · 89.1 GB | 305 ms · 94.6 GB | out of memory | 223 ms · 105 GB |
"""
DOMAINS = """\
| Scale-up domain | GPUs | Per GPU, both ways | Fabric | Reductions | Matrix units |
| :--- | ---: | ---: | :--- | :---: | :--- |
| Nvidia Hopper | 8 | 0.9 TB/s | NVLink 4 through NVSwitch | ✓ | WGMMA |
| AMD MI355X | 8 | 1.1 TB/s | Infinity Fabric, a direct mesh | ✗ | MFMA |
| Nvidia Blackwell | 72 | 1.8 TB/s | NVLink 5 through NVSwitch | ✓ | TCGen05 |
| AMD MI455X | 72 | 3.6 TB/s | UALink over Ethernet switches | ? | WMMA |
| Nvidia Rubin | 72\N{EN DASH}144 | 3.6 TB/s | NVLink 6 through NVSwitch | ✓ | TCGen05 |
"""
FOOTPRINT = [
    ("cuBLAS with cuBLASLt", "603 MB", "45x"),
    ("NCCL", "242 MB", "18x"),
    ("NVSHMEM", "78 MB", "6x"),
    ("ScalingContrasts", "13.4 MB", "1x"),
    ("libcudart", "0.8 MB", ""),
]


@pytest.fixture(scope="module")
def results():
    return store.load(RESULTS)


def test_the_articles_loss_step_tables_come_back_exactly(results):
    one, two = published.loss_step(results.loss_step)
    assert one.markdown() == ONE_BOX
    assert two.markdown() == TWO_BOXES


def test_scale_up_table_and_footprint_list(results):
    assert published.domains(results.domains).markdown() == DOMAINS
    assert [row[:3] for row in published.footprint(results)[0].rows] == FOOTPRINT


def test_seconds_are_the_published_digits():
    for path in sorted((RESULTS / "published").glob("*.csv")):
        if path.name in store.FACTS:
            continue
        for row in read_rows(path):
            text = row["published_time_text"]
            figures = [float(figure) / 1e3 for figure in re.findall(r"[\d.]+", text)]
            # `x / y` are medians of both passes apart, `x forward` is of one alone, `x (y to z)` gives the range.
            apart, alone = "/" in text, "forward" in text
            best = None if apart or alone else figures[0] if figures else None
            found = {
                name: float(row[f"{name}_seconds"] or "nan") for name in ("best", "median", "mean_low", "mean_high")
            }
            nothing = float("nan")
            assert found["best"] == pytest.approx(nothing if best is None else best, rel=1e-12, nan_ok=True), row
            assert found["median"] == pytest.approx(sum(figures) if apart else nothing, rel=1e-12, nan_ok=True), row
            low, high = figures[1:] if "to" in text else (nothing, nothing)
            assert (found["mean_low"], found["mean_high"]) == pytest.approx((low, high), rel=1e-12, nan_ok=True), row


def test_every_published_figure_names_its_source_and_the_place_in_it():
    for path in sorted((RESULTS / "published").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as stream:
            for row in csv.DictReader(stream):
                assert "https://" in row["source"], (path, row)
                assert re.search(r"\b(table|section|figure|introduction|subpage|text)\b", row["source"]), (path, row)


def test_rates_follow_from_the_digits(results):
    # 8 GPUs, R = 16384, n = 131072: n n = 17179869184 cells in 39.0 ms are 440.5e9 a second, half as many pairs;
    # big_vision's 106 ms give 162.1e9 of either. Nominal: 4 R n D / 39.0 ms = 225.5 TFLOP/s, 6 R n D / 106 ms = 124.5.
    rows = {row[:3]: row[5:] for row in published.rates(results.loss_step).rows}
    assert rows["8", "16384", "ScalingContrasts"] == ("441 G/s", "220 G/s", "226 TFLOP/s")
    assert rows["8", "16384", "big_vision"] == ("162 G/s", "162 G/s", "124 TFLOP/s")
    assert rows["8", "16384", "open_clip CLIP"] == ("", "", "")


def test_what_the_second_box_costs(results):
    rows = {row[:2]: row[2:] for row in published.one_box_against_two(results.loss_step).rows}
    # 77.7 / 39.0 = 1.992; twice the work per GPU: 2 * 39.0 / 77.7 = 100.4%
    assert rows["16384", "ScalingContrasts"] == ("39.0 ms", "77.7 ms", "1.99x", "100%")
    assert rows["4096", "big_vision"] == ("8.18 ms", "20.9 ms", "2.56x", "78.3%")
    assert rows["16384", "open_clip CLIP"] == ("out of memory", "out of memory", "", "")


def test_other_publications(results):
    inf_cl = published.literature("inf_cl_table_1", results.literature["inf_cl_table_1"])
    lines = {row[:3]: row[3:] for row in inf_cl.rows}
    assert [column.name for column in inf_cl.columns[3:]] == [f"batch {k * 1024}" for k in (32, 64, 128, 256, 1024)]
    oom = "out of memory"
    assert lines["clip_vanilla full_matrix", "InfoNCE", "8x A800"] == (
        "16.67 GB (46.40 GB)",
        "66.11 GB (77.94 GB)",
        oom,
        oom,
        oom,
    )
    assert lines["inf_cl tiled", "InfoNCE", "32x A800"][-1] == "1.44 GB (61.20 GB)"
    kernel = published.literature("siglip_kernel_readme", results.literature["siglip_kernel_readme"])
    lines = {row[:3]: row[3:] for row in kernel.rows}
    hopper = "1x Hopper (GH200/H100)"
    assert lines["siglip_kernel chunk_4096", "two-set sigmoid", hopper] == ("48.8 ms · 1.4 GB", "", "5.6 GB")
    assert lines["siglip_kernel eager_reference", "two-set sigmoid", hopper] == ("102.0 ms · 33 GB", "", oom)
    assert lines["siglip_kernel ring", "two-set sigmoid", "8x GH200"] == ("10.1 ms", "31.5 ms", "")
    metric = published.literature("metric_learning_page", results.literature["metric_learning_page"])
    lines = {row[:3]: row[3:] for row in metric.rows}
    a40 = {
        name: lines[f"metric_learning {name}", loss, "1x A40"][0]
        for name, loss in (
            ("nt_xent (fours)", "one-set InfoNCE"),
            ("nt_xent (sixteens)", "one-set InfoNCE"),
            ("mined_triplet (sixteens)", "one set mined triplet"),
        )
    }
    assert list(a40.values()) == [
        "6485 MiB above baseline",
        "185.5 / 143.7 ms · 31627 MiB above baseline",
        "11.69 / 4.65 ms · 801 MiB above baseline",
    ]
    assert lines["metric_learning nt_xent (sixteens)", "one-set InfoNCE", "1x M1 Pro"][0] == "15202 / 15781 ms"


def test_every_claim_has_a_rule_and_its_own_table_agrees(results):
    table = claims.table(results)
    assert {claim["id"] for claim in results.claims} == set(claims.RULES)
    own = {row[0]: row[2] for row in table.rows}
    assert own["fastest at every size (8 and 16 B300)"] == "fastest at 6 of 6 sizes"
    assert own["step time against big_vision (two boxes, R = 16384)"] == "2.87x"  # 223 / 77.7
    assert own["memory per GPU against big_vision (two boxes, R = 16384)"] == "34.8x"  # 105 / 3.02
    assert own["scored cells per second against big_vision (8 GPUs, R = 16384)"] == "2.72x"  # 106 / 39.0
    assert own["distinct pairs per second against big_vision (8 GPUs, R = 16384)"] == "1.36x"  # half of it
    assert own["pace per GPU kept from one box to two (R = 16384)"] == "39.0 ms to 77.7 ms"
