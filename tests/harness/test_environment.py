"""What a record says about the code, and what an environment without a package says."""

import subprocess
import sys

import pytest

from harness import environment
from harness.configuration import ROOT


def git(folder, *arguments):
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments], cwd=folder, check=True)


def test_a_copy_inside_a_foreign_repository_has_no_revision(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "theirs")
    copy = tmp_path / "copy"
    copy.mkdir()
    monkeypatch.setattr(environment, "ROOT", copy)
    assert environment.revision() == {"revision": "", "dirty": False, "changes_sha256": ""}
    monkeypatch.setattr(environment, "ROOT", tmp_path.resolve())
    assert len(environment.revision()["revision"]) == 40


def test_a_change_that_is_no_utf8_is_still_a_change(tmp_path, monkeypatch):
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_bytes(b"one\n")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "one")
    (tmp_path / "file").write_bytes(b"caf\xe9\n")
    monkeypatch.setattr(environment, "ROOT", tmp_path.resolve())
    assert environment.revision()["dirty"]


@pytest.mark.parametrize("package", ["numpy", "yaml", "hydra", "omegaconf"])
def test_a_missing_package_is_one_line_and_exit_2(package):
    code = f"import sys; sys.modules[{package!r}] = None; from harness.__main__ import main; sys.exit(main(['plan']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert done.stderr.startswith(f"harness plan: {package} is not installed for {sys.executable}")
    assert done.stderr.count("\n") == 1
