"""`python3 -m harness.setup TARGET`: what `make TARGET` does. Options come as environment variables (docs/usage.md)."""

import os
import sys

# Before any newer syntax is imported: an old interpreter gets one line, not a traceback.
if sys.version_info < (3, 11):
    import shutil

    found = [name for name in ("python3.13", "python3.12", "python3.11") if shutil.which(name)]
    advice = "Add PYTHON=%s to the make command." % found[0] if found else "Install one and name it: PYTHON=..."
    version = "%d.%d" % sys.version_info[:2]
    sys.stderr.write("setup: PYTHON is Python %s; 3.11 or newer is needed. %s\n" % (version, advice))
    sys.exit(2)

from harness.setup.processes import SetupError
from harness.setup.targets import TARGETS

# How make hands its own command line on. A make that is started by what a target runs must not obey it: `make test
# PYTHON=a` would choose the interpreter of every make that a test starts.
OF_THE_CALLING_MAKE = ("MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL")


def main(arguments):
    """Run one target. Exit code: the target's own, 2 for bad input or failed set-up, 130 after Ctrl-C."""
    if len(arguments) != 1 or arguments[0] not in TARGETS:
        print(f"setup: name one target: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    for name in OF_THE_CALLING_MAKE:
        os.environ.pop(name, None)
    try:
        return TARGETS[arguments[0]](os.environ)
    except SetupError as problem:
        print(f"setup: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("setup: stopped. Nothing half-made will be used; the next run starts that step again.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
