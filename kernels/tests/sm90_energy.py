"""Joules of the sm90 engine's step by part, one GPU, from the driver's energy counter (read only).

    python3 sm90_energy.py FOLDER [--rows R] [--seconds S] [--engine NAME:LIBRARY:TUNING ...] [--part NAME ...]

FOLDER: what sm90_parts.py has compiled, at least whole.so and probe.so. Each line is one kind of work, back to back
for S seconds: milliseconds, joules, watts and the SM clock; energy is the slope of the counter after the first 0.4 s.
Engines are measured first, whole steps.
"""

import argparse
import ctypes
import time

import torch
from sm90_bench import Problem
from sm90_timing import graph_of, pointer

PARTS = (
    "whole",
    "scores",
    "scores_no_cells",
    "scores_no_cells_no_planes",
    "scores_no_products",
    "scores_loads",
    "gradients",
    "gradients_no_tiles",
    "gradients_loads",
)


class Counter:
    """NVML's counter of the GPU that CUDA calls device 0."""

    def __init__(self):
        self.lib = ctypes.CDLL("libnvidia-ml.so.1")
        assert self.lib.nvmlInit_v2() == 0
        uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
        self.device = ctypes.c_void_p()
        if self.lib.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(self.device)):
            assert self.lib.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)) == 0, uuid

    def joules(self):
        value = ctypes.c_ulonglong()
        assert self.lib.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(value)) == 0
        return value.value / 1e3

    def number(self, call, *args):
        value = ctypes.c_uint()
        return value.value if getattr(self.lib, call)(self.device, *args, ctypes.byref(value)) == 0 else 0

    def clock(self):
        return self.number("nvmlDeviceGetClockInfo", 1)

    def limit(self):
        return self.number("nvmlDeviceGetPowerManagementLimit") / 1e3


def sustained(counter, run, seconds):
    """`(seconds of a run, watts, median MHz)` of `run()` back to back, the GPU never out of work."""
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    batch = max(1, int(0.02 / max(1e-6, time.perf_counter() - start)))
    events, seen, clocks = [], [], []
    begin = torch.cuda.Event(enable_timing=True)
    begin.record()
    start = time.perf_counter()
    count = 0
    while time.perf_counter() - start < seconds:
        for _ in range(batch):
            run()
        count += batch
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        while True:
            now, joules = time.perf_counter() - start, counter.joules()
            if not seen or joules != seen[-1][1]:
                seen.append((now, joules))
                clocks.append(counter.clock())
            if len(events) < 3 or events[-3].query():  # two batches ahead of the GPU
                break
            time.sleep(5e-4)
    torch.cuda.synchronize()
    after = [s for s in seen if s[0] > 0.4] or seen
    (t0, j0), (t1, j1) = after[1 if len(after) > 2 else 0], after[-1]
    watts = (j1 - j0) / (t1 - t0) if t1 > t0 else float("nan")
    clocks = sorted(clocks[len(clocks) // 3 :])
    return begin.elapsed_time(events[-1]) / 1e3 / count, watts, clocks[len(clocks) // 2] if clocks else 0


def main():
    """Measure engines, cuBLAS products, parts of the step, and the probe's copies and products."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--seconds", type=float, default=1.6)
    parser.add_argument("--engine", nargs="*", default=[])
    parser.add_argument("--part", nargs="*", default=PARTS)
    args = parser.parse_args()
    counter, problem, rows = Counter(), Problem(args.rows, 10.0), args.rows
    j0, t0 = counter.joules(), time.perf_counter()
    time.sleep(0.6)
    idle = (counter.joules() - j0) / (time.perf_counter() - t0)
    print(f"R={rows}, limit {counter.limit():.0f} W, idle {idle:.0f} W, clock {counter.clock()} MHz", flush=True)

    def line(name, run, flops=0.0, moved=0.0):
        each, watts, clock = sustained(counter, run, args.seconds)
        rates = f" {flops / each / 1e12:6.0f} TFLOP/s" if flops else ""
        rates += f" {moved / each / 1e12:5.2f} TB/s out of L2" if moved else ""
        print(f"{name:34s} {each * 1e3:8.4f} ms {watts * each:7.4f} J {watts:5.0f} W {clock} MHz{rates}", flush=True)

    def load(path):
        lib = ctypes.CDLL(path)
        lib.bench_scratch.restype = ctypes.c_size_t
        lib.bench_open.restype = ctypes.c_void_p
        return lib

    both = problem.products()
    square, product, out = problem.operands
    line("two plain products", both.replay, 4.0 * rows * rows * 1024)
    for name in args.engine:
        label, library, tuning = name.split(":")
        work, _ = problem.step(load(library), tuning)
        line(f"step, {label}", graph_of(work).replay)
    first = graph_of(lambda _: torch.matmul(problem.x, problem.x.T, out=product))
    line("X X^T", first.replay, 2.0 * rows * rows * 1024)
    second = graph_of(lambda _: torch.matmul(square, problem.x, out=out))
    line("G X", second.replay, 2.0 * rows * rows * 1024)

    # parts share one engine's scratch, so that gradients find weights there
    libs = {name: load(f"{args.folder}/{name}.so") for name in dict.fromkeys(("whole", *args.part))}
    scratch = torch.zeros(libs["whole"].bench_scratch(rows, 0, b"default"), dtype=torch.uint8, device="cuda")
    buffers = [pointer(b) for b in (problem.x, problem.labels, problem.tb, problem.gradient, problem.scalars)]
    for name, lib in libs.items():
        handle = ctypes.c_void_p(lib.bench_open(rows, 0, b"default", pointer(scratch)))
        assert handle
        if name == "gradients":  # scores before have left rows as weights there
            whole = ctypes.c_void_p(libs["whole"].bench_open(rows, 0, b"default", pointer(scratch)))
            assert libs["whole"].bench_step(whole, *buffers, 3, None) == 0
            torch.cuda.synchronize()

        def work(stream, lib=lib, handle=handle):
            assert lib.bench_step(handle, *buffers, 3, ctypes.c_void_p(stream.cuda_stream)) == 0

        line(f"norms and step kernel: {name}", graph_of(work).replay)

    probe = ctypes.CDLL(f"{args.folder}/probe.so")
    probe.energy_launch.restype = ctypes.c_double
    data = torch.randn(16 << 20, device="cuda").to(torch.bfloat16)
    moved, result = ctypes.c_double(), torch.zeros(4, device="cuda")
    for kind, name in enumerate(("copies alone", "products alone", "copies and products")):

        def launch(kind=kind):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            return probe.energy_launch(kind, pointer(data), pointer(result), 4096, ctypes.byref(moved), stream)

        flops = launch()
        assert flops >= 0
        line(name, launch, flops, moved.value)


if __name__ == "__main__":
    main()
