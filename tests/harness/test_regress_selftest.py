"""The check's own rates: noise read from sample files, planted slowdowns, and promises that can be broken."""

import random
import statistics

import pytest

from harness import records, regress, regress_selftest, samples
from harness.regress_selftest import Noise, Normal, kept, measured_noise, scenario
from tests.harness.regress_rows import steady


def stored(folder, *cases):
    """A sample file: of each case (R = 8, 9, ...) rounds of blocks of seconds per step, two ranks, one 10% faster."""
    table = []
    for size, rounds in enumerate(cases, start=8):
        for number, blocks in enumerate(rounds):
            for block, seconds in enumerate(blocks):
                for rank, factor in ((0, 1.0), (1, 0.9)):
                    who = (f"id{size}", "native", "one_set", size, number, rank, block, 10, 10 * seconds * factor)
                    table.append((*who, None, None, None, [], None, None))
    samples.write(folder, table)


def test_noise_is_the_deviations_of_processes_and_blocks_widened_by_their_number(tmp_path):
    stored(tmp_path, [[1.0, 1.2], [1.1, 1.1], [1.3, 0.9]])  # process means 1.1, 1.1, 1.1
    (noise,) = measured_noise(tmp_path)
    assert (noise.case, noise.rounds) == ("native:one_set R=8", 3)
    assert noise.processes == pytest.approx([0, 0, 0], abs=1e-12)
    widen = (2 / 1) ** 0.5
    assert noise.blocks == pytest.approx(
        [v * widen for v in (1.0 / 1.1 - 1, 1.2 / 1.1 - 1, 0, 0, 1.3 / 1.1 - 1, 0.9 / 1.1 - 1)]
    )
    stored(tmp_path, [[1.0], [1.1], [1.2]])
    (noise,) = measured_noise(tmp_path)
    assert noise.processes == pytest.approx([v * (3 / 2) ** 0.5 for v in (1 / 1.1 - 1, 0, 1.2 / 1.1 - 1)])
    assert noise.blocks == [0.0]


def test_each_case_has_its_own_noise_and_its_whole_name(tmp_path):
    stored(tmp_path, [[1.0], [1.0], [1.0]], [[2.0], [4.0], [6.0]], [[1.0], [1.0]])
    quiet, wild = measured_noise(tmp_path)  # two rounds of the third case say nothing
    assert (quiet.processes, quiet.case) == ([0.0, 0.0, 0.0], "native:one_set R=8")
    assert wild.processes == pytest.approx([-0.5 * 1.5**0.5, 0, 0.5 * 1.5**0.5])
    rows = [steady(1.0, case_id="id8", rows=8), steady(1.0, case_id="id9", rows=9, state="trained")]
    records.write_rows(tmp_path / "rows.csv", rows)
    assert [noise.case for noise in measured_noise(tmp_path)] == [
        "native:one_set one_set_sigmoid R=8 init 1x cuda",
        "native:one_set one_set_sigmoid R=9 trained 1x cuda",
    ]


def test_two_rounds_say_nothing_of_noise(tmp_path):
    stored(tmp_path, [[1.0, 1.0], [1.1, 1.1]])
    assert measured_noise(tmp_path) == []


def test_a_made_up_row_has_the_spread_of_its_noise_and_the_slowest_rank_counts():
    generator = random.Random(3)
    rows = [regress_selftest.made_up(Normal(0.01), generator, [1.0]) for _ in range(2000)]
    # five processes of deviation s and three blocks of s/3 each: the mean's deviation is s sqrt((1 + 1/27) / 5)
    want = 0.01 * ((1 + 1 / 27) / 5) ** 0.5
    assert statistics.stdev(row.mean for row in rows) == pytest.approx(want, rel=0.1)
    quiet = Noise("run", "quiet", 5, [0.0], [0.0])
    assert regress_selftest.made_up(quiet, generator, [1.0, 1.0, 1.3]).mean == pytest.approx(1.3)


def test_the_promises_are_kept_under_normal_noise():
    for slowdown, one_rank in ((0.0, False), (0.1, False), (0.1, True), (0.3, True)):
        row = scenario(Normal(0.006), slowdown, one_rank, pairs=300)
        assert kept(row), row
        assert row["calm"] > 0.9


def test_a_check_that_cries_wolf_or_sleeps_is_noticed(monkeypatch):
    monkeypatch.setattr(regress_selftest.verdicts, "judge", lambda *_: ("slower", ""))
    assert not kept(scenario(Normal(0.004), 0.0, False, pairs=200))
    monkeypatch.setattr(regress_selftest.verdicts, "judge", lambda *_: ("same", ""))
    assert not kept(scenario(Normal(0.004), 0.1, False, pairs=200))
    assert kept(scenario(Normal(0.5), 0.1, False, pairs=200)), "no calm pair: nothing was promised"


def test_the_command_prints_a_table_writes_it_and_counts(tmp_path, capsys):
    quiet, wild = [[1.0, 1.001], [1.002, 1.0], [0.999, 1.0]], [[1.0], [1.5], [2.0]]
    stored(tmp_path, quiet, wild)
    table = tmp_path / "table.csv"
    assert regress.main(["--selftest", str(tmp_path), f"csv={table}", "pairs=120"]) == 0
    header, calm, noisy, *_, last = capsys.readouterr().out.splitlines()
    run = "/".join(tmp_path.parts[-3:])
    assert calm.split()[:7] == [run, "native:one_set", "R=8", "3", "100.0%", "0.0%", calm.split()[6]]
    assert calm.split()[8:] == ["100.0%"] * 5 + ["kept"], "10% and 30%, on all ranks and on one; 10% twice"
    assert noisy.split()[3:4] == ["3"] and noisy.split()[5:13] == ["-"] * 8
    assert noisy.endswith("too few calm pairs") and header.endswith("promises")
    assert last == (
        "of 2 measured cases 1 keep the promises (false alarms under 1%, 10% caught over 95%), 0 do not, "
        "1 have too few calm pairs: there nearly all is ambiguous"
    )
    assert table.read_text().splitlines()[0] == ",".join(regress_selftest.COLUMNS)
    assert len(table.read_text().splitlines()) == 1 + 7 * 4  # two normal noises more


def test_one_case_that_breaks_a_promise_fails_the_command(tmp_path, monkeypatch, capsys):
    """Its neighbours do not hide it, as a rate over all of them would."""
    stored(tmp_path, *[[[1.0], [1.001], [1.002]]] * 3)
    real, seen = regress_selftest.scenario, []

    def scenario_of(noise, slowdown, *rest):
        seen.append(noise.case)
        row = real(noise, slowdown, *rest)
        return row | {"called slower": 0.03} if noise.case.endswith("R=9") and slowdown == 0 else row

    monkeypatch.setattr(regress_selftest, "scenario", scenario_of)
    assert regress.main(["--selftest", str(tmp_path), "pairs=100"]) == 1
    said = capsys.readouterr().out
    assert [line.split()[2] for line in said.splitlines() if line.endswith("NOT KEPT")] == ["R=9"]
    assert "of 3 measured cases 2 keep the promises" in said and "1 do not, 0 have too few" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["pairs=0"], "pairs is '0'"), (["fast=1"], "unknown 'fast=1'"), (["nowhere"], "nowhere has no sample file")],
)
def test_bad_input_is_one_line(arguments, words, capsys):
    assert regress.main(["--selftest", *arguments]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content"),
    [("samples.parquet", b"PAR1 torn"), ("samples.csv", b"case_id,round\nid,0\n"), ("samples.csv", b"\xff\xfe")],
)
def test_a_broken_sample_file_is_one_line(tmp_path, capsys, name, content):
    (tmp_path / name).write_bytes(content)
    assert regress.main(["--selftest", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert name in said and said.count("\n") == 1
