"""`python -m harness COMMAND`. Commands are found by name; each has a `main(argv)` that returns the exit code."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import sys

from harness.cases import ConfigurationError
from harness.records import RecordError

COMMANDS = {
    "bench": "run a campaign and record it",
    "plan": "what a campaign would run, with predicted time, memory and disk",
    "regress": "compare two result files",
    "capacity": "the largest size each system can hold",
    "doctor": "what this machine can run, and why not the rest",
    "selftest": "the harness measured against itself",
}

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


def available() -> dict[str, str]:
    """The commands whose module is here."""
    return {name: text for name, text in COMMANDS.items() if importlib.util.find_spec(_module(name))}


def _module(command: str) -> str:
    return "harness.bench" if command == "plan" else f"harness.{command}"


def main(argv: list[str]) -> int:
    """Dispatch. Bad input is one line on stderr and exit status 2; so is a stdout that cannot be written."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as a daemon's may be
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
    try:
        status = _run(argv)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        return 1
    except OSError as problem:
        if problem.filename is not None or problem.errno not in _UNWRITABLE:
            raise
        print(f"harness {' '.join(argv[:1])}: cannot write: {problem.strerror or problem}", file=sys.stderr)
        with contextlib.suppress(OSError):
            sys.stdout.close()  # or Python tries once more as it ends
        return 2


def _run(argv: list[str]) -> int:
    commands = available()
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m harness COMMAND ...\n")
        print("\n".join(f"  {name:<10}{text}" for name, text in commands.items()))
        return 0 if argv else 2
    command, rest = argv[0], argv[1:]
    try:
        if command not in commands:
            raise ConfigurationError(f"unknown command {command!r}; known: {', '.join(commands)}")
        if command == "plan":
            rest = [*rest, "list=true"]
        return importlib.import_module(_module(command)).main(rest)
    except (ConfigurationError, RecordError) as problem:
        print(f"harness {command}: {problem}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as problem:  # an environment of the user's own, or one that broke
        name = str(problem.name).partition(".")[0]
        if name in ("harness", "baselines", "reports"):
            raise
        print(f"harness {command}: {name} is not installed for {sys.executable}; install it there", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
