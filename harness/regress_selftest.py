"""`python -m harness regress --selftest`: how often the check catches planted slowdowns, and how often it cries wolf.

Pairs of rows are made up under noise that was measured: process and block deviations of one case are drawn, with
replacement, from the sample files of stored runs. A row is made as the standard protocol makes one. The rates of a case
count pairs of which both process ranges are under the maximum range (3%): others are for `ambiguous`.
"""

from __future__ import annotations

import csv
import io
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import records, samples
from harness import regress_verdicts as verdicts
from harness.cases import ConfigurationError
from harness.progress import align
from harness.regress_conditions import title
from harness.regress_verdicts import Range, Settings

ROUNDS, BLOCKS, RANKS = 5, 3, 4  # the standard protocol's, for stored baselines; ranks of a small box
SLOWDOWNS = (0.0, 0.03, 0.10, 0.30)
PAIRS = 1000  # of each scenario
FEWEST_CALM = 100  # pairs, for a rate to say something
FEWEST_ROUNDS = 3  # of a measured case, for its deviations to say something
# What the standard protocol promises for calm cases.
FALSE_ALARMS, CAUGHT_AT, CAUGHT = 0.01, 0.10, 0.95
COLUMNS = (
    *("noise", "case", "rounds", "slowdown", "ranks slowed", "pairs", "calm"),
    *("called slower", "called faster", "confirmed"),
)
_PLANTED = tuple((slowdown, ranks) for slowdown in SLOWDOWNS[1:] for ranks in (RANKS, 1))
USAGE = """usage: python -m harness regress --selftest [csv=<file>] [pairs=1000] [<run folder> ...]

Plants slowdowns in made-up pairs under the noise of stored runs (default: all runs under results/measured).
exit status: 0 the promises are kept, 1 they are not, 2 bad input"""


@dataclass(frozen=True)
class Noise:
    """Relative deviations of a measured case: of its processes from their mean, of its blocks from their process's."""

    name: str  # the run
    case: str
    rounds: int
    processes: Sequence[float]
    blocks: Sequence[float]

    def draw(self, generator: random.Random) -> tuple[Callable[[], float], Callable[[], float]]:
        """Sources of process and block deviations."""
        return lambda: generator.choice(self.processes), lambda: generator.choice(self.blocks)


@dataclass(frozen=True)
class Normal:
    """Normal deviations, for comparison: `share` from process to process, a third of it from block to block."""

    share: float
    name = "no measurement"
    rounds = None

    @property
    def case(self) -> str:
        """As the table says it."""
        return f"normal, {self.share:.1%} between processes"

    def draw(self, generator: random.Random) -> tuple[Callable[[], float], Callable[[], float]]:
        """Sources of process and block deviations."""
        return lambda: generator.gauss(0, self.share), lambda: generator.gauss(0, self.share / 3)


def measured_noise(folder: Path) -> list[Noise]:
    """The deviations of each of a run's timed cases with at least three rounds, in the order of their titles.

    Deviations from a mean of n values are too small by sqrt((n - 1) / n); they are widened by as much. Raises
    ConfigurationError when the folder has no sample file.
    """
    slowest: dict[str, dict[int, dict[int, float]]] = {}
    titles: dict[str, str] = {}
    try:
        for each in samples.read(folder):
            blocks = slowest.setdefault(each["case_id"], {}).setdefault(int(each["round"]), {})
            seconds = float(each["seconds"]) / int(each["steps"])
            blocks[int(each["block"])] = max(seconds, blocks.get(int(each["block"]), 0.0))
            titles[each["case_id"]] = f"{each['system']}:{each['variant']} R={each['rows']}"
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as problem:
        if isinstance(problem, (ConfigurationError, records.RecordError)):
            raise
        raise records.RecordError(f"{samples.path_in(folder)}: holds no samples of blocks ({problem!r})") from None
    if (folder / "rows.csv").is_file():  # the whole name: loss, state, ranks
        titles |= {row["case_id"]: title(row) for row in records.read_rows(folder / "rows.csv")}
    noises = []
    for case_id, rounds in slowest.items():
        if len(rounds) < FEWEST_ROUNDS:
            continue
        values = [list(blocks.values()) for blocks in rounds.values()]
        means = [statistics.fmean(each) for each in values]
        within = [deviation for each in values for deviation in _deviations(each)]
        run = "/".join(folder.parts[-3:])
        noises.append(Noise(run, titles[case_id], len(rounds), _deviations(means), within or [0.0]))
    return sorted(noises, key=lambda noise: noise.case)


def _deviations(values: Sequence[float]) -> list[float]:
    if len(values) < 2:
        return []
    mean, widen = statistics.fmean(values), (len(values) / (len(values) - 1)) ** 0.5
    return [(value / mean - 1) * widen for value in values]


def made_up(noise: Noise | Normal, generator: random.Random, slow_ranks: Sequence[float]) -> Range:
    """One row's range: processes of blocks, each block the slowest rank's. `slow_ranks`: a factor for each rank."""
    process, block = noise.draw(generator)
    means = []
    for _ in range(ROUNDS):
        level = 1 + process()
        means.append(statistics.fmean(max(level * (1 + block()) * slow for slow in slow_ranks) for _ in range(BLOCKS)))
    return Range(statistics.fmean(means), min(means), max(means), ROUNDS)


def scenario(noise: Noise | Normal, slowdown: float, one_rank: bool, pairs: int, seed: int = 7) -> dict[str, object]:
    """Rates over many pairs. `confirmed`: called slower in two independent measurements, as without NEW."""
    generator, settings = random.Random(seed), Settings()
    slow = [1.0] * (RANKS - 1) + [1 + slowdown] if one_rank else [1 + slowdown] * RANKS
    calm = slower = faster = confirmed = 0
    for _ in range(pairs):
        base, new = (made_up(noise, generator, ranks) for ranks in ([1.0] * RANKS, slow))
        if max(base.spread, new.spread) > settings.maximum_range:
            continue
        again = made_up(noise, generator, slow)
        calm += 1
        verdict = verdicts.judge(base, new, settings)[0]
        slower += verdict == verdicts.SLOWER
        faster += verdict == verdicts.FASTER
        confirmed += verdict == verdicts.SLOWER == verdicts.judge(base, again, settings)[0]
    share = {
        name: count / calm if calm >= FEWEST_CALM else None
        for name, count in (("s", slower), ("f", faster), ("c", confirmed))
    }
    return {
        "noise": noise.name,
        "case": noise.case,
        "rounds": noise.rounds,
        "slowdown": slowdown,
        "ranks slowed": (1 if one_rank else RANKS) if slowdown else 0,
        "pairs": pairs,
        "calm": calm / pairs,
        "called slower": share["s"],
        "called faster": share["f"],
        "confirmed": share["c"],
    }


def table(noises: Iterable[Noise | Normal], pairs: int) -> list[dict[str, object]]:
    """All scenarios of all noises: no slowdown, then each on every rank and on one rank only."""
    return [
        scenario(noise, slowdown, one_rank, pairs)
        for noise in noises
        for slowdown in SLOWDOWNS
        for one_rank in ((False, True) if slowdown else (False,))
    ]


def kept(row: Mapping[str, object]) -> bool:
    """Whether a row keeps the promises: false alarms under 1%, a 10% slowdown caught over 95% of the time."""
    if row["called slower"] is None:
        return True  # hardly a calm pair: the noise is too much, and all is ambiguous
    if row["slowdown"] == 0:
        return row["called slower"] + row["called faster"] < FALSE_ALARMS
    return row["slowdown"] < CAUGHT_AT or row["called slower"] > CAUGHT


def main(argv: Sequence[str]) -> int:
    """Print the table, write it where asked, and say whether the promises are kept. Raises ConfigurationError."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE)
        return 0
    options = {"csv": "", "pairs": str(PAIRS)}
    folders = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if equals and name in options:
            options[name] = value
        elif equals or argument.startswith("-"):
            raise ConfigurationError(f"unknown {argument!r}; known: {', '.join(options)}, and run folders")
        else:
            folders.append(Path(argument))
    if not options["pairs"].isdigit() or int(options["pairs"]) < 1:
        raise ConfigurationError(f"pairs is {options['pairs']!r}; give a whole number, at least 1")
    noises = [noise for folder in folders or _stored() for noise in measured_noise(folder)]
    rows = table([*noises, Normal(0.004), Normal(0.008)], int(options["pairs"]))
    each = 1 + len(_PLANTED)  # rows of a case
    cases = [rows[start : start + each] for start in range(0, len(rows), each)]
    print(align([_HEADER, *map(_line, cases)], set(range(2, len(_HEADER) - 1))))
    if options["csv"]:
        records.write_atomically(options["csv"], _csv(rows).encode())
    answers = [_answer(case) for case in cases]
    kept_by, broken, restless = (answers[: len(noises)].count(answer) for answer in (KEPT, BROKEN, NOT_CALM))
    print(
        f"of {len(noises)} measured cases {kept_by} keep the promises (false alarms under 1%, 10% caught over 95%), "
        f"{broken} do not, {restless} have {NOT_CALM}: there nearly all is ambiguous"
    )
    return 1 if BROKEN in answers else 0


KEPT, BROKEN, NOT_CALM = "kept", "NOT KEPT", "too few calm pairs"
_HEADER = (
    *("noise of", "case", "rounds", "calm", "false alarms"),
    *(f"{slowdown:.0%}{'' if ranks > 1 else ' on one'}" for slowdown, ranks in _PLANTED),
    *("10% twice", "promises"),
)


def _line(rows: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """A case for a terminal: how often each slowdown is called, on every rank and on one; 10% seen twice."""
    calm, *planted = rows
    alarms = None if calm["called slower"] is None else calm["called slower"] + calm["called faster"]
    twice = next(row["confirmed"] for row in planted if row["slowdown"] == CAUGHT_AT)
    facts = [calm["noise"], calm["case"], calm["rounds"], calm["calm"], alarms]
    return tuple(map(_text, [*facts, *(row["called slower"] for row in planted), twice, _answer(rows)]))


def _answer(rows: Sequence[Mapping[str, object]]) -> str:
    """What the rows of a case say of the promises. Each needs calm pairs: rates of a few say nothing."""
    if any(not kept(row) for row in rows):
        return BROKEN
    return NOT_CALM if rows[0]["called slower"] is None else KEPT


def _stored() -> list[Path]:
    found = sorted(path.parent for path in Path(records.__file__).parent.parent.glob("results/measured/*/*/*/rows.csv"))
    return [folder for folder in found if samples.path_in(folder)]


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.1%}" if isinstance(value, float) else str(value)


def _csv(rows: Sequence[Mapping[str, object]]) -> str:
    out = io.StringIO(newline="")
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
