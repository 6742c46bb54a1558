"""Synthetic inputs, bit-identical in every system (docs/contracts.md, section 2).

NumPy here; the same integer arithmetic stands in `kernels/include/scaling_contrasts/inputs.hpp` and, through the array
functions that callers pass, in PyTorch and JAX. No library RNG, no file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

LABEL_LAYOUTS = ("pairs", "distinct", "equal", "mixed", "fours", "sixteens")
_MIXED_PATTERN = np.repeat(np.arange(5), (1, 2, 3, 5, 8)).astype(np.int64)
_GROUP_STREAM = 2


def _mix(h: np.ndarray) -> np.ndarray:
    h = h ^ (h >> np.uint32(16))
    h = h * np.uint32(0x85EBCA6B)
    h = h ^ (h >> np.uint32(13))
    h = h * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _keys(seed: int, stream: int, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    start = _mix(np.array([(seed + stream * 0x9E3779B9) & 0xFFFFFFFF], dtype=np.uint32))
    return _mix(_mix(start ^ rows.astype(np.uint32))[:, None] ^ columns.astype(np.uint32)[None, :])


def labels(layout: str, first_row: int, rows: int) -> np.ndarray:
    """Group ids (int32) of global rows `first_row .. first_row + rows`.

    Raises ValueError for an unknown layout.
    """
    index = np.arange(first_row, first_row + rows, dtype=np.int64)
    if layout == "pairs":
        return (index // 2).astype(np.int32)
    if layout in ("fours", "sixteens"):
        return (index // {"fours": 4, "sixteens": 16}[layout]).astype(np.int32)
    if layout == "distinct":
        return index.astype(np.int32)
    if layout == "equal":
        return np.zeros(rows, dtype=np.int32)
    if layout == "mixed":
        return (5 * (index // 19) + _MIXED_PATTERN[index % 19]).astype(np.int32)
    raise ValueError(f"unknown label layout {layout!r}; known: {', '.join(LABEL_LAYOUTS)}")


def embeddings(seed: int, set_index: int, first_row: int, groups: np.ndarray, dims: int) -> np.ndarray:
    """Integer-valued float32 `[len(groups), dims]`, exact in bf16: the rows that start at global row `first_row`.

    `set_index` 0 is the one set, or images; 1 is captions. `groups[i]` is the positive group of row i.
    """
    columns = np.arange(dims)
    index = np.arange(first_row, first_row + len(groups))
    g = _keys(seed, _GROUP_STREAM, np.asarray(groups), columns)
    k = _keys(seed, set_index, index, columns)
    seven = np.uint32(127)
    shared = (g & seven) + ((g >> np.uint32(8)) & seven)
    own = ((k >> np.uint32(16)) & seven) + ((k >> np.uint32(24)) & seven)
    total = shared + own
    return total.astype(np.float32) - np.float32(254)


def sets_of(loss: str) -> int:
    """How many embedding sets a loss takes: 1 or 2."""
    return 1 if loss.startswith("one_set") else 2


def case_rows(case, first_row: int, rows: int) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """`(name, embeddings, labels)` of each set of a case, for the given global rows."""
    if sets_of(case["loss"]) == 1:
        groups = labels(case["labels"], first_row, rows)
        yield "rows", embeddings(case["seed"], 0, first_row, groups, case["dims"]), groups
    else:
        groups = labels("distinct", first_row, rows)
        yield "images", embeddings(case["seed"], 0, first_row, groups, case["dims"]), groups
        yield "captions", embeddings(case["seed"], 1, first_row, groups, case["dims"]), groups


def bf16_bytes(values: np.ndarray) -> bytes:
    """Little-endian bf16 bytes of float32 values that bf16 holds exactly."""
    return (np.ascontiguousarray(values, dtype="<f4").view("<u4") >> np.uint32(16)).astype("<u2").tobytes()


def digest(case, chunk_rows: int = 4096) -> str:
    """SHA-256 over the bf16 bytes of every set, all ranks, row-major (docs/contracts.md, section 2)."""
    total = case["rows"] * case["world_size"]
    sha = hashlib.sha256()
    for set_number in range(sets_of(case["loss"])):
        for start in range(0, total, chunk_rows):
            rows = min(chunk_rows, total - start)
            _, values, _ = list(case_rows(case, start, rows))[set_number]
            sha.update(bf16_bytes(values))
    return sha.hexdigest()
