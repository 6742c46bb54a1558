"""The virtual environment: trusted only when finished, made once, two set-ups wait, hashes are enforced."""

import errno
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from harness.setup import environment, processes
from harness.setup.processes import SetupError
from tests.setup.project import ROOT

# A process that prepares FOLDER with stand-ins for venv and pip: every start and end of an install is noted in a log.
DRIVER = """
import os, sys, time
from pathlib import Path
from harness.setup import environment

folder, log, delay, groups = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4].split(",")

def note(text):
    with open(log, "a") as stream:
        stream.write(f"{os.getpid()} {text}\\n")

def make_venv(where):
    (where / "bin").mkdir(parents=True)
    (where / "bin" / "python").symlink_to(sys.executable)
    (where / "half-made").touch()

def pip_install(where, group, lock):
    note(f"begin {group}")
    time.sleep(delay)
    note(f"end {group}")

environment.make_venv, environment.pip_install = make_venv, pip_install
environment.groups_wanted = lambda options, development: groups
environment.prepare({"VENV": str(folder)})
note("ready")
"""


def start(folder: Path, log: Path, delay: float = 0.0, groups: str = "build,base") -> subprocess.Popen:
    """Start the driver."""
    words = [sys.executable, "-c", DRIVER, str(folder), str(log), str(delay), groups]
    return subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True)


def run(folder: Path, log: Path, groups: str = "build,base") -> str:
    """Run the driver to its end; returns what it said."""
    process = start(folder, log, groups=groups)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    return said


def events(log: Path) -> list[str]:
    """What the drivers noted, without process ids."""
    return [line.split(" ", 1)[1] for line in log.read_text().splitlines()] if log.exists() else []


def wait_for(log: Path, event: str) -> None:
    """Until a driver notes `event`."""
    deadline = time.monotonic() + 30
    while event not in events(log):
        assert time.monotonic() < deadline, f"{event} never came"
        time.sleep(0.01)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """An environment's folder (not there yet, with a space in its name) and a log."""
    return tmp_path / "an environment", tmp_path / "log"


def test_the_second_setup_installs_nothing_and_says_nothing(places):
    assert "ready" in run(*places)
    assert run(*places) == ""
    assert events(places[1]) == ["begin build", "end build", "begin base", "end base", "ready", "ready"]


def test_a_missing_group_is_added_in_place(places):
    folder, log = places
    run(folder, log)
    marker = folder / "mine"
    marker.touch()
    run(folder, log, groups="build,base,dev")
    assert events(log)[-3:] == ["begin dev", "end dev", "ready"]
    assert marker.exists()
    assert set(environment.read_state(folder)["locks"]) == {"build", "base", "dev"}


def test_two_setups_at_once_wait_for_each_other(places):
    folder, log = places
    first = start(folder, log, delay=1.0)
    wait_for(log, "begin build")
    second = start(folder, log, delay=1.0)
    said = second.communicate(timeout=60)[1]
    first.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (0, 0)
    assert f"waiting for process {first.pid} on " in said
    assert events(log) == ["begin build", "end build", "begin base", "end base", "ready", "ready"]


def test_a_filesystem_without_locks_is_said_and_no_obstacle(places, monkeypatch, capsys):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(processes.fcntl, "flock", flock)
    with processes.exclusive(places[0].with_suffix(".lock"), "the environment"):
        pass
    assert "has no file locks" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_setup_is_never_trusted(places, number):
    folder, log = places
    process = start(folder, log, delay=60)
    wait_for(log, "begin build")
    (folder / "torn package").touch()
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert not environment.read_state(folder)["complete"]
    said = run(folder, log)
    assert "did not finish; making it anew" in said
    assert not (folder / "torn package").exists()
    assert environment.read_state(folder)["complete"]


def test_a_removal_cut_short_is_recognised(places):
    folder, log = places
    run(folder, log)
    environment.write_state(folder, False, {})
    (folder / "bin" / "python").unlink()
    assert "making it anew" in run(folder, log)


@pytest.mark.parametrize("change", ["python", "lock", "interpreter", "torn state"])
def test_an_environment_that_no_longer_fits_is_made_anew(places, change):
    folder, log = places
    run(folder, log)
    state = json.loads((folder / environment.STATE).read_text())
    if change == "python":
        state["python"] = "CPython 3.9 x86_64"
    if change == "lock":
        state["locks"]["base"] = "0" * 64
    (folder / environment.STATE).write_text("{" if change == "torn state" else json.dumps(state))
    if change == "interpreter":
        (folder / "bin" / "python").unlink()
    assert "making it anew" in run(folder, log)
    assert events(log).count("begin base") == 2


def test_a_folder_that_is_no_environment_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SetupError, match="no virtual environment"):
        environment.prepare({"VENV": str(tmp_path), "NVIDIA": "no"})
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match="cannot write"):
        environment.prepare({"VENV": str(tmp_path / "file" / "venv"), "NVIDIA": "no"})


def test_a_full_disk_is_seen_before_anything_is_made(places, monkeypatch):
    folder, _ = places
    usage = type("Usage", (), {"free": 3e9})
    monkeypatch.setattr(environment.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(SetupError, match=r"3\.0 GB free, set-up needs 9 GB"):
        environment.prepare({"VENV": str(folder), "NVIDIA": "no"})
    assert not folder.exists()


def test_a_wrong_word_for_nvidia_names_the_right_ones():
    with pytest.raises(SetupError, match="auto, yes, no"):
        environment.groups_wanted({"NVIDIA": "maybe"}, False)


def test_no_environment_means_the_interpreter_at_hand():
    assert environment.prepare({"VENV": "none"}) == Path(sys.executable)


def tiny_wheel(folder: Path) -> Path:
    """A wheel of one module, written by hand."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    files = {
        "tiny.py": "value = 42\n",
        "tiny-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
        archive.writestr("tiny-1.0.dist-info/RECORD", "".join(f"{name},,\n" for name in files))
    return path


def test_real_venv_and_pip_install_locked_packages_and_refuse_changed_ones(tmp_path, monkeypatch):
    wheel = tiny_wheel(tmp_path)
    locks = tmp_path / "locks"
    locks.mkdir()
    right = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (locks / "base.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{right}\n")
    (locks / "dev.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{'0' * 64}\n")
    monkeypatch.setattr(environment, "LOCKS", locks)
    monkeypatch.setattr(environment, "groups_wanted", lambda options, development: ["dev" if development else "base"])
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    good, bad = {"VENV": str(tmp_path / "good one")}, {"VENV": str(tmp_path / "bad one")}
    python = environment.prepare(good)
    printed = subprocess.run(
        [python, "-c", "import tiny; print(tiny.value)"], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "42\n"
    with pytest.raises(SetupError, match=r"(?i)hash"):
        environment.prepare(bad, development=True)
    assert not environment.read_state(Path(bad["VENV"]))["complete"]
    assert os.path.exists(tmp_path / "bad one" / "setup.log")
