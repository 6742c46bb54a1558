"""What the guests run: the cases, and the shell script that runs them on either guest."""

from __future__ import annotations

from tests.kernels.binary import BINARY, base_case, flags

# Little to compute, much to send: columns past the ladder travel too.
SHAPE = {"rows": 40, "dims": 1024, "prefixes": [24, 64], "scale": 5.0, "bias": -1.0, "labels": "mixed", "world_size": 2}
MEET = {
    "nodes": 2, "rendezvous": "10.9.0.1:29500", "token_file": "/share/token", "interface": "eth0", "rails": "verbs",
    "engine": "cpu-portable", "join_seconds": 60,
}  # fmt: skip
LOSSY = "loss 3% delay 2ms"
SMALL_PACKETS = {"rails_options": "mtu=512,timeout=14"}
LARGE = {"loss": "one_set_sigmoid", "rows": 128, "dims": 8192}  # 2 MiB a message, and little to compute
CASES = {  # name: (netem, what differs from SHAPE, what differs from MEET)
    "one set": ("", {"loss": "one_set_sigmoid"}, {}),
    "two sets, 2 devices a box": ("", {"loss": "two_set_sigmoid", "world_size": 4}, {}),
    "info_nce": ("", {"loss": "info_nce"}, {}),
    "nt_xent": ("", {"loss": "one_set_info_nce", "form": "nt_xent"}, {}),
    "one set, lossy": (LOSSY, {"loss": "one_set_sigmoid"}, {}),
    "info_nce, lossy": (LOSSY, {"loss": "info_nce"}, {}),
    "two sets, lossy, small packets": (LOSSY, {"loss": "two_set_sigmoid"}, SMALL_PACKETS),
    "tcp, one set, lossy": (LOSSY, {"loss": "one_set_sigmoid"}, {"rails": "tcp"}),
    "one set, 2 MiB messages": ("", LARGE, {}),
    "tcp, one set, 2 MiB messages": ("", LARGE, {"rails": "tcp"}),
}
WARM = ["--warmup-steps", "1", "--warmup-seconds", "0"]
STEPS = [*WARM, "--blocks", "2", "--steps-per-block", "3", "--actions", "check,time", "--check", "name=all"]
# One block that does not end: boxes meet at its start, and then only within its steps.
ENDLESS = [*WARM, "--blocks", "1", "--steps-per-block", "1000000", "--max-block-seconds", "1e9", "--actions", "time"]
PERFTEST = "timeout 40 /bin/ib_write_bw -d rxe0 -x 1 -s 65536 -n 200"


def case_of(changes: dict) -> dict:
    """A case's fields."""
    case = base_case(**SHAPE)
    del case["nodes"]
    return case | changes


def command(folder: str, case: dict, meet: dict, more: list[str], seconds: int = 90) -> str:
    """The shell words of one box, its output kept; `$box` is the guest's number."""
    words = [f"/bin/{BINARY.name}", "--folder", f"{folder}/$box", "--node-rank", "$box"]
    words += [*flags(MEET | meet), *flags(case), *more]
    return f"timeout {seconds} {' '.join(words)} > {folder}/$box/log.txt 2>&1"


def script() -> str:
    """What each guest runs: `run.sh BOX`."""
    lines = ["box=$1", "ulimit -l unlimited"]
    for number, (netem, changes, meet) in enumerate(CASES.values()):
        folder = f"/share/{number}"
        lines += [f"/sbin/tc qdisc add dev eth0 root netem {netem}"] if netem else []
        lines += [command(folder, case_of(changes), meet, STEPS), f"echo $? > {folder}/$box/rc"]
        lines += ["/sbin/tc qdisc del dev eth0 root"] if netem else []
    # box 1 dies in the middle of many steps
    folder = "/share/killed"
    lines.append(command(folder, case_of({"loss": "info_nce"}), {"rails_seconds": 15}, ENDLESS) + " &")
    lines.append("if [ $box = 1 ]; then")
    lines.append(f"until grep -q warm_up {folder}/1/events.1.jsonl; do sleep 0.2; done; sleep 2; kill -9 $!; fi")
    lines.append(f"wait $!; echo $? > {folder}/$box/rc")
    # rdma_rxe's own counter of what was sent again, and what the perftest program moves
    lines.append("cat /sys/class/infiniband/rxe0/ports/1/hw_counters/completer_retry_err > /share/retries.$box")
    lines.append(f"if [ $box = 0 ]; then {PERFTEST} > /share/perftest.$box 2>&1;")
    lines.append(f"else sleep 2; {PERFTEST} 10.9.0.1 > /share/perftest.$box 2>&1; fi")
    return "\n".join(lines) + "\n"
