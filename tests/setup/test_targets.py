"""The Makefile: its list, its options, its exit codes. Real make, stand-ins for what it starts."""

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.setup import native
from harness.setup.targets import TARGETS
from tests.setup.project import ROOT, Project

MAKEFILE = (ROOT / "Makefile").read_text()
PROMISED = {"help", "setup", "native", "bench", "report", "regress", "test", "lint", "clean"}


def one_line(text: str) -> str:
    """The set-up's own lines, which must be one."""
    lines = [line for line in text.splitlines() if not line.startswith("make")]
    assert len(lines) == 1, text
    return lines[0]


def test_help_is_the_makefile_and_at_most_16_targets(project: Project):
    names = re.findall(r"^  ([a-z-]+) ", project.make("help").stdout, flags=re.MULTILINE)
    assert names == re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE)
    assert len(names) <= 16
    assert set(names) >= PROMISED
    assert project.make().stdout == project.make("help").stdout


def test_every_target_is_known_to_the_setup_and_the_other_way_round():
    names = re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE)
    assert names == ["help", *TARGETS]


OPTIONS = {
    "none": ([], []),
    "campaign and budget": (["CAMPAIGN=article", "BUDGET=10m"], ["campaign=article", "budget=10m"]),
    "a run to continue": (["RESUME=20260101T000000Z-aaaa"], ["resume=20260101T000000Z-aaaa"]),
    "brackets": (["ARGS=rows=[256,1024] systems=[native,a:b]"], ["rows=[256,1024]", "systems=[native,a:b]"]),
    "quoted spaces": (["ARGS='rows=[256, 1024]' \"note=two words\""], ["rows=[256, 1024]", "note=two words"]),
    "shell code": (
        ["ARGS=a=$$HOME;touch$$IFSx b=`id` c=* d=$$(id)"],
        ["a=$HOME;touch$IFSx", "b=`id`", "c=*", "d=$(id)"],
    ),
    "a quote in a name": (["CAMPAIGN=x y'z"], ["campaign=x y'z"]),
}


@pytest.mark.parametrize(("variables", "expected"), OPTIONS.values(), ids=OPTIONS)
def test_options_reach_the_harness_unharmed_and_no_shell_sees_them(project: Project, variables, expected):
    result = project.make("bench", "VENV=none", *variables)
    assert result.returncode == 0, result.stderr
    assert project.calls() == [["harness", "bench", *expected], ["reports"]]


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("PYTHON=/bin/false", "PYTHON=/bin/false is a program but runs no Python; name Python 3.11 or newer"),
        ("PYTHON=/bin/true", "PYTHON=/bin/true is a program but runs no Python"),
        ("PYTHON=no-such-python", "PYTHON=no-such-python is not a program"),
        ("VENV=", "VENV is empty; leave it out for .venv, name a folder, or give VENV=none"),
    ],
)
def test_an_interpreter_or_environment_that_is_none_is_one_line(project: Project, variable, words):
    result = project.make("bench", variable)
    assert result.returncode == 2
    assert words in one_line(result.stderr)
    assert project.calls() == []


def test_from_another_folder_make_says_where_it_runs(project: Project, tmp_path):
    shutil.copy(project.root / "Makefile", tmp_path / "Makefile")  # a path with a space in it, make cannot include
    result = subprocess.run(["make", "plan", "VENV=none"], cwd=tmp_path, text=True, capture_output=True)
    assert result.returncode == 2 and "make -C FOLDER" in one_line(result.stderr)


def test_a_make_started_by_a_target_does_not_obey_this_one_s_command_line(project: Project):
    note = "import os; open('seen', 'w').write(repr({name for name in os.environ if name.startswith('M')}))\n"
    (project.root / "harness" / "__main__.py").write_text(note)
    assert project.make("bench", "VENV=none", "MASTER_ADDR=10.0.0.1", "--no-print-directory").returncode == 0
    assert (project.root / "seen").read_text() == "{'MASTER_ADDR'}"


def test_list_prints_cases_and_renders_no_page(project: Project):
    assert project.make("bench", "VENV=none", "LIST=1").returncode == 0
    assert project.calls() == [["harness", "bench", "list=true"]]


def test_a_failed_bench_still_renders_and_still_fails(project: Project):
    assert project.make("bench", "VENV=none", HARNESS_EXIT="1").returncode != 0
    assert project.calls() == [["harness", "bench"], ["reports"]]


def test_of_several_nodes_only_node_0_renders(project: Project):
    many = ("VENV=none", "NNODES=2", "MASTER_ADDR=10.0.0.1")
    assert project.make("bench", *many, HARNESS_EXIT="10").returncode == 0
    assert project.calls() == [["harness", "bench", "launch.follower_status=10"]]
    assert project.make("bench", *many).returncode == 0
    assert project.calls()[1:] == [["harness", "bench", "launch.follower_status=10"], ["reports"]]


def test_bad_input_to_bench_renders_nothing(project: Project):
    assert project.make("bench", "VENV=none", HARNESS_EXIT="2").returncode != 0
    assert project.calls() == [["harness", "bench"]]


def test_plan_takes_the_same_options_as_bench(project: Project):
    assert project.make("plan", "VENV=none", "CAMPAIGN=article", "BUDGET=2h").returncode == 0
    assert project.calls() == [["harness", "plan", "campaign=article", "budget=2h"]]


def test_a_failed_report_fails_the_bench(project: Project):
    assert project.make("bench", "VENV=none", REPORTS_EXIT="1").returncode != 0


def test_an_interrupted_bench_renders_nothing(project: Project):
    result = project.make("bench", "VENV=none", HARNESS_EXIT="130")
    assert result.returncode != 0
    assert "finished rows are kept" in result.stderr
    assert project.calls() == [["harness", "bench"]]


def test_regress_names_its_files_and_asks_for_base(project: Project):
    result = project.make("regress", "VENV=none")
    assert result.returncode != 0
    assert "BASE=" in one_line(result.stderr)
    project.make("regress", "VENV=none", "BASE=old rows.csv", "NEW=new.csv", "ARGS=format=json")
    assert project.calls() == [["harness", "regress", "base=old rows.csv", "new=new.csv", "format=json"]]


def test_comparing_two_files_builds_nothing_and_measuring_afresh_does(buildable: Project):
    buildable.make("regress", "VENV=none", "BASE=old.csv", "NEW=new.csv")
    assert not (buildable.root / "cmake.txt").exists() and len(buildable.calls()) == 1
    result = buildable.make("regress", "VENV=none", "BASE=old.csv")
    assert result.returncode == 2 and "BASE=old.csv does not exist" in one_line(result.stderr)
    assert not (buildable.root / "cmake.txt").exists(), "it says so before it builds"
    (buildable.root / "old.csv").touch()
    buildable.make("regress", "VENV=none", "BASE=old.csv")
    assert (buildable.root / "cmake.txt").exists() and len(buildable.calls()) == 2


@pytest.mark.parametrize(
    ("words", "builds"), [("doctor", False), ("plan", False), ("bench LIST=1", False), ("bench", True)]
)
def test_what_only_answers_builds_nothing(buildable: Project, words, builds):
    assert buildable.make(*words.split(), "VENV=none").returncode == 0
    assert (bool(buildable.cmake_calls()), buildable.calls()[0][1]) == (builds, words.split()[0])


def test_arguments_with_an_open_quote_are_one_clear_line(project: Project):
    result = project.make("report", "VENV=none", "ARGS='open")
    assert result.returncode != 0
    assert "ARGS" in one_line(result.stderr)


@pytest.mark.parametrize("name", ["no-such-python", "/nowhere/python3"])
def test_a_missing_python_is_one_clear_line(project: Project, name: str):
    result = project.make("setup", f"PYTHON={name}")
    assert result.returncode != 0
    assert f"PYTHON={name}" in one_line(result.stderr)


def test_an_old_python_is_one_clear_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "version_info", (3, 8, 18, "final", 0))
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(ROOT / "harness" / "setup" / "__main__.py"))
    assert stopped.value.code == 2
    assert "3.8; 3.11 or newer is needed" in one_line(capsys.readouterr().err)


def test_without_a_compiler_the_other_rows_still_run(project: Project):
    result = project.make("bench", "VENV=none")
    assert result.returncode == 0
    assert "without the native rows" in one_line(result.stderr)


def test_without_cmake_native_itself_fails_with_the_fix(project: Project):
    project.add_program("c++", "#!/bin/sh\nexit 0\n")
    result = project.make("native", "VENV=none")
    assert result.returncode != 0
    assert "cmake" in one_line(result.stderr) and "install" in result.stderr


def test_the_build_is_configured_once_and_again_when_the_compiler_changes(buildable: Project):
    for _ in range(2):
        assert buildable.make("native", "VENV=none").returncode == 0
    kinds = ["configure" if "-S" in call else "build" for call in buildable.cmake_calls()]
    assert kinds == ["configure", "build", "build"]
    (buildable.root / "build" / "configured.json").write_text("{}")
    assert buildable.make("native", "VENV=none").returncode == 0
    assert "-S" in buildable.cmake_calls()[3]
    buildable.add_program("other-c++", "#!/bin/sh\nexit 0\n")
    assert buildable.make("native", "VENV=none", CXX="other-c++", CMAKE_ARGS="-DX='a b'").returncode == 0
    assert "-DX=a b" in buildable.cmake_calls()[5]


def test_the_cuda_compiler_of_the_environment_is_found_and_completed(tmp_path: Path, monkeypatch):
    toolkit = tmp_path / "lib" / "python3.11" / "site-packages" / "nvidia" / "cu13"
    for name in ("bin/nvcc", "lib/libcudart.so.13"):
        (toolkit / name).parent.mkdir(parents=True)
        (toolkit / name).touch()
    monkeypatch.setattr(native.shutil, "which", lambda name, path=None: None)
    interpreter = tmp_path / "bin" / "python"
    for _ in range(2):
        assert native.find_nvcc({}, interpreter) == str(toolkit / "bin" / "nvcc")
    assert (toolkit / "lib64" / "libcudart.so").resolve() == toolkit / "lib" / "libcudart.so.13"
    assert native.find_nvcc({"CUDACXX": "mine"}, interpreter) == "mine"


def test_programs_are_found_inside_their_package_so_that_an_environment_can_be_moved(tmp_path: Path):
    inside, script = tmp_path / "lib/python3.11/site-packages/cmake/data/bin/cmake", tmp_path / "bin" / "cmake"
    for path in (script, inside):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    assert native.tool("cmake", tmp_path / "bin" / "python") == str(inside)
    inside.unlink()
    assert native.tool("cmake", tmp_path / "bin" / "python") == str(script)


def test_a_failed_build_stops_the_bench_and_shows_why(buildable: Project):
    result = buildable.make("bench", "VENV=none", CMAKE_EXIT="1")
    assert result.returncode != 0
    assert "the compiler says no" in result.stderr
    assert buildable.calls() == []


def test_clean_keeps_results_and_environment(buildable: Project):
    buildable.make("native", "VENV=none")
    kept = [buildable.root / "results" / "rows.csv", buildable.root / ".venv" / "setup.json"]
    for path in kept:
        path.parent.mkdir()
        path.write_text("kept")
    assert (buildable.root / "build").is_dir()
    assert buildable.make("clean").returncode == 0
    assert not (buildable.root / "build").exists()
    assert all(path.read_text() == "kept" for path in kept)
