"""`python -m harness bench`: from a command line to a finished run folder and an exit code."""

from __future__ import annotations

import contextlib
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from harness import (
    command,
    configuration,
    configuration_checks,
    environment,
    gate,
    launch,
    lock,
    machine,
    nodes,
    plan,
    progress,
    queue,
    resume,
    team,
)
from harness.cases import ConfigurationError
from harness.configuration import Configuration
from harness.interrupt import Interrupt
from harness.leader import Leader, Stopped
from harness.machine import Machine
from harness.plan import Planned
from harness.run import Campaign
from harness.store import Store, complete, environment_of, new_run_id, unfinished
from harness.support import capabilities

OK, UNEXPECTED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130
BUSY_MEMORY_SHARE = 0.1  # of a GPU: more than contexts and leftovers take

USAGE = """usage: python -m harness bench [field=value ...]

Runs a campaign and writes its run folder. Every field of configs/bench.yaml can be set:
  python -m harness bench campaign=quick
  python -m harness bench rows=[256,1024] systems=[native,open_clip:bidir] losses=[two_set_sigmoid]
  python -m harness bench campaign=single_gpu budget=10m list=true
campaigns: {campaigns}
fields: {fields}
exit status: 0 all as expected, 1 a status was not, 2 bad input, 130 interrupted (the same command continues)"""


def main(argv: Sequence[str]) -> int:
    """Compose, enumerate, run. Raises ConfigurationError for bad input."""
    if any(argument in ("-h", "--help") for argument in argv):
        fields = ", ".join(sorted(configuration.compose().values))
        print(USAGE.format(campaigns=", ".join(configuration.options("campaign")), fields=fields))
        return OK
    chosen = configuration.compose(argv)
    here = plan.apply_overrides(machine.detect(), chosen.machine)
    device = plan.choose_device(chosen, here)
    if chosen.launch["queue"] and not chosen.list:
        return queue.submit(chosen, argv)
    place = nodes.place(chosen.launch, to_start=not chosen.list)
    chosen = chosen.for_device(device).on_nodes(place.nodes if place else 1)
    planned = plan.enumerate_cases(chosen, here)
    parent = chosen.path("results") / "measured" / here.slug(device) / chosen.campaign
    if chosen.list:
        rounds, apart = chosen.protocol["rounds"], chosen.rounds_apart
        print(plan.listing(*within_budget(chosen, planned, None), rounds, apart, parent))
        if any(each.system.launcher == "native" for each in planned) and not chosen.path("binary").is_file():
            print("native binary: not built; make native builds it, and so does make bench before it measures")
        if place:
            print(place)
        return OK
    if device == "cuda" and not chosen.allow_busy:
        refuse_busy(here)
    with lock.measuring(f"bench campaign={chosen.campaign}", chosen.machine["lock_folder"]):
        if place is None:
            return measure(chosen, here, planned, parent)[0]

        def campaign(leader: Leader) -> int:
            return measure(chosen, here, leader.roster.unsupported(planned), parent, leader=leader)[0]

        return team.run(place, chosen, here, planned, device, campaign)


def within_budget(
    chosen: Configuration, planned: Sequence[Planned], store: Store | None
) -> tuple[list[Planned], list[Planned]]:
    """What the time budget has room for, and what it has not. Of a run that is continued only what is left counts."""

    def left(each: Planned) -> float:
        missing = store.missing(each.case.case_id, chosen.rounds_apart) if store else 1 + chosen.rounds_apart
        return 0.0 if each.unsupported else each.launch_seconds * missing

    return plan.within_budget(planned, configuration_checks.seconds(chosen.budget, "budget"), left)


def refuse_busy(here: Machine) -> None:
    """Raise ConfigurationError when other processes use a visible GPU."""
    for gpu in here.gpus:
        if gpu.process_ids or gpu.used_bytes > BUSY_MEMORY_SHARE * gpu.memory_bytes:
            who = f"processes {', '.join(map(str, gpu.process_ids))}" if gpu.process_ids else plan.size(gpu.used_bytes)
            raise ConfigurationError(
                f"GPU {gpu.index} ({gpu.name}) is busy ({who}); choose others with CUDA_VISIBLE_DEVICES, "
                "or measure anyway with allow_busy=true"
            )


def measure(
    chosen: Configuration,
    here: Machine,
    planned: list[Planned],
    parent: Path,
    stream: TextIO | None = None,
    leader: Leader | None = None,
) -> tuple[int, Path]:
    """Run planned cases into a new or unfinished run folder under `parent`, which is returned with the exit code.

    Progress goes to `stream` (default: stdout); `leader` runs what spans several nodes. The caller holds
    the lock. Raises ConfigurationError when no case fits into the budget, or the folder cannot be written.
    """
    screen = progress.Progress(stream)
    gate.load_reference(chosen.reference)  # before anything is written
    facts = environment.describe(here, [each.system.package for each in planned])
    if leader:
        facts["nodes"] = leader.roster.record()
    identity = fingerprint(chosen, planned, facts)
    with writing(parent), contextlib.ExitStack() as held:

        def differing(recorded: Mapping[str, Any]) -> list[resume.Difference]:
            return resume.differences(recorded, chosen, facts)

        if isinstance(chosen.resume, str):
            folder = resume.find(chosen.resume, chosen.path("results"))
            store, known = named_folder(folder, identity, differing, screen, held)
            parent = folder.parent
        else:
            store, known = find_folder(parent, identity, chosen.resume, screen, held, differing)
        kept, dropped = within_budget(chosen, planned, store)
        if dropped and all(each.unsupported for each in kept):
            raise ConfigurationError(f"no case fits into the budget of {chosen.budget}; the shortest was dropped too")
        if store is None:
            store = new_folder(parent, held)
        for pid in launch.marked_processes(store.work):
            launch.kill(pid)  # left by a run of ours that was killed
        for each in dropped:
            screen.say(f"dropped, over the budget of {chosen.budget}: {each.case.title}")
        campaign = Campaign(chosen, here, planned, store, screen, dropped, leader)
        record = known | {
            "run_id": store.run_id,
            "fingerprint": identity,
            "finished": False,
            "configuration": chosen.values,
            "overrides": list(chosen.overrides),
            "machine": parent.parent.name,
            "protocol": chosen.protocol,
            "dropped": [each.case.title for each in dropped],
            "variables": command.recorded_environment(),
            **_binary(chosen.path("binary")),
            **facts,
        }
        record.setdefault("before", environment.moment(here))
        store.write_environment(record)
        code = _run(campaign, store, screen)
        if leader:
            record["nodes"] = leader.roster.record()  # with those that came back
        record |= {"after": environment.moment(here), "notes": [*known.get("notes", []), *campaign.notes]}
        rows = campaign.ledger.rows(ended=True)
        record["inputs_sha256"] = sorted({row["inputs_sha256"] for row in rows if row.get("inputs_sha256")})
        record["systems"] = _systems(campaign, store)
        campaign.ledger.write_checks(parent.parent / "checks")
        # `finished`: it ran to its end; `complete`: no case was left out, so that there is nothing to continue
        record |= {"finished": code != INTERRUPTED, "complete": campaign.ledger.complete}
        store.write_environment(record)
        if record["finished"] and record["complete"]:
            store.finish()
    return code, store.folder


def _run(campaign: Campaign, store: Store, screen: progress.Progress) -> int:
    with Interrupt() as interrupt:
        try:
            campaign.run(interrupt.check)
        except KeyboardInterrupt:
            screen.say(f"interrupted; finished rows are in {_shown(store.folder)}, the same command continues there")
            return INTERRUPTED
        except Stopped as problem:
            screen.say(f"{problem}; finished rows are in {_shown(store.folder)}, the same command continues there")
            return INTERRUPTED
    rows = campaign.ledger.rows(ended=True)
    screen.say("")
    screen.say(progress.table(rows))
    cases = {each.case.case_id: each for each in campaign.planned}
    surprises = [row for row in rows if not cases[row["case_id"]].expected(row["status"])]
    screen.say(f"\n{len(rows)} rows in {_shown(store.folder)}")
    if not campaign.ledger.complete:
        screen.say("the time budget left something out; the same command goes on with it (resume=false starts anew)")
    for row in surprises:
        screen.say(f"not as expected: {cases[row['case_id']].case.title} is {row['status']}")
    return UNEXPECTED if surprises else OK


def _binary(path: Path) -> dict[str, Any]:
    """Size and architectures of the native binary, for the footprint."""
    if not path.is_file():
        return {}
    said = capabilities(path)
    architectures = said.get("architectures") if isinstance(said, dict) else None
    return {"binary_bytes": path.stat().st_size, "binary_architectures": architectures, "binary_capabilities": said}


def _systems(campaign: Campaign, store: Store) -> dict[str, Any]:
    """What each system said about itself: versions, declared conventions, the variables of its launches."""
    found = {}
    for each in campaign.planned:
        check = store.check(each.case.case_id)
        if check:
            payload = each.case.to_json() | {"threads": campaign.threads(each.case)}
            found[f"{each.system.name}:{each.variant.name} on {each.case.world_size}"] = {
                "versions": check.get("versions"),
                "declares": check.get("declares"),
                "variables": command.environment(payload, each.system.launcher),
            }
    return found


def fingerprint(chosen: Configuration, planned: Sequence[Planned], facts: dict[str, Any]) -> str:
    """What must be equal for an unfinished run to be continued: configuration, cases, revision, machine, packages."""
    names = resume.FACTS
    parts = {
        "configuration": chosen.digest,
        "cases": sorted(each.case.case_id for each in planned),
        "facts": {name: facts[name] for name in names},
    }
    others = [{name: node["facts"][name] for name in names} for node in facts.get("nodes", ())[1:]]
    if others:  # in whatever order they came
        parts["nodes"] = sorted(json.dumps(each, sort_keys=True) for each in others)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


Differing = Callable[[Mapping[str, Any]], list[resume.Difference]]  # of a run's environment.json


def find_folder(
    parent: Path,
    identity: str,
    wanted: bool,
    screen: progress.Progress,
    held: contextlib.ExitStack,
    differing: Differing = lambda recorded: [],
) -> tuple[Store | None, dict[str, Any]]:
    """The newest run of the same fingerprint that can be continued, with what its environment already says, or None.

    `held` keeps the run's lock: folders may be shared between machines of one name.
    """
    for state in parent.glob("*/state"):  # of a run that was killed as the last thing it did
        if complete(state.parent):
            with lock.writer(state.parent) as mine:
                if mine:
                    Store(state.parent).finish()
    others = []
    for folder, data in unfinished(parent) if wanted else ():
        if data.get("fingerprint") != identity:
            others.append((folder, data))
        elif held.enter_context(lock.writer(folder)):
            if complete(folder):  # by another process, after we had looked and before it gave the lock back
                Store(folder).finish()
                continue
            return _continued(folder, data, screen)
        else:
            screen.say(f"another process is writing to {_shown(folder)}; starting a new run")
    if others:
        screen.say(
            f"{len(others)} unfinished runs here differ in configuration, revision or machine; starting a new one"
        )
        folder, data = others[0]
        told = ", ".join(f"{field} {before} -> {now}" for field, before, now in differing(data)[:3]) or "other cases"
        screen.say(f"the newest, {folder.name}: {told} (resume={folder.name} lists all and continues that run or none)")
    return None, {}


def named_folder(
    folder: Path, identity: str, differing: Differing, screen: progress.Progress, held: contextlib.ExitStack
) -> tuple[Store, dict[str, Any]]:
    """The run that the user named, to be continued. Raises ConfigurationError when it cannot be, with all reasons."""
    data = environment_of(folder)
    if data.get("fingerprint") != identity:
        raise ConfigurationError(resume.refusal(folder, differing(data)))
    if not held.enter_context(lock.writer(folder)):
        raise ConfigurationError(f"another process is writing to {_shown(folder)}; wait for it")
    if complete(folder):
        raise ConfigurationError(f"{_shown(folder)} is complete: nothing is left to continue; leave resume out")
    return _continued(folder, data, screen)


def _continued(folder: Path, data: Mapping[str, Any], screen: progress.Progress) -> tuple[Store, dict[str, Any]]:
    screen.say(f"continuing {_shown(folder)}")
    return Store(folder), {name: data[name] for name in ("before", "notes") if name in data}


def new_folder(parent: Path, held: contextlib.ExitStack) -> Store:
    """A folder for a new run, its lock kept by `held`."""
    folder = parent / new_run_id()
    folder.mkdir(parents=True)
    held.enter_context(lock.writer(folder))
    return Store(folder)


@contextlib.contextmanager
def writing(parent: Path) -> Iterator[None]:
    """Turn a folder that cannot be written, or a full disk, into one line."""
    try:
        yield
    except OSError as problem:
        what = problem.filename or parent
        raise ConfigurationError(
            f"cannot write {what}: {problem.strerror}; finished rows are safe, the same command continues "
            "once this is mended (results=<folder> writes elsewhere)"
        ) from None


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
