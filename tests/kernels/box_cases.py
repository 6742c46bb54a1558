"""Cases of several GPUs, or of virtual devices of one: what each engine of a GPU takes, and how they are asked for."""

import itertools

from tests.kernels.binary import base_case

LIVES = {2: [70, 33], 3: [70, 0, 65], 5: [70, 70, 1, 70, 69], 8: [70] * 7 + [5]}
LOSSES = ["one_set_sigmoid", "two_set_sigmoid", "info_nce"]
SIGMOID = [loss for loss in LOSSES if loss.endswith("sigmoid")]


def article_ladder(case):
    """Whether the sm90 engine steps over two sets by the kernels of one."""
    return case["loss"] != "one_set_sigmoid" and case["prefixes"] == [64, 128, 256, 512, 1024]


def refusal(engine, case, once=False):
    """Why an engine does not take a case on several devices; empty: it does. `once`: pairs of devices scored once."""
    if engine == "sm80":
        return ""
    if engine != "sm90":
        return "not compared with others here"
    if article_ladder(case) and not (once and case["loss"] == "info_nce"):
        return ""
    if once and case["loss"] != "one_set_sigmoid":
        return "gradients of another GPU's rows in the sigmoids alone, of two sets with the article's ladder"
    ladder = len(case["prefixes"]) > 1
    if case["loss"] != "one_set_sigmoid" and ladder and case["gradient_dtype"] == "float32":
        return "weights of a ladder round twice over two sets"
    return ""


def tolerance(engine, case):
    """Of gradients, worst band: a ladder's weights round twice over two sets on sm90, and then bf16 gradients do."""
    twice = engine == "sm90" and case["loss"] != "one_set_sigmoid" and len(case["prefixes"]) > 1
    twice = twice and not article_ladder(case)
    return 4.5e-3 if twice else 3e-3


def problems(loss, world_size):
    """Few rows a device, all live or not; fp32 gradients of a ladder and of one prefix, and bf16 ones of a ladder."""
    for live, (gradient, prefixes) in itertools.product(
        (None, LIVES[world_size]), (("float32", [64, 128]), ("float32", [128]), ("bfloat16", [64, 128]))
    ):
        case = base_case(loss=loss, rows=70, prefixes=prefixes, scale=5.0, bias=-1.0, world_size=world_size, live=live)
        yield case | {"device": "cuda", "labels": "mixed", "gradient_dtype": gradient}


def small_cases(usable, loss, world_size, virtual):
    """`(case, engine, flags)`: every engine that takes them, every way to meet, pairs scored twice and once."""
    meetings = ["events"] if virtual else ["flags", "events"]
    for case, meeting, engine in itertools.product(problems(loss, world_size), meetings, usable):
        options = f"virtual_devices={str(virtual).lower()},meeting={meeting}"
        if not refusal(engine, case):
            yield case, engine, ["--engine", engine, "--options", options, "--fabric", "peer"]
        if loss in SIGMOID and not refusal(engine, case, once=True):
            for _ in range(2):  # to the same bits
                yield case, engine, ["--engine", engine, "--options", f"{options},pairs=once", "--fabric", "peer"]


def large_cases(usable, loss, gpus):
    """The shape of the benchmark, several tiles a device: one device of all rows, then many."""
    world_size, virtual = (gpus, "false") if gpus > 1 else (4, "true")
    for gradient in ("float32", "bfloat16"):
        shared = {"dims": 1024, "prefixes": [64, 128, 256, 512, 1024], "device": "cuda", "gradient_dtype": gradient}
        one = base_case(loss=loss, rows=1200 // world_size * world_size, **shared)
        many = base_case(loss=loss, rows=1200 // world_size, world_size=world_size, **shared)
        words = ["--fabric", "peer", "--options", f"virtual_devices={virtual}"]
        for case, engine in itertools.product((one, many), usable):
            if not refusal(engine, case):
                yield case, engine, [*words, "--engine", engine]
        if loss in SIGMOID:
            for engine in usable:
                if not refusal(engine, many, once=True):
                    yield many, engine, [*words[:-1], f"{words[-1]},pairs=once", "--engine", engine]
