"""The native binary, built if it is not there; tests skip, with the reason, where it cannot be."""

import subprocess

import pytest

from tests.kernels.binary import BINARY, ROOT


@pytest.fixture(scope="session", autouse=True)
def native_binary():
    """Builds `build/scaling_contrasts` unless it exists."""
    if BINARY.exists():
        return BINARY
    build = ROOT / "build"
    commands = (
        ["cmake", "-S", str(ROOT / "kernels"), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", str(build), "--target", "scaling_contrasts"],
    )
    try:
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, text=True)
    except (FileNotFoundError, subprocess.CalledProcessError) as problem:
        pytest.skip(f"the native binary is not built and cannot be here: {problem}")
    return BINARY
