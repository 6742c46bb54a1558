"""Memory in use on a GPU, asked of the CUDA driver itself, for frameworks that do not say."""

from __future__ import annotations

import ctypes
import functools


@functools.cache
def _driver() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    return driver if driver.cuInit(0) == 0 else None


def used_bytes(ordinal: int) -> int | None:
    """Bytes in use on visible device `ordinal`, by anyone; None without a driver. Uses the device's primary context."""
    driver = _driver()
    if driver is None:
        return None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    if driver.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return None
    if driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) != 0:
        return None
    try:
        if driver.cuCtxPushCurrent_v2(context) != 0:
            return None
        failed = driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        driver.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)
    return None if failed else total.value - free.value
