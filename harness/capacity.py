"""`python -m harness capacity`: the largest R that each system holds here, in rows or pairs per rank.

How a search goes is in docs/protocol.md; its settings are in configs/capacity.yaml.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import (
    bench,
    command,
    configuration,
    configuration_checks,
    environment,
    lock,
    machine,
    plan,
    progress,
    records,
)
from harness.capacity_search import Search, Searcher
from harness.cases import ConfigurationError
from harness.configuration import Configuration
from harness.interrupt import Interrupt
from harness.machine import Machine
from harness.plan import size
from harness.store import Store, new_run_id
from harness.support import Support
from harness.watch import available_bytes

OK, UNEXPECTED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
ANSWERS = ("ok", "ceiling_reached", "timeout", "time_limit_reached", "unsupported", "out_of_memory")
_INSTEAD = {
    "rows": "R is what is searched; capacity.start_rows and capacity.ceiling_rows bound it",
    "live": "all rows are live in a search",
    "budget": "set capacity.total_limit",
}
USAGE = """usage: python -m harness capacity [field=value ...]

Finds the largest R of each system by doubling and bisection, and writes capacity.csv.
  python -m harness capacity systems=[native,open_clip:bidir] capacity.total_limit=20m
  python -m harness capacity list=true                 what the systems' formulas predict; runs nothing
fields of the search: {fields}; and those of python -m harness bench, but {instead}
exit status: 0 done, 1 a system did not run at any R, 2 bad input, 130 interrupted (what was found is kept)"""


def main(argv: Sequence[str]) -> int:
    """Compose, enumerate, search. Raises ConfigurationError for bad input."""
    if any(argument in ("-h", "--help") for argument in argv):
        fields = ", ".join(f"capacity.{name}" for name in configuration.compose((), "capacity").capacity)
        print(USAGE.format(fields=fields, instead=", ".join(_INSTEAD)))
        return OK
    chosen = compose(argv)
    here = plan.apply_overrides(machine.detect(), chosen.machine)
    device = plan.choose_device(chosen, here)
    chosen = chosen.for_device(device)
    searches = enumerate_searches(chosen, here, device)
    if chosen.list:
        print(table([search.row({}) for search in searches], predicted_only=True))
        return OK
    if device == "cuda" and not chosen.allow_busy:
        bench.refuse_busy(here)
    if device == "cpu":
        _refuse_too_much(chosen, here)
    parent = chosen.path("results") / "measured" / here.slug(device) / "capacity"
    with lock.measuring("capacity", chosen.machine["lock_folder"]), _writing(parent):
        return measure(chosen, here, searches, parent)


def compose(argv: Sequence[str]) -> Configuration:
    """`configs/capacity.yaml` with overrides, checked. Raises ConfigurationError, one line."""
    for override in argv:
        name = override.partition("=")[0]
        if name in _INSTEAD:
            raise ConfigurationError(f"{name} cannot be set here: {_INSTEAD[name]}")
    chosen = configuration.compose(argv, "capacity")
    settings = chosen.capacity
    if not isinstance(settings, dict):
        raise ConfigurationError(f"capacity is {settings!r}; set its fields, such as capacity.total_limit=20m")
    for name, least in (("start_rows", 1), ("ceiling_rows", 1), ("step_rows", 1), ("confirmations", 0)):
        _whole(f"capacity.{name}", settings[name], least)
    if settings["memory_bytes"] is not None:
        _whole("capacity.memory_bytes", settings["memory_bytes"], 1)
    if settings["start_rows"] > settings["ceiling_rows"]:
        raise ConfigurationError("capacity.start_rows is above capacity.ceiling_rows; lower the one or raise the other")
    for name in ("step_share", "gpu_share", "memory_share", "reserve_share"):
        value = settings[name]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise ConfigurationError(f"capacity.{name} is {value!r}; give a share from 0 to 1")
    for name in ("launch_limit", "total_limit"):
        if not configuration_checks.seconds(settings[name], f"capacity.{name}"):
            raise ConfigurationError(f"capacity.{name} is {settings[name]!r}; give a time, such as 10m")
    return chosen


def _whole(field: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(f"{field} is {value!r}; give a whole number, at least {least}")


def enumerate_searches(chosen: Configuration, here: Machine, device: str) -> list[Search]:
    """One search for each system, variant, state and number of ranks. Raises ConfigurationError for unknown names."""
    one_size = {"rows": [chosen.capacity["start_rows"]], "same_batch": None}  # the search finds the others itself
    start = Configuration(chosen.values | one_size, chosen.overrides)
    support = Support(here, chosen.path("binary"))
    searches = []
    for each in plan.enumerate_cases(start, here):
        # Asked again without the prediction: here the measurement decides what memory holds.
        reason = support.reason(each.case, each.system, each.variant)
        limit = rank_limit(chosen, here, device, each.case.world_size // each.case.nodes)
        searches.append(Search(each.case, each.system, each.variant, limit, reason))
    return searches


def rank_limit(chosen: Configuration, here: Machine, device: str, ranks: int) -> int:
    """Bytes that a rank may use and still fit: its GPU's share, or an even part of the budget of main memory."""
    if device == "cuda":
        smallest = min((gpu.memory_bytes for gpu in here.gpus[:ranks]), default=0)
        return int(chosen.capacity["gpu_share"] * smallest)
    return memory_budget(chosen, here) // ranks


def memory_budget(chosen: Configuration, here: Machine) -> int:
    """Bytes of main memory that all CPU ranks of a launch may use together."""
    return chosen.capacity["memory_bytes"] or int(chosen.capacity["memory_share"] * here.memory_bytes)


def _refuse_too_much(chosen: Configuration, here: Machine) -> None:
    """Raise ConfigurationError when the budget is not there: measuring would stop at the neighbours' memory."""
    reserve = int(chosen.capacity["reserve_share"] * here.memory_bytes)
    budget, available = memory_budget(chosen, here), available_bytes()
    if budget + reserve > available:
        raise ConfigurationError(
            f"the budget of {size(budget)} and the reserve of {size(reserve)} exceed the {size(available)} of main "
            "memory that are available; free some, or set capacity.memory_bytes lower"
        )


def measure(chosen: Configuration, here: Machine, searches: Sequence[Search], parent: Path) -> int:
    """Search into a new run folder under `parent`. The caller holds the lock. Returns the exit code."""
    screen = progress.Progress()
    folder = parent / new_run_id()
    folder.mkdir(parents=True)
    store = Store(folder)
    facts = environment.describe(here, [search.system.package for search in searches])
    record = {
        "run_id": store.run_id,
        "finished": False,
        "configuration": chosen.values,
        "overrides": list(chosen.overrides),
        "machine": parent.parent.name,
        "memory_budget_bytes": memory_budget(chosen, here),
        "available_bytes": available_bytes(),
        "variables": command.recorded_environment(),
        "before": environment.moment(here),
        **facts,
    }
    store.write_environment(record)
    common = {
        "run_id": store.run_id,
        "git_revision": facts["git"]["revision"],
        "environment_file": "environment.json",
    }

    def rows() -> list[dict[str, Any]]:
        return [search.row(common) for search in searches]

    def keep() -> None:
        records.write_capacity(folder / "capacity.csv", rows())
        records.write_atomically(folder / "attempts.jsonl", _attempts(searches).encode())

    code = OK
    keep()
    with Interrupt() as interrupt:
        try:
            Searcher(chosen, here, store, screen, keep).run(searches, interrupt.check)
        except KeyboardInterrupt:
            code = INTERRUPTED
    store.clear_work()
    keep()
    store.write_environment(record | {"after": environment.moment(here), "finished": code == OK})
    screen.say("\n" + table(rows()))
    screen.say(f"\n{len(searches)} rows in {folder / 'capacity.csv'}" + (", interrupted" if code else ""))
    return code or (OK if all(search.status[0] in ANSWERS for search in searches) else UNEXPECTED)


def _attempts(searches: Sequence[Search]) -> str:
    """Every launch, one JSON line each."""
    lines = [
        json.dumps({"search": search.title, **vars(attempt)}) for search in searches for attempt in search.attempts
    ]
    return "".join(line + "\n" for line in lines)


def table(rows: Sequence[Mapping[str, Any]], predicted_only: bool = False) -> str:
    """The result for a terminal: measured beside predicted, per rank."""
    header = (
        "system",
        "loss",
        "ranks",
        "state",
        "limit",
        "predicted R",
        "largest R",
        "measured",
        "predicted",
        "fails at",
    )
    lines = [(*header, "launches", "status")]
    for row in rows:
        used = [row[name] for name in ("device_used_bytes", "allocated_peak_bytes") if row[name] is not None]
        failing = f"{row['failing_rows']} ({row['failing_outcome']})" if row["failing_rows"] else "-"
        status = row["status"] + (f": {row['reason']}" if row["reason"] else "")
        lines.append(
            (
                f"{row['system']}:{row['variant']}",
                row["loss"],
                str(row["world_size"]),
                row["state"],
                size(row["limit_bytes"]),
                str(row["predicted_rows"] or "-"),
                str(row["largest_rows"] or "-"),
                size(max(used)) if used else "-",
                size(row["predicted_bytes"]) if row["predicted_bytes"] is not None else "-",
                failing,
                str(row["launches"]),
                status,
            )
        )
    if predicted_only:
        notes = [row["reason"] if row["status"] == "unsupported" else "" for row in rows]
        lines = [(*line[:6], note) for line, note in zip(lines, ["note", *notes], strict=True)]
    return progress.align(lines, numeric={2, 4, 5, 6, 7, 8, 10})


@contextlib.contextmanager
def _writing(parent: Path) -> Iterator[None]:
    """Turn a folder that cannot be written, or a full disk, into one line."""
    try:
        yield
    except OSError as problem:
        raise ConfigurationError(
            f"cannot write {problem.filename or parent}: {problem.strerror}; what was found before is kept "
            "(results=<folder> writes elsewhere)"
        ) from None
