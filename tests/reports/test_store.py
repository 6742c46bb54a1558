"""What is read, what is shown, and what is refused with one line."""

import pytest

from reports import page, store
from reports.__main__ import main
from tests.reports.made_up_results import add_run, quick_rows, row

CASES = [
    ("article_loss_step.csv", "", "empty file, no header"),
    ("article_loss_step.csv", "schema_version,run_id\n", "column 'system' is missing"),
    ("article_claims.csv", "", "empty file, no header"),
    ("article_claims.csv", "id,claim\n", "column 'value' is missing"),
    ("article_footprint.csv", "component,megabytes,times_the_binary,purpose,source\n", "no rows"),
    (
        "article_footprint.csv",
        "component,megabytes,times_the_binary,purpose,source\na,big,1,x,y\n",
        "column 'megabytes'",
    ),
    ("article_scale_up_domains.csv", "domain\n", "column 'gpus' is missing"),
    ("inf_cl_table_1.csv", "\x00\xff", "cannot be read as a CSV"),
]


@pytest.mark.parametrize(("name", "content", "told"), CASES)
def test_broken_files_give_one_line_and_exit_2(results, tmp_path, capsys, name, content, told):
    (results / "published" / name).write_bytes(content.encode("latin-1"))
    assert main(["--results", str(results), "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert name in said and told in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("best_seconds", "fast"),
        ("best_seconds", "-1"),
        ("rows", "1.5"),
        ("rows", "0"),
        ("allocated_peak_bytes", "1e6"),
        ("status", "fine"),
        ("loss_error", "small"),
        ("system", ""),
        ("nodes", ""),
        ("prefixes", "64 wide"),
        ("prefixes", " "),
        ("live", "8 -8"),
        ("live", "0 0"),
    ],
)
def test_broken_cells_name_line_and_column(results, column, value):
    broken = row("native", "one_set_sigmoid", "one_set", 256, 1.0) | {column: value}
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", [row("a", "info_nce", "b", 256, 1.0), broken])
    with pytest.raises(store.ResultsError, match=f"rows.csv: line 3, column '{column}'"):
        store.load(results)


def test_a_results_folder_of_measurements_alone_takes_the_published_figures_of_this_repository(tmp_path):
    """What `bench results=<folder>` makes."""
    add_run(tmp_path, "m", "quick", "20260101T000000Z-aaaa", [row("a", "info_nce", "b", 256, 1.0)])
    loaded = store.load(tmp_path)
    assert loaded.loss_step and loaded.declarations and [run.machine for run in loaded.runs] == ["m"]
    with pytest.raises(store.ResultsError, match="published"):
        store.load(tmp_path / "absent")


def test_a_long_reason_is_read(results):
    rows = [row("a", "info_nce", "b", 256, 1.0), row("a", "info_nce", "c", 256, None) | {"reason": "x" * 200_000}]
    rows[1] |= {"status": "crashed"}
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", rows)
    assert len(store.load(results).runs[0].rows[1]["reason"]) == 200_000


def test_protocols_may_not_mix_in_a_run(results):
    rows = [row("a", "info_nce", "b", 256, 1.0), row("a", "info_nce", "b", 512, 1.0, protocol="standard")]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", rows)
    with pytest.raises(store.ResultsError, match="column 'protocol' mixes quick and standard"):
        store.load(results)


def test_a_missing_folder_is_one_line(tmp_path, capsys):
    assert main(["--results", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_newest_finished_run_of_each_protocol_is_shown(results):
    standard = [each | {"protocol": "standard"} for each in quick_rows()]
    stopped = [*quick_rows(), row("native", "info_nce", "info_nce", 256, status="interrupted", reason="Ctrl-C")]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", quick_rows())
    add_run(results, "m", "quick", "20260102T000000Z-bbbb", quick_rows())
    add_run(results, "m", "quick", "20260103T000000Z-cccc", standard)
    add_run(results, "m", "quick", "20260104T000000Z-dddd", stopped)
    add_run(results, "m", "quick", "20260105T000000Z-eeee", quick_rows(), {"finished": False})
    add_run(results, "m", "quick", "20260106T000000Z-ffff", [])
    loaded = store.load(results)
    assert [(run.protocol, run.run_id[:8]) for run in loaded.runs] == [("quick", "20260102"), ("standard", "20260103")]
    assert loaded.passed_over == (
        "m/quick/20260101T000000Z-aaaa: a newer run is shown",
        "m/quick/20260104T000000Z-dddd: its time budget left cases out, and what it timed other runs have",
        "m/quick/20260105T000000Z-eeee: not finished, and what it timed other runs have",
        "m/quick/20260106T000000Z-ffff: no rows yet",
    )


def test_an_older_run_with_cases_of_its_own_is_shown_beside_the_newer_one(results):
    first, second, third = (row("native", "info_nce", "info_nce", 256, 1.0, case_id=name) for name in "abc")
    add_run(results, "m", "quick", "20260101T000000Z-AAAA", [first, second])
    add_run(results, "m", "quick", "20260102T000000Z-bbbb", [second])
    add_run(results, "m", "quick", "20260103T000000Z-cccc", [second, third])
    loaded = store.load(results)
    assert [run.slug for run in loaded.runs] == ["m-quick", "m-quick-20260101t000000z-aaaa"]
    assert loaded.passed_over == ("m/quick/20260102T000000Z-bbbb: a newer run is shown",)
    crashed = first | {"best_seconds": None, "status": "crashed", "reason": "x"}
    add_run(results, "n", "quick", "20260101T000000Z-aaaa", [crashed, second])
    add_run(results, "n", "quick", "20260102T000000Z-bbbb", [second])
    assert [run.run_id[-4:] for run in store.load(results).runs if run.machine == "n"] == ["bbbb"], "no time, no reason"


def test_a_run_that_was_stopped_is_shown_where_there_is_no_better_one(results):
    stopped = [*quick_rows(), row("native", "info_nce", "info_nce", 256, status="interrupted", reason="Ctrl-C")]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", stopped, {"finished": False})
    assert [run.run_id[-4:] for run in store.load(results).runs] == ["aaaa"]
    add_run(results, "m", "quick", "20260102T000000Z-bbbb", quick_rows())
    assert [run.run_id[-4:] for run in store.load(results).runs] == ["bbbb"]


def test_runs_that_were_stopped_stand_beside_each_other_where_each_has_cases_of_its_own(results):
    first, second = (row("native", "info_nce", "info_nce", 256, 1.0, case_id=name) for name in "ab")
    missed = [each | {"best_seconds": None, "status": "interrupted", "reason": "Ctrl-C"} for each in (first, second)]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", [first, missed[1]], {"finished": False})
    add_run(results, "m", "quick", "20260102T000000Z-bbbb", [first, missed[1]], {"finished": False})
    add_run(results, "m", "quick", "20260103T000000Z-cccc", [missed[0], second], {"finished": False})
    assert [(run.run_id[-4:], run.beside) for run in store.load(results).runs] == [("cccc", False), ("bbbb", True)]
    add_run(results, "m", "quick", "20260104T000000Z-dddd", [first, second])
    assert [run.run_id[-4:] for run in store.load(results).runs] == ["dddd"]


def test_a_run_that_was_stopped_stands_beside_whole_ones_for_the_cases_that_it_alone_has(results):
    first, second, third = (row("native", "info_nce", "info_nce", 256, 1.0, case_id=name) for name in "abc")
    missed = third | {"best_seconds": None, "status": "interrupted", "reason": "Ctrl-C"}
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", [first, second, missed], {"finished": False})
    add_run(results, "m", "quick", "20260102T000000Z-bbbb", [second, missed], {"finished": False})
    add_run(results, "m", "quick", "20260103T000000Z-cccc", [third])
    add_run(results, "m", "quick", "20260104T000000Z-dddd", [third, missed], {"finished": False})
    loaded = store.load(results)
    assert [(run.run_id[-4:], run.beside) for run in loaded.runs] == [("cccc", False), ("bbbb", True), ("aaaa", True)]
    assert loaded.passed_over == ("m/quick/20260104T000000Z-dddd: not finished, and what it timed other runs have",)
    add_run(results, "m", "quick", "20260105T000000Z-eeee", [first, second], {"finished": False})
    runs = [(run.run_id[-4:], run.beside) for run in store.load(results).runs]
    assert runs == [("cccc", False), ("eeee", True)], "newer ones before older ones"


def test_a_run_whose_budget_left_cases_out_is_shown_where_there_is_no_better_one(results):
    left_out = row("native", "info_nce", "info_nce", 256, status="interrupted", reason="time budget ended")
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", [*quick_rows(), left_out])
    add_run(results, "m", "quick", "20260102T000000Z-bbbb", [*quick_rows(), left_out])
    # A CSV whose environment does not say that the run came to its end
    add_run(results, "n", "quick", "20260101T000000Z-cccc", [*quick_rows(), left_out], {"finished": None})
    loaded = store.load(results)
    assert [run.run_id[-4:] for run in loaded.runs] == ["bbbb"]
    assert loaded.passed_over == (
        "m/quick/20260101T000000Z-aaaa: a newer run is shown",
        "n/quick/20260101T000000Z-cccc: interrupted before its end",
    )
    add_run(results, "m", "quick", "20260103T000000Z-dddd", quick_rows())
    assert [run.run_id[-4:] for run in store.load(results).runs] == ["dddd"]


def test_machines_with_gpus_come_before_those_without(results):
    on_gpu = [each | {"device": "cuda"} for each in quick_rows()]
    add_run(results, "a", "quick", "20260101T000000Z-aaaa", quick_rows())
    add_run(results, "b", "quick", "20260101T000000Z-bbbb", on_gpu)
    add_run(results, "c", "quick", "20260101T000000Z-cccc", on_gpu)
    assert [run.machine for run in store.load(results).runs] == ["b", "c", "a"]


def test_cold_and_warm_runs_are_shown_side_by_side(results):
    cold = [each | {"cache_state": "cold"} for each in quick_rows()]
    add_run(results, "m", "quick", "20260101T000000Z-aaaa", quick_rows())
    add_run(results, "m", "quick", "20260102T000000Z-bbbb", cold)
    loaded = store.load(results)
    assert sorted(run.slug for run in loaded.runs) == ["m-quick", "m-quick-cold"]
    assert "cold caches" in next(run.title for run in loaded.runs if run.cache == "cold")
    names = {section.id: (section.title, section.short) for section in page.sections(loaded)}
    assert names["m-quick"] == ("Measured on m: quick, protocol quick", "m quick")
    assert names["m-quick-cold"] == ("Measured on m: quick, protocol quick, cold caches", "m quick cold")


def test_checks_beside_the_campaigns_are_no_runs(measured):
    folder = measured / "measured" / "cpu-test-2c" / "checks"
    folder.mkdir()
    (folder / "20260101T000000Z-aaaa.jsonl").write_text("{}\n")
    assert len(store.load(measured).runs) == 1


def test_a_broken_environment_is_named(results):
    folder = add_run(results, "m", "quick", "20260101T000000Z-aaaa", quick_rows())
    (folder / "environment.json").write_text("{")
    with pytest.raises(store.ResultsError, match=r"environment.json: cannot be read as JSON"):
        store.load(results)
