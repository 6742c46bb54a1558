"""What each make target runs, as argument lists. Nothing passes through a shell."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.setup import environment, native
from harness.setup.processes import ROOT, SetupError, foreground, say

Options = Mapping[str, str]
MEASURED, NOT_AS_EXPECTED, INTERRUPTED = 0, 1, 130  # exit codes of `python -m harness bench`
FOLLOWED = 10  # asked for, of a node that is not node 0: the rows and the page are there


def words(options: Options, name: str) -> list[str]:
    """The words of an option such as ARGS, split as a shell would, with nothing expanded. Raises SetupError."""
    try:
        return shlex.split(options.get(name, ""))
    except ValueError as problem:
        raise SetupError(f"{name} cannot be split into words ({problem}): {options[name]}") from None


def setup(options: Options) -> int:
    """The environment alone."""
    environment.prepare(options)
    return 0


def build(options: Options) -> int:
    """The environment and the native build."""
    native.build(options, environment.prepare(options))
    return 0


def harness(options: Options, command: str, *arguments: str, built: bool = True) -> int:
    """`python -m harness COMMAND`, set-up done and, unless it only answers, built. ARGS come last, so that they win."""
    interpreter = environment.prepare(options)
    if built:
        native.build_or_explain(options, interpreter)
    return foreground([interpreter, "-m", "harness", command, *arguments, *words(options, "ARGS")])


def overrides(options: Options, **names: str) -> list[str]:
    """Hydra overrides `key=value` for those make variables that are set: overrides(options, campaign="CAMPAIGN")."""
    return [f"{key}={options[name]}" for key, name in names.items() if options.get(name)]


def campaign(options: Options) -> list[str]:
    """The overrides that choose a campaign."""
    return overrides(options, campaign="CAMPAIGN", budget="BUDGET")


def bench(options: Options) -> int:
    """Measure a campaign, then render the page, also when some rows failed. The exit code is the campaign's."""
    listing = options.get("LIST", "") not in ("", "0")
    several = any(options.get(name) for name in ("NNODES", "MASTER_ADDR", "SLURM_STEP_NUM_NODES"))
    more = ["list=true"] if listing else [f"launch.follower_status={FOLLOWED}"] if several else []
    more += overrides(options, resume="RESUME")
    code = harness(options, "bench", *campaign(options), *more, built=not listing)
    if code == FOLLOWED:
        return 0
    if code == INTERRUPTED:
        say("stopped; finished rows are kept, `make report` shows them, the same command goes on from there")
    if listing or code not in (MEASURED, NOT_AS_EXPECTED):
        return code
    page = report(options, [])
    return code or page


def report(options: Options, arguments: list[str] | None = None) -> int:
    """Tables, charts and the page, from results/ alone."""
    interpreter = environment.prepare(options)
    return foreground([interpreter, "-m", "reports", *(words(options, "ARGS") if arguments is None else arguments)])


def regress(options: Options) -> int:
    """Compare two result files, which needs no native build, or measure BASE's cases afresh."""
    if not options.get("BASE"):
        raise SetupError("regress needs BASE=<csv or folder>, the results to compare with")
    arguments = overrides(options, base="BASE", new="NEW")
    if not options.get("NEW"):
        if not Path(options["BASE"]).exists():  # told before minutes of building
            raise SetupError(f"BASE={options['BASE']} does not exist; give a result CSV or a run folder")
        return harness(options, "regress", *arguments)
    return foreground([environment.prepare(options), "-m", "harness", "regress", *arguments, *words(options, "ARGS")])


def test(options: Options) -> int:
    """The C++ tests and the Python tests; both always run."""
    interpreter = environment.prepare(options, development=True)
    native.build(options, interpreter)
    code = native.run_ctest(interpreter)
    return foreground([interpreter, "-m", "pytest", *words(options, "ARGS")]) or code


def test_rdma(options: Options) -> int:
    """The RDMA rails of the native binary, between two guests that are emulated here."""
    interpreter = environment.prepare(options, development=True)
    native.build(options, interpreter)
    return foreground([interpreter, "-m", "tests.rdma", *words(options, "ARGS")])


def lint(options: Options) -> int:
    """Style and common mistakes of Python, layout of C++."""
    interpreter = environment.prepare(options, development=True)
    commands = [[interpreter, "-m", "ruff", "check", "."], [interpreter, "-m", "ruff", "format", "--check", "."]]
    commands.append(clang_format(interpreter, "--dry-run", "-Werror"))
    return max(foreground(command) for command in commands if command)


def format_sources(options: Options) -> int:
    """Rewrite the sources in the project's layout."""
    interpreter = environment.prepare(options, development=True)
    commands = [[interpreter, "-m", "ruff", "check", "--fix", "."], [interpreter, "-m", "ruff", "format", "."]]
    commands.append(clang_format(interpreter, "-i"))
    return max(foreground(command) for command in commands if command)


def clang_format(interpreter: Path, *arguments: str) -> list[str | Path]:
    """The clang-format command over all C++ and CUDA sources; empty where there are none."""
    program = native.tool("clang-format", interpreter)
    if not program:
        raise SetupError(f"no clang-format beside {interpreter} or on PATH")
    files = [path for top in ("kernels", "examples", "tests") for path in (ROOT / top).rglob("*")]
    sources = sorted(path for path in files if path.suffix in (".hpp", ".inl", ".cpp", ".h", ".cu", ".cuh"))
    return [program, *arguments, *sources] if sources else []


def lock(options: Options) -> int:
    """Resolve pyproject.toml's groups into the lock files again. Needs a network."""
    interpreter = environment.prepare(options, development=True)
    resolve = [interpreter, "-m", "uv", "pip", "compile", "--universal", "--python-version", "3.11"]
    resolve += ["--fork-strategy", "fewest", "--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
    resolve += words(options, "ARGS")  # --upgrade, say; without it versions stay as they are
    base = environment.LOCKS / "base.txt"
    sources = {"base": ["pyproject.toml", "--group", "systems"]}
    sources |= {group: ["--group", group, "--constraints", base] for group in ("build", "nvidia", "dev", "slurm")}
    for group, source in sources.items():
        code = foreground([*resolve, *source, "--output-file", environment.LOCKS / f"{group}.txt"])
        if code:
            return code
    return 0


def clean(options: Options) -> int:
    """Remove the native build and rendered pages. The environment and all results stay."""
    for folder in (native.BUILD, ROOT / "reports" / "out"):
        shutil.rmtree(folder, ignore_errors=True)
    return 0


TARGETS: dict[str, Callable[[Options], int]] = {
    "setup": setup,
    "native": build,
    "bench": bench,
    "report": report,
    "regress": regress,
    "capacity": lambda options: harness(options, "capacity"),
    "plan": lambda options: harness(options, "plan", *campaign(options), built=False),
    "doctor": lambda options: harness(options, "doctor", built=False),
    "selftest": lambda options: harness(options, "selftest"),
    "test": test,
    "test-rdma": test_rdma,
    "lint": lint,
    "format": format_sources,
    "lock": lock,
    "clean": clean,
}
