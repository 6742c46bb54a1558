"""Result rows made up for the tests of the regression check."""

CASE = {
    "schema_version": 1,
    "run_id": "r",
    "system": "native",
    "loss": "one_set_sigmoid",
    "variant": "one_set",
    "state": "init",
    "rows": 1024,
    "dims": 1024,
    "prefixes": "64 128 256 512 1024",
    "dtype": "bfloat16",
    "gradient_dtype": "bfloat16",
    "scale": 10.0,
    "bias": -10.0,
    "seed": 42,
    "self_pairs": False,
    "world_size": 1,
    "nodes": 1,
    "device": "cuda",
    "protocol": "standard",
    "status": "ok",
    "allocated_peak_bytes": 8_000_000,
    "step_peak_bytes": 4_000_000,
    "device_used_bytes": 500_000_000,
    "labels": "pairs",
    "threads": 2,
    "device_name": "NVIDIA H200",
    "system_version": "0.1.0",
    "inputs_sha256": "ab" * 32,
    "environment_file": "environment.json",
}
ENVIRONMENT = {
    "host": {"vector_flags": ["avx2", "fma"]},
    "variables": {},
    "protocol": {
        "name": "standard",
        "rounds": 5,
        "warmup_steps": 10,
        "warmup_seconds": 1.0,
        "blocks": 3,
        "steps_per_block": 100,
        "max_block_seconds": 10.0,
    },
    "packages": {"torch": "2.14.1", "jax": "0.10.2"},
    "python": "3.11.7",
    "before": {"gpus": [{"driver_version": "580.159", "power.limit": "700.00 W"}]},
}


def timed(means, **changes):
    """A row whose five process means are given."""
    return CASE | {
        "best_seconds": min(means),
        "median_seconds": sorted(means)[len(means) // 2],
        "mean_seconds": sum(means) / len(means),
        "mean_low_seconds": min(means),
        "mean_high_seconds": max(means),
        "rounds": len(means),
        "samples": 3 * len(means),
        **changes,
    }


def steady(milliseconds, **changes):
    """Five process means within 1% of one another."""
    return timed([milliseconds * 1e-3 * factor for factor in (0.995, 0.998, 1.0, 1.002, 1.005)], **changes)
