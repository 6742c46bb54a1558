"""`python -m harness regress --selftest`: how often the check catches planted slowdowns, and how often it cries wolf.

Pairs of rows are made up under noise that was measured: process and block deviations are drawn, with replacement, from
the sample files of stored runs. A row is made as the standard protocol makes one. The rates count pairs of which both
process ranges are under the maximum range (3%): others are for `ambiguous`.
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
from harness.regress_verdicts import Range, Settings

ROUNDS, BLOCKS, RANKS = 5, 3, 4  # the standard protocol's, for stored baselines; ranks of a small box
SLOWDOWNS = (0.0, 0.03, 0.10, 0.30)
PAIRS = 2000  # of each scenario
FEWEST_CALM = 100  # pairs, for a rate to say something
FEWEST_ROUNDS = 3  # of a measured case, for its deviations to say something
# What the standard protocol promises for calm cases.
FALSE_ALARMS, CAUGHT_AT, CAUGHT = 0.01, 0.10, 0.95
COLUMNS = ("noise", "cases", "slowdown", "ranks slowed", "pairs", "calm", "called slower", "called faster", "confirmed")
USAGE = """usage: python -m harness regress --selftest [csv=<file>] [pairs=2000] [<run folder> ...]

Plants slowdowns in made-up pairs under the noise of stored runs (default: all runs under results/measured).
exit status: 0 the promises are kept, 1 they are not, 2 bad input"""


@dataclass(frozen=True)
class Noise:
    """Relative deviations of each case: of its processes from their mean, of its blocks from their process's mean."""

    name: str
    cases: Sequence[tuple[Sequence[float], Sequence[float]]]

    def draw(self, generator: random.Random) -> tuple[Callable[[], float], Callable[[], float]]:
        """Sources of process and block deviations, both of one case."""
        processes, blocks = generator.choice(self.cases)
        return lambda: generator.choice(processes), lambda: generator.choice(blocks)


@dataclass(frozen=True)
class Normal:
    """Normal deviations, for comparison: `share` from process to process, a third of it from block to block."""

    share: float
    cases = ()

    @property
    def name(self) -> str:
        """As the table says it."""
        return f"normal, {self.share:.1%} between processes"

    def draw(self, generator: random.Random) -> tuple[Callable[[], float], Callable[[], float]]:
        """Sources of process and block deviations."""
        return lambda: generator.gauss(0, self.share), lambda: generator.gauss(0, self.share / 3)


def measured_noise(folder: Path) -> Noise | None:
    """The deviations of a run's timed cases with at least three rounds; None when it has none.

    Deviations from a mean of n values are too small by sqrt((n - 1) / n); they are widened by as much. Raises
    ConfigurationError when the folder has no sample file.
    """
    slowest: dict[str, dict[int, dict[int, float]]] = {}
    try:
        for each in samples.read(folder):
            blocks = slowest.setdefault(each["case_id"], {}).setdefault(int(each["round"]), {})
            seconds = float(each["seconds"]) / int(each["steps"])
            blocks[int(each["block"])] = max(seconds, blocks.get(int(each["block"]), 0.0))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as problem:
        if isinstance(problem, (ConfigurationError, records.RecordError)):
            raise
        raise records.RecordError(f"{samples.path_in(folder)}: holds no samples of blocks ({problem!r})") from None
    cases = []
    for rounds in slowest.values():
        if len(rounds) < FEWEST_ROUNDS:
            continue
        values = [list(blocks.values()) for blocks in rounds.values()]
        means = [statistics.fmean(each) for each in values]
        within = [deviation for each in values for deviation in _deviations(each)]
        cases.append((_deviations(means), within or [0.0]))
    return Noise("/".join(folder.parts[-3:]), cases) if cases else None


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
        # A pair is one case measured twice: its noise is the case's own both times.
        state = generator.getrandbits(64)
        case = _fixed(noise, state)
        base, new, again = (made_up(case, generator, ranks) for ranks in ([1.0] * RANKS, slow, slow))
        if max(base.spread, new.spread) > settings.maximum_range:
            continue
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
        "cases": len(noise.cases) or None,
        "slowdown": slowdown,
        "ranks slowed": (1 if one_rank else RANKS) if slowdown else 0,
        "pairs": pairs,
        "calm": calm / pairs,
        "called slower": share["s"],
        "called faster": share["f"],
        "confirmed": share["c"],
    }


def _fixed(noise: Noise | Normal, state: int) -> Noise | Normal:
    return noise if isinstance(noise, Normal) else Noise(noise.name, [random.Random(state).choice(noise.cases)])


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
    noises = [noise for noise in map(measured_noise, folders or _stored()) if noise]
    rows = table([*noises, Normal(0.004), Normal(0.008)], int(options["pairs"]))
    print(align([COLUMNS, *([_text(row[name]) for name in COLUMNS] for row in rows)], set(range(1, len(COLUMNS)))))
    if options["csv"]:
        records.write_atomically(options["csv"], _csv(rows).encode())
    broken = [row for row in rows if not kept(row)]
    for row in broken:
        print(f"NOT KEPT  {row['noise']}, slowdown {row['slowdown']:.0%} on {row['ranks slowed']} ranks")
    print(f"{len(rows) - len(broken)} of {len(rows)} keep the promises: false alarms under 1%, 10% caught over 95%")
    return 1 if broken else 0


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
