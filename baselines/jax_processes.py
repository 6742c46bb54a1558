"""JAX on several machines: one process each, joined by `jax.distributed`. Needed only where `world.world_size` > 1."""

from __future__ import annotations

import functools
import os

import jax
import numpy as np
from jax.experimental import multihost_utils

from baselines.interface import World


def join(world: World, device: str) -> None:
    """Join the processes that MASTER_ADDR and MASTER_PORT describe, once a process. Before JAX is asked for devices."""
    if jax.distributed.is_initialized():
        return
    address, port = os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    coordinator = f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
    if device == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        _listen_on(os.environ.get("SCALING_CONTRASTS_ADDRESS"))
    jax.distributed.initialize(
        coordinator,
        world.world_size,
        world.rank,
        coordinator_bind_address=coordinator,  # by default it listens on every interface
        cluster_detection_method="deactivate",
    )


def _listen_on(address: str | None) -> None:
    """Make Gloo listen on this address. By default it takes what the host's name means, which others may not reach.

    JAX has no setting for it, so its factory is given the argument; without it the default stays.
    """
    try:
        from jaxlib import _jax

        make = _jax.make_gloo_tcp_collectives
    except (ImportError, AttributeError):
        return
    if address:
        _jax.make_gloo_tcp_collectives = functools.partial(make, hostname=address)


def barrier() -> None:
    """Wait for all processes."""
    multihost_utils.sync_global_devices("scaling_contrasts")


def maximum(value: float) -> float:
    """The largest value over processes."""
    return float(multihost_utils.process_allgather(np.float32(value)).max())


def local_rows(value: jax.Array) -> np.ndarray:
    """The rows of an array, split by rows, that this process holds; they are consecutive."""
    if value.is_fully_addressable:
        return np.asarray(value)
    shards = sorted(value.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])
