"""The check's own rates: noise read from sample files, planted slowdowns, and promises that can be broken."""

import random
import statistics

import pytest

from harness import regress, regress_selftest, samples
from harness.regress_selftest import Noise, Normal, kept, measured_noise, scenario


def stored(folder, rounds):
    """A sample file: `rounds` of blocks of seconds per step, two ranks, the second one 10% faster."""
    table = []
    for number, blocks in enumerate(rounds):
        for block, seconds in enumerate(blocks):
            for rank, factor in ((0, 1.0), (1, 0.9)):
                who = ("id", "native", "one_set", 8, number, rank, block, 10, 10 * seconds * factor)
                table.append((*who, None, None, None, [], None, None))
    samples.write(folder, table)


def test_noise_is_the_deviations_of_processes_and_blocks_widened_by_their_number(tmp_path):
    stored(tmp_path, [[1.0, 1.2], [1.1, 1.1], [1.3, 0.9]])  # process means 1.1, 1.1, 1.1
    ((processes, blocks),) = measured_noise(tmp_path).cases
    assert processes == pytest.approx([0, 0, 0], abs=1e-12)
    widen = (2 / 1) ** 0.5
    assert blocks == pytest.approx(
        [v * widen for v in (1.0 / 1.1 - 1, 1.2 / 1.1 - 1, 0, 0, 1.3 / 1.1 - 1, 0.9 / 1.1 - 1)]
    )
    stored(tmp_path, [[1.0], [1.1], [1.2]])
    ((processes, blocks),) = measured_noise(tmp_path).cases
    assert processes == pytest.approx([v * (3 / 2) ** 0.5 for v in (1 / 1.1 - 1, 0, 1.2 / 1.1 - 1)])
    assert blocks == [0.0]


def test_two_rounds_say_nothing_of_noise(tmp_path):
    stored(tmp_path, [[1.0, 1.0], [1.1, 1.1]])
    assert measured_noise(tmp_path) is None


def test_a_made_up_row_has_the_spread_of_its_noise_and_the_slowest_rank_counts():
    generator = random.Random(3)
    rows = [regress_selftest.made_up(Normal(0.01), generator, [1.0]) for _ in range(2000)]
    # five processes of deviation s and three blocks of s/3 each: the mean's deviation is s sqrt((1 + 1/27) / 5)
    want = 0.01 * ((1 + 1 / 27) / 5) ** 0.5
    assert statistics.stdev(row.mean for row in rows) == pytest.approx(want, rel=0.1)
    quiet = Noise("quiet", [([0.0], [0.0])])
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
    stored(tmp_path, [[1.0, 1.001], [1.002, 1.0], [0.999, 1.0]])
    table = tmp_path / "table.csv"
    assert regress.main(["--selftest", str(tmp_path), f"csv={table}", "pairs=120"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "21 of 21 keep the promises: false alarms under 1%, 10% caught over 95%"
    assert table.read_text().splitlines()[0] == ",".join(regress_selftest.COLUMNS)
    assert len(table.read_text().splitlines()) == 22


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
