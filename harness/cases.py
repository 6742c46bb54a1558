"""A case: one system, one loss, one shape, one state. One case is one row of a result table."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any

CONTRACT_VERSION = 1
LOSSES = ("one_set_sigmoid", "two_set_sigmoid", "info_nce", "one_set_info_nce")
FORMS = ("nt_xent", "sup_con")  # of one_set_info_nce, as the variant's option `form`
STATES = {"init": (10.0, -10.0), "trained": (100.0, -10.0), "clip": (1 / 0.07, -10.0)}
STATUSES = (
    "ok",
    "out_of_memory",
    "timeout",
    "nonfinite",
    "wrong",
    "too_noisy",
    "crashed",
    "unsupported",
    "interrupted",
)


class ConfigurationError(ValueError):
    """Bad input from a user: one line that says what is wrong and what to do. Exit code 2."""


@dataclass(frozen=True)
class Case:
    """The defining fields of a case (docs/contracts.md, section 1). Raises ConfigurationError for impossible ones."""

    system: str
    loss: str
    variant: str
    rows: int
    state: str = "init"
    live: tuple[int, ...] | None = None
    dims: int = 1024
    prefixes: tuple[int, ...] = (64, 128, 256, 512, 1024)
    prefix_weights: tuple[float, ...] | None = None
    dtype: str = "bfloat16"
    gradient_dtype: str = "bfloat16"
    scale: float = 10.0
    bias: float = -10.0
    seed: int = 42
    labels: str = "pairs"
    self_pairs: bool = False
    world_size: int = 1
    nodes: int = 1
    device: str = "cpu"
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("rows", "dims", "world_size", "nodes"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.loss == "one_set_info_nce" and self.options.get("form") not in FORMS:
            known = " or ".join(FORMS)
            raise ConfigurationError(f"{self.system}:{self.variant} has no form; give its options form: {known}")
        if list(self.prefixes) != sorted(set(self.prefixes)) or not self.prefixes or self.prefixes[0] < 1:
            raise ConfigurationError(f"prefixes {list(self.prefixes)} must ascend, each once, from 1 up")
        if self.prefixes[-1] > self.dims:
            raise ConfigurationError(f"prefix {self.prefixes[-1]} exceeds dims {self.dims}; drop it or raise dims")
        if self.prefix_weights is not None and len(self.prefix_weights) != len(self.prefixes):
            raise ConfigurationError(
                f"{len(self.prefix_weights)} prefix_weights for {len(self.prefixes)} prefixes; give one each"
            )
        if self.live is not None:
            if len(self.live) != self.world_size or not all(0 <= count <= self.rows for count in self.live):
                raise ConfigurationError(
                    f"live {list(self.live)} must give each of {self.world_size} ranks 0 to {self.rows} rows"
                )
            if sum(self.live) == 0:
                raise ConfigurationError("live is 0 on every rank; at least one row must be live")
        if self.world_size % self.nodes:
            raise ConfigurationError(f"world_size {self.world_size} is not divisible by nodes {self.nodes}")

    @property
    def live_rows(self) -> int:
        """n: live rows (or pairs) over all ranks."""
        return sum(self.live) if self.live is not None else self.rows * self.world_size

    @cached_property
    def case_id(self) -> str:
        """First 12 hex digits of the SHA-256 of the defining fields."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def title(self) -> str:
        """What progress lines call this case."""
        place = f"{self.world_size} {self.device}" if self.world_size > 1 else self.device
        place += f" of {self.nodes} nodes" if self.nodes > 1 else ""
        return f"{self.system}:{self.variant} {self.loss} R={self.rows} {self.state} on {place}"

    def to_json(self) -> dict[str, Any]:
        """The JSON object handed to a worker, without actions, checks and protocol."""
        return {"contract": CONTRACT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Case:
        """The case inside a worker's JSON object; other keys are ignored."""
        known = {f.name for f in fields(cls)}
        kept = {key: value for key, value in data.items() if key in known}
        for name in ("live", "prefixes", "prefix_weights"):
            if kept.get(name) is not None:
                kept[name] = tuple(kept[name])
        return cls(**kept)
