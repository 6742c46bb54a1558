"""The virtual environment: made once from locked versions with hashes, trusted only when its set-up ran to the end.

A state file inside it says which lock files it holds. Any change of a lock or of Python makes the environment anew; a
group that is missing (a GPU appeared, or `make test` came after `make bench`) is added in place.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from harness.setup.processes import ROOT, SetupError, exclusive, logged, say, sigterm_is_interrupt

LOCKS = Path(__file__).parent / "locks"
BYTES_NEEDED = {"base": 9e9, "nvidia": 2e9}  # installed size and the downloads beside it, rounded up
STATE = "setup.json"


def nvidia_visible() -> bool:
    """Whether a driver offers an NVIDIA GPU here. No driver library is loaded."""
    return bool(glob.glob("/dev/nvidia[0-9]*"))


def groups_wanted(options: Mapping[str, str], development: bool) -> list[str]:
    """Lock files to install, in order. NVIDIA=yes or NVIDIA=no overrides what is visible. Raises SetupError."""
    choice = options.get("NVIDIA") or "auto"
    if choice not in ("auto", "yes", "no"):
        raise SetupError(f"NVIDIA={choice} is not one of auto, yes, no")
    groups = ["build", "base"]
    if choice == "yes" or (choice == "auto" and nvidia_visible()):
        groups.append("nvidia")
    return [*groups, "dev"] if development else groups


def prepare(options: Mapping[str, str], development: bool = False) -> Path:
    """The interpreter to use, with everything it needs installed. Silent when nothing is to be done. Raises SetupError.

    VENV names the folder, `.venv` by default; VENV=none takes the interpreter that runs this and installs nothing.
    """
    venv = options.get("VENV", ".venv")
    if not venv.strip():
        raise SetupError("VENV is empty; leave it out for .venv, name a folder, or give VENV=none to install nothing")
    if venv == "none":
        return Path(sys.executable)
    folder = (ROOT / venv).absolute()
    groups = groups_wanted(options, development)
    if missing_groups(folder, groups):
        with exclusive(folder.with_name(folder.name + ".lock"), str(folder)) as lock, sigterm_is_interrupt():
            install(folder, groups, lock)
    return folder / "bin" / "python"


def lock_digest(group: str) -> str:
    """SHA-256 of a lock file's bytes."""
    return hashlib.sha256((LOCKS / f"{group}.txt").read_bytes()).hexdigest()


def python_identity() -> str:
    """What an environment is bound to: implementation, minor version, processor."""
    return f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]} {platform.machine()}"


def read_state(folder: Path) -> dict:
    """The state file, or an empty one if there is none or it cannot be read."""
    try:
        state = json.loads((folder / STATE).read_text())
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(folder: Path, complete: bool, groups: dict[str, str]) -> None:
    """Replace the state file atomically."""
    text = json.dumps({"complete": complete, "python": python_identity(), "locks": groups}, indent=1)
    temporary = folder / f"{STATE}.tmp"
    temporary.write_text(text + "\n")
    os.replace(temporary, folder / STATE)


def unusable(folder: Path) -> str | None:
    """Why the environment must be made anew, or None if what it holds can be trusted."""
    state = read_state(folder)
    if not state.get("complete"):
        return "its set-up did not finish" if folder.exists() else "there is none yet"
    if state.get("python") != python_identity():
        return f"it was made for {state.get('python')}, PYTHON is {python_identity()}"
    for group, digest in state.get("locks", {}).items():
        if not (LOCKS / f"{group}.txt").exists() or lock_digest(group) != digest:
            return f"the lock {group}.txt has changed"
    try:
        subprocess.run([folder / "bin" / "python", "-I", "-S", "-c", ""], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "its interpreter no longer starts"
    return None


def missing_groups(folder: Path, groups: list[str]) -> list[str]:
    """Which of `groups` still have to be installed; all of them if the environment is unusable."""
    return groups if unusable(folder) else [group for group in groups if group not in read_state(folder)["locks"]]


def install(folder: Path, groups: list[str], lock: int) -> None:
    """Bring the environment to hold `groups`. The caller holds the lock. Raises SetupError; then it stays untrusted."""
    wanted = missing_groups(folder, groups)  # asked again: the one we waited for may have done it
    if not wanted:
        return
    begin = time.monotonic()
    reason = unusable(folder)
    installed = {} if reason else dict(read_state(folder)["locks"])
    needed = sum(BYTES_NEEDED.get(group, 0) for group in wanted)
    if reason and folder.exists():
        remove_environment(folder, reason)
    free = shutil.disk_usage(folder.parent).free
    if free < needed:
        raise SetupError(f"{folder.parent} has {free / 1e9:.1f} GB free, set-up needs {needed / 1e9:.0f} GB; make room")
    if reason:
        make_venv(folder)
    write_state(folder, False, {})
    for group in wanted:
        pip_install(folder, group, lock)
        installed[group] = lock_digest(group)
    write_state(folder, True, installed)
    say(f"{folder.name} is ready: {', '.join(installed)} ({time.monotonic() - begin:.0f} s)")


def remove_environment(folder: Path, reason: str) -> None:
    """Delete an environment of ours. Raises SetupError for a folder that is not one: VENV may have been mistyped."""
    marked = (folder / "pyvenv.cfg").exists() or (folder / STATE).exists()
    if not folder.is_dir() or not (marked or not any(folder.iterdir())):
        raise SetupError(f"VENV={folder} exists and is no virtual environment; name another folder, or `none`")
    say(f"{folder.name}: {reason}; making it anew")
    write_state(folder, False, {})  # stays until the end, so that a removal cut short is recognised by the next run
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != STATE:
            entry.unlink()
    shutil.rmtree(folder)


def make_venv(folder: Path) -> None:
    """An empty environment with pip. Raises SetupError when Python's venv module is missing."""
    say(f"making {folder.name} with Python {platform.python_version()}")
    folder.mkdir(parents=True)
    write_state(folder, False, {})
    made = subprocess.run([sys.executable, "-m", "venv", folder], capture_output=True, text=True)
    if made.returncode:
        shutil.rmtree(folder, ignore_errors=True)
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        last = (made.stdout + made.stderr).strip().splitlines()[-1:] or ["no output"]
        raise SetupError(
            f"{sys.executable} -m venv failed ({last[0].strip()}); it needs Python's venv module (Debian and Ubuntu: "
            f"apt-get install python{version}-venv)"
        )


def pip_install(folder: Path, group: str, lock: int) -> None:
    """Install one lock file: exactly its versions, hashes checked, nothing beside them. Raises SetupError."""
    requirements = LOCKS / f"{group}.txt"
    total = len(re.findall(r"^\S+==", requirements.read_text(), flags=re.MULTILINE))
    seen = 0

    def progress(line: str) -> str | None:
        nonlocal seen
        if line.startswith(("Collecting ", "Requirement already satisfied: ")):
            seen += 1
            name = line.removeprefix("Collecting ").removeprefix("Requirement already satisfied: ").split()[0]
            return f"[{seen}/{total}] {name}"
        return f"unpacking {total}" if line.startswith("Installing collected packages") else None

    say(f"installing {total} package{'s' if total != 1 else ''} of {group}.txt")
    command = [folder / "bin" / "python", "-m", "pip", "install", "--require-hashes", "--no-deps"]
    command += ["--no-build-isolation", "--no-input", "--disable-pip-version-check", "-r", requirements]
    try:
        logged(f"installing {group}.txt", command, folder / "setup.log", progress, keep_open=[lock])
    except SetupError as problem:
        raise SetupError(
            f"{problem}\nWithout a network, use packages that are already there: make bench PYTHON=python3 VENV=none"
        ) from None
