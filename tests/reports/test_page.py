"""The rendered files: complete, self-contained, and the same bytes every time."""

import os
import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from reports import page, readme, store
from reports.__main__ import main
from tests.reports.made_up_results import add_run, row

ROOT = Path(__file__).resolve().parents[2]


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_two_processes_render_the_same_bytes(measured, tmp_path):
    rendered = []
    for number, (seed, locale, folder) in enumerate((("1", "C", "/"), ("2", "de_DE.UTF-8", str(tmp_path)))):
        target = tmp_path / f"out{number}"
        settings = tmp_path / f"settings{number}"
        settings.mkdir()
        (settings / "matplotlibrc").write_text(f"axes.linewidth: {1 + 4 * number}\nfont.size: {8 + 9 * number}\n")
        environment = os.environ | {"PYTHONHASHSEED": seed, "LC_ALL": locale, "PYTHONPATH": str(ROOT)}
        environment |= {"MPLCONFIGDIR": str(settings), "TZ": f"UTC{number}", "SOURCE_DATE_EPOCH": str(number * 10**9)}
        command = [sys.executable, "-m", "reports", "--results", str(measured), "--out", str(target)]
        subprocess.run(command, check=True, cwd=folder, env=environment, capture_output=True)
        rendered.append(contents(target))
    assert rendered[0].keys() == rendered[1].keys()
    for name in rendered[0]:
        assert rendered[0][name] == rendered[1][name], name


def test_everything_asked_for_is_there(out):
    names = set(contents(out))
    assert {"index.html", "tables.md"} <= names
    for table in (
        "published-loss-step-8",
        "published-loss-step-16",
        "published-footprint",
        "published-scale-up-domains",
        "published-rates",
        "published-inf-cl-table-1",
        "published-siglip-kernel-readme",
        "measured-footprint",
        "claims",
        "measured-cpu-test-2c-quick-1-init",
        "three-ways-cpu-test-2c-quick-1-init",
        "timings-cpu-test-2c-quick",
        "statuses-cpu-test-2c-quick",
    ):
        assert f"tables/{table}.csv" in names
    for chart in (
        "published-time",
        "published-memory",
        "published-boxes",
        "published-throughput-8",
        "published-footprint",
        "time-memory-cpu-test-2c-quick-1-init",
        "throughput-cpu-test-2c-quick-1-init",
    ):
        assert f"charts/{chart}.svg" in names


def test_the_page_is_self_contained_and_well_formed(out):
    text = (out / "index.html").read_text(encoding="utf-8")
    assert not re.search(r'<(script|link|img|iframe)\b|@import|url\((?!#)|src="', text)
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    targets = set(re.findall(r'(?:xlink:href|href)="#([^"]+)"', text)) | set(re.findall(r"url\(#([^)]+)\)", text))
    assert targets <= set(ids)
    assert text.count("<svg") == text.count('role="img"') == len(list((out / "charts").glob("*.svg")))
    for section in ("published", "cpu-test-2c-quick", "claims", "footprint", "domains", "literature"):
        assert f'<section id="{section}">' in text and f'href="#{section}"' in text


def test_the_page_says_every_published_cell(out):
    text = (out / "index.html").read_text(encoding="utf-8")
    markdown = (out / "tables.md").read_text(encoding="utf-8")
    for cell in ("1.89 ms · 19 MB", "333 ms · 104 GB", "out of memory", "77.7 ms · 3.02 GB"):
        assert cell in text and cell in markdown


def test_charts_are_svg_with_text_and_no_date(out):
    for path in sorted((out / "charts").glob("*.svg")):
        text = path.read_text(encoding="utf-8")
        root = xml.fromstring(text)
        assert root.get("viewBox") and root.findall(".//{http://www.w3.org/2000/svg}text")
        assert "<metadata" not in text and "dc:date" not in text


def test_a_system_keeps_its_colour_everywhere(out):
    for name in ("published-time", "published-memory", "time-memory-cpu-test-2c-quick-1-init"):
        text = (out / "charts" / f"{name}.svg").read_text(encoding="utf-8")
        assert "#c04a00" in text and "#0067a3" in text  # ours, open_clip


def test_stale_files_of_an_earlier_rendering_go(measured, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "old.csv").write_text("x")
    assert main(["--results", str(measured), "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "tables" / "old.csv").exists()


def test_without_matplotlib_there_are_tables_and_a_remark(measured, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("reports.charts", "reports.plots", "matplotlib.figure"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert main(["--results", str(measured), "--out", str(tmp_path / "out")]) == 0
    assert "charts: matplotlib is not installed" in capsys.readouterr().out
    assert "1.89 ms · 19 MB" in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_one_line(measured, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["--results", str(measured), "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_readme_headline(measured, tmp_path, capsys):
    place = tmp_path / "README.md"
    place.write_text(f"# Title\n\n{readme.BEGIN}\nold\n{readme.END}\n\nRest\n")
    arguments = ["--results", str(measured), "--readme", "--root", str(tmp_path)]
    assert main([*arguments, "--check"]) == 1
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    text = place.read_text(encoding="utf-8")
    assert text.startswith("# Title\n") and text.endswith("\n\nRest\n") and "old" not in text
    article = "one-set sigmoid | 39.0 ms · 2.95 GB | big_vision | two-set sigmoid | 106 ms · 60.8 GB | 2.7x |"
    assert f"| 8x B300 (the article) | 16384 | {article}" in text
    here = "one-set sigmoid | 4.00 ms · 2.0 MB | open_clip bidir | two-set sigmoid | 36.0 ms · 40 MB | 9.0x |"
    assert f"| cpu-test-2c (1 rank on Some CPU) | 512 | {here}" in text
    assert (tmp_path / readme.PICTURE).is_file()
    (tmp_path / readme.PICTURE).write_text("changed")
    capsys.readouterr()
    assert main([*arguments, "--check"]) == 1
    assert "headline.svg is out of date" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["no markers", f"{readme.END}\n{readme.BEGIN}", f"{readme.BEGIN} {readme.BEGIN} {readme.END}"]
)
def test_a_readme_without_its_markers_is_one_line(measured, tmp_path, capsys, text):
    (tmp_path / "README.md").write_text(text)
    assert main(["--results", str(measured), "--readme", "--root", str(tmp_path)]) == 2
    assert readme.BEGIN in capsys.readouterr().err


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="README.md is not written yet")
def test_the_repositorys_readme_is_up_to_date():
    assert main(["--readme", "--check"]) == 0


def test_sections_use_each_table_once(measured):
    found = page.sections(store.load(measured))
    ids = [table.id for section in found for table in (*section.tables, *section.folded)]
    assert len(ids) == len(set(ids))


OURS = ("native", "one_set_sigmoid", "one_set")
FAILED = {"status": "crashed", "reason": "signal 11 | <b>"}


@pytest.mark.parametrize(
    "rows",
    [
        [row(*OURS, 256, status="unsupported", reason="no compiler")],
        [row(*OURS, 256, 1.0, 2)],
        [row(*OURS, 256, 1.0), row(*OURS, 512, 2.0)],  # memory not known
        [row(*OURS, 256, 1.0, 2, world_size=2, live="256 3")],
        [row(*OURS, 256, 1.0), row("someone_new", "a_new_loss", "a|b <i>", 256, **FAILED)],
        [row(*OURS, 2**power, 2**power / 100, 2**power) for power in range(4, 18)],
        [row(f"system_{n:02}", "two_set_sigmoid", "v", 2**p, n + 1.0, 9) for n in range(25) for p in (8, 9)],
    ],
    ids=["nothing ran", "one size", "no memory", "ragged", "unknown names", "many sizes", "many systems"],
)
def test_unusual_runs_render_too(results, tmp_path, rows):
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", rows)
    assert main(["--results", str(results), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "<i>" not in text and "<b>" not in text
    for path in (tmp_path / "out" / "charts").glob("*.svg"):
        xml.parse(path)


def test_names_of_folders_and_cells_are_no_markup(results, tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    rows = [row("native", "one_set_sigmoid", evil, 256, 1.0), row(evil, "info_nce", "b", 256, 2.0) | {"reason": evil}]
    add_run(results, '<b>&"machine', "<i>campaign", "20260101T000000Z-aaaa", rows)
    assert main(["--results", str(results), "--out", str(tmp_path / "page")]) == 0
    text = (tmp_path / "page" / "index.html").read_text()
    assert "&lt;b&gt;" in text and "&lt;script&gt;" in text
    assert not re.search(r"<script>|<b>&|<i>campaign", text)
