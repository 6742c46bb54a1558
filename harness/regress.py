"""`python -m harness regress base=<csv|folder> [new=<csv|folder>]`: two runs compared, by verdicts that mind noise.

Exit status: 0 nothing got worse (same, faster, ambiguous), 1 something did (slower, memory grew, status worse), 2 the
two cannot be compared. How it decides is in docs/metrics.md; every threshold is in configs/regress/.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import regress_conditions as conditions
from harness import regress_verdicts as verdicts
from harness.cases import ConfigurationError
from harness.records import RecordError, read_rows, write_atomically
from harness.regress_conditions import Row
from harness.regress_options import parse, usage
from harness.regress_output import Comparison, junit, refusal, render
from harness.regress_verdicts import Finding, Range, Settings

OK, WORSE, CANNOT_COMPARE = 0, 1, 2
CHANGES = (verdicts.SLOWER, verdicts.FASTER)


@dataclass(frozen=True)
class Side:
    """One result file: its rows, and the environment recorded beside it."""

    path: Path
    rows: Sequence[Row]
    environment: Mapping[str, Any]


def main(argv: Sequence[str]) -> int:
    """Compare and print. Bad input and refusals are exit status 2."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(usage())
        return OK
    try:
        if "--selftest" in argv:
            from harness import regress_selftest

            return regress_selftest.main([argument for argument in argv if argument != "--selftest"])
        options = parse(argv)
        base = load(options["base"], "base")
        if options["new"]:
            comparison = compare(base, load(options["new"], "new"), options)
        else:
            comparison = compare_afresh(base, options)
    except Refused as refused:
        print(refusal(refused.differences, refused.style))
        return CANNOT_COMPARE
    except (ConfigurationError, RecordError) as problem:
        print(f"regress: {problem}", file=sys.stderr)
        return CANNOT_COMPARE
    except OSError as problem:
        return _not_written(problem)
    print(render(comparison, options["format"]))
    try:
        if options["junit"]:
            write_atomically(options["junit"], junit(comparison))
    except OSError as problem:
        return _not_written(problem)
    return comparison.exit_code


def _not_written(problem: OSError) -> int:
    print(f"regress: cannot write {problem.filename}: {problem.strerror}", file=sys.stderr)
    return CANNOT_COMPARE


class Refused(Exception):
    """The conditions differ; carries the list."""

    def __init__(self, differences: Sequence[tuple[str, str, str]], style: str) -> None:
        super().__init__("the conditions differ")
        self.differences = list(dict.fromkeys(differences))
        self.style = style


# Input


def load(place: str | Path, name: str) -> Side:
    """Read a CSV, a run folder, or the newest run folder inside a folder. Raises RecordError or ConfigurationError."""
    path = Path(place)
    if path.is_dir():
        found = [path / "rows.csv"] if (path / "rows.csv").is_file() else sorted(path.rglob("rows.csv"), key=_run_order)
        if not found:
            raise ConfigurationError(f"{name}={path} holds no rows.csv; give a result CSV or a run folder")
        path = found[-1]
    elif not path.is_file():
        raise ConfigurationError(f"{name}={path} does not exist; give a result CSV or a run folder")
    rows = read_rows(path)
    if not rows:
        raise RecordError(f"{path}: a header and no rows; nothing to compare")
    conditions.check_numbers(path, rows)
    return Side(path, rows, _environment(path, rows))


def _run_order(path: Path) -> tuple[str, str]:
    return path.parent.name, str(path)


def _environment(path: Path, rows: Sequence[Row]) -> Mapping[str, Any]:
    """The environment file that the rows name; a CSV that was copied away from it has none."""
    place = path.parent / (rows[0]["environment_file"] or "environment.json")
    if not place.is_file():
        return {}
    try:
        data = json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise RecordError(f"{place}: cannot be read as JSON ({problem})") from None
    if not isinstance(data, dict):
        raise RecordError(f"{place}: must hold one JSON object")
    try:
        conditions.run_conditions(data)
        conditions.lengths(data)
    except (AttributeError, KeyError, TypeError, ValueError):
        what = "host, packages, GPUs, variables or protocol"
        raise RecordError(f"{place}: its {what} are not what a run records; it was changed") from None
    return data


# Comparison


def compare(base: Side, new: Side, options: Mapping[str, Any]) -> Comparison:
    """The comparison of two files. Raises Refused when conditions differ, ConfigurationError when no case is common."""
    allow = options["allow"]
    matched, missing, added = conditions.pairs(base.rows, new.rows, allow)
    devices = {row["device"] for row in base.rows}
    differences = list(conditions.run_differences(base.environment, new.environment, allow, devices))
    for one, other in matched:
        differences += conditions.row_differences(one, other, allow)
    protocols = [sorted({row["protocol"] for row in side.rows}) for side in (base, new)]
    if protocols[0] != protocols[1]:
        differences.append(("protocol", *(f"protocol {' '.join(names)}" for names in protocols)))
    else:
        differences += conditions.protocol_differences(base.environment, new.environment, protocols[0])
    if differences:
        raise Refused(differences, options["format"])
    if not matched:
        raise ConfigurationError(f"{base.path} and {new.path} have no case in common")
    settings = Settings(**{name: options[name] for name in Settings.__dataclass_fields__})
    peer = options["peer"] if options["relative"] else None
    other_run = any(True for _ in conditions.run_differences(base.environment, new.environment, (), devices))
    other_vectors = any(True for _ in conditions.vector_differences(base.environment, new.environment))
    findings = [
        verdicts.compare(
            one,
            other,
            settings,
            _ratios(one, other, base, new, peer) if peer else None,
            unlike=other_vectors and one["device"] == "cpu",
            unsteady=other_run or not conditions.agree(one, other),
        )
        for one, other in matched
    ]
    for side in (base, new) if peer else ():
        if not any(verdicts.is_peer(row, peer) for row in side.rows):
            raise ConfigurationError(f"peer={peer} names no row of {side.path}")
    notes = conditions.not_recorded(base.environment, new.environment, devices)
    return Comparison((str(base.path), str(new.path)), findings, missing, added, notes, peer)


def _ratios(one: Row, other: Row, base: Side, new: Side, peer: str) -> tuple[Range | None, Range | None]:
    return tuple(
        verdicts.ratio_range(row, verdicts.peer_of(row, side.rows, peer)) for row, side in ((one, base), (other, new))
    )


def compare_afresh(base: Side, options: Mapping[str, Any]) -> Comparison:
    """Measure BASE's cases now and compare. A change found is measured once more, and stands only if seen twice."""
    least = options["minimum_rounds"]
    if few := sum(0 < int(row["rounds"] or 0) < least for row in base.rows):  # before minutes are spent on them
        print(f"regress: fewer than {least} rounds in {few} rows of BASE: their times are ambiguous", file=sys.stderr)
    first = compare(base, load(measure_again(base, base.rows, options), "new"), options)
    changed = [finding for finding in first.findings if finding.verdict in CHANGES or finding.memory_grew]
    if not options["confirm"] or not changed:
        return first
    again = load(measure_again(base, [finding.base for finding in changed], options), "new")
    second = compare(Side(base.path, [finding.base for finding in changed], base.environment), again, options)
    return replace(first, findings=confirmed(first.findings, second.findings))


def confirmed(first: Sequence[Finding], second: Sequence[Finding]) -> list[Finding]:
    """`first`, with `ambiguous` for every change that the second measurement does not repeat; memory likewise."""
    by_name = {finding.name: finding for finding in second}
    for finding in first:
        other = by_name.get(finding.name)
        if finding.verdict in CHANGES:
            if other is None or other.verdict != finding.verdict:
                seen = "was not measured" if other is None else f"said {other.verdict}"
                finding.remarks.append(f"{finding.verdict} once; a second measurement {seen}")
                finding.verdict = verdicts.AMBIGUOUS
            else:
                finding.remarks.append("seen twice")
        if finding.memory_grew and not (other and other.memory_grew):
            finding.remarks.append("memory grew once; a second measurement did not say so")
            finding.memory_grew = False
    return list(first)


def measure_again(base: Side, rows: Sequence[Row], options: Mapping[str, Any]) -> Path:
    """Measure the cases of these rows of BASE on this machine; returns the run's folder. Its progress goes to stderr.

    Raises Refused, before anything is measured, when this machine and BASE's could not be compared anyway.
    """
    from harness import remeasure

    now, allow = remeasure.here(rows, options["overrides"]), options["allow"]
    differences = list(conditions.run_differences(base.environment, now, allow, {row["device"] for row in rows}))
    for row in rows if "device_name" not in allow else ():
        name = now["host"]["cpu"] if row["device"] == "cpu" else "".join(gpu["name"] for gpu in now["gpus"][:1])
        if row["device_name"] not in ("", name):
            differences.append(("device_name", row["device_name"], name or "none"))
    if differences:
        raise Refused(differences, options["format"])
    overrides = [f"results={Path(options['results']).resolve()}", "resume=false", *options["overrides"]]
    with contextlib.redirect_stdout(sys.stderr):
        return remeasure.measure_rows(rows, options["rounds"], overrides, base.environment.get("protocol"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
