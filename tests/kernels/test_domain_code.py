"""Machine code of the in-switch all-reduce, which never ran on hardware: the switch adds, in float32 and bf16, and
fences stand between its address and a GPU's own."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.kernels.binary import BINARY
from tests.kernels.test_sm100_code import disassembler


@pytest.fixture(scope="module")
def kernels():
    """Machine code for sm_90a of the domain's kernels by mangled name."""
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
    ours = re.compile(r"6domain\d+(meet|one_shot|two_shot|in_switch)")
    return {name: body for name, body in code.items() if ours.search(name)}


def test_the_switch_adds_floats_and_bf16(kernels):
    code = {"four": "", "bf16": "", "small": ""}
    for name, body in kernels.items():
        if "in_switch" not in name:
            continue
        kind = "small" if "small" in name else "bf16" if "bf16" in name else "four"
        code[kind] += body
    assert re.search(r"\bLDGMC\.\S*ADD\.F32x4", code["four"]), "no switch-reduced load of four floats"
    assert re.search(r"\bLDGMC\.\S*F32ADD\.BF16x8", code["bf16"]), "no switch-reduced load of bf16, summed in float32"
    for kind in ("four", "bf16"):
        assert re.search(r"\bSTG\.E\.128\.STRONG\.SYS", code[kind]), f"{kind}: no 16-byte store to all replicas"
    assert re.search(r"\bREDG\.E\.ADD\.F32x4\S*STRONG\.SYS", code["small"]), "no addition to all replicas"


# What memory sees, in the order of the code. fence.proxy.alias is MEMBAR.SC, of the GPU's scope or the system's as the
# driver says, then CCTL.IVALL; a release of system scope is MEMBAR.ALL.SYS. The second flag is a missing peer's record.
SEEN = {
    "sync": r"BAR\.SYNC",
    "fence": r"MEMBAR\.SC\.SYS",
    "release": r"MEMBAR\.ALL\.SYS",
    "flag": r"STG\.E\.STRONG\.SYS",
    "wait": r"LDG\.E\.STRONG\.SYS",
    "switch": r"(?:LDGMC|REDG\.E\.ADD\.F32x4|STG\.E\.128\.STRONG\.SYS)",
}


def test_a_fence_of_aliases_stands_before_the_flags_of_every_barrier(kernels):
    words = re.compile(r"\b(?:" + "|".join(f"(?P<{word}>{code})" for word, code in SEEN.items()) + r")(?![\w])")
    barrier = "sync fence release flag (wait )+release flag sync "
    assert any("in_switch_small" in name for name in kernels) and any("one_shot" in name for name in kernels)
    for name, body in kernels.items():
        seen = "".join(f"{match.lastgroup} " for match in words.finditer(body))
        if "in_switch_small" in name:
            assert re.search(f"(switch )+{barrier}", seen) and seen.count("fence") == 1, f"{name}: {seen}"
        elif "in_switch" in name:
            assert re.search(f"^{barrier}(switch )+{barrier}", seen) and seen.count("fence") == 2, f"{name}: {seen}"
        else:
            assert "fence" not in seen, f"{name} has one address alone, and pays for a fence: {seen}"
