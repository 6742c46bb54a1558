"""The binary's side of the worker contract: events, blocks, known sleeps and sizes, bad input, inputs' digest."""

import csv
import dataclasses
import json
import os
import resource
import subprocess
import time

import pytest

from baselines import declarations
from harness import inputs
from harness.sensors import FIELDS
from tests.kernels.binary import BINARY, base_case, events_of, flags, run

QUICK = ["--warmup-steps", 2, "--warmup-seconds", 0, "--blocks", 2, "--steps-per-block", 3, "--max-block-seconds", 5]


def by_name(events, name):
    """The events of that name, in order."""
    return [event for event in events if event["event"] == name]


@pytest.mark.parametrize("loss", ["one_set_sigmoid", "two_set_sigmoid"])
@pytest.mark.parametrize("labels, seed", [("pairs", 42), ("mixed", 0), ("equal", 4294967295), ("distinct", 7)])
def test_inputs_are_bit_identical_to_numpy(loss, labels, seed):
    case = base_case(loss=loss, rows=57, world_size=3, dims=70, prefixes=[70], labels=labels, seed=seed)
    done = run("--inputs-digest", *flags(case))
    assert done.stdout.strip() == inputs.digest(case), done.stderr


def test_events_of_all_actions(tmp_path):
    case = base_case(rows=32, world_size=2, threads=1, loss="two_set_sigmoid")
    words = ["--folder", tmp_path, *flags(case), *QUICK, "--deadline-seconds", 60]
    words += ["--check", "name=small,rows=8,scale=5,bias=-1", "--check", "name=own,sample_rows=0:63"]
    assert run(*words, "--actions", "check,time,memory").returncode == 0
    events = events_of(tmp_path)
    names = [event["event"] for event in events]
    assert names == ["start", "ready", "check", "check", "first_step", "warm_up", "block", "block", "memory", "end"]
    start, ready, end = events[0], events[1], events[-1]
    assert start["rank"] == 0 and start["system"] == "native" and start["pid"] > 0 and start["device_name"]
    assert start["declares"]["sets"] == 2 and start["declares"]["gradient_scale"] == 1
    assert ready["rss_bytes"] > 0 and ready["input_bytes"] == 2 * 32 * (128 * 2 + 4)
    assert [event["steps"] for event in by_name(events, "block")] == [3, 3]
    assert all(event["seconds"] > 0 for event in by_name(events, "block"))
    for event in (*by_name(events, "warm_up"), *by_name(events, "block")):
        assert set(FIELDS) < set(event), "what the sensors said at its edges"
        assert event["load_average"] == pytest.approx(os.getloadavg()[0], abs=2)
        assert event["energy_joules"] is event["power_watts"] is None, "no GPU was driven"
    (memory,) = by_name(events, "memory")
    assert memory["input_bytes"] == ready["input_bytes"] and memory["gradient_bytes"] == 2 * 32 * 128 * 4
    assert memory["allocated_peak_bytes"] > memory["input_bytes"] + memory["gradient_bytes"]
    assert len(by_name(events, "check")[0]["rows"]) == 16
    assert end == {"event": "end", "status": "ok", "reason": ""}


@pytest.mark.parametrize("loss, sets", [("one_set_sigmoid", 1), ("two_set_sigmoid", 2), ("info_nce", 2)])
def test_the_report_s_table_says_what_the_binary_declares(tmp_path, loss, sets):
    assert run("--folder", tmp_path, *flags(base_case(loss=loss)), *QUICK, "--actions", "memory").returncode == 0
    declared = events_of(tmp_path)[0]["declares"]
    stated = dataclasses.asdict(declarations.NATIVE[sets])
    assert set(declared) < set(stated) and declared == {name: stated[name] for name in declared}
    with declarations.FILE.open(encoding="utf-8", newline="") as stream:
        lines = [row for row in csv.DictReader(stream) if row["system"] == "native" and row["loss"] == loss]
    assert lines and all(line["normalisation"] == declared["normalisation"] for line in lines)


def test_a_single_step_is_timed_and_measured_for_its_memory(tmp_path):
    words = ["--folder", tmp_path, "--system", "sleep", *QUICK, "--actions", "step"]
    assert run(*words, "--options", "sleep_seconds=0.5,allocate_bytes=50331648").returncode == 0
    events = events_of(tmp_path)
    assert [event["event"] for event in events] == ["start", "ready", "first_step", "block", "memory", "end"]
    first, block, memory = events[2:5]
    assert (block["block"], block["steps"]) == (0, 1) and 0.5 <= block["seconds"] == first["seconds"] < 2.0
    assert set(FIELDS) < set(block), "what the sensors said at its edges"
    assert memory["allocated_peak_bytes"] >= 50331648


def test_a_check_comes_before_the_single_step(tmp_path):
    case = base_case(rows=32, loss="info_nce")
    words = [
        "--folder",
        tmp_path,
        *flags(case),
        *QUICK,
        "--check",
        "name=own,sample_rows=0:31",
        "--actions",
        "check,step",
    ]
    assert run(*words).returncode == 0
    assert [event["event"] for event in events_of(tmp_path)][2:] == ["check", "first_step", "block", "memory", "end"]


def test_the_protocol_reads_a_known_sleep_and_a_known_size(tmp_path):
    words = ["--folder", tmp_path, "--system", "sleep", *QUICK, "--actions", "time,memory"]
    assert run(*words, "--options", "sleep_seconds=0.02,allocate_bytes=50331648").returncode == 0
    events = events_of(tmp_path)
    for event in by_name(events, "block"):
        # a busy machine may oversleep, none wakes early; a clock in other units is off by more
        assert 0.02 <= event["seconds"] / event["steps"] < 0.5
    (memory,) = by_name(events, "memory")
    assert memory["allocated_peak_bytes"] == 50331648
    assert memory["device_used_bytes"] == pytest.approx(50331648, abs=4 << 20)


def test_memory_that_checks_used_before_does_not_hide_what_a_step_uses(tmp_path):
    """Every byte that the allocator counts is touched, so the process must have grown by no less."""
    words = ["--folder", tmp_path, "--loss", "two_set_sigmoid", "--rows", 256, "--actions", "check,memory"]
    assert run(*words, "--check", "name=small,rows=64", "--check", "name=own,sample_rows=0:7").returncode == 0
    (memory,) = by_name(events_of(tmp_path), "memory")
    assert memory["device_used_bytes"] >= memory["allocated_peak_bytes"]


def test_slow_steps_make_smaller_blocks_but_never_under_two(tmp_path):
    words = ["--folder", tmp_path, "--system", "sleep", "--actions", "time", "--options", "sleep_seconds=0.05"]
    words += ["--warmup-steps", 2, "--warmup-seconds", 0, "--blocks", 1, "--steps-per-block", 100]
    assert run(*words, "--max-block-seconds", 0.26).returncode == 0
    assert by_name(events_of(tmp_path), "block")[0]["steps"] in (3, 4, 5)
    assert run(*words, "--max-block-seconds", 0.01).returncode == 0
    assert by_name(events_of(tmp_path), "block")[0]["steps"] == 2


def test_a_deadline_ends_the_case_with_its_status(tmp_path):
    words = ["--folder", tmp_path, "--system", "sleep", "--actions", "time", "--options", "sleep_seconds=0.05"]
    begin = time.monotonic()
    done = run(*words, "--warmup-seconds", 60, "--deadline-seconds", 0.3)
    assert done.returncode == 1 and time.monotonic() - begin < 20
    assert events_of(tmp_path)[-1]["status"] == "timeout"


@pytest.mark.parametrize(
    "words, status, reason",
    [
        (["--dtype", "float32"], "unsupported", "bfloat16"),
        (["--engine", "cpu-z80"], "unsupported", "unknown engine"),
        (["--rows", "100000000", "--dims", "65536"], "out_of_memory", "MiB"),
        (["--scale", "1e39"], "nonfinite", "not finite"),
        (["--options", "offload=true"], "unsupported", "through a GPU"),
        (["--options", "two_set=ladder"], "unsupported", "unknown option two_set; known on the CPU are devices"),
        (["--engine", "sm90"], "unsupported", "engine sm90 is of GPUs; give device cuda"),
    ],
)
def test_cases_that_cannot_run_say_so_in_the_last_line(tmp_path, words, status, reason):
    done = run("--folder", tmp_path, "--rows", "16", "--actions", "time", *QUICK, *words)
    assert done.returncode == 1
    end = events_of(tmp_path)[-1]
    assert (end["event"], end["status"]) == ("end", status) and reason in end["reason"]


@pytest.mark.parametrize(
    "words, part",
    [
        (["--rosw", "4"], "unknown flag '--rosw'"),
        (["--rows"], "--rows needs a value"),
        (["--rows", "many"], "--rows is 'many'; give a number"),
        (["--rows", "0"], "--rows is 0; it must be at least 1"),
        (["--loss", "triplet"], "known: one_set_sigmoid, two_set_sigmoid, info_nce, one_set_info_nce"),
        (["--prefixes", "64,32"], "must ascend"),
        (["--prefixes", "64,2048"], "exceeds dims 1024"),
        (["--prefix-weights", "1,2"], "2 prefix weights for 5 prefixes"),
        (["--live", "5,6"], "2 live counts for 1 devices"),
        (["--live", "2000"], "live 2000 exceeds rows 1024"),
        (["--live", "0"], "live is 0 on every device"),
        (["--scale", "nan"], "finite"),
        (["--self-pairs", "yes"], "give true or false"),
        (["--world-size", "17"], "at most 16"),
        (["--actions", "check,dance"], "known: check, time, memory"),
        (["--check", "rows=4"], "needs name="),
        (["--check", "name=a,colour=red"], "unknown key 'colour'"),
        (["--check", "name=a,sample_rows=1024"], "past the last row"),
        (["--options", "fast"], "key=value"),
        (["--options", "deadline_ms=5x"], "--options deadline_ms is '5x'; give a number"),
        (["--options", "deadline_ms=-5"], "--options deadline_ms is -5; it is out of range"),
        (["--check", "name=a", "--check", "name=a,scale=5"], "--check a is given twice"),
        (["--actions", "check,time"], "no check is given; add --check"),
        (["--batch", "/"], "cannot read /; --batch takes a file"),
        (["--batch", "/nonexistent/file"], "cannot read /nonexistent/file"),
        (["--batch", "/dev/null"], "/dev/null has no case"),
        (["--contract", "9"], "speaks 1"),
        (["--folder", "/nonexistent/folder"], "--folder must name a folder"),
        (["--loss", "info_nce", "--self-pairs", "true"], "one_set_sigmoid alone"),
        (["--loss", "one_set_info_nce", "--self-pairs", "true"], "one_set_sigmoid alone"),
        (["--loss", "one_set_info_nce", "--form", "triplet"], "--form is 'triplet'; known: nt_xent, sup_con"),
        (["--options", "form=both"], "--options form is 'both'; known: nt_xent, sup_con"),
    ],
)
def test_bad_input_gets_one_line_and_exit_status_2(words, part):
    done = run(*words)
    assert done.returncode == 2 and part in done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1


def test_a_batch_is_read_whole_before_it_runs_and_goes_on_after_a_bad_folder(tmp_path):
    tiny = "--rows 16 --dims 64 --prefixes 64"
    batch = tmp_path / "batch.txt"
    for last, part in (("--rows zero", "line 2: --rows is 'zero'"), ("--capabilities", "line 2: --help, --cap")):
        batch.write_text(f"{tiny}\n{last}\n")
        done = run("--batch", batch)
        assert done.returncode == 2 and part in done.stderr and done.stdout == "", "nothing ran"
    batch.write_text(f"{tiny} --folder {tmp_path}/absent\n\n{tiny} --folder {tmp_path}\n")
    done = run("--batch", batch)
    assert done.returncode == 2 and "line 1: cannot write" in done.stderr and len(done.stderr.splitlines()) == 1
    assert events_of(tmp_path)[-1]["status"] == "ok"


def limited(limit, *words, out=None):
    """The binary's exit status and what it says, where no file may grow past `limit` bytes; `out`: its stdout."""
    done = subprocess.run(
        [str(BINARY), "--rows", "64", *map(str, words)],
        stdout=out,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    return done.returncode, done.stderr


def test_what_cannot_be_written_fails_the_run(tmp_path):
    """A full disk, a file too large: never a run that looks fine and left nothing."""
    words = ["--folder", tmp_path, *QUICK, "--actions", "check,time", "--check", "name=small"]
    assert limited(1 << 20, *words)[0] == 0
    status, said = limited(1000, *words)
    assert status == 1 and f"cannot write {tmp_path}/small.rows.0.npy: File too large" in said
    status, said = limited(100, *words)
    assert status == 1 and f"cannot write events to {tmp_path}/events.0.jsonl: File too large" in said
    with open("/dev/full", "w") as full:
        for more in ([], ["--json", *QUICK], ["--capabilities"], ["--help"], ["--inputs-digest"]):
            status, said = limited(1 << 20, *more, out=full)
            assert status == 1 and "stdout: No space left on device" in said and len(said.splitlines()) == 1, more


def test_cold_caches_leave_the_flush_out_of_the_time(tmp_path):
    """Before each step a buffer twice the largest cache is written; the steps themselves still read their sleep."""
    sleeper = [*flags(base_case(system="sleep")), "--options", "sleep_seconds=0.02", "--actions", "time"]
    done = run(*sleeper, *QUICK, "--folder", tmp_path, "--cache", "cold")
    assert done.returncode == 0, done.stderr
    for event in by_name(events_of(tmp_path), "block"):
        assert 0.02 <= event["seconds"] / event["steps"] < 0.2
    assert "--cache" in run("--cache", "hot").stderr


def test_people_get_one_readable_line_and_programs_get_events():
    done = run("--rows", "16", "--dims", "64", "--prefixes", "64")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1
    assert "one_set_sigmoid R=16" in done.stdout and "ms best" in done.stdout
    done = run("--rows", "16", "--dims", "64", "--prefixes", "64", "--json", *QUICK)
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()][-1] == "end"
    assert "--prefix-weights" in run("--help").stdout


def test_capabilities():
    said = json.loads(run("--capabilities").stdout)
    losses = ["one_set_sigmoid", "two_set_sigmoid", "info_nce", "one_set_info_nce"]
    assert said["losses"] == [*losses, "one_set_all_reduce"]
    assert "cpu-portable" in said["engines_usable"] and set(said["engines_usable"]) <= set(said["engines_built"])
    assert said["contract"] == 1 and "cpu" in said["devices"]


def test_an_engine_can_be_forced_by_flag_option_or_environment():
    words = ["--rows", "16", "--dims", "64", "--prefixes", "64"]
    assert "cpu-portable" in run(*words, "--engine", "cpu-portable").stdout
    assert "cpu-portable" in run(*words, "--options", "engine=cpu-portable").stdout
    assert "cpu-portable" in run(*words, environment={"SCALING_CONTRASTS_ENGINE": "cpu-portable"}).stdout


def test_an_all_reduce_is_for_gpus_and_the_fabric_is_one_of_three():
    done = run("--loss", "one_set_all_reduce", "--world-size", "2")
    assert done.returncode == 2 and "give --device cuda" in done.stderr
    done = run("--rows", "16", "--fabric", "copper")
    assert done.returncode == 2 and "auto, multicast, peer" in done.stderr
