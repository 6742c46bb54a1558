import csv
import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from harness import caches, configuration, plan, summary, support
from harness.__main__ import main
from harness.cases import ConfigurationError
from harness.machine import Gpu, Machine

GIB = 1 << 30
CPU = Machine(cores=8, memory_bytes=16 * GIB, cpu_name="cpu", cpu_slug="cpu")
H200 = Gpu(0, "NVIDIA H200", 9.0, 141 * GIB)
EIGHT = dataclasses.replace(CPU, gpus=tuple(dataclasses.replace(H200, index=index) for index in range(8)))


PROTOCOL = {"rounds": 1, "maximum_range": None, "retries": 0}


def planned(bench, machine, *overrides):
    """Cases of a registry, on a machine that is made up."""
    places = [f"registry={bench.registry}", "systems=null", *overrides]
    chosen = configuration.compose(places)
    return plan.enumerate_cases(chosen.for_device(plan.choose_device(chosen, machine)), machine)


@pytest.fixture
def two_devices(bench):
    bench.system("probe", {"plain": {}, "other": {"loss": "info_nce"}}, devices=["cpu", "cuda"])
    return bench


def test_the_matrix_is_the_product_of_what_is_asked(two_devices):
    found = planned(two_devices, CPU, "rows=[16,32]", "states=[init,trained]", "world_sizes=[1,2]")
    assert len(found) == 2 * 2 * 2 * 2
    assert len({each.case.case_id for each in found}) == 16
    states = {(each.case.state, each.case.scale, each.case.bias) for each in found}
    assert states == {("init", 10.0, -10.0), ("trained", 100.0, -10.0)}


def test_what_is_asked_for_twice_is_measured_once(two_devices):
    found = planned(two_devices, CPU, "rows=[16,16]", "states=[init,init]", "nodes=[1,1]")
    assert sorted(each.case.variant for each in found) == ["other", "plain"]


def test_the_article_is_one_and_two_boxes_of_eight(two_devices):
    found = planned(two_devices, EIGHT, "campaign=article", "systems=null")
    assert {(each.case.nodes, each.case.world_size) for each in found} == {(1, 8), (2, 16)}
    assert {each.unsupported for each in found if each.case.nodes == 1} == {None}
    assert {each.unsupported for each in found if each.case.nodes == 2} == {"needs 2 machines, this run has 1"}


def test_the_article_on_smaller_machines_is_rows_with_reasons(two_devices):
    for machine, reason in (
        (CPU, "no NVIDIA GPU is visible"),
        (dataclasses.replace(CPU, gpus=(H200,)), "needs 8 GPUs per machine, 1 visible"),
        (dataclasses.replace(CPU, foreign_gpu="AMD"), "the GPU is AMD's; only NVIDIA GPUs are measured"),
    ):
        found = planned(two_devices, machine, "campaign=article", "systems=null", "nodes=[1]")
        assert len(found) == 6
        assert {each.unsupported for each in found} == {reason}


def test_world_size_is_the_visible_gpus_by_default(two_devices):
    assert {each.case.world_size for each in planned(two_devices, EIGHT)} == {8}
    assert {each.case.world_size for each in planned(two_devices, CPU)} == {1}


def test_old_gpus_are_unsupported(two_devices):
    v100 = dataclasses.replace(CPU, gpus=(Gpu(0, "Tesla V100", 7.0, 32 * GIB),))
    assert {each.unsupported for each in planned(two_devices, v100)} == {
        "Tesla V100 has compute capability 7.0, probe needs 8.0"
    }


def test_what_a_system_says_of_itself(bench):
    bench.system("gpu_only", {"a": {}}, devices=["cuda"])
    bench.system("missing", {"a": {}}, requires=["numpy", "no_such_package"])
    bench.system("native", {"a": {}}, launcher="native", target=None)
    bench.system("pairs", {"a": {"loss": "one_set_sigmoid", "world_sizes": [2, 4]}})
    found = planned(bench, CPU, f"binary={bench.folder}/no_binary")
    reasons = {each.system.name: each.unsupported for each in found}
    assert reasons == {
        "gpu_only": "gpu_only runs on cuda only",
        "missing": "Python package no_such_package is not installed",
        "native": "no_binary is not built; run make native",
        "pairs": "pairs:a runs on 2, 4 devices only",
    }


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ('echo \'{"losses": ["info_nce"]}\'', "binary does not compute one_set_sigmoid"),
        ('echo \'{"devices": ["cuda"]}\'', "binary finds no cpu device that it was built for"),
        ("echo broken", "binary --capabilities does not answer"),
        ("echo '{}'", None),
    ],
)
def test_the_native_binary_is_asked(bench, script, reason):
    binary = bench.folder / "binary"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    support.capabilities.cache_clear()
    bench.system("native", {"a": {}}, launcher="native", target=None)
    (each,) = planned(bench, CPU, f"binary={binary}", "rows=[8]")
    assert each.unsupported is None if reason is None else reason in each.unsupported


def test_main_memory_is_not_overrun(two_devices):
    huge = planned(two_devices, CPU, "rows=[65536]")  # 12 bytes a cell by the probe's YAML: 48 GiB
    assert {each.unsupported.partition(",")[0] for each in huge} == {"predicted to need 49.5 GiB"}
    many = planned(two_devices, CPU, "rows=[1]", "world_sizes=[1000]")
    assert {each.unsupported for each in many} == {None}, "one process that drives all devices"
    two_devices.system("probe", {"plain": {}}, launcher="torchrun")
    (many,) = planned(two_devices, CPU, "rows=[1]", "world_sizes=[1000]")
    assert many.unsupported.startswith("predicted to need 293.0 GiB"), "1000 processes of 300 MiB"
    two_devices.system("probe", {"plain": {}}, devices=["cpu", "cuda"])
    on_gpu = planned(two_devices, dataclasses.replace(CPU, gpus=(H200,)), "rows=[131072]")
    assert all(each.unsupported is None and each.expects_out_of_memory for each in on_gpu), "a GPU says so itself"
    assert on_gpu[0].expected("out_of_memory") and not on_gpu[0].expected("crashed")


def test_only_surprises_fail_a_run(bench):
    bench.system("probe", {"right": {}, "trap": {"loss": "info_nce", "expected_status": "wrong"}})
    right, trap = planned(bench, CPU, "rows=[8]")
    assert right.expected("ok") and right.expected("unsupported")
    assert not any(right.expected(status) for status in ("wrong", "timeout", "out_of_memory", "crashed"))
    assert trap.expected("wrong") and not trap.expected("ok")


def test_one_step_a_process_is_predicted_as_one(bench):
    """Of 100 rows of 10 columns 6 * 100 * 100 * 10 = 600,000 FLOPs at 1000 a second: 600 s, and 0.5 s to start."""
    predict = {"bytes_per_cell": 0, "bytes_per_element": 0, "startup_seconds": 0.5, "step_overhead_seconds": 0}
    predict |= {"cpu_flops_per_second": 1000, "cuda_flops_per_second": 1000}
    bench.system("probe", {"a": {"loss": "two_set_sigmoid"}}, predict=predict)
    shape = ("rows=[100]", "dims=10", "prefixes=[10]")
    (one,) = planned(bench, CPU, "protocol=one_step", *shape)
    assert one.launch_seconds == pytest.approx(600.5)
    (survey,) = planned(bench, CPU, "protocol=survey", *shape)
    assert survey.launch_seconds == pytest.approx(0.5 + 600 * (3 + 3 * 2))


def test_a_variant_may_be_for_one_kind_of_device(bench):
    bench.system("probe", {"streams": {"loss": "info_nce", "devices": ["cuda"]}}, devices=["cpu", "cuda"])
    (here,) = planned(bench, CPU, "rows=[8]")
    assert here.unsupported == "probe:streams runs on cuda only"
    (there,) = planned(bench, dataclasses.replace(CPU, gpus=(H200,)), "rows=[8]")
    assert there.unsupported is None


def test_the_offload_variants_are_planned_for_gpus_alone():
    chosen = configuration.compose(["campaign=offload", "device=cpu"])
    for each in plan.enumerate_cases(chosen.for_device("cpu"), CPU):
        assert each.unsupported == f"native:{each.case.variant} runs on cuda only"


def test_an_expected_status_may_depend_on_the_state(bench):
    bench.system("probe", {"a": {"loss": "info_nce", "expected_status": {"trained": "wrong"}}})
    init, trained = planned(bench, CPU, "rows=[8]", "states=[init,trained]")
    assert init.expected("ok") and not init.expected("wrong")
    assert trained.expected("wrong") and not trained.expected("ok")
    assert [summary.row(each, None, [], {}, PROTOCOL, "stopped")["expected_status"] for each in (init, trained)] == [
        "ok",
        "wrong",
    ]


def test_an_expected_status_may_be_of_many_rows_only(bench):
    """Counted over ranks: 4 rows on each of 2 are 8."""
    trap = {"loss": "info_nce", "expected_status": {"init": "wrong"}, "expected_from_rows": 8}
    bench.system("probe", {"a": trap}, launcher="torchrun")
    for shape, state, status in (
        ("rows=[7]", "init", "ok"),
        ("rows=[8]", "init", "wrong"),
        ("rows=[8]", "trained", "ok"),
        ("rows=[9]", "init", "wrong"),
    ):
        (each,) = planned(bench, CPU, shape, f"states=[{state}]")
        assert each.variant.expected_status(each.case) == status and each.expected(status), (shape, state)
    three, four = planned(bench, CPU, "rows=[3,4]", "world_sizes=[2]")
    assert three.expected("ok") and not three.expected("wrong")
    assert four.expected("wrong") and not four.expected("ok")


def test_a_variant_overrides_predictions_of_its_system(bench):
    slow = {"loss": "info_nce", "predict": {"startup_seconds": 40.0}}
    bench.system("probe", {"plain": {"loss": "info_nce"}, "slow": slow})
    plain, slow = planned(bench, CPU, "rows=[8]")
    assert slow.launch_seconds - plain.launch_seconds == pytest.approx(40.0 - 0.4), "0.4 is the system's own"
    assert slow.rank_bytes == plain.rank_bytes, "what a variant leaves out stays the system's"


def test_the_budget_drops_the_longest_first(two_devices):
    found = planned(two_devices, CPU, "rows=[64,4096,16384]")
    total = sum(each.total_seconds(3) for each in found)
    kept, dropped = plan.within_budget(found, 0.9 * total, lambda each: each.total_seconds(3))
    assert min(each.total_seconds(3) for each in dropped) >= max(each.total_seconds(3) for each in kept)
    assert sum(each.total_seconds(3) for each in kept) <= 0.9 * total
    assert plan.within_budget(found, None, lambda each: 1.0) == (found, [])
    assert plan.within_budget(found, 0.0, lambda each: 1.0) == ([], found), "the first of equals goes first"
    assert plan.within_budget(found, 0.0, lambda each: 0.0) == (found, [])


def test_a_budget_over_thousands_of_cases_is_found_at_once():
    asked = []
    kept, dropped = plan.within_budget(range(5000), 10.0, lambda each: asked.append(each) or 1.0 + each % 2)
    assert kept == list(range(4980, 5000, 2)) and dropped[:2] == [1, 3] and len(dropped) == 4990
    assert len(asked) == 5000, "each is predicted once"


def test_impossible_shapes_are_refused(two_devices):
    for override, words in (
        ("nodes=[2]", None),
        ("prefixes=[64,2048]", "exceeds dims"),
        ("prefixes=[128,64]", "ascend"),
        ("live=[1,2]", "live"),
        ("prefix_weights=[1]", "prefix_weights"),
    ):
        if words is None:
            with pytest.raises(ConfigurationError, match="world_size 3 is not divisible by nodes 2"):
                planned(two_devices, CPU, override, "world_sizes=[3]")
        else:
            with pytest.raises(ConfigurationError, match=words):
                planned(two_devices, CPU, override)


def test_a_registry_without_predictions_names_its_file(bench):
    bench.system("probe", {"a": {}}, predict={})
    with pytest.raises(ConfigurationError, match=r"configs/system/probe\.yaml: predict lacks"):
        planned(bench, CPU)


def test_list_prints_predictions_and_runs_nothing(bench):
    bench.system("probe", {"sleep": {"sleep_seconds": 0.001}})
    bench.system("absent", {"a": {}}, requires=["no_such_package"])
    for command, override in (("bench", "list=true"), ("plan", "seed=42")):
        done = bench.run(override, "budget=10m", command=command)
        assert done.returncode == 0, done.stderr
        assert "probe:sleep one_set_sigmoid R=8 init on cpu" in done.stdout
        assert "no_such_package is not installed" in done.stdout
        assert "2 cases (1 run here, 0 dropped)" in done.stdout
    assert not bench.results.exists()


def test_a_listing_predicts_a_binary_that_is_not_built_and_a_run_needs_it(bench, capsys):
    words = ["plan", *bench.arguments("registry=configs/system", "systems=[native:one_set]", "binary=/nowhere/native")]
    assert main(words) == 0
    listed = capsys.readouterr().out.splitlines()
    assert "native:one_set one_set_sigmoid R=8 init on cpu" in listed[1] and "unsupported" not in listed[1]
    assert "1 cases (1 run here, 0 dropped)" in listed[2]
    assert listed[3] == "native binary: not built; make native builds it, and so does make bench before it measures"
    (case,) = planned(bench, CPU, *words[1:], "budget=null")
    assert case.unsupported == "native is not built; run make native"


@pytest.mark.parametrize(("rows", "steps"), [(8, 100), (16384, 2)])
def test_cold_caches_take_a_flush_for_every_step_of_a_block(two_devices, monkeypatch, rows, steps):
    """A last cache of 250 MB: 500 MB are written, 0.1 s at 5 GB/s. At 1 GFLOP/s a step of 16384 rows fills a block."""
    monkeypatch.setattr(caches, "last_level_bytes", lambda: 250_000_000)
    warm, cold = (planned(two_devices, CPU, f"rows=[{rows}]", f"protocol.cache={each}")[0] for each in ("warm", "cold"))
    assert cold.launch_seconds - warm.launch_seconds == pytest.approx(3 * steps * 0.1)


def test_a_check_that_also_times_is_predicted_once(two_devices):
    found = planned(two_devices, CPU, "rows=[64]")[:1]
    (seconds,) = (each.launch_seconds for each in found)
    for apart, launches in ((0, 1), (3, 4)):
        last = plan.listing(found, [], 1, apart, two_devices.folder).splitlines()[-1]
        assert f"predicted {plan.duration(launches * seconds)} with 1 rounds" in last


def test_readable_durations_and_sizes():
    assert [plan.duration(value) for value in (0.4, 59.4, 200, 3900)] == ["0 s", "59 s", "3m20s", "1h05m"]
    assert [plan.size(value) for value in (12, 1536, 3 << 20, 5 << 30)] == ["12 B", "1.5 KiB", "3.0 MiB", "5.0 GiB"]


def test_a_campaign_may_have_several_matrices(two_devices):
    parts = "parts=[{rows:[8],dims:16,prefixes:[16]},{rows:[8,16],labels:fours}]"
    found = planned(two_devices, CPU, parts)
    shapes = {(each.case.rows, each.case.dims, each.case.labels) for each in found}
    assert shapes == {(8, 16, "pairs"), (8, 1024, "fours"), (16, 1024, "fours")}


def test_named_systems_are_measured_at_the_same_batch_of_pairs_too(bench):
    """B pairs are B rows of two sets and 2B rows of one: beside two-set peers at R, a one-set system at 2R."""
    bench.system("ours", {"one": {"loss": "one_set_sigmoid"}, "other": {"loss": "one_set_sigmoid"}})
    bench.system("peer", {"two": {"loss": "two_set_sigmoid"}})
    given = ["rows=[8,16]", "same_batch=['ours:one']"]
    shapes = [(each.case.title.split()[0], each.case.rows) for each in planned(bench, CPU, *given)]
    assert shapes == [
        *(("ours:one", 8), ("ours:other", 8), ("peer:two", 8), ("ours:one", 16)),
        *(("ours:other", 16), ("peer:two", 16), ("ours:one", 32)),
    ]
    for overrides in (["systems=[ours]"], ["losses=[two_set_sigmoid]"], ["same_batch=null"]):
        assert {each.case.rows for each in planned(bench, CPU, *given, *overrides)} == {8, 16}, overrides


def test_inf_cl_s_first_table_has_the_whole_grid_s_published_batches():
    """CLIP's batches up to 128k, of which one GPU holds 64k: 96k are 4 grids of 36 GiB, predicted not to fit."""
    with (configuration.ROOT / "results" / "published" / "inf_cl_table_1.csv").open(newline="") as file:
        published = [row for row in csv.DictReader(file) if row["system"] == "clip_vanilla"]
    batches = {int(row["rows"]) * int(row["world_size"]): row["status"] for row in published}
    chosen = configuration.compose(["campaign=inf_cl_table_1"]).for_device("cuda")
    found = plan.enumerate_cases(chosen, dataclasses.replace(CPU, gpus=(H200,)))
    whole = {each.case.rows: each for each in found if each.case.variant == "clip_fp32" and each.case.world_size == 1}
    assert {batch: batches[batch] for batch in sorted(batches) if batch <= 131072} == {
        32768: "ok",
        65536: "ok",
        131072: "out_of_memory",
    }
    assert {rows: each.expects_out_of_memory for rows, each in whole.items()} == {
        32768: False,
        65536: False,
        98304: True,
        131072: True,
    }


@pytest.mark.parametrize("arguments", [["plan"], ["doctor"], ["--help"]])
def test_a_stdout_that_is_full_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "harness", *arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
    assert done.returncode == 2
    assert done.stderr == f"harness {arguments[0]}: cannot write: No space left on device\n"
