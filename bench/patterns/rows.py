"""What a work found (Row), the targets, and the file that holds it all."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from bench.measure import machine_facts

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bench.patterns.plan import Plan

LOAD_QUIET = 1.0
"""A machine whose load before a run is above this is busy with something else."""


@dataclass(slots=True)
class Row:
    """One figure of one system: the median of its repetitions, with all of them."""

    work: str
    system: str
    figure: str
    unit: str
    samples: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def value(self) -> float:
        return median(self.samples) if self.samples else float("nan")

    def as_dict(self) -> dict[str, Any]:
        known = bool(self.samples)
        spread = {"low": rounded(min(self.samples)), "high": rounded(max(self.samples))} if known else {}
        return {
            **asdict(self),
            "samples": [rounded(sample) for sample in self.samples],
            "value": rounded(self.value) if known else None,
            "repetitions": len(self.samples),
            **spread,
        }


@dataclass(frozen=True, slots=True)
class Target:
    """What a figure must reach: a limit, or so many times what another system reaches."""

    work: str
    figure: str
    most: float | None = None
    """Our figure must not be above this."""
    least: float | None = None
    """Nor below this."""
    times: float | None = None
    """It must be so many times smaller than that of `system`."""
    system: str = ""
    """By its whole name, or by its first word: then the best of its ways counts."""

    def judge(self, rows: Iterable[Row]) -> tuple[str, bool] | None:
        """What was reached, in words, and whether that is enough; None where something was not measured."""
        found = {(row.system, row.figure): row.value for row in rows if row.work == self.work and row.samples}
        ours = found.get(("stentor", self.figure))
        if ours is None:
            return None
        if self.most is not None:
            return f"{ours:,.6g}, at most {self.most:,.6g}", ours <= self.most
        if self.least is not None:
            return f"{ours:,.6g}, at least {self.least:,.6g}", ours >= self.least
        theirs = [value for (system, figure), value in found.items() if figure == self.figure and self._is(system)]
        if not theirs or not ours:
            return None
        reached = min(theirs) / ours
        return f"{reached:.1f} times {self.system}, at least {self.times:g}", reached >= (self.times or 0)

    def _is(self, system: str) -> bool:
        return self.system in {system, system.split(maxsplit=1)[0]}


GB = 1e9
ON_SLOW = ("catch up", "skip", "raise", "disconnect")
TARGETS = (
    Target("clone", "time", times=2, system="redis"),
    Target("clone", "time", times=10, system="nats kv"),
    Target("get", "time of a get", times=100, system="redis"),
    Target("large", "broker memory while loading", most=1.5 * GB),
    Target("large", "broker memory after a restart", most=1.5 * GB),
    Target("updates", "copies that differ", most=0),
    Target("faults", "updates lost", most=0),
    Target("faults", "updates applied twice", most=0),
    Target("clients", "clients not reached", most=0),
    Target("requests", "median", times=0.5, system="nats core"),
    Target("requests", "median", times=1, system="redis lists"),
    Target("workers", "in batches", least=1_500_000),
    Target("workers", "one by one", least=400_000),
    Target("workers", "gain of a second process", least=1.7),
    *(Target("slow", f"p99 ratio of {policy}", most=1.2) for policy in ON_SLOW),
    *(Target("slow", f"more time left out beside {policy}", most=20) for policy in ON_SLOW),
    Target("queue", "time of a job", times=2, system="redis"),
    Target("queue", "time of a job", times=2, system="nats"),
    Target("queue", "time of a job", times=2, system="rabbitmq"),
    Target("tasks", "time of a task", times=5, system="celery"),
)


def rounded(value: float) -> float:
    """Four digits are more than any figure here is worth."""
    return float(f"{value:.4g}") if abs(value) < 1e4 else round(value)


def add(rows: list[Row], work: str, system: str, unit: str, note: str = "", **figures: float) -> None:
    """One more sample of each figure; underscores in its name stand for spaces."""
    for name, value in figures.items():
        figure = name.replace("_", " ")
        for row in rows:
            if (row.work, row.system, row.figure) == (work, system, figure):
                row.samples.append(value)
                row.note = note or row.note
                break
        else:
            rows.append(Row(work, system, figure, unit, [value], note))


def merged(before: list[dict[str, Any]], measured: list[Row]) -> list[dict[str, Any]]:
    """Rows of works that were not measured now stay as they were."""
    works = {row.work for row in measured}
    return [row for row in before if row["work"] not in works] + [row.as_dict() for row in measured]


def write(rows: list[Row], path: Path, load_before: float, plan: Plan) -> None:
    """A whole new file, or one with the rows of these works replaced; each work says when and how it was measured."""
    before = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"rows": [], "runs": {}}
    run = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "load_before": round(load_before, 2),
        "load_after": round(os.getloadavg()[0], 2),
        "busy": load_before > LOAD_QUIET,
        "plan": asdict(plan),
    }
    content = {
        "measured_at": run["measured_at"],
        "machine": machine_facts(path.parent),
        "runs": before.get("runs", {}) | {row.work: run for row in rows},
        "rows": merged(before["rows"], rows),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
