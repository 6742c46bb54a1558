"""What the timings of the sm90 engines share: CUDA graphs, samples by events, clocks of stages."""

import ctypes

import torch


def graph_of(work):
    """A CUDA graph of `work(stream)`, which has run once before."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work(side)
    return graph


def sample(step, count):
    """Milliseconds of `count` steps, after one more."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    step()
    events[0].record()
    for i in range(count):
        step()
        events[i + 1].record()
    torch.cuda.synchronize()
    return [events[i].elapsed_time(events[i + 1]) for i in range(count)]


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def clocks_of(lib, names, step):
    """Clocks of each stage in a step, by name; None where the library was built without -DSCALING_CONTRASTS_STAGES."""
    buffer = (ctypes.c_ulonglong * len(names))()
    torch.cuda.synchronize()
    if lib.bench_stages(buffer) <= 0:
        return None
    step()
    torch.cuda.synchronize()
    lib.bench_stages(buffer)
    return dict(zip(names, buffer, strict=True))


def print_stage(name, clocks, items):
    """One stage's clocks an item, and in all a warpgroup."""
    each, total = clocks / max(1, items), clocks / (2 * 132) / 1e3
    print(f"    {name:30s} {each:10.0f} clocks an item   {total:10.1f} k clocks a warpgroup")
