"""Times the sm90 engine's step beside two plain cuBLAS products (X X^T, then G X) of the same shape, interleaved in one run.

    python3 sm90_bench.py LIBRARY [--rows R ...] [--config wide,ring,lag,interleave ...] [--t T] [--rounds N] [--stages]

Everything is replayed from CUDA graphs. Prints the least and the median of each, in ms, and the ratio of the least times.
"""
import argparse
import ctypes
import torch


def graph_of(f):
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        f(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        f(side)
    return graph


def sample(graph, n):
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    graph.replay()
    events[0].record()
    for i in range(n):
        graph.replay()
        events[i + 1].record()
    torch.cuda.synchronize()
    return [events[i].elapsed_time(events[i + 1]) for i in range(n)]


STAGES = ("item wait", "score: products", "score: cells", "score: output", "score: second output", "wide: products", "narrow: products", "gradient output",
          "producer waits for scores", "publisher waits for the ring", "score items", "wide items", "narrow items")


def breakdown(lib, graph):
    """Average clocks of each stage in one replay, where the library was built with -DSCALING_CONTRASTS_STAGES."""
    buffer = (ctypes.c_ulonglong * len(STAGES))()
    torch.cuda.synchronize()
    if lib.bench_stages(buffer) <= 0:
        return
    graph.replay()
    torch.cuda.synchronize()
    lib.bench_stages(buffer)
    v = dict(zip(STAGES, buffer))
    items = {"score": v["score items"], "wide": v["wide items"], "narro": v["narrow items"]}
    for name in STAGES[:10]:
        per = items.get(name[:5], v["wide items"] + v["narrow items"] if name.startswith("grad") else sum(items.values()))
        print(f"    {name:30s} {v[name] / max(1, per):10.0f} clocks an item   {v[name] / (2 * 132) / 1e3:10.1f} k clocks a warpgroup")
    print("    items (x 2):", items)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--rows", type=int, nargs="+", default=[16384])
    parser.add_argument("--config", nargs="+", default=["0,0,0,0"])
    parser.add_argument("--t", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--stages", action="store_true")
    args = parser.parse_args()
    lib = ctypes.CDLL(args.library)
    lib.bench_scratch.restype = ctypes.c_size_t
    lib.bench_open.restype = ctypes.c_void_p
    p = lambda x: ctypes.c_void_p(x.data_ptr())
    for rows in args.rows:
        torch.manual_seed(rows)
        noise = torch.randint(-254, 255, (rows, 1024), device="cuda", dtype=torch.int32)
        shared = torch.randint(-254, 255, ((rows + 1) // 2, 1024), device="cuda", dtype=torch.int32).repeat_interleave(2, 0)[:rows]
        x = ((noise + shared) // 2).to(torch.bfloat16)
        del noise, shared
        labels = torch.arange(rows, device="cuda", dtype=torch.int32) // 2
        tb = torch.tensor([args.t, -10.0], device="cuda")
        gradient = torch.empty_like(x)
        scalars = torch.zeros(4, device="cuda")
        graphs = {}
        keep = []
        if rows <= 65536:
            square = torch.randn(rows, rows, device="cuda", dtype=torch.bfloat16)
            product = torch.empty_like(square)
            out = torch.empty_like(x)

            def cublas(_):
                torch.matmul(x, x.T, out=product)
                torch.matmul(square, x, out=out)
            graphs["cublas"] = graph_of(cublas)
        for config in args.config:
            v = [int(i) for i in config.split(",")]
            need = lib.bench_scratch(rows, *v)
            scratch = torch.full((need,), 255, dtype=torch.uint8, device="cuda")
            handle = lib.bench_open(rows, *v, p(scratch))
            assert handle, config
            keep += [scratch]

            def step(stream, stages=7, handle=handle):
                assert lib.bench_step(ctypes.c_void_p(handle), p(x), p(labels), p(tb), p(gradient), p(scalars), stages, ctypes.c_void_p(stream.cuda_stream)) == 0
            graphs[config + f" ({need / 2**20:.0f} MiB)"] = graph_of(step)
            if args.stages:
                for name, bits in (("  prepare", 1), ("  step kernel", 2), ("  finish", 4)):
                    graphs[name + " " + config] = graph_of(lambda s, bits=bits, step=step: step(s, bits))
        times = {k: [] for k in graphs}
        n = 60 if rows <= 4096 else 10 if rows <= 16384 else 4 if rows <= 32768 else 2
        for _ in range(args.rounds):
            for k, g in graphs.items():
                times[k] += sample(g, n)
        base = min(times["cublas"]) if "cublas" in times else float("nan")
        for k, v in times.items():
            v.sort()
            print(f"R={rows} t={args.t:g} {k:28s} min {v[0]:.4f} median {v[len(v) // 2]:.4f} ms  / cuBLAS {v[0] / base:.3f}  4RRD {4 * rows * rows * 1024 / v[0] / 1e9:.0f} TF/s", flush=True)
        for k, g in graphs.items():
            if "MiB" in k:
                print("  ", k)
                breakdown(lib, g)
        print(f"  loss {scalars[0].item():.6g} dt {scalars[1].item():.6g} db {scalars[2].item():.6g}", flush=True)
        del graphs, x, gradient, keep
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
