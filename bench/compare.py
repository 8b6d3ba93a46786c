"""Which Stentor row a peer's row is compared with, and the targets that follow.

Two rows are compared only when work, durability class, message size, batch, subscribers and load are the
same. A peer is compared with the Stentor row of its own variant; native tools and limits with Stentor's
tuned one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.model import Row

#: Works where less is better: they are compared by their median latency.
LATENCY_WORKS = ("single", "openloop", "replicated single")
PASS, SHORT, UNKNOWN = "pass", "short", "not measured"


def figure(row: Row) -> float | None:
    """The figure that a row is compared by."""
    return row.median("p50_us") if row.case.work in LATENCY_WORKS else row.rate


def best(rows: list[Row]) -> Row | None:
    """The best of several rows of one work."""
    measured = [row for row in rows if figure(row) is not None]
    if not measured:
        return None
    choose = min if measured[0].case.work in LATENCY_WORKS else max
    return choose(measured, key=lambda row: figure(row) or 0.0)


def advantage(ours: Row | None, theirs: Row | None) -> float | None:
    """How many times better ours is: above 1 we win, below 1 we lose."""
    if ours is None or theirs is None:
        return None
    mine, other = figure(ours), figure(theirs)
    if not mine or not other:
        return None
    return other / mine if ours.case.work in LATENCY_WORKS else mine / other


def counterpart(row: Row, rows: list[Row]) -> Row | None:
    """The Stentor row that does the same work as a peer's row."""
    case = row.case
    work = "throughput" if case.work == "native" else case.work
    alike = [
        other
        for other in rows
        if other.case.system == "stentor"
        and other.case.work == work
        and other.case.partitions == 1
        and other.case.durability == case.durability
        and other.case.size == case.size
        and other.case.subscribers == case.subscribers
        and other.case.load == case.load
        # History is filled differently by design: Stentor's batches must hold one message.
        and (other.case.batch == case.batch or work == "history")
    ]
    variant = "stock" if case.variant == "stock" else "tuned"
    return best([other for other in alike if other.case.variant == variant] or alike)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One target, what was measured, and whether it was reached."""

    target: str
    durability: str
    size: int
    ours: str
    theirs: str
    required: float
    measured: float | None

    @property
    def outcome(self) -> str:
        if self.measured is None:
            return UNKNOWN
        return PASS if self.measured >= self.required else SHORT

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "outcome": self.outcome}


def verdicts(rows: list[Row]) -> list[Verdict]:
    """The targets that concern one broker, for every size and durability class that was measured."""
    found = []
    for size in sorted({row.case.size for row in rows}):
        for durability in ("fsync", "os"):
            here = [row for row in rows if row.case.size == size and row.case.durability == durability]
            found += [_verdict(target, size, durability, here) for target in TARGETS if target.applies(here)]
        here = [row for row in rows if row.case.size == size]
        found += [_replicated(target, size, here) for target in REPLICATED if target.applies(here)]
    return found


def _replicated(target: Target, size: int, rows: list[Row]) -> Verdict:
    """Ours is synced on every replica; theirs is their best, synced or not."""
    mine = [row for row in rows if row.case.system == "stentor3" and row.case.work == target.work]
    ours = best([row for row in mine if row.case.durability == "fsync"])
    theirs = best(target.their_rows(rows))
    return Verdict(
        target=target.sentence,
        durability="fsync",
        size=size,
        ours=name(ours),
        theirs=f"{name(theirs)} ({theirs.case.durability})" if theirs is not None else "–",
        required=target.required,
        measured=advantage(ours, theirs),
    )


@dataclass(frozen=True, slots=True)
class Target:
    """A sentence of the design: our best row of a kind against the best row of theirs, times a factor."""

    sentence: str
    work: str
    required: float
    our_variants: tuple[str, ...]
    theirs: Callable[[Row], bool]

    def our_rows(self, rows: list[Row]) -> list[Row]:
        return [
            row
            for row in rows
            if row.case.system == "stentor"
            and row.case.work == self.work
            and row.case.partitions == 1
            and row.case.variant in self.our_variants
        ]

    def their_rows(self, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row.case.work == self.work and self.theirs(row)]

    def applies(self, rows: list[Row]) -> bool:
        return any(row.case.work == self.work for row in rows)


def _verdict(target: Target, size: int, durability: str, rows: list[Row]) -> Verdict:
    ours, theirs = best(target.our_rows(rows)), best(target.their_rows(rows))
    return Verdict(
        target=target.sentence,
        durability=durability,
        size=size,
        ours=name(ours),
        theirs=name(theirs),
        required=target.required,
        measured=advantage(ours, theirs),
    )


def name(row: Row | None) -> str:
    return row.case.label if row else "–"


def _peer(row: Row, variant: str) -> bool:
    return row.case.system in {"redis", "nats"} and row.case.variant == variant


TARGETS = (
    Target(
        "end to end ≥ 1/3 of the bare-socket copier",
        "throughput", 1 / 3, ("tuned",), lambda row: row.case.system == "copier",
    ),
    Target(
        "≥ 20 × the best stock client, ours by any call",
        "throughput", 20.0, ("stock", "tuned"), lambda row: _peer(row, "stock"),
    ),
    Target(
        "≥ 20 × the best stock client, ours by send()",
        "throughput", 20.0, ("stock",), lambda row: _peer(row, "stock"),
    ),
    Target(
        "≥ 3 × the best tuned one, unpacked",
        "throughput", 3.0, ("tuned",), lambda row: _peer(row, "tuned") and row.case.mode != "packed",
    ),
    Target(
        "≥ 1.2 × packed Redis",
        "throughput", 1.2, ("tuned",), lambda row: row.case.mode == "packed" and row.case.system == "redis",
    ),
    Target(
        "one publish at a time: p50 ≤ the best peer",
        "single", 1.0, ("stock", "tuned"), lambda row: row.case.system in {"redis", "nats"},
    ),
    Target(
        "history of one-message batches ≥ the best peer",
        "history", 1.0, ("stock", "tuned"), lambda row: row.case.system in {"redis", "nats"},
    ),
    Target(
        "the same, without bare hiredis, which is no client",
        "history", 1.0, ("stock", "tuned"),
        lambda row: row.case.system in {"redis", "nats"} and row.case.mode != "bare",
    ),
)  # fmt: skip

REPLICATED = (
    Target(
        "three replicas ≥ 20 × JetStream R3",
        "replicated", 20.0, ("stock", "tuned"), lambda row: row.case.system == "nats3",
    ),
    Target(
        "three replicas, one publish at a time: p50 ≤ JetStream R3",
        "replicated single", 1.0, ("stock", "tuned"), lambda row: row.case.system == "nats3",
    ),
)  # fmt: skip
