"""Flushing caches before cold steps: the CPU's for real, a GPU's L2 through a driver that is played."""

import pytest

from harness import caches
from harness.worker import classify


class Driver:
    """Two devices with an L2 of 60 MB and 4 MB, as cuda.h has them: attribute 38, primary contexts, a context stack."""

    sizes = (60_000_000, 4_000_000)

    def __init__(self, room=1 << 40):
        self.room, self.stack, self.held, self.written, self.waited = room, [], {}, [], []

    def cuInit(self, flags):
        return 0

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = 10 + ordinal
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        assert attribute == 38
        value._obj.value = self.sizes[device.value - 10]
        return 0

    def cuDevicePrimaryCtxRetain(self, context, device):
        context._obj.value = 100 + device.value
        return 0

    def cuCtxPushCurrent_v2(self, context):
        self.stack.append(context.value)
        return 0

    def cuCtxPopCurrent_v2(self, context):
        self.stack.pop()
        return 0

    def cuMemAlloc_v2(self, address, size):
        if size.value > self.room:
            return 2
        address._obj.value = (1 << 40) + self.stack[-1]
        self.held[address._obj.value] = size.value
        return 0

    def cuMemsetD8_v2(self, address, byte, size):
        assert self.held[address.value] == size.value and address.value == (1 << 40) + self.stack[-1]
        self.written.append((self.stack[-1], size.value))
        return 0

    def cuCtxSynchronize(self):
        self.waited.append(self.stack[-1])
        return 0


def played(monkeypatch, **settings):
    driver = Driver(**settings)
    monkeypatch.setattr(caches.ctypes, "CDLL", lambda name: driver)
    return driver


def test_each_gpu_writes_twice_its_own_l2_in_its_own_context_and_is_waited_for(monkeypatch):
    driver = played(monkeypatch)
    flush = caches.flush_of("cuda", [0, 1])
    assert driver.written == [] and driver.stack == []
    flush()
    assert driver.written == [(110, 120_000_000), (111, 8_000_000)]
    assert driver.waited == [110, 111] and driver.stack == [], "the caller's context is current again"


def test_a_rank_of_several_flushes_the_gpu_it_drives(monkeypatch):
    driver = played(monkeypatch)
    caches.flush_of("cuda", [1])()
    assert driver.written == [(111, 8_000_000)]


def test_no_room_for_the_buffer_is_out_of_memory_and_leaves_the_context_stack(monkeypatch):
    driver = played(monkeypatch, room=1000)
    with pytest.raises(MemoryError) as problem:
        caches.flush_of("cuda", [0])
    assert classify(problem.value)[0] == "out_of_memory" and driver.stack == []


def test_a_driver_s_refusal_says_its_number(monkeypatch):
    driver = played(monkeypatch)
    driver.cuMemsetD8_v2 = lambda *_: 700
    with pytest.raises(RuntimeError, match="driver error 700"):
        caches.flush_of("cuda", [0])()
    assert driver.stack == []


def test_the_cpu_s_buffer_is_twice_its_largest_cache_and_written_throughout(monkeypatch):
    monkeypatch.setattr(caches, "last_level_bytes", lambda: 5000)
    flush = caches.flush_of("cpu", [])
    assert (flush() == 1).all() and len(flush()) == 10_000
