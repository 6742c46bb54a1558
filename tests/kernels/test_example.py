"""The header alone: installed with CMake, found with find_package, used by the example."""

import subprocess

import pytest

from tests.kernels.binary import BINARY, ROOT


def test_the_example_builds_against_an_installed_header(tmp_path):
    cache = BINARY.parent / "CMakeCache.txt"
    if not cache.exists():
        pytest.skip("no CMake build beside the binary to install from")
    prefix, source, example = tmp_path / "prefix", ROOT / "examples" / "header_only", tmp_path / "example"
    steps = (
        ["cmake", "--install", BINARY.parent, "--prefix", prefix],
        ["cmake", "-S", source, "-B", example, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", example],
    )
    for step in steps:
        done = subprocess.run([str(word) for word in step], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + done.stdout
    done = subprocess.run([str(example / "header_only")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    first, last = (float(line.split("loss ")[1].split(",")[0]) for line in done.stdout.splitlines() if "loss " in line)
    assert last < first  # the example descends
