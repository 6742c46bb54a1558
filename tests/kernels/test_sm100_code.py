"""Machine code of the sm100 engine, which never ran on hardware: it has the instructions it is for, and no spills."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.kernels.binary import BINARY

HOT = ("score_kernel", "gradient_kernel")


def disassembler():
    """cuobjdump: of the CUDA toolkit, else the one that Triton brings."""
    found = shutil.which("cuobjdump") or shutil.which("cuobjdump", path="/usr/local/cuda/bin")
    triton = importlib.util.find_spec("triton")
    if not found and triton and triton.origin:
        found = shutil.which("cuobjdump", path=str(Path(triton.origin).parent / "backends" / "nvidia" / "bin"))
    return found


@cache
def functions(architecture):
    """Machine code of the engine's hot kernels by mangled name."""
    tool = disassembler()
    if tool is None:
        pytest.skip("no cuobjdump: neither a CUDA toolkit nor Triton is installed")
    if not BINARY.exists():
        pytest.skip(f"{BINARY.name} is not built")
    listing = subprocess.run([tool, "-lelf", str(BINARY)], capture_output=True, text=True, timeout=60).stdout
    if architecture not in listing:
        pytest.skip(f"the binary was built without {architecture}")
    text = subprocess.run(
        [tool, "-sass", "-arch", architecture, str(BINARY)], capture_output=True, text=True, timeout=300, check=True
    ).stdout
    parts = re.split(r"^\s*Function : (\S+)$", text, flags=re.MULTILINE)
    code = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {name: body for name, body in code.items() if "5sm100" in name and any(kernel in name for kernel in HOT)}


@pytest.mark.parametrize("architecture", ["sm_100a", "sm_103a"])
def test_hot_kernels_use_the_tensor_cores_and_tensor_memory_and_do_not_spill(architecture):
    found = functions(architecture)
    assert len(found) >= 4, f"three passes of scoring and the gradient, found {sorted(found)}"
    for name, code in found.items():
        for instruction in ("UTCHMMA", "LDTM", "UTMALDG", "UTCBAR"):  # products, accumulators out, copies in, commits
            assert re.search(rf"\b{instruction}\b", code), f"{name} has no {instruction}"
        spills = re.findall(r"\b(?:LDL|STL)\b", code)
        assert not spills, f"{name} uses local memory {len(spills)} times"
