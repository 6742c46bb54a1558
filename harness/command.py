"""What a launch starts: argument lists and variables, from a case and the launcher of its system."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.share import Share
from harness.systems import System

# Only what the worker reads; `checks`, `protocol` and `options` are spelled out below.
_FLAG_FIELDS = (
    "contract system loss variant state rows live dims prefixes prefix_weights dtype gradient_dtype scale bias seed "
    "labels self_pairs world_size nodes device threads actions deadline_seconds"
).split()
_PROTOCOL_FLAGS = ("warmup_steps", "warmup_seconds", "blocks", "steps_per_block", "max_block_seconds")
# Where memory is measured and nothing is timed: glibc hands every block of this size back once it is freed. Left to
# itself it keeps some, more or fewer from run to run, and the resident size of one program wanders by megabytes.
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
# Variables of the user's that may change a result: recorded with it.
RECORDED_PREFIXES = (
    "CUDA_ NCCL_ OMP_ MKL_ KMP_ OPENBLAS_ XLA_ JAX_ TORCH PYTORCH_ TRITON_ NVSHMEM_ GLOO_ MALLOC_ LD_ BIG_VISION_ UCX_ "
    "SCALING_CONTRASTS_ENGINE"
).split()


def environment(case: Mapping[str, Any], launcher: str) -> dict[str, str]:
    """The variables a launch sets, beside the user's own. `case` is the worker's JSON object."""
    local = case["world_size"] // case["nodes"]
    processes = local if launcher == "torchrun" else 1
    threads = str(case["threads"] * (local // processes))
    variables = {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "JAX_PLATFORMS": case["device"],
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    if case["device"] == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = ""
        actions = case.get("actions", ())
        if "memory" in actions and "time" not in actions:
            variables |= {name: os.environ.get(name, value) for name, value in _MALLOC.items()}
        if launcher == "single":
            flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={local}"
            variables["XLA_FLAGS"] = flags.strip()
    else:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        devices = visible.split(",") if visible is not None else [str(index) for index in range(local)]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(devices[:local])
        # CUDA would number the fastest GPU first; the driver's tools, by which GPUs were chosen, number by address.
        variables["CUDA_DEVICE_ORDER"] = os.environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        # Without preallocation JAX's allocator still stops at 75% of the device (docs.jax.dev, GPU memory allocation).
        if not {"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"} & set(os.environ):
            variables["XLA_CLIENT_MEM_FRACTION"] = "0.95"
    if launcher == "torchrun" and processes == 1:
        variables |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
        variables["MASTER_PORT"] = str(_free_port())
    return variables


def recorded_environment() -> dict[str, str]:
    """The user's variables that may change a result."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(tuple(RECORDED_PREFIXES))}


def command(system: System, case: Mapping[str, Any], folder: Path, binary: Path) -> list[str]:
    """The argument list of a launch."""
    if system.launcher == "native":
        return [str(binary), "--folder", str(folder), *native_flags(case)]
    worker = ["-m", "harness.worker", str(folder)]
    ranks = case["world_size"] // case["nodes"]
    if system.launcher == "torchrun" and ranks > 1:
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *worker]
    return [sys.executable, *worker]


def processes(
    system: System, case: Mapping[str, Any], folder: Path, binary: Path, share: Share | None
) -> list[tuple[list[str], dict[str, str]]]:
    """Argument list and variables of every process that this machine starts for a launch."""
    arguments, variables = command(system, case, folder, binary), environment(case, system.launcher)
    if share is None:
        return [(arguments, variables)]
    if system.launcher == "native":
        arguments += share.native_flags()
    else:
        arguments = [sys.executable, "-m", "harness.worker", str(folder)]
    return [(arguments, variables | own) for own in share.variables(case, system.launcher)]


def native_flags(case: Mapping[str, Any]) -> list[str]:
    """The case as the native binary's flags (docs/contracts.md, section 3)."""
    flags = []
    for name in _FLAG_FIELDS:
        _add(flags, name, case.get(name))
    _add(flags, "options", [f"{key}={_text(value)}" for key, value in case["options"].items()] or None)
    for name in _PROTOCOL_FLAGS:
        _add(flags, name, case["protocol"][name])
    if case["protocol"].get("cache", "warm") != "warm":
        _add(flags, "cache", case["protocol"]["cache"])
    for check in case["checks"]:
        pairs = (f"{key}={_text(value, ':')}" for key, value in check.items() if value is not None)
        flags += ["--check", ",".join(pairs)]
    return flags


def _add(flags: list[str], name: str, value: Any) -> None:
    if value is not None:
        flags += ["--" + name.replace("_", "-"), _text(value)]


def _text(value: Any, separator: str = ",") -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return separator.join(_text(item, separator) for item in value)
    return str(value)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
