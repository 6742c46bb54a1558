import pytest

from harness import environment, machine
from harness.machine import Gpu, Machine


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "h200"),
        ("NVIDIA B300 SXM6 AC", "b300"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-16GB", "v100"),
    ],
)
def test_gpu_slugs(name, slug):
    assert machine.gpu_slug(name) == slug


@pytest.mark.parametrize(
    ("fields", "slug"),
    [
        ({"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "17"}, "zen4"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "25", "model": "1"}, "zen3"),
        ({"vendor_id": "AuthenticAMD", "cpu family": "26", "model": "2"}, "zen5"),
        ({"vendor_id": "GenuineIntel", "cpu family": "6", "model": "143"}, "sapphirerapids"),
        ({"CPU part": "0xd4f"}, "neoverse-v2"),
        ({"vendor_id": "Other", "model name": "Some (R) CPU @ 2 GHz"}, "some-cpu-2"),
    ],
)
def test_cpu_slugs(fields, slug):
    assert machine._cpu_slug(fields) == slug


def test_the_slug_is_of_the_device_that_is_measured():
    gpus = tuple(Gpu(index, "NVIDIA H200", 9.0, 1) for index in range(2))
    here = Machine(cores=2, memory_bytes=1, cpu_name="c", cpu_slug="zen4", gpus=gpus)
    assert (here.slug("cuda"), here.slug("cpu")) == ("h200-x2", "cpu-zen4-2c")
    assert Machine(2, 1, "c", "zen4", name="mine").slug("cpu") == "mine"


@pytest.mark.parametrize(
    ("choice", "indices"),
    [(None, [0, 1, 2]), ("2,0", [2, 0]), ("", []), ("GPU-b", [1]), ("0,9,1", [0]), ("-1", [])],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(choice, indices):
    gpus = [Gpu(index, "g", 9.0, 1, uuid=f"GPU-{letter}") for index, letter in enumerate("abc")]
    assert [gpu.index for gpu in machine._visible(gpus, choice)] == indices


def test_this_machine_has_cores_and_memory():
    here = machine.detect()
    assert here.cores >= 1
    assert here.memory_bytes > 1 << 28


def test_a_copy_without_git_can_be_told_its_revision(monkeypatch, tmp_path):
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert environment.revision()["revision"] == ""
    monkeypatch.setenv(environment.REVISION_VARIABLE, "0123abc")
    assert environment.revision() == {"revision": "0123abc", "dirty": None, "changes_sha256": ""}
