"""How numbers and names look. One rule each, used by every table and chart."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from harness.cost import is_one_set
from reports.store import Row, number

LOSS_NAMES = {
    "one_set_sigmoid": "one-set sigmoid",
    "two_set_sigmoid": "two-set sigmoid",
    "info_nce": "InfoNCE",
    "one_set_info_nce": "one-set InfoNCE",
}
LOSS_ORDER = tuple(LOSS_NAMES)


def comparable(row: Row) -> bool:
    """Whether a row's loss is one of the design's: others, which a system declares for itself, are no one's peers."""
    return row["loss"] in LOSS_NAMES


SYSTEM_NAMES = {"article_scaling_contrasts": "ScalingContrasts", "native": "native"}
STATUS_NAMES = {
    "out_of_memory": "out of memory",
    "too_noisy": "too noisy",
    "nonfinite": "not finite",
}
# Which memory figure a measured table shows: one for the whole table, never mixed.
MEMORY_FIGURES = {
    "allocated_peak_bytes": "peak of the system's own allocator",
    "device_used_bytes": "what the driver or the operating system saw in use",
    "step_peak_bytes": "peak of the allocator above inputs and returned gradients",
}


def significant(value: float, digits: int = 3) -> str:
    """`value` at so many significant digits, never in exponent form: 1.89, 39.0, 142, 1440."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    if len(text.replace(".", "").replace("-", "").lstrip("0")) > digits and decimals:
        text = f"{value:.{decimals - 1}f}"  # 9.996 rounds up into one more digit
    return text


def time_text(seconds: float) -> str:
    """`1.89 ms` below a second, `1.44 s` above."""
    return f"{significant(seconds * 1e3)} ms" if seconds < 0.9995 else f"{significant(seconds)} s"


def memory_text(size: float) -> str:
    """Decimal units, as the article writes them: `19 MB`, `2.95 GB`; one digit more below 10 MB."""
    if size >= 0.9995e9:
        return f"{significant(size / 1e9)} GB"
    megabytes = size / 1e6
    return f"{megabytes:.0f} MB" if megabytes >= 9.95 else f"{significant(megabytes, 2)} MB"


def rate_text(per_second: float) -> str:
    """Counts per second with a decimal prefix: `441 G/s`."""
    for factor, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor * 0.9995:
            return f"{significant(per_second / factor)} {prefix}/s"
    return f"{significant(per_second)} /s"


def error_text(row: Row, column: str) -> str:
    """A gate error in exponent form, empty where not known."""
    value = number(row, column)
    return "" if value is None else f"{value:.1e}"


def memory_bytes_of(text: str) -> float | None:
    """Bytes of a published text such as `2.95 GB` (decimal) or `148 MiB above baseline`; the first figure where there
    are several, None where there is none."""
    found = re.match(r"([\d.]+) (kB|MB|GB|MiB|GiB)\b", text)
    units = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30}
    return float(found[1]) * units[found[2]] if found else None


def published_cell(row: Row) -> str:
    """`1.89 ms · 19 MB`, digits as published; a status in words."""
    if row["status"] != "ok":
        return status_text(row)
    return " · ".join(text for text in (row["published_time_text"], row["published_memory_text"]) if text)


def status_text(row: Row, with_reason: bool = False) -> str:
    """`out of memory`, or `unsupported: jax is not installed`."""
    words = STATUS_NAMES.get(row["status"], row["status"])
    if not with_reason or not row["reason"]:
        return words
    return row["reason"] if row["reason"].startswith(words) else f"{words}: {row['reason']}"


def timed_trap(row: Row) -> bool:
    """Whether a row failed the gate as it was expected to, and was timed all the same."""
    return row["status"] == row["expected_status"] == "wrong" and bool(row["best_seconds"])


def step_text(row: Row) -> str:
    """`0.433 ms`, `250 ms (wrong)` of a documented trap, or the status."""
    if row["status"] != "ok" and not timed_trap(row):
        return status_text(row)
    return marked(row, time_text(number(row, "best_seconds"))) if row["best_seconds"] else "time not known"


def marked(row: Row, text: str) -> str:
    """A figure of a row, with the warning that its answers are wrong where they are."""
    return f"{text} (wrong)" if text and row["status"] == "wrong" else text


def measured_cell(row: Row, memory_column: str) -> str:
    """`0.433 ms · 34 MB`, or the status with the beginning of its reason."""
    if row["status"] != "ok" and not timed_trap(row):
        return _beginning(status_text(row, with_reason=True))
    memory = number(row, memory_column)
    return f"{step_text(row)} · {'memory not known' if memory is None else memory_text(memory)}"


def published_name(row: Row, beside: Sequence[Row]) -> str:
    """`inf_cl tiled (D = 768)`: with labels and dimensions where published rows that stand beside it have several."""
    words = {"labels": row["labels"], "dims": f"D = {row['dims']}"}
    told = [word for column, word in words.items() if len({each[column] for each in beside}) > 1]
    return f"{row['system']} {row['variant']}" + (f" ({', '.join(told)})" if told else "")


def _beginning(text: str, most: int = 90) -> str:
    """The first sentence, and those after it that there is room for: allocators say a paragraph."""
    first, *others = text.split(". ")
    while others and len(first) + len(others[0]) < most:
        first += f". {others.pop(0)}"
    return first


def live_rows(row: Row) -> int:
    """n: live rows (or pairs) over all ranks."""
    if row["live"]:
        return sum(int(count) for count in row["live"].split())
    return int(row["rows"]) * int(row["world_size"])


def system_label(row: Row, clashes: bool = False) -> str:
    """Column and series name: `open_clip bidir`; with `clashes`, the loss as well."""
    name = SYSTEM_NAMES.get(row["system"], row["system"])
    if row["system"] == "article_scaling_contrasts":
        return name
    if row["protocol"] == "published":
        return {"jit_sharded": name, "gather_with_grad": f"{name} CLIP"}.get(row["variant"], f"{name} {row['variant']}")
    label = f"{name} {row['variant']}"
    return f"{label} ({loss_name(row['loss'])})" if clashes else label


def loss_name(loss: str) -> str:
    """`one-set sigmoid`; a loss this table does not know yet, by its own name."""
    return LOSS_NAMES.get(loss, loss.replace("_", " "))


def loss_order(loss: str) -> tuple[int, str]:
    """Sort key: the order of LOSS_NAMES, then others by name."""
    return (LOSS_ORDER.index(loss) if loss in LOSS_NAMES else len(LOSS_ORDER), loss)


def set_word(loss: str) -> str:
    """What R counts: rows of one set, or pairs of two."""
    return "rows" if is_one_set(loss) else "pairs"
