"""Runs that are stopped: interrupts, kills, a disk that fills up, a second run; what is kept, and what goes on."""

import json
import random
import signal
import subprocess
import time

import pytest

from harness import records
from harness.__main__ import main
from tests.harness.run_files import samples, state, wait_for


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
    bench.system("probe", {"a": {"sleep_seconds": 0.1}})
    process = bench.start()
    wait_for(process, lambda: any((folder / "rows.csv").exists() for folder in bench.runs()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    done = bench.run("seed=7")
    assert done.returncode == 0
    (old,) = (run for run in bench.runs() if run.name != bench.runs()[-1].name)
    assert "1 unfinished runs here differ" in done.stdout
    assert f"the newest, {old.name}: seed 42 -> 7 (resume={old.name} lists all" in done.stdout
    assert len(bench.runs()) == 2
    assert main(["bench", *bench.arguments("seed=7")]) == 0
    assert len(bench.runs()) == 3, "a finished run is not continued, a new one begins"
    assert main(["bench", *bench.arguments("resume=false")]) == 0
    assert len(bench.runs()) == 4, "told not to continue"


def stopped(bench):
    """A run that was interrupted in its first round."""
    process = bench.start()
    wait_for(process, lambda: any((folder / "rows.csv").exists() for folder in bench.runs()))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    return bench.runs()[-1]


def test_a_run_that_is_named_is_continued_or_refused_with_all_that_differs(bench, capsys):
    bench.system("probe", {"a": {"sleep_seconds": 0.1}})
    folder = stopped(bench)
    record = json.loads((folder / "environment.json").read_text())

    assert main(["bench", *bench.arguments(f"resume={folder.name}", "seed=7", "protocol.blocks=3")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"harness bench: {folder.name} cannot be continued")
    assert sorted(said[1:-1]) == ["  protocol.blocks: 2 -> 3", "  seed: 42 -> 7"]

    other = record | {"git": record["git"] | {"revision": "abc"}, "host": record["host"] | {"cores": 999}}
    (folder / "environment.json").write_text(json.dumps(other | {"fingerprint": "of that machine"}))
    assert main(["bench", *bench.arguments(f"resume={folder}")]) == 2
    said = capsys.readouterr().err.splitlines()
    now = json.dumps(record["git"]["revision"])
    cores = record["host"]["cores"]
    assert sorted(said[1:-1]) == [f'  git.revision: "abc" -> {now}', f"  host.cores: 999 -> {cores}"]
    assert bench.runs() == [folder], "a run that was refused is not begun anew"

    (folder / "environment.json").write_text(json.dumps(record))
    assert main(["bench", *bench.arguments(f"resume={folder.name}", "budget=10m")]) == 0
    assert f"continuing {folder}" in capsys.readouterr().out
    assert bench.runs() == [folder] and bench.rows()["a"]["status"] == "ok"
    assert main(["bench", *bench.arguments(f"resume={folder.name}")]) == 2
    assert "is complete: nothing is left to continue" in capsys.readouterr().err
    assert main(["bench", *bench.arguments("resume=20200101T000000Z-0000")]) == 2
    assert "names no run folder" in capsys.readouterr().err


def test_a_run_of_other_cases_alone_is_refused_too(bench, capsys):
    bench.system("probe", {"a": {"sleep_seconds": 0.1}})
    folder = stopped(bench)
    bench.system("probe", {"a": {"sleep_seconds": 0.2}})
    assert main(["bench", *bench.arguments(f"resume={folder.name}")]) == 2
    assert "its list of cases or its other machines" in capsys.readouterr().err


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
    bench.system("probe", {"a": {}})
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
