"""Every problem that doctor knows, from injected facts, with its fix; and what this machine's kernel says."""

import dataclasses

import pytest

from harness import configuration, doctor, doctor_facts, support
from harness.doctor_facts import Facts, GpuFacts
from harness.doctor_problems import problems

GPU = GpuFacts(
    0,
    "NVIDIA H200",
    memory_bytes=1000,
    power_limit_watts=700.0,
    default_power_watts=700.0,
    throttle_reasons=("sw_power_cap",),
    mig=False,
    uncorrected_errors=(0, 0),
    persistence=True,
    multicast=True,
)
BOX = Facts(
    8,
    0.1,
    governor="performance",
    gpus=(GPU, dataclasses.replace(GPU, index=1)),
    rdma_ports=("mlx5_0/1",),
    verbs=True,
)


def test_a_good_machine_has_no_problem():
    assert list(problems(BOX)) == []
    assert list(problems(Facts(2, 0.9))) == [], "on a CPU nobody asks for GPUs, multicast or RDMA"


def gpu(**changes):
    return {"gpus": (dataclasses.replace(GPU, **changes), BOX.gpus[1])}


@pytest.mark.parametrize(
    ("changes", "problem", "fix"),
    [
        ({"load": 4.5}, "the load is 4.5 on 8 cores", "stop it"),
        ({"governor": "powersave"}, "governor is powersave", "cpupower frequency-set -g performance"),
        ({"swap_bytes": 3 << 20}, "3.0 MiB of swap", "swapoff -a"),
        (gpu(process_ids=(7, 9), used_bytes=900), "GPU 0 is busy: processes 7, 9", "allow_busy=true"),
        (gpu(used_bytes=200), "GPU 0 is shared with other tenants: 200 B", "CUDA_VISIBLE_DEVICES"),
        (gpu(power_limit_watts=450.0), "capped at 450 W, its default is 700 W", "sudo nvidia-smi -i 0 -pl 700"),
        (gpu(throttle_reasons=("hw_thermal_slowdown",)), "holds its clocks down: hw_thermal", "cooling"),
        (gpu(mig=True), "GPU 0 is partitioned (MIG)", "-mig 0"),
        (gpu(uncorrected_errors=(2, 5)), "2 uncorrected ECC errors since", "replaced"),
        (gpu(uncorrected_errors=(0, 5)), "has had 5 uncorrected ECC errors", "ROW_REMAPPER"),
        (gpu(persistence=False), "no persistence mode", "-pm 1"),
        (gpu(unreachable=(1,)), "GPU 0 cannot read the memory of GPU 1", "topo -p2p"),
        (gpu(multicast=False), "offers no multicast", "fabricmanager"),
        ({"variables": {"NCCL_NVLS_ENABLE": "0"}}, "switched off by NCCL_NVLS_ENABLE", "unset NCCL_NVLS_ENABLE"),
        ({"rdma_ports": ()}, "no RDMA", "/sys/class/infiniband"),
        ({"rdma_ports": (), "rdma_down": ("mlx5_0/1",)}, "ports are down: mlx5_0/1", "ibstat"),
        ({"verbs": False}, "libibverbs is not", "rdma-core"),
    ],
)
def test_each_problem_is_told_with_its_fix(changes, problem, fix):
    ((said, todo),) = problems(dataclasses.replace(BOX, **changes))
    assert problem in said and fix in todo
    assert "\n" not in said + todo


def test_what_is_not_known_is_no_problem():
    bare = Facts(8, 0.0, gpus=(GpuFacts(0, "a GPU"), GpuFacts(1, "a GPU")), rdma_ports=("a/1",), verbs=True)
    assert list(problems(bare)) == []


def test_ports_and_swap_are_read_as_the_kernel_writes_them(tmp_path):
    for port, state in (("mlx5_0/ports/1", "4: ACTIVE"), ("mlx5_1/ports/1", "1: DOWN")):
        (tmp_path / port).mkdir(parents=True)
        (tmp_path / port / "state").write_text(state + "\n")
    assert doctor_facts._rdma_ports(tmp_path) == (("mlx5_0/1",), ("mlx5_1/1",))
    assert doctor_facts._swap_used("MemTotal: 9 kB\nSwapTotal:  100 kB\nSwapFree:   40 kB\n") == 60 * 1024
    assert doctor_facts._swap_used("MemTotal: 9 kB\n") == 0


def test_a_binary_that_is_not_built_is_told_with_its_target(tmp_path, monkeypatch, capsys):
    chosen = configuration.compose([f"binary={tmp_path / 'native'}"])
    monkeypatch.setattr(configuration, "compose", lambda: chosen)
    assert doctor.main([]) == 0
    assert "native    binary not built: make native\n" in capsys.readouterr().out
    (tmp_path / "native").write_text('#!/bin/sh\necho \'{"engines_usable": ["cpu-avx2", "sm90"]}\'\n')
    (tmp_path / "native").chmod(0o755)
    support.capabilities.cache_clear()
    assert doctor.main([]) == 0
    assert "native    binary built, engines that run here: cpu-avx2, sm90\n" in capsys.readouterr().out
