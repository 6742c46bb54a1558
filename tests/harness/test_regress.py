"""The regression check end to end: synthetic pairs of result files, exit codes, refusals, output formats."""

import json
import xml.etree.ElementTree as xml

import pytest

from harness import regress
from harness.records import COLUMNS, write_rows
from tests.harness.regress_rows import CASE, ENVIRONMENT, steady, timed


def test_the_same_file_is_the_same(pair, capsys):
    assert pair([steady(10.0)], [steady(10.0)]) == 0
    said = capsys.readouterr().out
    assert "no regression found: 1 cases compared; 1 same" in said
    assert "native:one_set one_set_sigmoid R=1024 init 1x cuda" in said


def store(folder, rows):
    """A run folder: rows, and the environment beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rows.csv", rows)
    (folder / "environment.json").write_text(json.dumps(ENVIRONMENT))


@pytest.mark.parametrize(
    ("milliseconds", "verdict", "code"),
    [
        (10.0, "same", 0),
        (10.2, "same", 0),
        (9.8, "same", 0),
        (11.0, "slower", 1),
        (13.0, "slower", 1),
        (9.0, "faster", 0),
    ],
)
def test_verdicts_of_steady_cases(pair, capsys, milliseconds, verdict, code):
    assert pair([steady(10.0)], [steady(milliseconds)], "format=json") == code
    assert json.loads(capsys.readouterr().out)["cases"][0]["verdict"] == verdict


def test_three_percent_counts_once_the_ranges_are_apart(pair, capsys):
    assert pair([steady(10.0)], [steady(10.31)]) == 1
    assert "+3.1%" in capsys.readouterr().out


def test_overlapping_ranges_are_ambiguous_and_do_not_fail(pair, capsys):
    base = timed([10e-3, 10e-3, 10e-3, 10e-3, 10.29e-3])
    new = timed([10.28e-3, 10.5e-3, 10.5e-3, 10.5e-3, 10.55e-3])
    assert pair([base], [new], "format=json") == 0
    case = json.loads(capsys.readouterr().out)["cases"][0]
    assert (case["verdict"], case["remarks"]) == ("ambiguous", ["ranges overlap"])


def test_wide_ranges_need_twice_their_spread(pair, capsys):
    noisy = [9.5e-3, 9.8e-3, 10e-3, 10.2e-3, 10.5e-3]  # 10% wide: nothing below 20% is believed
    assert pair([timed(noisy)], [timed([1.12 * each for each in noisy])]) == 0
    assert "process means spread 10.0%" in capsys.readouterr().out
    assert pair([timed(noisy)], [timed([1.3 * each for each in noisy])]) == 1
    assert pair([timed(noisy)], [timed(noisy)], "format=json") == 0
    capsys.readouterr()


@pytest.mark.parametrize("rounds", [(1, 1), (3, 5), (5, 4), (5, 5)])
def test_verdicts_are_of_five_rounds_on_both_sides(pair, capsys, rounds):
    """Twice as slow, far beyond any range; with fewer rounds memory is judged all the same."""
    enough = rounds == (5, 5)
    base, new = timed([10e-3] * rounds[0]), timed([20e-3] * rounds[1])
    assert pair([base], [new]) == int(enough)
    said = capsys.readouterr().out
    assert ("fewer than 5 rounds" in said, "1 ambiguous" in said, "1 slower" in said) == (
        not enough,
        not enough,
        enough,
    )
    assert pair([base], [new | {"allocated_peak_bytes": 8_000_001}]) == 1


def test_allocator_memory_is_compared_exactly(pair, capsys):
    assert pair([steady(10)], [steady(10, allocated_peak_bytes=8_000_001)]) == 1
    assert "allocated_peak_bytes +1 GREW" in capsys.readouterr().out
    assert pair([steady(10)], [steady(10, step_peak_bytes=3_999_999)]) == 0
    assert "memory fell in 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (500_000_000, 505_000_000, 0),  # 1%
        (500_000_000, 505_000_001, 1),
        (10_000_000, 12_097_152, 0),  # 2 MiB
        (10_000_000, 12_097_153, 1),
    ],
)
def test_driver_memory_has_one_percent_or_two_mebibytes(pair, before, after, code):
    assert pair([steady(10, device_used_bytes=before)], [steady(10, device_used_bytes=after)]) == code


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("ok", "crashed", 1),
        ("ok", "out_of_memory", 1),
        ("ok", "unsupported", 1),
        ("ok", "wrong", 1),
        ("out_of_memory", "wrong", 1),
        ("wrong", "wrong", 0),
        ("out_of_memory", "ok", 0),
        ("ok", "too_noisy", 0),
        ("ok", "interrupted", 0),
    ],
)
def test_statuses(pair, before, after, code):
    rows = [steady(10) if status == "ok" else CASE | {"status": status, "reason": "x"} for status in (before, after)]
    assert pair([rows[0]], [rows[1]]) == code


def test_missing_and_new_cases_are_listed(pair, capsys):
    base = [steady(10), steady(20, rows=2048)]
    new = [steady(10), steady(30, rows=4096)]
    assert pair(base, new) == 0
    said = capsys.readouterr().out
    assert "missing in NEW: native:one_set one_set_sigmoid R=2048 init 1x cuda" in said
    assert "new: native:one_set one_set_sigmoid R=4096 init 1x cuda" in said
    assert "1 missing, 1 new" in said


def test_rows_of_two_dtypes_in_one_file_find_their_own(pair, capsys):
    rows = [steady(10), steady(30, dtype="float32")]
    assert pair(rows, rows[::-1]) == 0
    assert "2 same" in capsys.readouterr().out


def test_a_slow_machine_is_no_regression_against_a_peer(pair, capsys):
    base = [steady(10), steady(40, system="open_clip", variant="gather", loss="two_set_sigmoid")]
    slow = [steady(15), steady(60, system="open_clip", variant="gather", loss="two_set_sigmoid")]
    assert pair(base, slow) == 1
    assert pair(base, slow, "relative=true", "peer=open_clip:gather") == 0
    assert pair(base, slow, "--relative", "--peer=open_clip:gather") == 0
    worse = [steady(15), steady(40, system="open_clip", variant="gather", loss="two_set_sigmoid")]
    capsys.readouterr()
    assert pair(base, worse, "relative=true", "peer=open_clip:gather") == 1
    assert "0.250x" in capsys.readouterr().out
    assert pair(base, slow, "relative=true") == 2
    assert pair(base, slow, "relative=true", "peer=nobody") == 2
    assert "peer=nobody names no row of" in capsys.readouterr().err


def test_a_peer_that_was_too_noisy_leaves_memory_and_statuses_to_be_judged(pair, capsys):
    peer = {"system": "open_clip", "variant": "gather", "loss": "two_set_sigmoid"}
    base, noisy = [steady(10), steady(40, **peer)], steady(40, **peer, status="too_noisy")
    assert pair(base, [steady(10), noisy], "relative=true", "peer=open_clip:gather") == 0
    assert "2 ambiguous" in capsys.readouterr().out
    assert pair(base, [steady(10, step_peak_bytes=4_000_001), noisy], "relative=true", "peer=open_clip:gather") == 1


def test_profile_for_shared_machines_compares_ratios_over_hardware(pair):
    other = {"device_name": "some cloud CPU", "threads": 4}
    base = [steady(10), steady(40, system="open_clip", variant="gather", loss="two_set_sigmoid")]
    new = [steady(20, **other), steady(80, system="open_clip", variant="gather", loss="two_set_sigmoid", **other)]
    assert pair(base, new, "profile=shared_machine", "peer=open_clip:gather") == 0
    new[0] = steady(30, **other)
    assert pair(base, new, "profile=shared_machine", "peer=open_clip:gather") == 1


OTHER_PYTHON = ENVIRONMENT | {"python": "3.12.1"}
COMPILED = {"schema_version": 2, "cache_state": "warm", "compile_seconds": 0.5}


@pytest.mark.parametrize(
    ("changes", "environment", "steady_memory"),
    [
        ({}, ENVIRONMENT, True),
        ({"device_name": "some cloud CPU"}, ENVIRONMENT, False),
        ({"threads": 4}, ENVIRONMENT, False),
        ({}, OTHER_PYTHON, False),
        (COMPILED, ENVIRONMENT, False),
        (COMPILED | {"device": "cuda"}, ENVIRONMENT, True),
    ],
)
def test_shared_machines_hold_memory_to_one_percent_unless_something_moves_it(
    pair, changes, environment, steady_memory
):
    """15% are allowed across machines and versions, and where a compiler ran on the CPU; 15% of 200 MB are 30 MB."""
    here = {"device": "cpu", "device_used_bytes": 200_000_000}
    base = here | {name: changes[name] for name in changes if name not in ("device_name", "threads")}
    words = ["profile=shared_machine", "peer=native", "allow=[device_name,threads,driver,power_limit,versions]"]
    for grown, code in ((2_097_152, 0), (2_097_153, int(steady_memory)), (30_000_001, 1)):
        new = steady(10, **here | changes | {"device_used_bytes": 200_000_000 + grown})
        assert pair([steady(10, **base)], [new], *words, environments=(ENVIRONMENT, environment)) == code


ZEN4 = ENVIRONMENT | {"host": {"vector_flags": ["avx2", "avx512f", "avx512_bf16"]}}
ZEN3 = ENVIRONMENT | {"host": {"vector_flags": ["avx2"]}}


def test_ratios_of_other_vector_extensions_are_no_verdict_but_allocators_and_statuses_are(pair, capsys):
    """A ratio of 0.25 against 1.0: one of the two systems has code for the other processor's extensions."""
    here = {"device": "cpu"}
    peer = {"system": "open_clip", "variant": "gather", "loss": "two_set_sigmoid", **here}
    base, new = [steady(10, **here), steady(40, **peer)], [steady(40, **here), steady(40, **peer)]
    words = ["profile=shared_machine", "peer=open_clip:gather"]
    assert pair(base, new, *words, environments=(ZEN4, ZEN3)) == 2
    assert "vectors: avx2 avx512f avx512_bf16 -> avx2" in capsys.readouterr().out
    words.append("allow=[vectors]")
    assert pair(base, new, *words, environments=(ZEN4, ZEN3)) == 0
    assert "2 ambiguous" in capsys.readouterr().out
    assert pair(base, new, *words, environments=(ZEN4, ZEN4)) == 1
    more = [new[0] | {"device_used_bytes": 900_000_000}, new[1]]
    assert pair(base, more, *words, environments=(ZEN4, ZEN3)) == 0
    more = [new[0] | {"allocated_peak_bytes": 8_000_001}, new[1]]
    assert pair(base, more, *words, environments=(ZEN4, ZEN3)) == 1
    assert pair([steady(10)], [steady(10)], environments=(ZEN4, ZEN3)) == 0, "the processor beside a GPU is no matter"


def test_markdown_and_junit(pair, tmp_path, capsys):
    base = [steady(10), steady(20, rows=2048), steady(30, rows=4096)]
    new = [steady(12), steady(20, rows=2048)]
    assert pair(base, new, "format=markdown", f"junit={tmp_path / 'out.xml'}") == 1
    said = capsys.readouterr().out
    assert said.startswith("**WORSE: 2 cases compared; 1 same, 1 slower, 1 missing**")
    assert "| native:one_set one_set_sigmoid R=1024 init 1x cuda | 10 ms [9.95, 10.05] |" in said
    assert "**slower**" in said
    suite = xml.parse(tmp_path / "out.xml").getroot()
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }
    assert suite[0].find("failure") is not None and suite[2].find("skipped").get("message") == "missing in NEW"


def test_a_folder_means_its_newest_run(tmp_path, capsys):
    for run, milliseconds in (("20260101T000000Z-aaaa", 10), ("20260102T000000Z-bbbb", 20)):
        store(tmp_path / "m" / "quick" / run, [steady(milliseconds)])
    newest = tmp_path / "m" / "quick" / "20260102T000000Z-bbbb" / "rows.csv"
    assert regress.main([f"base={tmp_path}", f"new={newest}"]) == 0
    assert f"BASE {newest}" in capsys.readouterr().out


def test_a_change_must_be_seen_twice():
    def finding(verdict):
        return regress.Finding("case", {}, {}, verdict=verdict)

    kept = regress.confirmed([finding("slower")], [finding("slower")])[0]
    assert (kept.verdict, kept.remarks) == ("slower", ["seen twice"])
    dropped = regress.confirmed([finding("slower")], [finding("same")])[0]
    assert (dropped.verdict, dropped.remarks) == ("ambiguous", ["slower once; a second measurement said same"])
    for again, worse in ((True, True), (False, False)):
        grew, second = finding("same"), finding("same")
        grew.memory_grew, second.memory_grew = True, again
        assert regress.confirmed([grew], [second])[0].worse is worse


def test_ratio_ends_are_the_widest_that_the_two_ranges_allow():
    texts = [{name: str(row.get(name, "")) for name in COLUMNS} for row in (timed([2, 3, 4]), timed([8, 10, 12]))]
    # 3 / 10, from 2 / 12 to 4 / 8
    ratio = regress.verdicts.ratio_range(*texts)
    assert (ratio.mean, ratio.low, ratio.high, ratio.rounds) == (0.3, pytest.approx(1 / 6), 0.5, 3)


def test_without_new_the_cases_are_measured_and_changes_confirmed(tmp_path, monkeypatch, capsys):
    store(tmp_path / "base", [steady(10), steady(10, rows=2048), steady(10, rows=4096)])
    asked, answers = [], [{1024: 12, 2048: 12, 4096: 10}, {1024: 12, 2048: 10}]

    def measure(base, rows, options):
        asked.append(sorted(int(row["rows"]) for row in rows))
        folder = tmp_path / f"run{len(asked)}"
        measured = answers[len(asked) - 1]
        store(folder, [steady(measured[size], rows=size) for size in asked[-1]])
        return folder

    monkeypatch.setattr(regress, "measure_again", measure)
    assert regress.main([f"base={tmp_path / 'base'}", "format=json"]) == 1
    assert asked == [[1024, 2048, 4096], [1024, 2048]]
    cases = {case["case"].split("R=")[1].split()[0]: case for case in json.loads(capsys.readouterr().out)["cases"]}
    assert {size: case["verdict"] for size, case in cases.items()} == {
        "1024": "slower",
        "2048": "ambiguous",
        "4096": "same",
    }
    asked.clear()
    assert regress.main([f"base={tmp_path / 'base'}", "confirm=false"]) == 1
    assert len(asked) == 1
    assert capsys.readouterr().err == ""


def test_a_base_of_too_few_rounds_is_told_before_it_is_measured(tmp_path, monkeypatch, capsys):
    store(tmp_path / "base", [timed([10e-3] * 3), timed([10e-3] * 5, rows=2048)])
    monkeypatch.setattr(regress, "measure_again", lambda base, rows, options: print(len(rows)) or tmp_path / "base")
    assert regress.main([f"base={tmp_path / 'base'}"]) == 0
    said = capsys.readouterr()
    assert said.err == "regress: fewer than 5 rounds in 1 rows of BASE: their times are ambiguous\n"
    assert "1 same, 1 ambiguous" in said.out


def texts(*rows):
    return [{name: str(row.get(name, "")) for name in COLUMNS} for row in rows]


def test_rounds_of_one_run_are_paired():
    """The machine is twice as slow in the second round, for both: the ratio does not see it."""
    mine = timed([2.0, 4.0, 2.0], round_mean_seconds="2.0 4.0 2.0", retries=0)
    peer = timed([1.0, 2.0, 1.1], round_mean_seconds="1.0 2.0 1.1", retries=0)
    ratio = regress.verdicts.ratio_range(*texts(mine, peer))
    assert (ratio.low, ratio.high, ratio.rounds) == (pytest.approx(2 / 1.1), 2.0, 3)
    assert ratio.mean == pytest.approx((2 + 2 + 2 / 1.1) / 3)


@pytest.mark.parametrize("change", [{"retries": 1}, {"round_mean_seconds": "1.0 2.0"}, {"round_mean_seconds": ""}])
def test_rounds_that_cannot_be_paired_give_the_widest_ends(change):
    mine = timed([2.0, 4.0, 2.0], round_mean_seconds="2.0 4.0 2.0", retries=0)
    peer = timed([1.0, 2.0, 1.0], **({"round_mean_seconds": "1.0 2.0 1.0", "retries": 0} | change))
    ratio = regress.verdicts.ratio_range(*texts(mine, peer))
    assert (ratio.low, ratio.high) == (2.0 / 2.0, 4.0 / 1.0)
