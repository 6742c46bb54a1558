"""Emptying the caches of a device before a step, for `protocol.cache=cold`: a buffer twice their size is written."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

_L2_CACHE_SIZE = 38  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_CPU_BYTES_PER_SECOND = 5e9  # of the buffer, read and written by one core: 3 to 7e9 seen on virtual machines
_GPU_SECONDS = 1e-4  # two launches that are waited for; writing an L2 twice takes less
_UNKNOWN_BYTES = 256 << 20  # where a size cannot be found: more than any cache of today's, twice over


def flush_of(device: str, ordinals: Sequence[int]) -> Callable[[], object]:
    """A function that empties the caches of the CPU, or of these CUDA devices. It returns when that is done."""
    if device == "cpu":
        buffer = np.zeros(2 * last_level_bytes(), dtype=np.uint8)
        return lambda: np.add(buffer, 1, out=buffer)
    flushes = [_GpuFlush(ordinal) for ordinal in ordinals]
    return lambda: [flush() for flush in flushes]


def flush_seconds(device: str) -> float:
    """Predicted seconds of one flush on this machine."""
    return 2 * last_level_bytes() / _CPU_BYTES_PER_SECOND if device == "cpu" else _GPU_SECONDS


def last_level_bytes() -> int:
    """The CPU's largest cache, all its slices that Linux shows for core 0 together."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes, default=_UNKNOWN_BYTES // 2)


class _GpuFlush:
    """A buffer of twice the L2 on one device, from the driver itself: no framework's allocator counts it."""

    def __init__(self, ordinal: int) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._context, self._address = ctypes.c_void_p(), ctypes.c_uint64()
        device, size = ctypes.c_int(), ctypes.c_int()
        self._check(self._driver.cuInit(0))
        self._check(self._driver.cuDeviceGet(ctypes.byref(device), ordinal))
        self._check(self._driver.cuDeviceGetAttribute(ctypes.byref(size), _L2_CACHE_SIZE, device))
        self._bytes = ctypes.c_size_t(2 * size.value or _UNKNOWN_BYTES)
        self._check(self._driver.cuDevicePrimaryCtxRetain(ctypes.byref(self._context), device))
        self._within(lambda: self._driver.cuMemAlloc_v2(ctypes.byref(self._address), self._bytes))

    def __call__(self) -> None:
        self._within(lambda: self._driver.cuMemsetD8_v2(self._address, ctypes.c_ubyte(0), self._bytes))
        self._within(self._driver.cuCtxSynchronize)

    def _within(self, work: Callable[[], int]) -> None:
        self._check(self._driver.cuCtxPushCurrent_v2(self._context))
        try:
            self._check(work())
        finally:
            self._driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))

    @staticmethod
    def _check(code: int) -> None:
        if code == _OUT_OF_MEMORY:
            raise MemoryError("the device has no room for the buffer that flushes its L2")
        if code:
            raise RuntimeError(f"flushing the GPU's L2 failed with driver error {code}")
