"""Machine code of the in-switch all-reduce, which never ran on hardware: the switch adds, in float32 and bf16."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.kernels.binary import BINARY
from tests.kernels.test_sm100_code import disassembler


@pytest.fixture(scope="module")
def kernels():
    """Machine code for sm_90a of the domain's kernels that take a multicast address, by mangled name."""
    tool = disassembler()
    if tool is None:
        pytest.skip("no cuobjdump: neither a CUDA toolkit nor Triton is installed")
    if not BINARY.exists():
        pytest.skip(f"{BINARY.name} is not built")
    listing = subprocess.run([tool, "-lelf", str(BINARY)], capture_output=True, text=True, timeout=60).stdout
    if "sm_90a" not in listing:
        pytest.skip("the binary was built without sm_90a")
    command = [tool, "-sass", "-arch", "sm_90a", str(BINARY)]
    text = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    parts = re.split(r"^\s*Function : (\S+)$", text, flags=re.MULTILINE)
    code = dict(zip(parts[1::2], parts[2::2], strict=True))
    switched = {name: body for name, body in code.items() if "in_switch" in name}
    others = [name for name, body in code.items() if name not in switched and "LDGMC" in body]
    assert switched and not others, "such instructions fault on ordinary memory: only these kernels may have them"
    return switched


def test_the_switch_adds_floats_and_bf16(kernels):
    code = {"four": "", "bf16": "", "small": ""}
    for name, body in kernels.items():
        kind = "small" if "small" in name else "bf16" if "bf16" in name else "four"
        code[kind] += body
    assert re.search(r"\bLDGMC\.\S*ADD\.F32x4", code["four"]), "no switch-reduced load of four floats"
    assert re.search(r"\bLDGMC\.\S*F32ADD\.BF16x8", code["bf16"]), "no switch-reduced load of bf16, summed in float32"
    for kind in ("four", "bf16"):
        assert re.search(r"\bSTG\.E\.128\.STRONG\.SYS", code[kind]), f"{kind}: no 16-byte store to all replicas"
    assert re.search(r"\bREDG\.E\.ADD\.F32x4\S*STRONG\.SYS", code["small"]), "no addition to all replicas"
