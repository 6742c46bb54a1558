"""What every JAX system shares: one process a machine that drives its devices, inputs, the ladder, one step, memory.

Nothing here sets XLA flags: they count only before JAX starts, so the launcher sets them (no preallocation; on CPU
`--xla_force_host_platform_device_count`).
"""

from __future__ import annotations

import importlib.metadata
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from baselines import cuda_driver, jax_inputs, jax_processes
from baselines.first_use import JaxMeter
from baselines.interface import Declaration, Outputs, Unsupported, World, processor_name

DTYPES = {"bfloat16": jnp.bfloat16, "float32": jnp.float32}


class JaxSystem:
    """Base of the JAX systems; see `baselines.interface.System` for the members.

    A subclass sets `declares` and writes `prefix_loss`. One global program runs on `world_size` devices; embeddings,
    labels and gradients are split by rows. Embeddings have the gradients' dtype, in which their values are exact.
    Scale, or its logarithm, and bias are float32 of shape (1,). The gradients are those of the global mean loss.
    """

    declares: Declaration

    @classmethod
    def unsupported(cls, case: Mapping[str, Any]) -> str | None:
        if case.get("live") is not None:
            return "every device must hold the same number of rows"
        return None

    def __init__(self, case: Mapping[str, Any], world: World) -> None:
        self.case, self.world = case, world
        self.options: Mapping[str, Any] = case.get("options") or {}
        if world.world_size > 1:
            jax_processes.join(world, case["device"])
        devices = jax.devices("gpu" if case["device"] == "cuda" else "cpu")
        if len(devices) < case["world_size"]:
            raise Unsupported(f"needs {case['world_size']} devices, JAX sees {len(devices)}")
        self.devices = devices[: case["world_size"]]
        on_gpu = case["device"] == "cuda"
        self.local_devices = [each for each in self.devices if each.process_index == jax.process_index()]
        self.device_name = self.devices[0].device_kind if on_gpu else processor_name()
        self._context_bytes = _context_bytes(len(self.local_devices)) if on_gpu else None
        mesh = Mesh(np.array(self.devices), ("data",))
        self.by_rows = NamedSharding(mesh, PartitionSpec("data"))
        self.everywhere = NamedSharding(mesh, PartitionSpec())
        weights = case.get("prefix_weights") or [1.0 / len(case["prefixes"])] * len(case["prefixes"])
        self.ladder = list(zip(case["prefixes"], weights, strict=True))
        self._compiled: Any = None
        self._results: Any = ()  # of the last step

    def build(self) -> None:
        sets = jax_inputs.case_rows(self.case, DTYPES[self.case["gradient_dtype"]], self.by_rows)
        self.names = list(sets)
        self.values = tuple(values for values, _ in sets.values())
        self.labels = next(iter(sets.values()))[1]
        scale = self.case["scale"]
        stored = math.log(scale) if self.declares.scale_parameter == "log_scale" else scale
        self.scale_parameter = jax.device_put(np.array([stored], np.float32), self.everywhere)
        self.bias = jax.device_put(np.array([self.case["bias"]], np.float32), self.everywhere)
        self.prepare()
        jax.block_until_ready(self.values)
        self._first_use = JaxMeter()

    def first_use(self) -> dict[str, float | None]:
        return self._first_use.seconds()

    def prepare(self) -> None:
        """Whatever a subclass makes once."""

    def prefix_loss(self, heads: list[jax.Array], scale: jax.Array, bias: jax.Array, labels: jax.Array) -> jax.Array:
        """The global loss of one prefix: `heads` are the first columns of each set, float32 `[n, prefix]`."""
        raise NotImplementedError

    def objective(self, values: tuple, scale_parameter: jax.Array, bias: jax.Array, labels: jax.Array) -> jax.Array:
        """The loss over the ladder, traced. Embeddings are cast up once, so prefixes add up in float32."""
        exponentiated = self.declares.scale_parameter == "log_scale"
        scale = jnp.exp(scale_parameter) if exponentiated else scale_parameter
        values = tuple(value.astype(jnp.float32) for value in values)
        return sum(
            weight * self.prefix_loss([value[:, :prefix] for value in values], scale, bias, labels)
            for prefix, weight in self.ladder
        )

    def _compile(self) -> Any:
        gradients = (tuple(self.by_rows for _ in self.values), self.everywhere, self.everywhere)
        step = jax.jit(
            jax.value_and_grad(self.objective, argnums=(0, 1, 2)), out_shardings=(self.everywhere, gradients)
        )
        return step.lower(*self._arguments()).compile()

    def _arguments(self) -> tuple:
        return self.values, self.scale_parameter, self.bias, self.labels

    def step(self) -> None:
        if self._compiled is None:
            self._compiled = self._compile()
        self._results = self._compiled(*self._arguments())

    def synchronize(self) -> None:
        jax.block_until_ready(self._results)

    def barrier(self) -> None:
        """One process has nobody to wait for."""
        if self.world.world_size > 1:
            jax_processes.barrier()

    def maximum(self, value: float) -> float:
        return jax_processes.maximum(value) if self.world.world_size > 1 else value

    def outputs(self) -> Outputs:
        loss, (gradients, scale_gradient, bias_gradient) = self._results
        scale_gradient = float(np.asarray(scale_gradient)[0])
        if self.declares.scale_parameter == "log_scale":
            scale_gradient /= self.case["scale"]  # d/dt = d/d(log t) / t
        return Outputs(
            loss=float(loss),
            scale_gradient=scale_gradient,
            bias_gradient=None if self.case["loss"].endswith("info_nce") else float(np.asarray(bias_gradient)[0]),
            gradients={
                name: jax_processes.local_rows(gradient).astype(np.float32)
                for name, gradient in zip(self.names, gradients, strict=True)
            },
            first_row=self.world.rank * len(self.local_devices) * self.case["rows"],
        )

    def memory_reset(self) -> None:
        """JAX's peak counter cannot be reset; the figures below come from the compiled program and the driver."""

    def memory(self) -> dict[str, int | None]:
        """Per device. `allocated_peak_bytes` is what the compiled program needs: arguments, results, temporaries."""
        devices = len(self.devices)
        values = sum(value.nbytes for value in self.values)
        labels = self.labels.nbytes if len(self.values) == 1 else 0
        itemsize = jnp.dtype(DTYPES[self.case["gradient_dtype"]]).itemsize
        return {
            "allocated_peak_bytes": _program_bytes(self._compiled),
            "input_bytes": (values + labels) // devices,
            "gradient_bytes": sum(value.size for value in self.values) * itemsize // devices,
            "device_used_bytes": self._device_used_bytes(),
            "allocator_peak_bytes": self._allocator_peak_bytes(),
        }

    def _allocator_peak_bytes(self) -> int | None:
        """The allocator's own peak, a second opinion on the analysis. It cannot be reset, so it is never too low."""
        peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use") for device in self.local_devices]
        return None if None in peaks else max(peaks)

    def _device_used_bytes(self) -> int | None:
        # JAX's allocator keeps what it once had, so this is a peak over the process, generation of inputs included.
        if self._context_bytes is None:
            return None
        used = [cuda_driver.used_bytes(ordinal) for ordinal in range(len(self.local_devices))]
        pairs = zip(used, self._context_bytes, strict=True)
        return None if None in used else max(now - before for now, before in pairs)

    def versions(self) -> dict[str, str]:
        known = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib")}
        if self.case["device"] == "cuda":
            known["jax_platform"] = self.devices[0].client.platform_version.splitlines()[0]
        return known

    def close(self) -> None:
        self.values = self._results = self._compiled = None


def _program_bytes(compiled: Any) -> int | None:
    """Memory of one device while the program runs, by XLA's own analysis; None where XLA gives none."""
    analysis = compiled.memory_analysis() if compiled is not None else None
    if analysis is None:
        return None
    parts = (analysis.argument_size_in_bytes, analysis.output_size_in_bytes, analysis.temp_size_in_bytes)
    return int(sum(parts) - analysis.alias_size_in_bytes)


_CONTEXTS: dict[int, list[int] | None] = {}


def _context_bytes(devices: int) -> list[int] | None:
    """What each device's bare context takes, read once a process, before the first system's inputs exist."""
    if devices not in _CONTEXTS:
        used = [cuda_driver.used_bytes(ordinal) for ordinal in range(devices)]
        _CONTEXTS[devices] = None if None in used else used
    return _CONTEXTS[devices]
