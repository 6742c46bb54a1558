"""What cuBLAS itself takes for the products of a step, cells left out: no step that uses them is faster on this GPU.

    python3 sm90_floor.py [--rows R ...] [--seconds S]

The yardstick is X X^T and G X in one graph. The step's own products: scores of unordered pairs (row stripes of X X^T
from the diagonal on) and, for each band of columns, its plane of weights times its columns of X. Planes are whole
matrices in memory, which an engine of bounded scratch cannot have. Of a foreign block all pairs are scored; info_nce
scores them twice and has gradients of both sets. Least ms of interleaved bursts, then each line back to back for S
seconds: ms, joules by the driver's energy counter (read only), watts, SM clock.
"""

import argparse

import torch
from sm90_energy import Counter, sustained
from sm90_timing import graph_of, sample

DIMS = 1024
STRIPES = (256, 512, 1024, 2048, 4096)
BANDS = ((0, 64), (64, 128), (128, 256), (256, 512), (512, 1024))


def works(rows):
    """Graphs by name, and the FLOP of each."""
    x = torch.randn(rows, DIMS, device="cuda").to(torch.bfloat16)
    planes = [torch.randn(rows, rows, device="cuda", dtype=torch.bfloat16) for _ in BANDS]
    product, out = torch.empty_like(planes[0]), torch.empty_like(x)
    outs = [torch.empty(rows, high - low, device="cuda", dtype=torch.bfloat16) for low, high in BANDS]

    def square(_):
        torch.matmul(x, x.T, out=product)

    def product_g(_):
        torch.matmul(planes[4], x, out=out)

    def scores(stripe):
        def work(_):
            for first in range(0, rows, stripe):
                torch.matmul(x[first : first + stripe], x[first:].T, out=product[first : first + stripe, first:])

        return work

    def band(b):
        low, high = BANDS[b]

        def work(_):
            torch.matmul(planes[b], x[:, low:high], out=outs[b])

        return work

    def gradients(_):
        for b in range(len(BANDS)):
            band(b)(_)

    def yardstick(_):
        square(_)
        product_g(_)

    flop = 2.0 * rows * rows * DIMS
    half = {s: flop * sum(min(s, rows - f) * (rows - f) for f in range(0, rows, s)) / rows**2 for s in STRIPES}
    all_works = {"two plain products": (yardstick, 2 * flop), "X X^T": (square, flop), "G X": (product_g, flop)}
    stripes = [s for s in half if rows // 16 <= s <= rows // 2]
    for s in stripes:
        all_works[f"unordered pairs, stripes of {s}"] = (scores(s), half[s])
    for b, (low, high) in enumerate(BANDS):
        all_works[f"plane {b} times columns {low} to {high}"] = (band(b), flop * (high - low) / DIMS)
    all_works["five planes"] = (gradients, flop)
    for s in stripes:

        def whole(stream, s=s):
            scores(s)(stream)
            gradients(stream)

        all_works[f"a step's products, stripes of {s}"] = (whole, flop + half[s])

    def foreign(stream):
        square(stream)
        gradients(stream)

    def softmax(stream):
        foreign(stream)
        foreign(stream)

    all_works["a foreign block's products"] = (foreign, 2 * flop)
    all_works["info_nce's products"] = (softmax, 4 * flop)
    graphs = {name: (graph_of(work), flops) for name, (work, flops) in all_works.items()}
    return graphs, (x, planes, product, out, outs)  # a graph does not keep its tensors


def main():
    """Print a table for each R."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[16384])
    parser.add_argument("--seconds", type=float, default=1.2)
    args = parser.parse_args()
    counter = Counter()
    print(f"{torch.cuda.get_device_name()}, limit {counter.limit():.0f} W, torch {torch.__version__}")
    for rows in args.rows:
        graphs, keep = works(rows)
        best = dict.fromkeys(graphs, float("inf"))
        for _ in range(5):
            for name, (graph, _) in graphs.items():
                best[name] = min(best[name], *sample(graph.replay, 10))
        for name, (graph, flops) in graphs.items():
            each, watts, clock = sustained(counter, graph.replay, args.seconds)
            rate, ratio = flops / best[name] / 1e9, best[name] / best["two plain products"]
            print(
                f"R={rows:<6d} {name:36s} burst {best[name]:8.4f} ms {rate:5.0f} TFLOP/s {ratio:5.2f} of the yardstick"
                f"   back to back {each * 1e3:8.4f} ms {watts * each:7.4f} J {watts:5.0f} W {clock} MHz",
                flush=True,
            )
        del graphs, keep


if __name__ == "__main__":
    main()
