"""Whole runs, as a user starts them: statuses, exit codes, what is kept through interrupts, kills and full disks."""

import json
import random
import re
import signal
import subprocess
import sys
import time

import pytest

from harness import bench as bench_module
from harness import records, remeasure
from harness import samples as sample_file
from harness.__main__ import main
from harness.machine import Gpu, Machine
from harness.plan import Planned
from harness.run import rotated
from harness.store import new_run_id
from tests.harness.conftest import PREDICT, ROOT


def samples(folder):
    """`(case_id, round) -> [(rank, block, steps, seconds)]` of a run's side file."""
    parquet = pytest.importorskip("pyarrow.parquet")
    found = {}
    for row in parquet.read_table(folder / "samples.parquet").to_pylist():
        key = row["case_id"], row["round"]
        found.setdefault(key, []).append([row["rank"], row["block"], row["steps"], row["seconds"]])
    return found


def state(folder):
    """Finished rounds in a running or killed run's state."""
    found = {}
    for path in folder.glob("state/*.json"):
        case_id, phase, _ = path.name.split(".")
        if phase != "check":
            found[case_id, int(phase)] = [block[:4] for block in json.loads(path.read_text())["blocks"]]
    return found


def wait_for(process, done, seconds=60.0):
    end = time.monotonic() + seconds
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)


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
    bench.system("probe", {"trap": trap})
    assert bench.run().returncode == 0
    row = bench.rows()["trap"]
    assert (row["status"], row["rounds"]) == ("wrong", "2") and row["best_seconds"], "timed all the same"
    bench.system("probe", {"trap": trap | {"options": {}}})
    done = bench.run()
    assert done.returncode == 1, "a trap that has gone is news"
    assert "is ok" in done.stdout


def test_one_process_may_check_and_time_a_case(bench):
    bench.system("probe", {"sleep": {"sleep_seconds": 0.01}})
    done = bench.run("protocol.together=true", "protocol.rounds=1")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = records.read_rows(bench.runs()[0] / "rows.csv")
    assert (row["status"], row["rounds"], row["samples"]) == ("ok", "1", "2")
    assert float(row["loss_error"]) == 0.0 and 0.01 <= float(row["best_seconds"]) < 0.02
    assert row["first_step_seconds"] == "", "its first step was the check's"
    assert "round 1" not in done.stdout + done.stderr, "no launch of its own"


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


def test_the_budget_drops_and_says_so(bench):
    bench.system("probe", {"a": {}})
    done = bench.run("rows=[8,40000]", "budget=1m")
    assert done.returncode == 0
    title = "probe:a one_set_sigmoid R=40000 init on cpu"
    assert f"dropped, over the budget of 1m: {title}" in done.stdout
    assert json.loads((bench.runs()[0] / "environment.json").read_text())["dropped"] == [title]
    rows = {row["rows"]: row for row in records.read_rows(bench.runs()[0] / "rows.csv")}
    assert rows["8"]["status"] == "ok"
    assert (rows["40000"]["status"], rows["40000"]["best_seconds"]) == ("interrupted", "")
    assert rows["40000"]["reason"].startswith("time budget ended before this case")


def test_what_the_budget_left_out_is_done_when_the_command_is_given_again(bench):
    bench.system("probe", {"a": {}}, predict=PREDICT | {"startup_seconds": 10.0})
    again = ["rows=[8,16]", "budget=40s"]  # each is predicted to take 30 s: one fits
    assert bench.run(*again).returncode == 0
    (folder,) = bench.runs()
    first = {row["rows"]: row for row in records.read_rows(folder / "rows.csv")}
    assert [first[rows]["status"] for rows in ("8", "16")] == ["ok", "interrupted"]
    done = bench.run(*again)
    assert done.returncode == 0 and f"continuing {folder}" in done.stdout
    assert bench.runs() == [folder]
    second = {row["rows"]: row for row in records.read_rows(folder / "rows.csv")}
    assert [second[rows]["status"] for rows in ("8", "16")] == ["ok", "ok"]
    assert second["8"] == first["8"], "what is finished is not measured again"
    assert not (folder / "state").exists()


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


def seconds_left(line: str) -> float:
    """The seconds left that a line of progress tells, below a minute."""
    return float(line.partition(" elapsed, ")[2].partition(" s left")[0])


def test_a_budget_that_turns_out_too_small_leaves_out_rounds_not_rows(bench):
    bench.system("probe", {"a": {"sleep_seconds": 0.3}})  # predicted to be quick, and is not
    done = bench.run("budget=10s", "protocol.rounds=5", "protocol.warmup_steps=2")
    assert done.returncode == 0, done.stderr
    row = bench.rows()["a"]
    assert 1 <= int(row["rounds"]) < 5
    assert row["reason"] == f"{row['rounds']} of 5 rounds"
    assert re.search(r"left out, round \d is over the budget: 1 cases \(probe:a one_set_sigmoid R=8", done.stdout)
    left = [seconds_left(line) for line in done.stdout.splitlines() if " left  " in line]
    assert left and max(left) <= 10, "no more time is left than the budget has"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_everything_and_the_same_command_continues(bench, number):
    bench.system("probe", {"quick": {}, "slow": {"sleep_seconds": 0.1}})
    process = bench.start()

    def in_second_round():
        return (
            any(phase == 0 for folder in bench.runs() for _, phase in state(folder))
            and len(state(bench.runs()[0])) == 2
        )

    wait_for(process, in_second_round)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out.count("interrupted;") == 1 and "the same command continues" in out
    (folder,) = bench.runs()
    before = state(folder)
    rows = bench.rows()
    interrupted = [row for row in rows.values() if row["status"] == "interrupted"]
    assert len(interrupted) <= 1
    assert all("the same command continues" in row["reason"] for row in interrupted)
    assert all(row["best_seconds"] for row in rows.values()), "what was measured in round 1 stays"
    assert not (folder / "work").exists()

    done = bench.run()
    assert done.returncode == 0, done.stderr
    assert f"continuing {folder}" in done.stdout
    assert bench.runs() == [folder]
    assert {variant: row["status"] for variant, row in bench.rows().items()} == {"quick": "ok", "slow": "ok"}
    after = samples(folder)
    assert len(after) == 4
    assert all(after[key] == blocks for key, blocks in before.items()), "finished rounds are not measured again"
    assert not (folder / "state").exists()


@pytest.mark.slow
def test_kills_at_random_points_lose_nothing(bench):
    bench.system("probe", {"a": {"sleep_seconds": 0.01}, "b": {}})
    seed = random.Random(7)
    seen = {}
    for _ in range(8):
        process = bench.start()
        time.sleep(seed.uniform(0.6, 3.0))
        process.kill()
        process.communicate()
        for folder in bench.runs():
            if (folder / "rows.csv").exists():
                records.read_rows(folder / "rows.csv")  # raises when torn
            seen |= state(folder)
    done = bench.run()
    assert done.returncode == 0, done.stderr
    folder = bench.runs()[-1]
    assert {row["status"] for row in bench.rows().values()} == {"ok"}
    assert all(row["rounds"] == "2" for row in bench.rows().values())
    final = samples(folder)
    if len(bench.runs()) == 1:  # else a kill fell after the end of a whole run
        assert all(final[key] == blocks for key, blocks in seen.items())


def test_another_configuration_or_a_finished_run_is_not_continued(bench):
    bench.system("probe", {"a": {"sleep_seconds": 0.2}})
    process = bench.start()
    wait_for(process, lambda: any((folder / "rows.csv").exists() for folder in bench.runs()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    done = bench.run("seed=7")
    assert done.returncode == 0
    assert "1 unfinished runs here differ" in done.stdout
    assert len(bench.runs()) == 2
    assert main(["bench", *bench.arguments("seed=7")]) == 0
    assert len(bench.runs()) == 3, "a finished run is not continued, a new one begins"
    assert main(["bench", *bench.arguments("resume=false")]) == 0
    assert len(bench.runs()) == 4, "told not to continue"


def test_two_runs_do_not_measure_at_once(bench):
    bench.system("probe", {"a": {"sleep_seconds": 0.5}})
    first = bench.start()
    wait_for(first, lambda: (bench.folder / "lock" / "measuring.lock").exists() and bench.runs())
    second = bench.run("seed=7")
    assert second.returncode == 2
    assert f"another measurement runs on this machine (process {first.pid}: bench campaign=quick)" in second.stderr
    assert second.stderr.count("\n") == 1
    assert bench.run("list=true").returncode == 0, "listing measures nothing"
    assert first.poll() is None
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)
    assert first.returncode == 130
    assert bench.run().returncode == 0, "the lock goes with its holder"


def test_a_full_disk_is_one_line_and_loses_nothing(bench):
    bench.system("probe", {"a": {}, "b": {}})
    bench.results.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(bench.results)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("cannot mount a small tmpfs here")
    try:
        process = bench.start()
        wait_for(process, lambda: any(state(folder) for folder in bench.runs()))
        filler = bench.results / "filler"
        try:
            filler.write_bytes(b"x" * (1 << 20))
        except OSError:
            pass
        _, err = process.communicate(timeout=60)
        assert process.returncode == 2, err
        assert "No space left on device" in err and err.count("\n") == 1
        (folder,) = bench.runs()
        before = state(folder)
        assert before
        records.read_rows(folder / "rows.csv")
        filler.unlink()
        done = bench.run()
        assert done.returncode == 0, done.stderr
        assert bench.runs() == [folder]
        after = samples(folder)
        assert all(after[key] == blocks for key, blocks in before.items())
    finally:
        subprocess.run(["umount", str(bench.results)], check=True)


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


@pytest.mark.slow
def test_selftest_passes():
    done = subprocess.run([sys.executable, "-m", "harness", "selftest"], cwd=ROOT, capture_output=True, text=True)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    # Other work on the machine lengthens what the clock reads; it never shortens a sleep, and spoils nothing else.
    busy = [
        line for line in failed if re.search(r"reads 5\d\.\d+ ms for 50 ms|reads \d{1,2}\.\d+ us a step, must", line)
    ]
    assert failed == busy, done.stdout
    assert re.fullmatch(rf"\d+ passed, {len(failed)} failed", done.stdout.splitlines()[-1])
    assert done.returncode == (1 if failed else 0)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "usage: python -m harness COMMAND"),
        (["--help"], 0, "bench"),
        (["fly"], 2, "unknown command 'fly'; known: bench, plan"),
        (["bench", "--help"], 0, "campaigns: article, devices, quick, single_gpu"),
        (["selftest", "x"], 2, "not an override"),
        (["doctor", "x"], 2, "doctor takes no arguments"),
        (["doctor"], 0, "machine "),
    ],
)
def test_the_command_line(capsys, arguments, code, words):
    assert main(arguments) == code
    shown = capsys.readouterr()
    assert words in shown.out + shown.err
