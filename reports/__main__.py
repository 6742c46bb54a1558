"""`python -m reports`: results/ in, reports/out/ out. `--readme` refreshes the README's headline table and picture."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from harness.records import write_atomically
from reports import page, readme, store
from reports.facts import facts

ROOT = Path(__file__).resolve().parent.parent


def main(argv: list[str] | None = None) -> int:
    """Exit code: 0 done, 1 the README is out of date (`--check`), 2 bad input, with one line on stderr."""
    parser = argparse.ArgumentParser(prog="python -m reports", description=__doc__)
    parser.add_argument("--results", type=Path, default=ROOT / "results", help="folder to read (default: results)")
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "out", help="folder to write")
    parser.add_argument("--readme", action="store_true", help="refresh README.md and docs/images/headline.svg instead")
    parser.add_argument("--check", action="store_true", help="with --readme: change nothing, exit 1 if out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="with --readme: the repository")
    options = parser.parse_args(argv)
    try:
        results = store.load(options.results)
        if options.readme:
            return readme.refresh(results, options.root, check=options.check)
        return _render(results, options.out)
    except (store.ResultsError, readme.ReadmeError) as problem:
        print(f"reports: {problem}", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"reports: cannot write {problem.filename}: {problem.strerror}", file=sys.stderr)
        return 2


def _render(results: store.Results, out: Path) -> int:
    found = page.sections(results)
    remarks = [f"{line}" for line in results.passed_over]
    charts: dict[str, list] = {}
    try:
        from reports.charts import all_charts

        charts = all_charts(results)
    except ImportError as missing:
        # An air-gapped machine may lack Matplotlib; tables need nothing but Python.
        remarks.append(f"charts: {str(missing.name).partition('.')[0]} is not installed")
    for folder in ("tables", "charts"):
        if (out / folder).is_dir():
            shutil.rmtree(out / folder)  # what is no longer rendered must not stay behind
        (out / folder).mkdir(parents=True)
    for section in found:
        for table in (*section.tables, *section.folded):
            write_atomically(out / "tables" / f"{table.id}.csv", table.csv().encode())
    for chart in (chart for several in charts.values() for chart in several):
        write_atomically(out / "charts" / f"{chart.id}.svg", chart.svg.encode())
    write_atomically(out / "tables.md", page.markdown(found, remarks).encode())
    write_atomically(out / "index.html", page.page(found, charts, facts(results), remarks).encode())
    print(f"wrote {out / 'index.html'}, {out / 'tables.md'}, tables/*.csv and charts/*.svg")
    for line in remarks:
        print(f"not shown: {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
