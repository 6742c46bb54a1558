"""Times the sm90 engine of the losses over two sets beside its peers, interleaved in one process.

    python3 two_set_bench.py ENGINE --case LOSS,ROWS,DIMS,PREFIXES[,T] ... [--tuning forward,high,wide,ring,lag ...]
                             [--peers siglip_kernel siglip_kernel_1024 open_clip_clip products] [--t T] [--rounds N]

LOSS is two_set_sigmoid or info_nce; PREFIXES is 1 (DIMS alone) or 5 (64 to 1024). A tuning 2,wide,ring,lag,bits is the
engine of ladders (two_set_library.cu); 2,0,0,0,0 leaves the choice to it. The engine and the plain
products are replayed from CUDA graphs. siglip-kernel gets unit rows in bf16 and open_clip's ClipLoss, compiled, unit
rows in float32 under bf16 autocast, so that neither pays for norms, which the engine does; both make the gradients of
both sets and of scale (and bias). Prints the least and the median in ms, and step memory: the peak above what was
there before, less the returned gradients (peers) or the engine's scratch.
"""

import argparse
import ctypes

import torch
from sm90_timing import clocks_of, graph_of, pointer, print_stage, sample
from torch.nn import functional

LOSSES = {"two_set_sigmoid": 1, "info_nce": 2}
STAGES = (
    "item wait",
    "score: products",
    "score: cells",
    "score: output",
    "score: suffix sums",
    "rows: products",
    "columns: products",
    "gradient: output",
    "producer waits for scores",
    "publisher waits for the ring",
    "score items",
    "row items",
    "column items",
)


class Problem:
    """Pairs of one case, made on the device, and everything that steps over them."""

    def __init__(self, lib, case, args):
        loss, rows, dims, prefixes, *scale = case.split(",")
        self.lib, self.loss, self.rows, self.dims, self.prefixes = lib, loss, int(rows), int(dims), int(prefixes)
        self.t, self.b = float(scale[0]) if scale else args.t, args.b
        torch.manual_seed(self.rows)
        shared = self._noise()
        self.sets = [((self._noise() + shared) / 2).to(torch.bfloat16) for _ in range(2)]
        self.tb = torch.tensor([self.t, self.b], device="cuda")
        self.gradients = [torch.empty_like(x) for x in self.sets]
        self.scalars = torch.zeros(4, device="cuda")
        self.scratch = {}

    def _noise(self):
        return torch.randint(-254, 255, (self.rows, self.dims), device="cuda", dtype=torch.int32)

    def ladder(self):
        """The prefixes."""
        return [self.dims] if self.prefixes == 1 else [64, 128, 256, 512, 1024]

    def engine(self, tuning):
        """`work(stream, parts)` of the engine."""
        numbers = (ctypes.c_int * 5)(*(int(i) for i in tuning.split(",")))
        shape = (LOSSES[self.loss], self.rows, self.dims, self.prefixes, numbers)
        need = self.lib.bench_scratch(*shape)
        assert need, (self.loss, tuning)
        self.scratch[tuning] = torch.full((need,), 255, dtype=torch.uint8, device="cuda")
        handle = self.lib.bench_open(*shape, pointer(self.scratch[tuning]))
        assert handle, tuning
        buffers = [pointer(b) for b in (*self.sets, self.tb, *self.gradients, self.scalars)]

        def work(stream, parts=15):
            stream = ctypes.c_void_p(stream.cuda_stream)
            assert self.lib.bench_step(ctypes.c_void_p(handle), *buffers, parts, stream) == 0

        return work

    def units(self, dtype):
        """Unit rows of every prefix, leaves."""
        return [
            [functional.normalize(x[:, :p].float(), dim=-1).to(dtype).requires_grad_() for x in self.sets]
            for p in self.ladder()
        ]

    def peer(self, name):
        """`step()` of a peer: forward and backward over all prefixes."""
        log_scale = torch.tensor(self.t, device="cuda").log().requires_grad_()
        bias = torch.tensor(self.b, device="cuda", requires_grad=True)
        if name == "open_clip_clip":
            from open_clip.loss import ClipLoss

            units = self.units(torch.float32)
            loss_of = ClipLoss(cache_labels=False)

            def objective(scale, *heads):
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    pairs = zip(heads[::2], heads[1::2], strict=True)
                    return sum(loss_of(a, c, scale) for a, c in pairs) / len(units)

            objective = torch.compile(objective)
            leaves = [leaf for pair in units for leaf in pair]

            def step():
                torch.autograd.grad(objective(log_scale.exp(), *leaves), [*leaves, log_scale])

            return step
        import siglip_kernel

        units = self.units(torch.bfloat16)
        if name == "siglip_kernel":
            loss_of = siglip_kernel.fused_siglip_loss
        else:  # siglip_kernel_1024: rows a chunk

            def loss_of(*rest):
                return siglip_kernel.fused_chunked_bf16_siglip_loss(*rest, chunk_size=int(name.split("_")[2]))

        def step():
            for images, captions in units:
                torch.autograd.grad(loss_of(images, captions, log_scale, bias), [images, captions, log_scale, bias])

        return step

    def products(self):
        """The three plain products of one pass: I C^T, W C and W^T I."""
        weights = torch.randn(self.rows, self.rows, device="cuda", dtype=torch.bfloat16)
        out = [torch.empty_like(weights), *(torch.empty_like(x) for x in self.sets)]

        def work(_):
            torch.matmul(self.sets[0], self.sets[1].T, out=out[0])
            torch.matmul(weights, self.sets[1], out=out[1])
            torch.matmul(weights.T, self.sets[0], out=out[2])

        return graph_of(work)


def peer_memory(step, returned):
    """Bytes that a step of a peer takes at its peak, less the gradients that it returns."""
    step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before - returned


def breakdown(lib, graph):
    """Clocks of each stage in one replay, where the library was built with -DSCALING_CONTRASTS_STAGES."""
    clocks = clocks_of(lib, STAGES, graph.replay)
    if not clocks:
        return
    per = {"score": "score items", "rows": "row items", "columns": "column items"}
    both = clocks["row items"] + clocks["column items"]
    for name in STAGES[:10]:
        count = clocks[per[name.partition(":")[0]]] if name.partition(":")[0] in per else both + clocks["score items"]
        count = both if name == "gradient: output" else count
        print_stage(name, clocks[name], count)
    print("    items (x 2):", {name: clocks[name] for name in STAGES[10:]})


def measure(lib, case, args):
    """Everything of one case, interleaved."""
    problem = Problem(lib, case, args)
    returned = 2 * 2 * problem.rows * problem.dims
    steps, memory, graphs = {}, {}, {}
    for tuning in args.tuning:
        work = problem.engine(tuning)
        graphs[tuning] = graph_of(work)
        steps[f"sm90 {tuning}"] = graphs[tuning].replay
        memory[f"sm90 {tuning}"] = problem.scratch[tuning].numel()
        if args.parts:
            for name, parts in (("prepare", 1), ("sums", 2), ("score and gradient", 4), ("finish", 8)):
                graph = graph_of(lambda stream, work=work, parts=parts: work(stream, parts))
                steps[f"  {name} {tuning}"] = graph.replay
    for name in args.peers:
        if name == "products":
            steps[name] = problem.products().replay
        else:
            steps[name] = problem.peer(name)
            gradients = sum(2 * problem.rows * p * (4 if "open_clip" in name else 2) for p in problem.ladder())
            memory[name] = peer_memory(steps[name], gradients if "open_clip" in name else returned)
    times = {name: [] for name in steps}
    for _ in range(args.rounds):
        for name, step in steps.items():
            times[name] += sample(step, args.count)
    flops = 6 * problem.rows**2 * problem.ladder()[-1]
    best = min(min(v) for name, v in times.items() if name.startswith("sm90"))
    for name, values in times.items():
        least, median = min(values), sorted(values)[len(values) // 2]
        held = f"{memory[name] / 2**20:8.1f} MiB" if name in memory else ""
        what = f"{case} t={problem.t:g} {name:34s} min {least:.4f} median {median:.4f} ms {held}"
        print(f"{what}  6RRD {flops / least / 1e9:.0f} TF/s, {least / best:.2f} of the engine's best", flush=True)
    for tuning, graph in graphs.items():
        print("  stages", tuning)
        breakdown(lib, graph)
    loss, dt, db = problem.scalars[:3].tolist()
    print(f"  loss {loss:.6g} dt {dt:.6g} db {db:.6g}", flush=True)


def main():
    """Read the arguments, load the library, measure each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", help="shared object of two_set_library.cu")
    parser.add_argument("--case", nargs="+", default=["two_set_sigmoid,65536,768,1"])
    parser.add_argument("--tuning", nargs="+", default=["0,0,0,3,1"])
    parser.add_argument("--peers", nargs="*", default=[])
    parser.add_argument("--t", type=float, default=10.0)
    parser.add_argument("--b", type=float, default=-10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=3, help="steps a round")
    parser.add_argument("--parts", action="store_true", help="the step's kernels alone, too")
    args = parser.parse_args()
    lib = ctypes.CDLL(args.engine)
    lib.bench_scratch.restype = ctypes.c_size_t
    lib.bench_open.restype = ctypes.c_void_p
    for case in args.case:
        measure(lib, case, args)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
