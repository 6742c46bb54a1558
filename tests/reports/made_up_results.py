"""Result rows made up for tests: round numbers, not measurements."""

import json

from harness.records import write_rows

ROW = {
    "schema_version": 2,
    "state": "init",
    "dims": 1024,
    "prefixes": "64 128 256 512 1024",
    "dtype": "bfloat16",
    "gradient_dtype": "bfloat16",
    "scale": 10.0,
    "bias": -10.0,
    "seed": 42,
    "self_pairs": False,
    "nodes": 1,
    "world_size": 1,
    "device": "cpu",
    "protocol": "quick",
    "labels": "pairs",
    "device_name": "Some CPU",
    "status": "ok",
    "git_revision": "abc1234",
}


def row(system, loss, variant, rows, milliseconds=None, megabytes=None, **changes):
    """A result row whose process means lie within 2% of the mean."""
    made = ROW | {"system": system, "loss": loss, "variant": variant, "rows": rows}
    if milliseconds is not None:
        step = milliseconds / 1e3
        made |= {
            "best_seconds": step,
            "median_seconds": step * 1.01,
            "mean_seconds": step * 1.02,
            "mean_low_seconds": step * 1.01,
            "mean_high_seconds": step * 1.03,
            "first_step_seconds": step * 5,
            "rounds": 3,
            "samples": 9,
        }
    if megabytes is not None:
        made["allocated_peak_bytes"] = round(megabytes * 1e6)
    return made | changes


def quick_rows():
    """One CPU: native three ways, and peers with every kind of status."""
    rows = []
    for size, factor in ((256, 1), (512, 4)):
        rows += [
            row("native", "one_set_sigmoid", "one_set", size, 1.0 * factor, 2),
            row("native", "two_set_sigmoid", "two_set", size, 1.5 * factor, 2),
            row("open_clip", "two_set_sigmoid", "bidir", size, 9.0 * factor, 40),
            row("open_clip", "info_nce", "local", size, status="wrong", expected_status="wrong", reason="dX off"),
            row("big_vision", "two_set_sigmoid", "jit_sharded", size, status="unsupported", reason="jax is missing"),
        ]
    rows.append(row("torch_reference", "one_set_sigmoid", "eager", 256, 1.005, 40))
    rows.append(row("torch_reference", "one_set_sigmoid", "eager", 512, status="out_of_memory", reason="9 GB wanted"))
    return rows


def add_run(results, machine, campaign, run_id, rows, environment=None):
    """Write one run folder."""
    folder = results / "measured" / machine / campaign / run_id
    folder.mkdir(parents=True)
    write_rows(folder / "rows.csv", [{"run_id": run_id} | each for each in rows])
    (folder / "environment.json").write_text(json.dumps({"finished": True} | (environment or {})))
    return folder
