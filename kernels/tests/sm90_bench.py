"""Times the sm90 engine's step beside two plain cuBLAS products (X X^T, then G X) of the same shape, in one run.

    python3 sm90_bench.py ENGINE [--rows R ...] [--config [NAME:]TUNING ...] [--t T ...] [--rounds N]
                         [--stages] [--foreign]

Everything is replayed from CUDA graphs, interleaved. Prints the least and the median of each in ms, and the ratio of
the least times to the products'. A tuning is `default`, or text such as wide=1,ring=6,lag=4,interleave=1
(sm90_tuning.cuh), or `forward`: the forward pass alone.
"""

import argparse
import ctypes

import torch
from sm90_timing import clocks_of, graph_of, pointer, print_stage, sample

DIMS = 1024
STAGES = (
    "item wait",
    "score: products",
    "score: cells",
    "score: output",
    "score: second output",
    "wide: products",
    "narrow: products",
    "gradient output",
    "producer waits for scores",
    "publisher waits for the ring",
    "score items",
    "wide items",
    "narrow items",
)
PARTS = (("  prepare", 1), ("  step kernel", 2), ("  finish", 4))


def breakdown(lib, graph):
    """Average clocks of each stage in one replay, where the library was built with -DSCALING_CONTRASTS_STAGES."""
    clocks = clocks_of(lib, STAGES, graph.replay)
    if not clocks:
        return
    items = {"score": clocks["score items"], "wide": clocks["wide items"], "narrow": clocks["narrow items"]}
    both = items["wide"] + items["narrow"]
    for name in STAGES[:10]:
        kind = name.partition(":")[0]
        per = items.get(kind, both if name == "gradient output" else sum(items.values()))
        print_stage(name, clocks[name], per)
    print("    items (x 2):", items)


class Problem:
    """Inputs and outputs of one R, made on the device."""

    def __init__(self, rows, t):
        torch.manual_seed(rows)
        self.rows = rows
        noise = torch.randint(-254, 255, (rows, DIMS), device="cuda", dtype=torch.int32)
        shared = torch.randint(-254, 255, ((rows + 1) // 2, DIMS), device="cuda", dtype=torch.int32)
        self.x = ((noise + shared.repeat_interleave(2, 0)[:rows]) // 2).to(torch.bfloat16)
        self.labels = torch.arange(rows, device="cuda", dtype=torch.int32) // 2
        self.tb = torch.tensor([t, -10.0], device="cuda")
        self.gradient = torch.empty_like(self.x)
        self.scalars = torch.zeros(4, device="cuda")
        self.scratch = []

    def products(self):
        """The yardstick: X X^T and G X in one graph."""
        square = torch.randn(self.rows, self.rows, device="cuda", dtype=torch.bfloat16)
        product, out = torch.empty_like(square), torch.empty_like(self.x)
        self.operands = (square, product, out)  # a graph does not keep its tensors

        def work(_):
            torch.matmul(self.x, self.x.T, out=product)
            torch.matmul(square, self.x, out=out)

        return graph_of(work)

    def step(self, lib, config, foreign=False):
        """`(work(stream, stages), scratch bytes)` of the engine with one configuration."""
        tuning = config.rpartition(":")[2].encode()
        candidates = self.rows if foreign else 0
        need = lib.bench_scratch(self.rows, candidates, tuning)
        assert need, config
        self.scratch.append(torch.full((need,), 255, dtype=torch.uint8, device="cuda"))
        handle = lib.bench_open(self.rows, candidates, tuning, pointer(self.scratch[-1]))
        assert handle, config
        buffers = [pointer(b) for b in (self.x, self.labels, self.tb, self.gradient, self.scalars)]

        def work(stream, stages=7):
            stream = ctypes.c_void_p(stream.cuda_stream)
            assert lib.bench_step(ctypes.c_void_p(handle), *buffers, stages, stream) == 0

        return work, need


def parts_of(work, config):
    """Graphs of the step's three kernels alone."""
    return {f"{name} {config}": graph_of(lambda stream, bits=bits: work(stream, bits)) for name, bits in PARTS}


def measure(lib, rows, t, args):
    """Build all graphs of one R and scale, replay them interleaved, print."""
    problem = Problem(rows, t)
    graphs = {"cublas": problem.products()} if rows <= 65536 else {}
    for config in args.config:
        work, need = problem.step(lib, config)
        name = config.partition(":")[0]
        graphs[f"{name} ({need / 2**20:.0f} MiB)"] = graph_of(work)
        if args.stages:
            graphs |= parts_of(work, name)
        if args.foreign:
            work, _ = problem.step(lib, config, foreign=True)
            work(torch.cuda.current_stream(), 1)
            graphs[f"  foreign block {name}"] = graph_of(lambda stream, work=work: work(stream, 8))
    times = {name: [] for name in graphs}
    count = 60 if rows <= 4096 else 10 if rows <= 16384 else 4 if rows <= 32768 else 2 if rows <= 262144 else 1
    names = list(graphs)
    for turn in range(args.rounds):  # what runs first is fastest
        first = turn * len(names) // args.rounds
        for name in names[first:] + names[:first]:
            times[name] += sample(graphs[name].replay, count)
    base = min(times.get("cublas", [float("nan")]))
    for name, values in times.items():
        least, median = min(values), sorted(values)[len(values) // 2]
        rate = 4 * rows * rows * DIMS / least / 1e9
        what = f"R={rows} t={t:g} {name:28s} min {least:.4f} median {median:.4f} ms"
        print(f"{what}  / cuBLAS {least / base:.3f}  4RRD {rate:.0f} TF/s", flush=True)
    for name, graph in graphs.items():
        if "MiB" in name:
            print("  ", name)
            breakdown(lib, graph)
    loss, dt, db = problem.scalars[:3].tolist()
    print(f"  loss {loss:.6g} dt {dt:.6g} db {db:.6g}", flush=True)


def main():
    """Read the arguments, load the library, measure each R."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="shared object of sm90_library.cu")
    parser.add_argument("--rows", type=int, nargs="+", default=[16384])
    parser.add_argument("--config", nargs="+", default=["default"])
    parser.add_argument("--t", type=float, nargs="+", default=[10.0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--stages", action="store_true")
    parser.add_argument("--foreign", action="store_true", help="also a block of as many foreign rows, scored once")
    args = parser.parse_args()
    lib = ctypes.CDLL(args.engine)
    lib.bench_scratch.restype = ctypes.c_size_t
    lib.bench_open.restype = ctypes.c_void_p
    for rows in args.rows:
        for t in args.t:
            measure(lib, rows, t, args)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
