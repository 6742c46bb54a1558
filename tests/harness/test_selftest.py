"""The self-test's command on a machine that may be busy: what fails must be the machine's doing alone."""

import re
import subprocess
import sys

import pytest

from tests.harness.conftest import ROOT

# Other work lengthens what a clock reads. It never shortens a sleep, changes an answer or an amount of memory.
BUSY = (
    r"FAILED  a sleep reads its length \((Python|native)\): reads [56]\d\.\d+ ms for 50 ms",
    r"FAILED  a no-op step reads near zero \(Python\): reads [2-9]\d\.\d+ us a step, must stay under 20 us",
    r"FAILED  a no-op step reads near zero \(native\): reads [1-9]\.\d+ us a step, must stay under 1 us",
    r"FAILED  a case costs little beside its steps: \d?\d\.\d\d s, must stay under 2 s",
)


def inexcusable(lines):
    """Failures that no other work on the machine explains."""
    failed = [line for line in lines if line.startswith("FAILED")]
    return [line for line in failed if not any(re.fullmatch(pattern, line) for pattern in BUSY)]


@pytest.mark.slow
def test_selftest_passes():
    done = subprocess.run([sys.executable, "-m", "harness", "selftest"], cwd=ROOT, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert inexcusable(lines) == [], done.stdout
    passed, failed = (sum(line.startswith(word) for line in lines) for word in ("passed", "FAILED"))
    assert passed >= 18 and lines[-1] == f"{passed} passed, {failed} failed"
    assert done.returncode == (1 if failed else 0)


@pytest.mark.parametrize(
    "line",
    [
        "FAILED  a sleep reads its length (Python): reads 25.100 ms for 50 ms",
        "FAILED  a sleep reads its length (native): reads 49.900 ms for 50 ms",
        "FAILED  a sleep reads its length (Python): reads 250.000 ms for 50 ms",
        "FAILED  a no-op step reads near zero (Python): reads 2000.00 us a step, must stay under 20 us",
        "FAILED  an allocation reads its size (Python): device_used_bytes reads 252.5 MiB for 256.0 MiB",
        "FAILED  flip_scale is caught: the gate says nothing",
        "FAILED  a throttled clock is noticed: says nothing",
    ],
)
def test_what_is_wrong_is_never_excused(line):
    assert inexcusable([line]) == [line]


def test_what_other_work_does_is_excused():
    said = [
        "passed  an allocation reads its size (native): +0.00% of 256.0 MiB",
        "FAILED  a sleep reads its length (Python): reads 52.159 ms for 50 ms",
        "FAILED  a case costs little beside its steps: 2.96 s, must stay under 2 s",
        "FAILED  a no-op step reads near zero (Python): reads 31.20 us a step, must stay under 20 us",
    ]
    assert inexcusable(said) == []
