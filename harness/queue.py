"""`launch.queue`: hands a whole campaign to a Slurm cluster through submitit, instead of running it here.

The job starts the same command on every node, without the queue; there it finds its place from Slurm's variables.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import channel
from harness.cases import ConfigurationError
from harness.configuration import ROOT, Configuration


def submit(chosen: Configuration, argv: Sequence[str]) -> int:
    """Queue `bench` with these overrides, and return. A local job is waited for, and its exit status returned.

    Raises ConfigurationError where submitit is missing or refuses.
    """
    try:
        import submitit
    except ImportError:
        raise ConfigurationError(
            f"launch.queue needs the package submitit, which {sys.executable} lacks; "
            "pip install -r harness/setup/locks/slurm.txt"
        ) from None
    kind, nodes = chosen.launch["queue"], chosen.launch["nodes"] or max(chosen.nodes or [1])
    folder, meeting = chosen.path("results") / ".queue", {}
    os.chdir(ROOT)  # the job starts where it was queued, and finds the project there
    places = {"nodes": nodes, "tasks_per_node": 1} if kind == "slurm" else {"tasks_per_node": nodes}
    try:
        executor = submitit.AutoExecutor(folder / "%j", cluster=kind)
        executor.update_parameters(name=f"bench-{chosen.campaign}", **places, **chosen.launch["queue_options"])
        if kind == "local" and nodes > 1:
            meeting = _meeting(folder)
        job = executor.submit(run, list(argv), meeting)
    except (RuntimeError, ValueError, NameError, TypeError, AssertionError, OSError) as problem:
        first = (str(problem).strip().splitlines() or [type(problem).__name__])[0]
        raise ConfigurationError(f"submitit does not take the job ({kind}): {first}") from None
    print(f"queued as job {job.job_id} on {nodes} nodes; its output goes to {folder / str(job.job_id)}", flush=True)
    if kind == "slurm":
        return 0
    try:
        return max(job.results())
    finally:
        print(job.stdout() or "", end="")
        if meeting:
            Path(meeting["RENDEZVOUS_TOKEN_FILE"]).unlink()


def _meeting(folder: Path) -> dict[str, str]:
    """Where the nodes of a local job meet; Slurm's have its variables for that."""
    folder.mkdir(parents=True, exist_ok=True)
    token = folder / f"token-{secrets.token_hex(4)}"
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(secrets.token_hex(32))
    port = str(channel.free_port("127.0.0.1"))
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "RENDEZVOUS_TOKEN_FILE": str(token)}


def run(argv: list[str], meeting: dict[str, str]) -> int:
    """What every node of the job does. Returns the exit status."""
    import submitit

    from harness import __main__

    if meeting:
        here = submitit.JobEnvironment()
        os.environ |= meeting | {"NNODES": str(here.num_tasks), "NODE_RANK": str(here.global_rank)}
    command = ["bench", *argv, "launch.queue=null"]
    sys.argv = ["harness", *command]  # what the record says was run
    return __main__.main(command)
