"""What is run (Case), what a role process is told (Spec), what came out (Sample, Row)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

#: The durability classes. Ratios are only ever taken inside one class.
DURABILITIES = {
    "fsync": "acknowledged after the data was synced to disk",
    "os": "acknowledged once in the page cache; synced periodically",
    "none": "not acknowledged, or never written",
}
#: The four kinds of rows. `stock` and `tuned` are tables of their own, `native` and `limit` share the third.
VARIANTS = ("stock", "tuned", "native", "limit")


class BenchError(Exception):
    """A run did not end as it must: a process died, a deadline passed, a check failed."""


class NotAvailableError(BenchError):
    """The system cannot be had here; its row says why."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose."""

    quick: bool
    repetitions: int
    seconds: float
    sizes: tuple[int, ...]
    batches: tuple[int, ...]
    systems: tuple[str, ...] | None
    work_directory: Path
    budget_s: float | None = None
    """When this much time is up no further run starts; what was measured is reported."""
    seed: int = 7


@dataclass(frozen=True, slots=True)
class Case:
    """One row before it is measured: a kind of work on a system in a certain way."""

    work: str
    system: str
    mode: str
    """How the system is driven: `send`, `hiredis`, `packed` ... shown beside its name."""
    variant: str
    durability: str
    size: int = 100
    batch: int = 1000
    partitions: int = 1
    subscribers: int = 0
    load: float = 0.0
    """Open loop: the share of the closed-loop rate that is offered."""
    note: str = ""

    @property
    def label(self) -> str:
        return self.mode if self.mode.startswith(self.system) else f"{self.system} {self.mode}"

    @property
    def chunk(self) -> int:
        """Messages verified at a time: it depends on the work alone, so every system pays the same."""
        return 100 if self.size > 1000 or self.batch < 100 or self.subscribers else 1000

    @property
    def unit(self) -> int:
        """A pass is a whole number of units, so that both batches and verified chunks come out even."""
        return max(self.chunk, self.batch)


@dataclass(frozen=True, slots=True)
class Spec:
    """What a role process is told; travels as JSON on its command line."""

    system: str
    mode: str
    variant: str
    durability: str
    address: str
    size: int
    batch: int
    chunk: int
    unit: int
    partitions: int
    seconds: float
    seed: int
    topic: str = "bench"
    subscribers: int = 0
    rate: float = 0.0
    units: int = 0
    stamped: bool = False
    extra: dict[str, Any] = field(default_factory=dict)
    """What a program of its own kind (memory, crash, recovery) tells its roles."""

    @classmethod
    def of(cls, case: Case, address: str, options: Options, **changes: Any) -> Spec:
        return cls(
            system=case.system,
            mode=case.mode,
            variant=case.variant,
            durability=case.durability,
            address=address,
            size=case.size,
            batch=case.batch,
            chunk=case.chunk,
            unit=case.unit,
            partitions=case.partitions,
            seconds=options.seconds,
            seed=options.seed,
            subscribers=case.subscribers,
        ).with_(**changes)

    def with_(self, **changes: Any) -> Spec:
        return dataclasses.replace(self, **changes)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Spec:
        return cls(**json.loads(text))


@dataclass(slots=True)
class Sample:
    """One repetition of one case."""

    messages: int = 0
    messages_per_second: float | None = None
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    cpu_s_per_million: dict[str, float] = field(default_factory=dict)
    """CPU seconds per million messages by role: producer, broker, consumer."""
    disk_bytes_per_message: float | None = None
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Row:
    """A case with its repetitions: the median and the spread of each figure."""

    case: Case
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    not_available: str = ""

    def figures(self, name: str) -> list[float]:
        values = (getattr(sample, name) for sample in self.samples)
        return [value for value in values if value is not None]

    def median(self, name: str) -> float | None:
        values = self.figures(name)
        return median(values) if values else None

    def spread(self, name: str) -> tuple[float, float] | None:
        values = self.figures(name)
        return (min(values), max(values)) if values else None

    def cpu(self) -> dict[str, float]:
        roles = {role for sample in self.samples for role in sample.cpu_s_per_million}
        return {
            role: median([s.cpu_s_per_million[role] for s in self.samples if role in s.cpu_s_per_million])
            for role in sorted(roles)
        }

    def cpu_total(self) -> float | None:
        return sum(self.cpu().values()) if self.cpu() else None

    @property
    def rate(self) -> float | None:
        return self.median("messages_per_second")

    def to_json(self) -> dict[str, Any]:
        case = self.case
        return {
            "work": case.work,
            "system": case.system,
            "mode": case.mode,
            "variant": case.variant,
            "durability": case.durability,
            "parameters": {
                "size": case.size,
                "batch": case.batch,
                "partitions": case.partitions,
                "subscribers": case.subscribers,
                "load": case.load,
            },
            "messages_per_second": self.rate,
            "p50_us": self.median("p50_us"),
            "p99_us": self.median("p99_us"),
            "p999_us": self.median("p999_us"),
            "cpu_s_per_million": self.cpu_total(),
            "cpu_s_per_million_by_role": self.cpu(),
            "disk_bytes_per_message": self.median("disk_bytes_per_message"),
            "spread": {
                name: self.spread(name)
                for name in ("messages_per_second", "p50_us", "p99_us", "p999_us")
                if self.spread(name)
            },
            "repetitions": len(self.samples),
            "samples": [dataclasses.asdict(sample) for sample in self.samples],
            "failures": self.failures,
            "not_available": self.not_available,
            "note": case.note,
        }
