"""Whole runs, as a user starts them: statuses, exit codes, what the records hold."""

import json
import re
import sys

import pytest

from harness import bench as bench_module
from harness import records, remeasure
from harness import samples as sample_file
from harness.__main__ import main
from harness.cases import ConfigurationError
from harness.machine import Gpu, Machine
from harness.plan import Planned
from harness.run import rotated
from harness.store import new_run_id
from tests.harness.run_files import samples


def test_a_run_leaves_whole_records(bench):
    bench.system("probe", {"sleep": {"sleep_seconds": 0.01}})
    done = bench.run()
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = bench.runs()
    assert sorted(path.name for path in folder.iterdir()) == ["environment.json", "rows.csv", "samples.parquet"]
    (row,) = records.read_rows(folder / "rows.csv")
    assert (row["status"], row["reason"], row["protocol"]) == ("ok", "", "custom")
    assert (row["rounds"], row["samples"], row["steps_per_block"]) == ("2", "4", "3")
    times = [
        float(row[f"{name}_seconds"]) for name in ("best", "median", "mean", "mean_low", "mean_high", "first_step")
    ]
    assert all(0.01 <= value < 0.02 for value in times)
    assert times[0] <= times[3] <= times[2] <= times[4]
    assert float(row["loss_error"]) == float(row["scale_gradient_error"]) == 0.0
    assert float(row["embedding_gradient_error"]) < 1e-6
    for name in ("loss_value", "device_used_bytes", "inputs_sha256", "device_name", "system_version", "threads"):
        assert row[name], name
    assert row["allocated_peak_bytes"] == row["step_peak_bytes"] == "", "not known, so empty"
    assert sum(len(blocks) for blocks in samples(folder).values()) == 4
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["finished"] is True
    for name in ("host", "packages", "git", "argv", "protocol", "configuration", "before", "after", "inputs_sha256"):
        assert environment[name], name
    (log,) = bench.results.glob("measured/*/checks/*.jsonl")
    (line,) = log.read_text().splitlines()
    assert [check["name"] for check in json.loads(line)["checks"]] == ["small", "negatives", "own"]
    assert "1 rows in" in done.stdout and str(folder) in done.stdout


def test_closed_streams_lose_nothing(bench, monkeypatch):
    """As under a daemon."""
    bench.system("probe", {"a": {}})
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["bench", *bench.arguments()]) == 0
    assert bench.rows()["a"]["status"] == "ok"


def test_every_fault_is_a_row_and_the_rest_goes_on(bench):
    bench.system(
        "probe",
        {
            "good": {},
            "crash": {"fault": "crash"},
            "hang": {"fault": "hang"},
            "oom": {"fault": "out_of_memory"},
            "nan": {"fault": "nan"},
            "wrong": {"fault": "flip_bias"},
            "late": {"fault": "exit", "fault_when": "time"},
            "refuses": {"fault": "unsupported"},
        },
    )
    bench.system("absent", {"gone": {}}, requires=["no_such_package"])
    done = bench.run("launch.deadline_seconds=6")
    assert done.returncode == 1
    rows = bench.rows()
    assert {variant: row["status"] for variant, row in rows.items()} == {
        "good": "ok",
        "crash": "crashed",
        "hang": "timeout",
        "oom": "out_of_memory",
        "nan": "nonfinite",
        "wrong": "wrong",
        "late": "crashed",
        "refuses": "unsupported",
        "gone": "unsupported",
    }
    assert all(row["reason"] for variant, row in rows.items() if variant != "good")
    assert rows["gone"]["reason"] == "Python package no_such_package is not installed"
    assert rows["refuses"]["reason"] == "told so"
    assert rows["wrong"]["reason"].startswith("bias_gradient off by 2")
    assert 1.9 < float(rows["wrong"]["bias_gradient_error"]) <= 2.0, "a flipped sign, over the sum of absolute terms"
    assert all(not row["best_seconds"] for variant, row in rows.items() if variant != "good")
    assert "not as expected: probe:late" in done.stdout and "not as expected: probe:refuses" not in done.stdout
    logs = {path.name for path in (bench.runs()[0] / "logs").iterdir()}
    assert {f"{rows[name]['case_id']}.check.txt" for name in ("crash", "hang")} <= logs


def test_an_expected_status_does_not_fail_the_run(bench):
    trap = {"loss": "one_set_sigmoid", "options": {"fault": "flip_rows"}, "expected_status": "wrong"}
    trap["because"] = "two rows change places"
    bench.system("probe", {"trap": trap})
    assert bench.run().returncode == 0
    row = bench.rows()["trap"]
    assert (row["status"], row["rounds"]) == ("wrong", "2") and row["best_seconds"], "timed all the same"
    assert " off by " in row["reason"] and row["reason"].endswith(". Expected: two rows change places")
    bench.system("probe", {"trap": trap | {"options": {}}})
    done = bench.run()
    assert done.returncode == 1, "a trap that has gone is news"
    assert "is ok" in done.stdout


def test_one_process_may_check_and_time_a_case(bench):
    first_use = {"compile_seconds": 2.5, "autotune_seconds": 0.5}
    bench.system("probe", {"sleep": {"sleep_seconds": 0.01} | first_use})
    done = bench.run("protocol.together=true", "protocol.rounds=1")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = records.read_rows(bench.runs()[0] / "rows.csv")
    assert (row["status"], row["rounds"], row["samples"]) == ("ok", "1", "2")
    assert float(row["loss_error"]) == 0.0 and 0.01 <= float(row["best_seconds"]) < 0.02
    assert row["first_step_seconds"] == "", "its first step was the check's"
    assert (row["compile_seconds"], row["autotune_seconds"]) == ("2.5", "0.5"), "known whenever it was"
    assert "round 1" not in done.stdout + done.stderr, "no launch of its own"


def test_one_step_of_a_process_is_its_time_and_its_memory(bench):
    """Three checks take a step each; of the case's own shape there is one more in each of two processes."""
    options = {"sleep_seconds": 1.0, "allocate_bytes": 1 << 26, "compile_seconds": 2.5}
    bench.system("probe", {"slow": options | {"steps": str(bench.folder / "steps")}})
    done = bench.run("protocol=one_step")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = records.read_rows(bench.runs()[0] / "rows.csv")
    counts = {name: row[name] for name in ("status", "protocol", "rounds", "samples", "steps_per_block")}
    assert counts == {"status": "ok", "protocol": "custom", "rounds": "2", "samples": "2", "steps_per_block": "1"}
    assert 1.0 <= float(row["best_seconds"]) < 1.5 and float(row["loss_error"]) == 0.0
    assert 1 << 26 <= int(row["device_used_bytes"]) < 1 << 27
    assert row["compile_seconds"] == "2.5"
    assert (bench.folder / "steps").stat().st_size == 3 + 2


def test_a_yardstick_is_timed_without_a_check(bench):
    bench.system("probe", {"products": {"check": "none", "fault": "flip_loss"}})
    assert bench.run().returncode == 0
    row = bench.rows()["products"]
    assert (row["status"], row["reason"]) == ("ok", "not checked: it computes no loss")
    assert row["best_seconds"] and row["device_used_bytes"] and not row["loss_error"]


def test_without_pyarrow_samples_are_csv(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_file.importlib.util, "find_spec", lambda name: None)
    sensed = [1700.0, 1980.0, 500.0, ["a", "b"], None, 1.5]
    path = sample_file.write(tmp_path, [("id", "probe", "a", 8, 0, 0, 1, 3, 0.25, *sensed)])
    assert path.name == sample_file.file_name() == "samples.csv"
    assert (
        path.read_text() == ",".join(sample_file.COLUMNS) + "\nid,probe,a,8,0,0,1,3,0.25,1700.0,1980.0,500.0,a b,,1.5\n"
    )


def test_the_protocol_reads_length_and_size(bench):
    """No block of a sleeping system can be shorter than its sleep, and the best of many is little longer."""
    size = 128 << 20
    bench.system("probe", {"sleep": {"sleep_seconds": 0.1}, "allocate": {"allocate_bytes": size}})
    assert bench.run("protocol.blocks=6", "protocol.steps_per_block=2").returncode == 0
    rows = bench.rows()
    assert 0.1 <= float(rows["sleep"]["best_seconds"]) < 0.11
    assert int(rows["allocate"]["device_used_bytes"]) == pytest.approx(size, rel=0.02)
    assert int(rows["sleep"]["device_used_bytes"]) < 0.02 * size


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["systems=[nobody]"], "unknown system 'nobody'; known: probe"),
        (["systems=[probe:x]"], "unknown variant 'probe:x'; known: probe:a"),
        (["losses=[info_nce]"], "none of these systems computes info_nce"),
        (["prefixes=[32,8]"], "must ascend"),
        (["prefixes=[64]"], "exceeds dims"),
        (["speed=1"], "unknown field 'speed'"),
        (["campaign=none"], "unknown campaign 'none'"),
        (["world_sizes=[3]", "nodes=[2]"], "not divisible"),
        (["budget=1s"], "no case fits"),
        (["reference=baselines.reference:none"], "which cannot be loaded"),
        (["reference=no.such:module"], "which cannot be loaded"),
        (["protocol.rounds=10000000"], "give at most 1000"),
        (["on_cpu={speed:1}"], "unknown field 'on_cpu.speed'"),
        (["results=/proc/results"], "cannot write"),
        (["machine.lock_folder=/proc/lock"], "cannot hold the lock"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(bench, capsys, overrides, words):
    bench.system("probe", {"a": {}})
    assert main(["bench", *bench.arguments(*overrides)]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1 and said.err.startswith("harness bench: ")
    assert not bench.results.exists()


def test_a_file_where_the_folder_should_be(bench, capsys):
    bench.system("probe", {"a": {}})
    bench.results.write_text("mine")
    assert main(["bench", *bench.arguments()]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert bench.results.read_text() == "mine"


def test_conditions_of_a_run_stand_in_its_row_and_its_samples(bench):
    played = {"clocks_mhz": [1980, 1980, 1980, 1200], "sleep_seconds": 0.1, "compile_seconds": 2.5}
    bench.system("probe", {"falls": played, "own": {}})
    assert bench.run("protocol.cache=cold", "protocol.warmup_steps=6").returncode == 0
    rows = bench.rows()
    row = rows["falls"]
    assert row["reason"] == "clocks fell to 1200 of 1980 MHz (hw_thermal_slowdown)"
    assert (row["clock_low_mhz"], row["clock_high_mhz"], row["power_watts"]) == ("1200", "1980", "500.0")
    assert (row["throttle_reasons"], row["cache_state"]) == ("hw_thermal_slowdown", "cold")
    assert (row["compile_seconds"], row["autotune_seconds"], row["first_collective_seconds"]) == ("2.5", "", "")
    # three spans of a joule each (the warm-up and two blocks) over 6 + 3 + 3 steps
    assert float(row["energy_joules_per_step"]) == pytest.approx(3 / 12)
    assert rows["own"]["load_average"] and not rows["own"]["power_watts"] and not rows["own"]["energy_joules_per_step"]
    parquet = pytest.importorskip("pyarrow.parquet")
    (first, *_) = [
        each
        for each in parquet.read_table(bench.runs()[0] / "samples.parquet").to_pylist()
        if each["variant"] == "falls"
    ]
    assert (first["clock_low_mhz"], first["throttle_reasons"], first["energy_joules"]) == (
        1200,
        "hw_thermal_slowdown",
        1,
    )


def test_a_noisy_case_is_measured_again_and_then_said_to_be_so(bench):
    wild = {"sleep_seconds": 0.02, "wild": str(bench.folder / "turns")}
    bench.system("probe", {"wild": wild, "calm": {"sleep_seconds": 0.02}})
    done = bench.run("protocol.maximum_range=0.3", "protocol.retries=1")
    assert done.returncode == 1, "a case too noisy to tell is not as expected"
    rows = bench.rows()
    assert (rows["calm"]["status"], rows["calm"]["retries"]) == ("ok", "0")
    assert (rows["wild"]["status"], rows["wild"]["retries"]) == ("too_noisy", "1")
    assert re.match(
        r"process means range over \d+\.\d% of their mean, more than 30%, after 1 of 1 retries", rows["wild"]["reason"]
    )
    assert "retry 1 probe:wild" in done.stdout and "retry 1 probe:calm" not in done.stdout
    assert len(samples(bench.runs()[0])) == 5, "every round is in the sample file"


def test_stored_rows_can_be_measured_again(bench, monkeypatch):
    bench.system("probe", {"a": {}, "b": {"sleep_seconds": 0.001}})
    short = ["protocol=quick", "protocol.rounds=1", "systems=[probe:a]"]
    arguments = [
        override for override in bench.arguments(*short) if not override.startswith("protocol.") or "rounds" in override
    ]
    assert bench_module.main(arguments) == 0
    rows = list(bench.rows().values())
    places = [
        override
        for override in bench.arguments()
        if override.split("=")[0] in ("registry", "results", "machine.lock_folder")
    ]
    folder = remeasure.measure_rows(rows, rounds=2, overrides=places)
    (again,) = records.read_rows(folder / "rows.csv")
    assert folder.parent.name == "regress"
    assert (again["case_id"], again["status"], again["rounds"]) == (rows[0]["case_id"], "ok", "2")
    changed = [
        name for name in records.REQUIRED if again[name] != rows[0][name] and not name.endswith(("_seconds", "_bytes"))
    ]
    assert set(changed) <= {"run_id", "rounds", "samples"}


def test_stored_rows_are_measured_again_with_their_caches_and_lengths(bench, monkeypatch):
    """Cold caches, and a protocol of lengths of its own: what is asked for is what was recorded."""
    asked = []
    monkeypatch.setattr(bench_module, "measure", lambda chosen, *_: asked.append(chosen.protocol) or (0, bench.folder))
    places = [
        word for word in bench.arguments() if word.split("=")[0] in ("registry", "results", "machine.lock_folder")
    ]
    bench.system("probe", {"a": {}})
    row = {name: "" for name in records.COLUMNS} | {"system": "probe", "variant": "a", "loss": "one_set_sigmoid"}
    row |= {"state": "init", "rows": "8", "dims": "8", "prefixes": "8", "seed": "1", "world_size": "1", "nodes": "1"}
    row |= {"scale": "10", "bias": "-10", "device": "cpu", "protocol": "quick", "cache_state": "cold"}
    remeasure.measure_rows([row], 5, places)
    assert (asked[0]["name"], asked[0]["cache"], asked[0]["rounds"]) == ("quick", "cold", 5)

    recorded = {"name": "custom", "rounds": 3, "retries": 2, "maximum_range": 0.5, "cache": "cold"}
    recorded |= {"warmup_steps": 4, "warmup_seconds": 0.5, "blocks": 2, "steps_per_block": 7, "max_block_seconds": 1.5}
    remeasure.measure_rows([row | {"protocol": "custom"}], 5, places, recorded)
    assert asked[1] | recorded | {"rounds": 5} == asked[1] and not asked[1]["together"]

    for rows, known, told in (
        ([row | {"protocol": "custom"}], {}, "protocols custom: rows of one protocol"),
        ([row, row | {"protocol": "standard"}], {}, "protocols quick, standard: rows of one protocol"),
        ([row, row | {"cache_state": "warm"}], {}, "cache states cold, warm: rows of one"),
        (
            [row],
            recorded,
            "quick has changed since (warmup_steps 4, now 3, warmup_seconds 0.5, now 0.2, blocks 2, now 3",
        ),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(told)):
            remeasure.measure_rows(rows, 5, places, known)
    assert len(asked) == 2


def test_rounds_are_interleaved_by_shape_and_rotated(bench):
    from tests.harness.test_plan import CPU, planned

    bench.system("one", {"a": {}})
    bench.system("two", {"a": {}, "b": {}})
    cases: list[Planned] = planned(bench, CPU, "rows=[8,16]")

    def order(number):
        return [(each.case.rows, f"{each.system.name}:{each.variant.name}") for each in rotated(cases, number)]

    assert order(0) == [(rows, name) for rows in (8, 16) for name in ("one:a", "two:a", "two:b")]
    assert order(1) == [(rows, name) for rows in (8, 16) for name in ("two:a", "two:b", "one:a")]
    assert order(3) == order(0)


def test_busy_gpus_are_refused():
    idle = Gpu(0, "NVIDIA H200", 9.0, 1000, used_bytes=5)
    bench_module.refuse_busy(Machine(1, 1, "c", "c", gpus=(idle,)))
    for busy in (Gpu(1, "NVIDIA H200", 9.0, 1000, process_ids=(77,)), Gpu(1, "NVIDIA H200", 9.0, 1000, used_bytes=500)):
        with pytest.raises(bench_module.ConfigurationError, match=r"GPU 1 .* is busy .*allow_busy=true"):
            bench_module.refuse_busy(Machine(1, 1, "c", "c", gpus=(idle, busy)))


def test_run_ids_sort_by_time():
    assert len(new_run_id()) == len("20260101T000000Z-abcd")
    assert len({new_run_id() for _ in range(50)}) > 40


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "usage: python -m harness COMMAND"),
        (["--help"], 0, "bench"),
        (["fly"], 2, "unknown command 'fly'; known: bench, plan"),
        (["bench", "--help"], 0, "campaigns: article, baseline, "),
        (["selftest", "x"], 2, "not an override"),
        (["doctor", "x"], 2, "doctor takes no arguments"),
        (["doctor"], 0, "machine "),
    ],
)
def test_the_command_line(capsys, arguments, code, words):
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert words in shown.out + shown.err
