"""A system whose memory is a formula of R, so that its capacity is known without searching."""

from __future__ import annotations

import time

import numpy as np

from harness.probe import Probe


class Sized(Probe):
    """Each step holds `per_row * R + per_cell * R * R` bytes; the probe's `fault` strikes above `fault_above` rows.

    `grow`: it takes 8 MiB at a time, up to 1 GiB, whatever R is.
    """

    _result: list | None = None

    def synchronize(self) -> None:
        """As JAX's adapters: there must be a step to wait for."""
        len(self._result)

    def step(self) -> None:
        self._result = []
        rows, options = self.case["rows"], self.options
        size = options.get("per_row", 0) * rows + options.get("per_cell", 0) * rows * rows
        held = [np.ones(size, dtype=np.uint8)]
        while options.get("grow") and len(held) < 128:
            held.append(np.ones(8 << 20, dtype=np.uint8))
            time.sleep(0.02)
        super().step()
        del held

    def _fault(self) -> str | None:
        return super()._fault() if self.case["rows"] > self.options.get("fault_above", 0) else None
