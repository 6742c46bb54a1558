"""How a comparison is told: plain text, Markdown for a pull request, JSON for programs, JUnit XML for CI."""

from __future__ import annotations

import json
import xml.etree.ElementTree as xml
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.regress_conditions import Row, title
from harness.regress_verdicts import AMBIGUOUS, FASTER, SAME, SLOWER, Finding, Range

COLUMNS = ("case", "BASE", "NEW", "change", "verdict", "memory", "remarks")


@dataclass(frozen=True)
class Comparison:
    """The whole answer. `what` names the two sides, `peer` the peer of ratios (None: seconds)."""

    what: tuple[str, str]
    findings: Sequence[Finding]
    missing: Sequence[Row]
    added: Sequence[Row]
    notes: Sequence[str] = ()
    peer: str | None = None

    @property
    def exit_code(self) -> int:
        """0: same or faster, also ambiguous; 1: slower, memory grew, or a status got worse."""
        return int(any(finding.worse for finding in self.findings))

    @property
    def summary(self) -> str:
        """One line, the verdict first."""
        counts = {name: sum(f.verdict == name for f in self.findings) for name in (SAME, FASTER, SLOWER, AMBIGUOUS)}
        grew, fell = (sum(test(f) for f in self.findings) for test in (lambda f: f.memory_grew, _only_fell))
        parts = [f"{count} {name}" for name, count in counts.items() if count]
        parts += [f"memory grew in {grew}"] if grew else []
        parts += [f"memory fell in {fell}"] if fell else []
        worse = sum(f.status_worse for f in self.findings)
        parts += [f"status worse in {worse}"] if worse else []
        parts += [f"{len(rows)} {word}" for rows, word in ((self.missing, "missing"), (self.added, "new")) if rows]
        verdict = "WORSE" if self.exit_code else "no regression found"
        return f"{verdict}: {len(self.findings)} cases compared; {', '.join(parts)}"


def _only_fell(finding: Finding) -> bool:
    return bool(finding.memory) and not finding.memory_grew


def render(comparison: Comparison, style: str) -> str:
    """The comparison as `text`, `markdown` or `json`."""
    return {"text": _text, "markdown": _markdown, "json": _json}[style](comparison)


def refusal(differences: Sequence[tuple[str, str, str]], style: str) -> str:
    """Why the two sides cannot be compared: every difference that was not allowed, each once."""
    if style == "json":
        listed = [{"condition": name, "base": base, "new": new} for name, base, new in differences]
        return json.dumps({"verdict": "cannot compare", "exit_code": 2, "differences": listed}, indent=2)
    lines = ["cannot compare: the conditions differ, or are not known"]
    lines += [f"{'- ' if style == 'markdown' else '  '}{name}: {base} -> {new}" for name, base, new in differences]
    names = sorted({name for name, _, _ in differences} - {"protocol"})
    if names:
        lines.append(f"what may differ must be said: allow=[{','.join(names)}]")
    if any(name == "protocol" for name, _, _ in differences):
        lines.append("protocols are never compared with one another; measure again with BASE's")
    return "\n".join(lines)


def _figure(value: Range | None, peer: str | None) -> str:
    if value is None:
        return ""
    if peer:
        return f"{value.mean:.3f}x [{value.low:.3f}, {value.high:.3f}]"
    return f"{value.mean * 1e3:.4g} ms [{value.low * 1e3:.4g}, {value.high * 1e3:.4g}]"


def _cells(finding: Finding, peer: str | None) -> tuple[str, ...]:
    if finding.status_worse:
        verdict = "status worse"
    elif finding.base["status"] == finding.new["status"] == "ok":
        verdict = finding.verdict
    else:
        verdict = AMBIGUOUS if finding.verdict == AMBIGUOUS else "-"
    memory = "; ".join(finding.memory) + (" GREW" if finding.memory_grew else "")
    return (
        finding.name,
        _figure(finding.base_range, peer),
        _figure(finding.new_range, peer),
        "" if finding.change is None else f"{finding.change:+.1%}",
        verdict.upper() if finding.worse and verdict in (SLOWER, "status worse") else verdict,
        memory,
        "; ".join(finding.remarks),
    )


def _facts(comparison: Comparison) -> list[str]:
    lines = [f"BASE {comparison.what[0]}", f"NEW  {comparison.what[1]}"]
    if comparison.peer:
        lines.append(f"times are ratios to {comparison.peer} of the same run")
    return lines


def _listed(comparison: Comparison) -> list[str]:
    lines = [f"missing in NEW: {title(row)}" for row in comparison.missing]
    lines += [f"new: {title(row)}" for row in comparison.added]
    return [*lines, *(f"note: {note}" for note in comparison.notes)]


def _text(comparison: Comparison) -> str:
    rows = [COLUMNS, *(_cells(finding, comparison.peer) for finding in comparison.findings)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(COLUMNS))]
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*_facts(comparison), "", *table, "", *_listed(comparison), comparison.summary])


def _markdown(comparison: Comparison) -> str:
    mark = {SLOWER.upper(): f"**{SLOWER}**", "STATUS WORSE": "**status worse**"}
    lines = [f"**{comparison.summary}**", "", "| " + " | ".join(COLUMNS) + " |"]
    lines.append("| :--- | ---: | ---: | ---: | :--- | :--- | :--- |")
    for finding in comparison.findings:
        cells = [mark.get(cell, cell).replace("|", "\\|") for cell in _cells(finding, comparison.peer)]
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", *(f"- {line}" for line in (*_facts(comparison), *_listed(comparison)))]
    return "\n".join(lines)


def _json(comparison: Comparison) -> str:
    return json.dumps(
        {
            "verdict": "worse" if comparison.exit_code else "no regression found",
            "exit_code": comparison.exit_code,
            "summary": comparison.summary,
            "base": comparison.what[0],
            "new": comparison.what[1],
            "peer": comparison.peer,
            "cases": [_case(finding) for finding in comparison.findings],
            "missing": [title(row) for row in comparison.missing],
            "added": [title(row) for row in comparison.added],
            "notes": list(comparison.notes),
        },
        indent=2,
    )


def _case(finding: Finding) -> dict[str, Any]:
    return {
        "case": finding.name,
        "base_status": finding.base["status"],
        "new_status": finding.new["status"],
        "verdict": finding.verdict,
        "change": finding.change,
        "base": vars(finding.base_range) if finding.base_range else None,
        "new": vars(finding.new_range) if finding.new_range else None,
        "memory": finding.memory,
        "memory_grew": finding.memory_grew,
        "status_worse": finding.status_worse,
        "remarks": finding.remarks,
    }


def junit(comparison: Comparison) -> bytes:
    """JUnit XML: a failure for each worse case, skipped for ambiguous and missing ones."""
    failures = sum(finding.worse for finding in comparison.findings)
    skipped = sum(f.verdict == AMBIGUOUS and not f.worse for f in comparison.findings) + len(comparison.missing)
    total = len(comparison.findings) + len(comparison.missing)
    counts = {"tests": str(total), "failures": str(failures), "errors": "0", "skipped": str(skipped)}
    suite = xml.Element("testsuite", name="regress", **counts)
    for finding in comparison.findings:
        case = xml.SubElement(suite, "testcase", classname="regress", name=finding.name)
        message = " | ".join(cell for cell in _cells(finding, comparison.peer)[1:] if cell)
        if finding.worse:
            xml.SubElement(case, "failure", message=message)
        elif finding.verdict == AMBIGUOUS:
            xml.SubElement(case, "skipped", message=message)
    for row in comparison.missing:
        case = xml.SubElement(suite, "testcase", classname="regress", name=title(row))
        xml.SubElement(case, "skipped", message="missing in NEW")
    xml.indent(suite)
    return xml.tostring(suite, encoding="utf-8", xml_declaration=True) + b"\n"
