"""Counts and predictions against numbers worked out by hand (docs/metrics.md), and against the article's own ratios."""

import pytest

from harness import cost, systems
from harness.cases import Case
from harness.configuration import ROOT

LADDER = (64, 128, 256, 512, 1024)
PREDICT = {
    "bytes_per_cell": 12.0,
    "bytes_per_element": 24.0,
    "startup_seconds": 5.0,
    "cpu_flops_per_second": 5.0e10,
    "cuda_flops_per_second": 2.0e14,
    "step_overhead_seconds": 1.0e-4,
}


def test_cells_and_pairs_of_three_rows():
    # Rows a, b, c: nine cells; one set has the pairs ab, ac, bc; two sets have all nine.
    assert cost.covered_cells(3) == 9
    assert cost.distinct_pairs("one_set_sigmoid", 3) == 3
    assert cost.distinct_pairs("one_set_info_nce", 3) == 3
    assert cost.distinct_pairs("two_set_sigmoid", 3) == 9
    assert cost.distinct_pairs("info_nce", 3) == 9


def test_batches_of_image_caption_pairs():
    assert cost.image_caption_pairs("one_set_sigmoid", 2048) == 1024
    assert cost.image_caption_pairs("two_set_sigmoid", 1024) == 1024


def test_nominal_flops():
    # 4 * 2 * 2 * 8 and 6 * 2 * 2 * 8
    assert cost.nominal_flops("one_set_sigmoid", 2, 8) == 128
    assert cost.nominal_flops("two_set_sigmoid", 2, 8) == 192
    assert cost.nominal_flops("info_nce", 2, 8) == 192
    # B pairs: 16 B B D as one set of 2B rows, 6 B B D as two sets.
    assert cost.nominal_flops("one_set_sigmoid", 2 * 10, 4) == 16 * 10 * 10 * 4
    assert cost.nominal_flops("two_set_sigmoid", 10, 4) == 6 * 10 * 10 * 4


def test_nominal_flops_per_rank_of_the_articles_largest_one_box_case():
    # 4 * 16384 * 131072 * 1024 = 8.796e12 per GPU; over 39.0 ms that is 225 TFLOP/s.
    flops = cost.nominal_flops_per_rank("one_set_sigmoid", 131072, 1024, 8)
    assert flops == 8796093022208
    assert flops / 39.0e-3 == pytest.approx(225.5e12, rel=1e-3)


def test_ragged_batch_counts_live_rows():
    # 3 live rows over 2 ranks: 4 * 3 * 3 * 8 / 2
    assert cost.nominal_flops_per_rank("one_set_sigmoid", 3, 8, 2) == 144


def test_executed_flops_by_ladder():
    # One rank, 2 rows, prefixes (1, 3): 4 cells, widest 3, sum 4.
    def executed(loss, ladder, once=False):
        return cost.executed_flops_per_rank(loss, 2, 1, (1, 3), ladder, once)

    assert executed("one_set_sigmoid", "one_pass") == 2 * 4 * 3 + 2 * 4 * 3
    assert executed("one_set_sigmoid", "descending") == 2 * 4 * 5 + 2 * 4 * 3  # 3 wide, then 2 taken off
    assert executed("one_set_sigmoid", "per_prefix") == 2 * 4 * 4 + 2 * 4 * 4
    assert executed("two_set_sigmoid", "per_prefix") == 2 * 4 * 4 + 2 * 2 * 4 * 4
    assert executed("one_set_sigmoid", "one_pass", True) == 2 * 4 * 3 + 2 * 4 * 3 - 4 * 3


def test_symmetry_makes_one_rank_three_RRD_and_saves_one_own_block_on_many():
    rows, dims = 16384, 1024
    assert cost.executed_flops_per_rank("one_set_sigmoid", rows, 1, LADDER, "one_pass", True) == 3 * rows * rows * dims
    many = cost.executed_flops_per_rank("one_set_sigmoid", rows, 8, LADDER, "one_pass", True)
    assert many == 4 * rows * 8 * rows * dims - rows * rows * dims


def test_softmax_losses_score_twice():
    rows, dims = 4096, 1024
    assert cost.executed_flops_per_rank("info_nce", rows, 1, LADDER) == 8 * rows * rows * dims
    one = cost.executed_flops_per_rank("one_set_info_nce", rows, 1, LADDER, "one_pass", True)
    assert one == 4 * rows * rows * dims
    many = cost.executed_flops_per_rank("one_set_info_nce", rows, 4, LADDER, "one_pass", True)
    assert many == 6 * rows * 4 * rows * dims - 2 * rows * rows * dims


def test_descending_scores_cost_194_hundredths_of_one_pass():
    def forward(ladder):
        return cost.executed_flops_per_rank("one_set_sigmoid", 1, 1, LADDER, ladder) - 2 * 1024

    assert forward("descending") / forward("one_pass") == 1984 / 1024


def test_executed_flops_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="one_pass, descending, per_prefix"):
        cost.executed_flops_per_rank("one_set_sigmoid", 2, 1, LADDER, "sideways")
    with pytest.raises(ValueError, match="two sets"):
        cost.executed_flops_per_rank("two_set_sigmoid", 2, 1, LADDER, "one_pass", True)


def test_fraction_of_peak():
    assert cost.fraction_of_peak(3.0e12, 0.01, 6.0e14) == pytest.approx(0.5)


def test_wire_bytes():
    # 4 ranks of 10 rows, 8 bf16 columns: 30 foreign rows * 8 * 2 bytes.
    assert cost.wire_bytes_per_rank("one_set_sigmoid", 10, 4, 8) == 480
    assert cost.wire_bytes_per_rank("two_set_sigmoid", 10, 4, 8) == 960
    assert cost.wire_bytes_per_rank("one_set_sigmoid", 10, 1, 8) == 0
    assert cost.rail_bytes_per_rank("one_set_sigmoid", 10, 2, 8) == 160
    assert cost.rail_bytes_per_rank("two_set_sigmoid", 10, 2, 8) == 320
    assert cost.rail_bytes_per_rank("one_set_sigmoid", 10, 1, 8) == 0


def test_predict_seconds_on_one_gpu():
    case = Case("open_clip", "two_set_sigmoid", "bidir", rows=1024, device="cuda")
    # 6 * 1024^3 = 6442450944 FLOPs at 2e14 per second, plus 0.1 ms.
    assert cost.predict_seconds(case, PREDICT) == pytest.approx(1.0e-4 + 3.221225472e-5)


def test_ranks_of_one_machine_share_its_cpu_but_not_the_next_machines():
    alone = Case("open_clip", "two_set_sigmoid", "bidir", rows=1024)
    # 6442450944 / 5e10 = 0.12884901888 s
    assert cost.predict_seconds(alone, PREDICT) == pytest.approx(1.0e-4 + 0.12884901888)
    # 4 ranks: each has 4 times the cells and a quarter of the machine.
    four = Case("open_clip", "two_set_sigmoid", "bidir", rows=1024, world_size=4)
    assert cost.predict_seconds(four, PREDICT) == pytest.approx(1.0e-4 + 16 * 0.12884901888)
    spread = Case("open_clip", "two_set_sigmoid", "bidir", rows=1024, world_size=4, nodes=2)
    assert cost.predict_seconds(spread, PREDICT) == pytest.approx(1.0e-4 + 8 * 0.12884901888)


def test_predict_bytes_and_both_forms_of_a_case():
    case = Case("open_clip", "two_set_sigmoid", "bidir", rows=100, world_size=2, dims=64, prefixes=(64,))
    # 12 * 100 * 200 + 24 * 100 * 64
    assert cost.predict_bytes(case, PREDICT) == 240000 + 153600
    assert cost.predict_bytes(case.to_json(), PREDICT) == 393600
    assert cost.predict_seconds(case.to_json(), PREDICT) == cost.predict_seconds(case, PREDICT)


def test_what_is_taken_whatever_the_rows_is_of_the_case_s_device():
    known = PREDICT | {"cpu_fixed_bytes": 1000.0, "cuda_fixed_bytes": 70000.0}
    case = Case("open_clip", "two_set_sigmoid", "bidir", rows=100, world_size=2, dims=64, prefixes=(64,))
    assert cost.predict_bytes(case, known) == 393600 + 1000
    assert cost.predict_bytes(case.to_json() | {"device": "cuda"}, known) == 393600 + 70000


@pytest.mark.parametrize(
    ("variant", "device", "rows", "measured"),
    [  # allocated_peak_bytes of stored rows
        ("one_set", "cuda", 131072, 1155150904),
        ("two_set", "cuda", 131072, 2207039544),
        ("one_set", "cuda", 16384, 190270520),
        ("two_set", "cuda", 16384, 323785272),
        ("info_nce", "cuda", 16384, 327410488),
        ("nt_xent", "cuda", 16384, 311253816),
        ("one_set", "cpu", 1024, 12026176),
        ("two_set", "cpu", 1024, 20463936),
        ("info_nce", "cpu", 1024, 20627776),
    ],
)
def test_the_native_loss_s_memory_is_foretold(variant, device, rows, measured):
    native = systems.load(ROOT / "configs" / "system")["native"]
    case = Case("native", native.variants[variant].loss, variant, rows, device=device, options={"form": "nt_xent"})
    foretold = cost.predict_bytes(case, native.predict | native.variants[variant].predict)
    assert foretold == pytest.approx(measured, rel=0.03)


def test_incomplete_predictions_are_refused_with_the_key():
    case = Case("open_clip", "two_set_sigmoid", "bidir", rows=100)
    with pytest.raises(ValueError, match="step_overhead_seconds"):
        cost.predict_seconds(case, {"cpu_flops_per_second": 1.0})
    with pytest.raises(ValueError, match="cpu_flops_per_second is 0"):
        cost.predict_seconds(case, PREDICT | {"cpu_flops_per_second": 0})
