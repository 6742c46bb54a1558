"""What no commit may hold: one machine's paths, registry hosts, locks that say where from instead of what."""

import re
import subprocess

import pytest

from tests.setup.project import ROOT

LOCKS = sorted((ROOT / "harness" / "setup" / "locks").glob("*.txt"))
REQUIREMENT = re.compile(r"^[a-z0-9][a-z0-9._-]*==\S+( ; [^\\]+)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")

# Put together here so that this file does not hold what it looks for.
HOSTS = [".".join(words) for words in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("debian", "org"))]
HOSTS += [".".join(("download", "pytorch", "org")), ".".join(("conda", "anaconda", "org"))]
FOLDERS = ["/" + name + "/" for name in ("root", "work", "home")] + ["/" + "opt/wheels", "/" + "opt/pypi"]


def tracked_files():
    """Files under version control, or every file where this is no checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_locks_hold_names_versions_and_hashes_alone(path):
    lines = path.read_text().splitlines()
    assert lines
    strange = [line for line in lines if not REQUIREMENT.match(line) and not HASH.match(line)]
    assert strange == []
    starts = [number for number, line in enumerate(lines) if REQUIREMENT.match(line)]
    assert all(HASH.match(lines[number + 1]) for number in starts)


def test_all_locks_are_there_and_agree_on_versions():
    assert [path.stem for path in LOCKS] == ["base", "build", "dev", "nvidia", "slurm"]
    pinned: dict[str, set[str]] = {}
    for path in LOCKS:
        for name, version in re.findall(r"^(\S+)==(\S+)", path.read_text(), flags=re.MULTILINE):
            pinned.setdefault(name, set()).add(version)
    assert {name: versions for name, versions in pinned.items() if len(versions) > 1} == {}
    assert pinned["torch"] == {"2.14.1"} and pinned["torchvision"] == {"0.29.1"}  # the pair that lets open_clip import


def test_no_file_names_a_registry_host_or_one_machines_folders():
    found = []
    for path in tracked_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {word}" for word in HOSTS + FOLDERS if word in text]
    assert found == []


def test_setup_runs_on_a_bare_interpreter():
    import sys

    command = [sys.executable, "-S", "-E", "-c", "import harness.setup.targets"]
    subprocess.run(command, cwd=ROOT, check=True)
