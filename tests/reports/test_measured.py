"""Tables of measured runs, from rows made up in conftest.py with round numbers."""

import pytest

from reports import charts, claims, measured, published, store
from reports.conditions import conditions
from reports.facts import fastest, headline_shapes, pictured_shape
from tests.reports.made_up_results import add_run, quick_rows, row


def lines(table):
    return {cells[0]: cells[1:] for cells in table.rows}


def test_the_articles_shape_for_a_measured_machine(measured_shape):
    table = measured.loss_step(measured_shape)
    assert [column.name for column in table.columns] == [
        "1 rank on Some CPU",
        "native one_set",
        "native two_set",
        "big_vision jit_sharded",
        "open_clip bidir",
        "open_clip local",
        "torch_reference eager",
    ]
    cells = lines(table)
    assert cells["loss"] == (
        "one-set sigmoid",
        "two-set sigmoid",
        "two-set sigmoid",
        "two-set sigmoid",
        "InfoNCE",
        "one-set sigmoid",
    )
    assert cells["R = 256"] == (
        "1.00 ms · 2.0 MB",
        "1.50 ms · 2.0 MB",
        "unsupported: jax is missing",
        "9.00 ms · 40 MB",
        "wrong: dX off",
        "1.00 ms · 40 MB",
    )
    assert cells["R = 512"][-1] == "out of memory: 9 GB wanted"
    for part in ("cpu-test-2c", "campaign quick", "protocol quick", "20260101T000000Z-aaaa", "allocated_peak_bytes"):
        assert part in table.note
    assert table.emphasis == {(1, 1), (2, 1)}


def test_memory_of_a_table_is_one_figure(results):
    rows = [
        row("native", "one_set_sigmoid", "one_set", 256, 1.0, 2, device_used_bytes=7_000_000),
        row("open_clip", "two_set_sigmoid", "bidir", 256, 9.0, device_used_bytes=50_000_000),
    ]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", rows)
    table = measured.loss_step(measured.shapes(store.load(results).runs[0])[0])
    assert lines(table)["R = 256"] == ("1.00 ms · 7.0 MB", "9.00 ms · 50 MB")
    assert "device_used_bytes" in table.note and "allocated_peak_bytes" not in table.note


def test_three_readings(measured_shape):
    table = measured.three_ways(measured_shape)
    found = {cells[:2]: cells[3:] for cells in table.rows}
    # open_clip at R = 256 takes 9 ms. Same R: one-set 1 ms. Same loss: two-set 1.5 ms. Same 256 pairs: 512 rows, 4 ms.
    assert found["256", "open_clip bidir"] == (
        "9.00 ms",
        "1.00 ms, 9.00x faster",
        "1.50 ms, 6.00x faster",
        "4.00 ms (R = 512), 2.25x faster",
    )
    assert found["512", "open_clip bidir"][-1] == "R = 1024 not measured"
    # A one-set peer has the same batch at the same R; 1.005 ms and 1 ms have overlapping ranges.
    assert found["256", "torch_reference eager"][1:] == ("1.00 ms, ranges overlap",) * 3
    assert found["512", "torch_reference eager"] == ("out of memory",) + ("4.00 ms",) * 3
    assert found["256", "open_clip local"] == (
        "wrong",
        "1.00 ms",
        "not measured",
        "4.00 ms (R = 512)",
    )


def test_rates_and_fractions(results):
    rows = [
        row("native", "one_set_sigmoid", "one_set", 1000, 2.0, device="cuda"),
        row("cublas_products", "one_set_sigmoid", "graph", 1000, 1.0, device="cuda"),
        row("cublas_products", "one_set_sigmoid", "graph", 2000, 2.0, device="cuda"),
    ]
    add_run(results, "gpu", "single_gpu", "20260101T000000Z-aaaa", rows)
    table = measured.timings(store.load(results).runs[0])
    heads = [column.name for column in table.columns]
    assert [cells[1] for cells in table.rows if cells[0] == "cublas_products graph"] == ["none", "none"]
    native = dict(zip(heads, next(cells for cells in table.rows if cells[0] == "native one_set"), strict=True))
    assert native["cells per second"] == "500 M/s"  # 1e6 cells in 2 ms
    assert native["distinct pairs per second"] == "250 M/s"  # 499500 pairs in 2 ms
    assert native["nominal TFLOP/s per rank"] == "2.05"  # 4 * 1e6 * 1024 / 2 ms
    # Executed 3 * 1e6 * 1024 / 2 ms = 1.536e12; products at best 4 * 4e6 * 1024 / 2 ms = 8.192e12
    assert native["fraction of the matmul rate"] == "0.19"
    assert native["against two plain products"] == "2.00x"
    assert native["process means"] == "2.02 ms to 2.06 ms"


def test_a_run_of_one_round_is_no_headline_while_there_is_another(results):
    add_run(results, "cpu", "quick", "20260101T000000Z-aaaa", quick_rows())
    add_run(results, "cpu", "devices", "20260202T000000Z-bbbb", [each | {"rounds": 1} for each in quick_rows()])
    assert [shape.run.run_id for shape in headline_shapes(store.load(results))] == ["20260101T000000Z-aaaa"]


def test_every_row_stands_in_the_status_table(measured_run):
    table = measured.statuses(measured_run)
    assert len(table.rows) == len(quick_rows())
    found = {(cells[0], cells[3]): cells[5:7] for cells in table.rows}
    assert found["open_clip local", "256"] == ("wrong (expected)", "dX off")
    assert found["big_vision jit_sharded", "512"] == ("unsupported", "jax is missing")
    assert found["native one_set", "256"] == ("ok", "")


def test_other_settings_get_tables_of_their_own(results):
    rows = [
        row("native", "one_set_sigmoid", "one_set", 256, 1.0, 2),
        row("native", "one_set_sigmoid", "one_set", 256, 2.0, 2, state="trained"),
        row("native", "one_set_sigmoid", "one_set", 256, 3.0, 2, dtype="float32"),
        row("native", "one_set_sigmoid", "one_set", 256, 4.0, 2, world_size=2),
    ]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", rows)
    settings = [(shape.world_size, shape.setting) for shape in measured.shapes(store.load(results).runs[0])]
    assert settings == [
        (1, "state init"),
        (1, "state trained"),
        (2, "state init"),
        (1, "state init; dtype float32"),
    ]


def test_the_binarys_size_comes_from_the_environment(measured):
    table = published.footprint(store.load(measured))[1]
    assert table.rows == (("cpu-test-2c", "1.50 MB", "20260101T000000Z-aaaa"),)


def gpu_rows(nodes, native, peer, native_gb=3.0, peer_gb=105.0):
    shape = {"nodes": nodes, "world_size": 8 * nodes, "device": "cuda", "device_name": "NVIDIA B300"}
    shape |= {"protocol": "standard"}
    return [
        row("native", "one_set_sigmoid", "one_set", 16384, native, native_gb * 1000, **shape),
        row("big_vision", "two_set_sigmoid", "jit_sharded", 16384, peer, peer_gb * 1000, **shape),
    ]


def verdicts(results):
    return {cells[0].partition(" (")[0]: cells[3:5] for cells in claims.table(store.load(results)).rows}


def test_claims_are_confirmed_by_rows_of_their_hardware(results):
    add_run(results, "b300-x8", "article", "20260101T000000Z-aaaa", gpu_rows(1, 30.0, 106.0, 2.95))
    add_run(results, "b300-x16", "article", "20260102T000000Z-aaaa", gpu_rows(2, 60.0, 223.0, 3.02))
    found = verdicts(results)
    for claim in (
        "fastest at every size",
        "step time against big_vision",
        "memory per GPU against big_vision",
        "scored cells per second against big_vision",
        "distinct pairs per second against big_vision",
        "pace per GPU kept from one box to two",
        "memory barely grows as GPUs are added",
    ):
        assert found[claim][1] == "confirmed", claim
    assert found["step time against big_vision"][0].startswith("3.72x (b300-x16 · campaign article")
    assert found["distinct pairs per second against big_vision"][0].startswith("1.77x")
    assert found["all-reduce repeats bit for bit"] == ("", "not run")


def test_claims_are_refuted_as_well(results):
    add_run(results, "b300-x8", "article", "20260101T000000Z-aaaa", gpu_rows(1, 110.0, 106.0, 2.0))
    add_run(results, "b300-x16", "article", "20260102T000000Z-aaaa", gpu_rows(2, 240.0, 223.0, 3.1))
    found = verdicts(results)
    for claim in (
        "fastest at every size",
        "step time against big_vision",
        "memory per GPU against big_vision",
        "scored cells per second against big_vision",
        "pace per GPU kept from one box to two",
        "memory barely grows as GPUs are added",
    ):
        assert found[claim][1] == "refuted", claim


def test_other_hardware_and_other_cases_judge_nothing(measured):
    rows = gpu_rows(1, 30.0, 106.0)
    unusual = [each | {"prefixes": "1024"} for each in rows] + [each | {"state": "trained"} for each in rows]
    add_run(measured, "b300-x8", "article", "20260101T000000Z-aaaa", unusual)
    found = verdicts(measured)
    assert {verdict for _, verdict in found.values()} == {"not run"}


@pytest.mark.parametrize(
    ("size", "wait", "judged"),
    [
        (4096, 0.776e-3, ("38.8% of a step (", "confirmed")),
        (4096, 0.68e-3, ("34.0% of a step (", "refuted")),
        (4096, 0.82e-3, ("41.0% of a step (", "refuted")),
        (4096, 0.0, ("0% of a step (", "refuted")),
        (16384, 0.776e-3, ("", "not run")),
        (4096, None, ("", "not run")),
    ],
)
def test_the_wait_at_the_end_is_judged_at_the_middle_size(results, size, wait, judged):
    # Of 2 ms: the mean of a made-up row is 1.02 of its best.
    box = {"world_size": 8, "device": "cuda", "device_name": "NVIDIA B300", "end_wait_seconds": wait}
    rows = [row("native", "one_set_sigmoid", "one_set", size, 2 / 1.02, 9, schema_version=3, **box)]
    add_run(results, "b300-x8", "article", "20260101T000000Z-aaaa", rows)
    found, verdict = verdicts(results)["final all-reduce spends waiting for the last GPU"]
    assert found.startswith(judged[0]) and verdict == judged[1]


def test_a_binary_for_one_model_is_judged(results):
    environment = {"binary_bytes": 9_000_000, "binary_architectures": ["sm_90a"]}
    add_run(results, "h200-x1", "quick", "20260101T000000Z-aaaa", gpu_rows(1, 30.0, 106.0), environment)
    assert verdicts(results)["binary"][1] == "confirmed"


def test_nobody_is_the_fastest_peer_for_want_of_the_others():
    """At R = 512 a budget left the fast peer out: the headline is told at R = 256, where both are."""
    rows = [row("native", "one_set_sigmoid", "one_set", size, size / 256) for size in (256, 512)]
    rows += [row("open_clip", "two_set_sigmoid", "bidir", size, size / 16) for size in (256, 512)]
    rows.append(row("big_vision", "two_set_sigmoid", "jit_sharded", 256, 2.0))
    text = [{name: str(value) for name, value in each.items()} for each in rows]
    mine, peer = fastest(text, "native")
    assert (mine["rows"], peer["system"]) == ("256", "big_vision")
    text.append(text[-1] | {"rows": "512", "status": "out_of_memory", "best_seconds": ""})
    mine, peer = fastest(text, "native")
    assert (mine["rows"], peer["system"]) == ("512", "open_clip"), "a failure is an answer"


def test_the_fastest_peer_of_the_same_loss_and_of_another():
    rows = [
        row("native", "one_set_sigmoid", "one_set", 256, 1.0),
        row("native", "two_set_sigmoid", "two_set", 256, 2.0),
    ]
    rows += [row("triton_one_set", "one_set_sigmoid", "graph", 256, 4.0), row("a", "two_set_sigmoid", "b", 256, 5.0)]
    rows.append(row("open_clip", "two_set_sigmoid", "bidir", 256, 3.0))
    text = [{name: str(value) for name, value in each.items()} for each in rows]
    found = [
        fastest(text, "native"),
        fastest(text, "native", same=True),
        fastest(text, "native", same=False),
        fastest(text, "native", "two_set_sigmoid", same=True),
        fastest(text, "native", "info_nce", same=True),
    ]
    assert [pair and (pair[0]["variant"], pair[1]["system"]) for pair in found] == [
        ("one_set", "open_clip"),
        ("one_set", "triton_one_set"),
        ("one_set", "open_clip"),
        ("two_set", "open_clip"),
        None,
    ]


def test_the_headline_is_of_the_run_that_compares_most_systems(results):
    few = [row("native", "one_set_sigmoid", "one_set", 256, 1.0), row("a", "two_set_sigmoid", "b", 256, 5.0)]
    many = [*few, row("open_clip", "two_set_sigmoid", "bidir", 256, 3.0)]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", many)
    add_run(results, "m", "other", "20260102T000000Z-bbbb", [each | {"protocol": "standard"} for each in few])
    add_run(results, "m", "third", "20260103T000000Z-cccc", few)
    assert [shape.run.run_id[-4:] for shape in headline_shapes(store.load(results))] == ["aaaa"]


def test_the_picture_wants_peers_at_two_sizes(results):
    def rows(*sizes):
        return [
            row(*who, size, 1.0, rounds=1)
            for size in sizes
            for who in (("native", "one_set_sigmoid", "one_set"), ("open_clip", "two_set_sigmoid", "bidir"))
        ]

    add_run(results, "m", "one", "20260101T000000Z-aaaa", rows(256, 512, 1024))
    add_run(results, "m", "two", "20260102T000000Z-bbbb", rows(256, 512))
    add_run(results, "m", "three", "20260103T000000Z-cccc", rows(256))
    assert pictured_shape(store.load(results)).run.run_id[-4:] == "bbbb"
    more = [row("disco_clip", "info_nce", "x", size, 1.0, rounds=1) for size in (256, 512)]
    add_run(results, "m", "four", "20260101T000000Z-dddd", [*rows(256, 512), *more])
    assert pictured_shape(store.load(results)).run.run_id[-4:] == "dddd", "more systems before a newer run"


def test_the_picture_has_one_variant_of_a_system_and_loss(results):
    def rows(size, **milliseconds):
        return [row("open_clip", "two_set_sigmoid", name, size, time) for name, time in milliseconds.items()]

    mine = [row("native", "one_set_sigmoid", "one_set", size, 1.0) for size in (256, 512)]
    add_run(results, "m", "q", "20260101T000000Z-aaaa", [*mine, *rows(256, a=3.0, b=2.0), *rows(512, a=5.0, b=6.0)])
    drawn = charts.headline(store.load(results)).svg
    assert ">open_clip a<" in drawn and ">open_clip b<" not in drawn


def test_one_round_gives_no_ratio(results):
    """A run of one round has no range of process means, so nothing in it differs from anything."""
    add_run(results, "cpu", "quick", "20260203T000000Z-cccc", [each | {"rounds": 1} for each in quick_rows()])
    (run,) = store.load(results).runs
    table = measured.three_ways(measured.shapes(run)[0])
    cells = [cell for row in table.rows for cell in row[4:]]
    assert any(cell.endswith(", one round") for cell in cells)
    assert not any("faster" in cell or "slower" in cell or "overlap" in cell for cell in cells)
    table = measured.timings(run)
    (place,) = [index for index, column in enumerate(table.columns) if column.name == "process means"]
    assert {line[place] for line in table.rows} == {""}


def test_conditions_tell_energy_clocks_and_first_use(results):
    """One row of 1000 live rows: a million covered cells, so joules per step are joules per million cells."""
    sensed = {
        "energy_joules_per_step": 0.25,
        "clock_low_mhz": 1200,
        "clock_high_mhz": 1980,
        "power_watts": 612.5,
        "throttle_reasons": "sw_power_cap",
        "load_average": 1.5,
        "cache_state": "warm",
        "retries": 1,
        "compile_seconds": 2.5,
        "allocator_driver_difference_bytes": -3_000_000,
    }
    made = [row("native", "one_set_sigmoid", "one_set", 1000, 10.0, 1.0, **sensed)]
    made.append(row("native", "one_set_sigmoid", "one_set", 2000, 10.0, 1.0, **(sensed | {"world_size": 2})))
    add_run(results, "h200-x1", "quick", "20260101T000000Z-0001", made)
    run = store.load(results).runs[-1]
    table = conditions(run)
    first, second = (dict(zip([c.name for c in table.columns], line, strict=True)) for line in table.rows)
    assert (first["energy per step"], first["J per million cells"]) == ("0.250 J", "0.250")
    assert second["J per million cells"] == "0.0156", "4000 live rows: 16 million cells"
    assert (first["lowest clock"], first["highest clock"], first["power"]) == ("1200 MHz", "1980 MHz", "612 W")
    assert (first["throttle reasons"], first["retries"], first["load"]) == ("sw_power_cap", "1", "1.50")
    assert (first["compiling"], first["autotuning"], first["driver less allocator"]) == ("2.50 s", "", "-3.0 MB")


def test_rows_of_before_have_no_conditions(measured_run):
    assert conditions(measured_run) is None


def test_cold_caches_get_a_table_of_their_own(results):
    warm = row("native", "one_set_sigmoid", "one_set", 1000, 10.0, 1.0, cache_state="warm")
    add_run(results, "h200-x1", "quick", "20260101T000000Z-0001", [warm, warm | {"cache_state": "cold"}])
    found = measured.shapes(store.load(results).runs[-1])
    assert [shape.setting for shape in found] == ["state init", "state init; cache_state cold"]


def test_the_fastest_of_several_variants_of_a_loss_is_compared(results):
    """The offload variants compute the same losses; one that does not run here must not hide the one that does."""
    more = [
        row("native", "one_set_sigmoid", "one_set_offload", 256, status="unsupported", reason="needs a GPU"),
        row("native", "two_set_sigmoid", "two_set_offload", 256, 20.0),
    ]
    add_run(results, "cpu", "quick", "20260204T000000Z-dddd", [*quick_rows(), *more])
    (run,) = store.load(results).runs
    table = measured.three_ways(measured.shapes(run)[0])
    found = {cells[:2]: cells[3:] for cells in table.rows}
    assert found["256", "open_clip bidir"][1:3] == ("1.00 ms, 9.00x faster", "1.50 ms, 6.00x faster")


def test_nt_xent_and_sup_con_are_not_the_same_loss(results):
    times = {"nt_xent": 2.0, "sup_con": 1.0}
    forms = [row("native", "one_set_info_nce", form, 256, time, form=form) for form, time in times.items()]
    peer = row("metric_learning", "one_set_info_nce", "nt_xent_bf16", 256, 10.0, form="nt_xent")
    add_run(results, "cpu", "quick", "20260204T000000Z-dddd", [*quick_rows(), *forms, peer])
    (run,) = store.load(results).runs
    table = measured.three_ways(measured.shapes(run)[0])
    (line,) = (cells for cells in table.rows if cells[1] == "metric_learning nt_xent_bf16")
    assert line[5] == "2.00 ms, 5.00x faster"


def test_a_loss_of_its_own_is_nobody_s_peer(results):
    """A fast loss that is none of the design's is shown, but it is no fastest peer and is given no rates."""
    rows = [
        row("native", "one_set_sigmoid", "one_set", 256, 2.0),
        row("open_clip", "two_set_sigmoid", "bidir", 256, 9.0),
        row("metric_learning", "one_set_arcface", "arcface", 256, 1.0),
    ]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", rows)
    (run,) = store.load(results).runs
    (shape,) = measured.shapes(run)
    assert fastest(shape.rows, "native")[1]["system"] == "open_clip"
    table = measured.loss_step(shape)
    assert [column.name for column in table.columns][1:] == [
        "native one_set",
        "metric_learning arcface",
        "open_clip bidir",
    ]
    assert table.emphasis == {(1, 1)}
    assert [cells[1] for cells in measured.three_ways(shape).rows] == ["open_clip bidir"]
    (arcface,) = [cells for cells in measured.timings(run).rows if cells[0].startswith("metric_learning")]
    assert arcface[5] == "1.00 ms" and arcface[10:13] == ("", "", "")


def test_a_trap_that_was_timed_is_marked_and_in_no_comparison(results):
    """The fastest row of all is a documented trap: its time stands marked, and everything that compares ignores it."""
    trap = {"status": "wrong", "expected_status": "wrong", "reason": "dX off"}
    rows = [
        row("native", "one_set_sigmoid", "one_set", 256, 2.0, 3, device="cuda"),
        row("cublas_products", "one_set_sigmoid", "graph", 256, 1.0, 3, device="cuda"),
        row("grad_cache", "info_nce", "whole", 256, 9.0, 40, device="cuda"),
        row("grad_cache", "info_nce", "naive_4", 256, 0.5, 12, device="cuda", **trap),
        row("grad_cache", "info_nce", "naive_16", 256, 0.25, 6, device="cuda", status="wrong", reason="unexpected"),
    ]
    add_run(results, "gpu", "peers", "20260101T000000Z-aaaa", rows)
    (run,) = store.load(results).runs
    (shape,) = measured.shapes(run)
    table = measured.loss_step(shape)
    heads = [column.name for column in table.columns]
    cells = dict(zip(heads, table.rows[1], strict=True))
    assert cells["grad_cache naive_4"] == "0.500 ms (wrong) · 12 MB"
    assert cells["grad_cache naive_16"] == "wrong: unexpected", "only an expected one is timed"
    assert table.emphasis == {(1, heads.index("native one_set"))} and "documented trap" in table.note
    ways = {line[1]: line[3:] for line in measured.three_ways(shape).rows}
    assert ways["grad_cache naive_4"] == ("0.500 ms (wrong)", "2.00 ms", "not measured", "R = 512 not measured")
    assert ways["grad_cache whole"][1] == "2.00 ms, 4.50x faster"
    times = {line[0]: line[5:] for line in measured.timings(run).rows}
    assert times["grad_cache naive_4"] == (
        *("0.500 ms (wrong)", "0.505 ms (wrong)", "0.510 ms (wrong)", "0.505 ms to 0.515 ms (wrong)", "2.50 ms"),
        *[""] * 5,
    )
    assert times["grad_cache naive_16"] == ("wrong", *[""] * 9)
    assert times["grad_cache whole"][-1] == "9.00x"
    assert fastest(shape.rows, "native")[1]["variant"] == "whole"
    assert [each.label for each in charts.series_of(shape, charts.TIME) if "naive_4" in each.label] == []


def test_tables_without_traps_do_not_explain_them(measured_shape):
    assert "trap" not in measured.loss_step(measured_shape).note + measured.three_ways(measured_shape).note
