"""The native build: `kernels/` configured and compiled into `build/`, nothing done when nothing has changed."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from harness.setup.processes import ROOT, SetupError, exclusive, foreground, logged, say

BUILD = ROOT / "build"
BINARY = BUILD / "scaling_contrasts"
FINGERPRINT = "configured.json"
COMPILERS = ("c++", "g++", "clang++")


def tool(name: str, interpreter: Path) -> str | None:
    """A program's path: the environment's own first, then the system's. None without any.

    Packages such as cmake keep the program among their data; the script in `bin` that starts it stops working when the
    environment is moved, so the program itself is preferred.
    """
    inside = interpreter.parent.parent.glob("lib/python3*/site-packages/*/data/bin")
    folders = [*map(str, inside), str(interpreter.parent), os.environ.get("PATH", os.defpath)]
    return shutil.which(name, path=os.pathsep.join(folders))


def find_nvcc(options: Mapping[str, str], interpreter: Path) -> str | None:
    """The CUDA compiler: CUDACXX, the toolkit's, or the one that nvidia.txt installs. None without any."""
    found = options.get("CUDACXX") or shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if found:
        return found
    for toolkit in interpreter.parent.parent.glob("lib/python3*/site-packages/nvidia/cu*"):
        if (toolkit / "bin" / "nvcc").exists():
            name_as_a_toolkit_does(toolkit)
            return str(toolkit / "bin" / "nvcc")
    return None


def name_as_a_toolkit_does(toolkit: Path) -> None:
    """The packages of the CUDA compiler lack two names that nvcc and CMake look for; add them as links."""
    runtime = next((toolkit / "lib").glob("libcudart.so.*"), None)
    for link, target in ((toolkit / "lib64", "lib"), (toolkit / "lib" / "libcudart.so", runtime and runtime.name)):
        if target and not link.exists():
            link.symlink_to(target)


def missing_tool(options: Mapping[str, str], interpreter: Path) -> str | None:
    """Why nothing can be compiled here, as one line with the fix, or None."""
    named = options.get("CXX")
    if named and not shutil.which(shlex.split(named)[0]):
        return f"CXX={named} is not a program; name a C++20 compiler, or unset it"
    if not named and not any(map(shutil.which, COMPILERS)):
        return "no C++ compiler; install one that knows C++20 (Debian and Ubuntu: apt-get install g++)"
    if not tool("cmake", interpreter):
        return f"no cmake on PATH or beside {interpreter}; install it (Debian and Ubuntu: apt-get install cmake)"
    return None


def build(options: Mapping[str, str], interpreter: Path) -> None:
    """Configure if needed and compile. CXX, CUDACXX and CMAKE_ARGS choose the compilers. Raises SetupError."""
    problem = missing_tool(options, interpreter)
    if problem:
        raise SetupError(problem)
    with exclusive(BUILD / "setup.lock", "build"):
        log = BUILD / "setup.log"
        log.unlink(missing_ok=True)
        cmake, environment = tool("cmake", interpreter), dict(options)
        nvcc = find_nvcc(options, interpreter)
        if nvcc:
            environment["CUDACXX"] = nvcc
        configure(cmake, tool("ninja", interpreter), environment, log)
        command = [cmake, "--build", BUILD]
        if not options.get("CMAKE_BUILD_PARALLEL_LEVEL"):
            command += ["--parallel", str(len(os.sched_getaffinity(0)))]
        begin = time.monotonic()
        logged("the native build", command, log, compile_progress, environment)
        if time.monotonic() - begin > 2:
            say(f"native build done ({time.monotonic() - begin:.0f} s)")


def compile_progress(line: str) -> str | None:
    """Status shown for a line of ninja's or make's output."""
    return line.strip() if re.match(r"\[\s*\d+(/\d+|%)\]", line) else None


def is_configured(record: Path, wanted: Mapping[str, str]) -> bool:
    """Whether the last configure step was for `wanted`, with tools that are still there. A torn record is none."""
    try:
        last = json.loads(record.read_text())
        return last["wanted"] == wanted and all(map(os.path.exists, last["tools"]))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def configure(cmake: str, ninja: str | None, environment: Mapping[str, str], log: Path) -> None:
    """Run CMake's configure step, afresh when the folder or the compilers are not those of the last time."""
    wanted = {"source": str(ROOT)}
    wanted |= {name: environment.get(name, "") for name in ("CXX", "CUDACXX", "CMAKE_ARGS")}
    record = BUILD / FINGERPRINT
    if is_configured(record, wanted):
        return
    record.unlink(missing_ok=True)
    (BUILD / "CMakeCache.txt").unlink(missing_ok=True)
    shutil.rmtree(BUILD / "CMakeFiles", ignore_errors=True)
    nvcc = environment.get("CUDACXX")
    say(f"configuring the native build ({nvcc or 'no CUDA compiler: without the GPU engines'})")
    command = [cmake, "-S", ROOT / "kernels", "-B", BUILD, "-DCMAKE_BUILD_TYPE=Release"]
    command += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    command += shlex.split(environment.get("CMAKE_ARGS", ""))
    logged("configuring the native build", command, log, environment=environment)
    cache = BUILD / "CMakeCache.txt"
    if nvcc and cache.exists() and re.search(r"^CMAKE_CUDA_COMPILER:\w+=.*NOTFOUND", cache.read_text(), re.MULTILINE):
        say(f"{nvcc} does not work here; building without the GPU engines ({log.relative_to(ROOT)} says why)")
    text = json.dumps({"wanted": wanted, "tools": [path for path in (cmake, ninja) if path]})
    record.with_suffix(".tmp").write_text(text)
    os.replace(record.with_suffix(".tmp"), record)  # there in full or not at all


def build_or_explain(options: Mapping[str, str], interpreter: Path) -> None:
    """For a benchmark: build, or say in one line why native rows will be missing. A build that fails still stops it."""
    problem = missing_tool(options, interpreter)
    if not problem:
        build(options, interpreter)
    elif BINARY.exists():
        say(f"{problem}. Going on with {BINARY.name} as it was built before.")
    else:
        say(f"{problem}. Going on without the native rows.")


def run_ctest(interpreter: Path) -> int:
    """The C++ tests, output only where they fail. Returns ctest's exit code."""
    ctest = tool("ctest", interpreter)
    if not ctest:
        raise SetupError(f"no ctest beside {sys.executable} or on PATH; it comes with cmake")
    jobs = ["--parallel", str(len(os.sched_getaffinity(0)))]
    return foreground([ctest, "--test-dir", BUILD, *jobs, "--output-on-failure", "--no-tests=error"])
