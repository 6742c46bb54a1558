"""Workers as processes: statuses, deadlines, nothing left behind, the native binary's flags."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import command, gate, launch
from harness.cases import Case
from harness.systems import System
from harness.worker import classify

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL = {
    "name": "test",
    "warmup_steps": 1,
    "warmup_seconds": 0.0,
    "blocks": 2,
    "steps_per_block": 2,
    "max_block_seconds": 1.0,
}


def probe(launcher="single"):
    return System("probe", "harness.probe:Probe", launcher, (), None, ("cpu",), 8.0, {}, {})


def payload(actions=("time",), deadline=60.0, world_size=1, **options):
    case = Case(
        "probe", "one_set_sigmoid", "v", rows=6, dims=16, prefixes=(4, 16), world_size=world_size, options=options
    )
    checks = gate.checks_of(case)[0] if "check" in actions else []
    more = {
        "threads": 1,
        "actions": list(actions),
        "checks": checks,
        "protocol": PROTOCOL,
        "deadline_seconds": deadline,
    }
    return case.to_json() | more


def start(folder, system=None, binary="/nowhere", **arguments):
    return launch.launch(system or probe(), payload(**arguments), folder / "work", Path(binary), grace_seconds=0.5)


def test_a_worker_does_its_actions_in_order(tmp_path):
    outcome = start(tmp_path, actions=("check", "time", "memory"))
    assert (outcome.status, outcome.reason) == ("ok", "")
    kinds = [event["event"] for event in outcome.events.ranks[0]]
    want = ["start", "ready", "check", "check", "check"]
    want += ["first_collective", "first_step", "warm_up", "block", "block", "first_use", "memory", "end"]
    assert kinds == want
    begin = outcome.events.ranks[0][0]
    assert {"rank", "pid", "system", "versions", "device_name", "declares"} <= set(begin)
    assert launch.marked_processes(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        ({"fault": "crash"}, "crashed", "RuntimeError: the probe was told to crash"),
        ({"fault": "kill"}, "crashed", "killed by SIGSEGV"),
        ({"fault": "exit"}, "crashed", "exit status 3, no last line"),
        ({"fault": "out_of_memory"}, "out_of_memory", "run out of memory"),
        ({"fault": "unsupported"}, "unsupported", "told so"),
        ({"reference": "no_such_module:f"}, "crashed", "No module named 'no_such_module'"),
    ],
)
def test_faults_have_a_status_and_a_reason(tmp_path, options, status, words):
    outcome = start(tmp_path, **options)
    assert outcome.status == status
    assert words in outcome.reason
    assert "\n" not in outcome.reason


def test_nan_is_nonfinite(tmp_path):
    outcome = start(tmp_path, actions=("check",), fault="nan")
    assert outcome.status == "nonfinite"


def test_a_hang_is_a_timeout_and_leaves_nothing(tmp_path):
    before = time.monotonic()
    outcome = start(tmp_path, deadline=2.0, fault="hang")
    assert outcome.status == "timeout"
    assert "no end within 2 s; rank 0 after first_collective" in outcome.reason
    assert time.monotonic() - before < 20
    assert launch.marked_processes(tmp_path) == []


def test_a_folder_s_name_may_be_no_unicode(tmp_path):
    """Whatever the locale: Python has other bytes of a path as surrogates."""
    folder = tmp_path / os.fsdecode(b"d\xf6rr")
    folder.mkdir()
    assert start(folder).status == "ok"
    assert launch.marked_processes(folder) == []


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "status"), [(None, "ok"), ("crash", "crashed"), ("hang", "timeout")])
def test_ranks_under_torchrun(tmp_path, fault, status):
    pytest.importorskip("torch")
    options = {"fault": fault, "fault_rank": 1} if fault else {}
    deadline = 12.0 if fault == "hang" else 100.0
    outcome = start(tmp_path, probe("torchrun"), world_size=2, deadline=deadline, **options)
    assert outcome.status == status, outcome.reason
    assert launch.marked_processes(tmp_path) == [], "ranks run in sessions of their own and must be found"
    if status == "ok":
        blocks = [(rank, event["block"], event["steps"]) for rank, event in outcome.events.of("block")]
        assert blocks == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2)]
    if status == "crashed":
        assert "told to crash" in outcome.reason


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_die_with_a_killed_harness(tmp_path):
    script = (
        "from pathlib import Path\n"
        "from tests.harness.test_launch import start\n"
        f"start(Path({str(tmp_path)!r}), fault='hang')\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, start_new_session=True)
    try:
        _until(lambda: launch.marked_processes(tmp_path))
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    _until(lambda: not launch.marked_processes(tmp_path))


def _until(done, seconds=30.0):
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_missing_binary_is_a_crash_with_its_reason(tmp_path):
    native = System("native", None, "native", (), None, ("cpu",), 8.0, {}, {})
    outcome = start(tmp_path, native, binary=tmp_path / "missing")
    assert (outcome.status, outcome.reason) == ("crashed", "cannot start: No such file or directory")


def test_a_binary_that_fails_leaves_its_last_line(tmp_path):
    binary = tmp_path / "binary"
    binary.write_text("#!/bin/sh\necho first\necho 'no such engine' >&2\nexit 2\n")
    binary.chmod(0o755)
    native = System("native", None, "native", (), None, ("cpu",), 8.0, {}, {})
    outcome = start(tmp_path, native, binary=binary)
    assert (outcome.status, outcome.reason) == ("crashed", "exit status 2, no last line: no such engine")


def test_the_reason_of_a_crash_is_no_ruler(tmp_path):
    binary = tmp_path / "binary"
    binary.write_text("#!/bin/sh\necho 'traceback : Signal 9 (SIGKILL) received by PID 1'\necho =====\nexit 1\n")
    binary.chmod(0o755)
    native = System("native", None, "native", (), None, ("cpu",), 8.0, {}, {})
    outcome = start(tmp_path, native, binary=binary)
    assert outcome.reason == "exit status 1, no last line: Signal 9 (SIGKILL) received by PID 1"


def test_the_native_flags_spell_the_case():
    case = Case(
        system="native",
        loss="two_set_sigmoid",
        variant="v",
        rows=64,
        live=(64, 3),
        dims=128,
        prefixes=(64, 128),
        world_size=2,
        options={"engine": "cpu", "graph": True},
    )
    checks = [
        {"name": "small", "rows": 8, "scale": 5.0, "live": [8, 3], "sample_rows": None},
        {"name": "own", "sample_rows": [0, 7, 9]},
    ]
    more = {"threads": 1, "actions": ["check", "memory"], "checks": checks, "protocol": PROTOCOL}
    assert (
        command.native_flags(case.to_json() | more | {"deadline_seconds": 60.0})
        == (
            "--contract 1 --system native --loss two_set_sigmoid --variant v --state init --rows 64 --live 64,3 "
            "--dims 128 --prefixes 64,128 --dtype bfloat16 --gradient-dtype bfloat16 --scale 10.0 --bias -10.0 "
            "--seed 42 --labels pairs --self-pairs false --world-size 2 --nodes 1 --device cpu --threads 1 "
            "--actions check,memory --deadline-seconds 60.0 --options engine=cpu,graph=true "
            "--warmup-steps 1 --warmup-seconds 0.0 --blocks 2 "
            "--steps-per-block 2 --max-block-seconds 1.0 --check name=small,rows=8,scale=5.0,live=8:3 "
            "--check name=own,sample_rows=0:7:9"
        ).split()
    )


def test_threads_and_devices_are_explicit(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    case = payload(world_size=4) | {"threads": 2}
    torchrun, single = command.environment(case, "torchrun"), command.environment(case, "single")
    assert torchrun["OMP_NUM_THREADS"] == "2", "four processes of two threads"
    assert single["OMP_NUM_THREADS"] == "8", "one process of eight"
    assert single["XLA_FLAGS"] == "--xla_force_host_platform_device_count=4"
    assert torchrun["CUDA_VISIBLE_DEVICES"] == single["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,2")
    on_gpu = command.environment(case | {"device": "cuda", "world_size": 2}, "single")
    assert (on_gpu["CUDA_VISIBLE_DEVICES"], on_gpu["XLA_PYTHON_CLIENT_PREALLOCATE"]) == ("3,1", "false")
    assert (on_gpu["CUDA_DEVICE_ORDER"], on_gpu["XLA_CLIENT_MEM_FRACTION"]) == ("PCI_BUS_ID", "0.95")
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.5")
    told = command.environment(case | {"device": "cuda", "world_size": 2}, "single")
    assert "XLA_CLIENT_MEM_FRACTION" not in told, "JAX takes one of the two names, never both"
    assert "MASTER_PORT" in command.environment(case | {"world_size": 1}, "torchrun")
    # what glibc keeps is set where memory is measured, never where steps are timed or on a GPU
    kept = {
        (device, actions): "MALLOC_MMAP_THRESHOLD_" in command.environment(case | {"device": device} | words, "single")
        for device in ("cpu", "cuda")
        for actions in ("check memory", "time", "memory time")
        for words in [{"actions": actions.split()}]
    }
    assert [each for each, there in kept.items() if there] == [("cpu", "check memory")]


@pytest.mark.parametrize(
    ("problem", "status"),
    [
        (MemoryError(), "out_of_memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory. Tried to allocate"), "out_of_memory"),
        (RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate"), "out_of_memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "out_of_memory"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "out_of_memory"),
        (RuntimeError("NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'"), "out_of_memory"),
        (OSError(12, "Cannot allocate memory"), "out_of_memory"),
        (RuntimeError("out of resource: shared memory, Required: 300000, Hardware limit: 232448"), "crashed"),
        (FloatingPointError("invalid value"), "nonfinite"),
        (ValueError("first\nlast"), "crashed"),
    ],
)
def test_exceptions_are_classified_without_their_framework(problem, status):
    found, reason = classify(problem)
    assert found == status
    assert "\n" not in reason
    if isinstance(problem, ValueError):
        assert reason == "ValueError: last"


def test_the_worker_without_a_folder_says_how_it_is_used():
    done = subprocess.run([sys.executable, "-m", "harness.worker"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "usage" in done.stderr


def test_events_survive_a_kill(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "case.json").write_text(json.dumps(payload(fault="hang") | {"target": "harness.probe:Probe"}))
    process = subprocess.Popen([sys.executable, "-m", "harness.worker", str(folder)], cwd=ROOT, env=dict(os.environ))
    events = folder / "events.0.jsonl"
    _until(lambda: events.exists() and "ready" in events.read_text())
    process.kill()
    process.wait()
    written = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert written[:2] == ["start", "ready"]  # what came before the kill is whole; more may have followed
