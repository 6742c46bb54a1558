"""What a run keeps through kills, full disks, folders that cannot be written, clock jumps and second writers."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from harness import bench as bench_module
from harness import progress, records
from harness.store import Store, new_run_id
from tests.harness.conftest import ROOT


def test_two_hundred_kills_lose_nothing_and_tear_nothing(bench):
    unchecked = {"loss": "one_set_sigmoid", "options": {"check": "none"}}
    bench.system("probe", {"a": unchecked, "b": unchecked})
    words = [sys.executable, "-m", "tests.harness.killed_writer", bench.registry, bench.results, "200", "7"]
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["killed"] == 200
    assert counts["midway"] >= 40, "kills that fell before anything was written show nothing"
    assert counts["acknowledged"] >= 100


@pytest.mark.parametrize(("way", "stride"), [("kill", 1), ("interrupt", 6), ("full", 6)])
def test_a_run_that_ends_at_any_write_continues_whole(bench, way, stride):
    """Nothing measured twice, lost or torn, retries counted right, and no file left that does not belong there."""
    unchecked = {"loss": "one_set_sigmoid", "options": {"check": "none"}}
    bench.system("probe", {"once": unchecked, "noisy": unchecked})
    words = [sys.executable, "-m", "tests.harness.killed_at_each_write", bench.registry, bench.results, way, stride]
    done = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["writes"] > 60


FULL_DISK = """
import os, resource, sys
from pathlib import Path
from harness.store import Store
store = Store(Path(sys.argv[1]))
store.save("id", "check", {"status": "ok"})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
try:
    store.save("id", "0", {"status": "ok", "blocks": [[0, 0, 1, 1.0]] * 100})
except OSError as problem:
    sys.exit(7)
"""


def test_a_disk_that_fills_up_keeps_what_was_written_before(tmp_path):
    """Played by a limit on file size, in a process of its own; a small tmpfs is filled in test_bench.py."""
    assert subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], cwd=ROOT).returncode == 7
    found = Store(tmp_path)
    assert found.check("id") == {"status": "ok"} and found.rounds("id") == {}
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["id.check.json"], "no half-written file is left"


def test_what_is_no_record_of_ours_is_left_alone(tmp_path):
    """Files of somebody else, and those that a power failure left empty: as if they were not there."""
    Store(tmp_path).save("id", "check", {"status": "ok"})
    strangers = {"notes.json": "{}", "id.0.json": "", "id.1.json": "[]", "id.2.json": "7", "id.x.json": '{"status": 1}'}
    for name, text in strangers.items():
        (tmp_path / "state" / name).write_text(text)
    found = Store(tmp_path)
    assert found.check("id") == {"status": "ok"} and found.rounds("id") == {}


def test_a_folder_that_cannot_be_written_is_one_line(bench, capsys):
    """A file where a folder should be; root may write to read-only folders, so these come second."""
    from harness.__main__ import main

    bench.system("probe", {"a": {}})
    bench.results.mkdir()
    (bench.results / "measured").write_text("mine")
    assert main(["bench", *bench.arguments()]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "cannot write" in said and "results=<folder>" in said
    if os.getuid() == 0:
        pytest.skip("root may write everywhere")
    (bench.results / "measured").unlink()
    bench.results.chmod(0o555)
    assert main(["bench", *bench.arguments()]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_a_read_only_filesystem_is_one_line_and_loses_nothing(bench, capsys):
    from harness.__main__ import main

    bench.system("probe", {"a": {}})
    bench.results.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,ro", "tmpfs", str(bench.results)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("cannot mount here")
    try:
        assert main(["bench", *bench.arguments()]) == 2
        said = capsys.readouterr().err
        assert "Read-only file system" in said and said.count("\n") == 1
    finally:
        subprocess.run(["umount", str(bench.results)], check=True)


class Quiet:
    def say(self, text):
        self.said = text


def unfinished_run(parent, name, fingerprint="f"):
    folder = parent / name
    folder.mkdir(parents=True)
    Store(folder).write_environment({"finished": False, "fingerprint": fingerprint})
    return folder


def test_a_clock_that_was_set_back_neither_loses_a_run_nor_mixes_two_up(tmp_path):
    """An unfinished run of tomorrow is still the one to continue; a new one beside it has a name of its own."""
    tomorrow = unfinished_run(tmp_path, "20991231T000000Z-aaaa")
    other = unfinished_run(tmp_path, "20200101T000000Z-bbbb", "another")
    with bench_module.contextlib.ExitStack() as held:
        found, _ = bench_module.find_folder(tmp_path, "f", True, Quiet(), held)
        assert found.folder == tomorrow
    now = datetime(2020, 1, 1, tzinfo=UTC)
    assert len({new_run_id(now) for _ in range(40)}) > 30, "one second twice is no collision"
    assert other.exists()


def test_elapsed_time_does_not_follow_the_wall_clock(monkeypatch):
    screen = progress.Progress()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert 0 <= screen.elapsed < 60


def test_a_worker_s_end_is_found_whatever_its_clock_said(tmp_path):
    """Rank 1's clock jumped back an hour: it failed last and seems to have failed first."""
    from harness.events import Events

    for rank, (moment, reason) in enumerate([(5000.0, "first"), (1400.0, "second")]):
        end = {"event": "end", "status": "crashed", "reason": reason, "time": moment}
        (tmp_path / f"events.{rank}.jsonl").write_text(json.dumps(end) + "\n")
    assert Events.read(tmp_path).ended()[0] == "crashed"


def test_two_writers_never_share_a_run(tmp_path):
    """Two machines of one name on a shared folder: the second one starts a run of its own."""
    folder = unfinished_run(tmp_path, "20260101T000000Z-aaaa")
    script = (
        "import sys; from pathlib import Path; from harness import lock\n"
        "with lock.writer(Path(sys.argv[1])) as mine:\n"
        "    print(mine, flush=True); sys.stdin.read()\n"
    )
    words = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "True\n"
        screen = Quiet()
        with bench_module.contextlib.ExitStack() as held:
            assert bench_module.find_folder(tmp_path, "f", True, screen, held)[0] is None
        assert "another process is writing to" in screen.said
        first.communicate("")
    with bench_module.contextlib.ExitStack() as held:
        assert bench_module.find_folder(tmp_path, "f", True, screen, held)[0].folder == folder, (
            "it goes with its holder"
        )


def test_a_run_that_another_process_finishes_meanwhile_is_not_measured_again(tmp_path, monkeypatch):
    """It was unfinished when it was looked at, and whole when its lock was free."""
    folder = unfinished_run(tmp_path, "20260101T000000Z-aaaa")
    (folder / "rows.csv").write_text("its rows")
    writer = bench_module.lock.writer

    def late(run):
        Store(run).write_environment({"finished": True, "complete": True, "fingerprint": "f"})
        Store(run).finish()
        return writer(run)

    monkeypatch.setattr(bench_module.lock, "writer", late)
    with bench_module.contextlib.ExitStack() as held:
        assert bench_module.find_folder(tmp_path, "f", True, Quiet(), held)[0] is None
    assert sorted(path.name for path in folder.iterdir()) == ["environment.json", "rows.csv"]


def test_writers_of_one_table_leave_one_of_their_tables(tmp_path):
    """Atomic replacement: whoever comes last, the file is whole and nobody's temporary file stays."""
    path = tmp_path / "rows.csv"
    script = (
        "import sys; from harness import records\n"
        "for i in range(60): records.write_rows(sys.argv[1], "
        "[{'schema_version': 2, 'system': sys.argv[2]}] * (1 + i % 7))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, str(path), name], cwd=ROOT) for name in "ab"]
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            assert len({row["system"] for row in records.read_rows(path)}) == 1
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [each.name for each in tmp_path.iterdir()] == ["rows.csv"]
