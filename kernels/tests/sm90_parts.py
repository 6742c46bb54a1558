"""The sm90 engine's step kernel with parts of it left out, to see what the others cost: sm90_energy.py runs them.

    python3 sm90_parts.py FOLDER [NAME ...]     compiles FOLDER/NAME.so of each, and probe.so; needs nvcc and no GPU

A part is left out by replacing text of the sources, in a copy. What such a kernel computes is wrong.
"""

import pathlib
import shutil
import subprocess
import sys

KERNELS = pathlib.Path(__file__).resolve().parent.parent
FLAGS = "-O3 -std=c++20 -gencode=arch=compute_90a,code=sm_90a -cudart static -Xcompiler -fPIC -shared".split()

# (file, from, up to, instead): what begins with the second is replaced up to the third, which stays
NO_GRADIENTS = [
    ("items.cuh", "        int const s = stage - a.lag;", "        int const s", "        return false;\n"),
    ("items.cuh", "            if (stage >= a.ring) {", "\n", "            if (false) {"),
]
NO_SCORES = [
    ("items.cuh", "        if (is_score) {", "\n", "        if (is_score) {\n            return false;"),
    ("produce.cuh", "            await_scored<kind_>(a, item);", "\n", ""),
]
NO_CELLS = [
    (
        "score.cuh",
        "        bool exact = special |",
        "        if constexpr (kind_::fast) {\n            if (p < stash_k)",
        "        for (int i = 0; i < width / 4; ++i) last[i] = pair::pack(acc[2 * i], acc[2 * i + 1]);\n",
    )
]
NO_PLANES = [
    ("score.cuh", "            if (p < stash_k)", "\n", "            if (false)"),
    (
        "score.cuh",
        "        uint32_t stashed[stash_k]",
        "        uint32_t stashed",
        """        float dots = 0.f;  // or nothing multiplies
        for (int i = 0; i < width / 2; ++i) dots += acc[i];
        if (dots == 1.2345f) *a.finished = 1;
        auto const hand = [&] {
            __syncwarp();
            if (lane == 0) ptx::mbar_arrive(c.base + shared::at_out_full);
            c.outputs ^= 1;
        };
        ptx::named_sync(1, 128);
        hand();
        await_empty();
        hand();
        return;
""",
    ),
    (
        "step.cuh",
        "                ptx::bulk_store(tile + band * plane_bytes_k, from",
        "                if constexpr",
        "",
    ),
    ("step.cuh", "                if constexpr (!kind_::small_items)\n", "                ptx::bulk_commit", ""),
]
NO_SCORE_PRODUCTS = [
    (
        "score.cuh",
        "            for (int k = 0; k < slab_k / 16; ++k) {",
        "\n",
        "            for (int k = 0; k < 0; ++k) {",
    ),
    (
        "score.cuh",
        "    float acc[width / 2] = {};",
        "  // dot products",
        "    float acc[width / 2];\n"
        "    for (int i = 0; i < width / 2; ++i)\n"
        "        acc[i] = float(int((c.thread * 64 + i) * 2654435761u) >> 15);",  # far below zero
    ),
]
NO_GRADIENT_PRODUCTS = [
    ("gradient.cuh", "        for (int k = 0; k < slab_k / 16; ++k) {", "\n", "        for (int k = 0; k < 0; ++k) {")
]
NO_TILES = [
    (
        "gradient.cuh",
        "    if (item.count == 0 && (of_candidates",
        "    __syncwarp();\n    if (c.lane == 0)",
        "    float sum = 0.f;  // or nothing multiplies\n"
        "    for (int i = 0; i < size_; ++i) sum += top[i] + bottom[i];\n"
        "    if (sum == 1.2345f) *out = sum;\n",
    )
]

# all of them: bf16 weights and many rows, no other kernel, which compiles in a tenth of the time
ONE_KIND = [
    (
        "engine.cuh",
        "        if (one_launch_) return work(sm90::one_launch_t{});",
        "    }",
        "        return work(sm90::article_t<false>{});\n",
    ),
    (
        "engine.cuh",
        "        return for_plain_kind([&]<class kind_>(kind_) { return work(sm90::both",
        "    }",
        "        return {};\n",
    ),
]

VARIANTS = {
    "whole": [],
    "scores": NO_GRADIENTS,
    "scores_no_cells": NO_GRADIENTS + NO_CELLS,
    "scores_no_cells_no_planes": NO_GRADIENTS + NO_CELLS + NO_PLANES,
    "scores_no_products": NO_GRADIENTS + NO_SCORE_PRODUCTS,
    "scores_loads": NO_GRADIENTS + NO_CELLS + NO_PLANES + NO_SCORE_PRODUCTS,
    "gradients": NO_SCORES,
    "gradients_no_tiles": NO_SCORES + NO_TILES,
    "gradients_loads": NO_SCORES + NO_TILES + NO_GRADIENT_PRODUCTS,
}


def build(name, folder):
    """Compile one variant; its sources stay beside it."""
    include = folder / name / "include"
    shutil.copytree(KERNELS / "include", include, dirs_exist_ok=True)
    for file, begin, end, instead in ONE_KIND + VARIANTS[name]:
        path = include / "scaling_contrasts" / "sm90" / file
        text = path.read_text()
        assert text.count(begin) == 1, (name, file, begin, text.count(begin))
        at = text.index(begin)
        path.write_text(text[:at] + instead + text[text.index(end, at) :])
    source = KERNELS / "tests" / "sm90_library.cu"
    subprocess.run(["nvcc", *FLAGS, f"-I{include}", "-o", folder / f"{name}.so", source], check=True)


if __name__ == "__main__":
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for variant in sys.argv[2:] or VARIANTS:
        build(variant, out)
    probe = KERNELS / "tests" / "sm90_energy_probe.cu"
    subprocess.run(["nvcc", *FLAGS, f"-I{KERNELS / 'include'}", "-o", out / "probe.so", probe], check=True)
