"""Which brokers hold a partition, and in which order (D14). Pure functions of who is there and what they hold.

spread          heads and tails over all brokers (active/active)
active-passive  one broker is the head of everything; the others stand by
multi-primary   every broker is the head of a partition of each topic
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stentor.core.records import ChainRecord, Key

Mode = Literal["spread", "active-passive", "multi-primary"]


class Candidate(msgspec.Struct, frozen=True):
    """A broker that may hold replicas."""

    broker: str
    zone: str = ""


class Load(msgspec.Struct):
    """What every broker holds already; counted up while a topic is being placed."""

    replicas: Counter[str]
    heads: Counter[str]
    tails: Counter[str]

    @classmethod
    def of(cls, chains: Iterable[Sequence[str]]) -> Load:
        load = cls(Counter(), Counter(), Counter())
        for chain in chains:
            load.add(chain)
        return load

    def copy(self) -> Load:
        return Load(self.replicas.copy(), self.heads.copy(), self.tails.copy())

    def add(self, chain: Sequence[str]) -> None:
        self.replicas.update(chain)
        if chain:
            self.heads[chain[0]] += 1
            self.tails[chain[-1]] += 1


class Tally:
    """All chains, counted up and down as they change: nobody counts a thousand of them for each that does."""

    def __init__(self) -> None:
        self.load = Load.of([])
        self.joining = 0  # chains with a joiner
        self.unsettled = 0  # chains with a joiner, or too few members
        self._records: dict[Key, ChainRecord] = {}

    def put(self, key: Key, record: ChainRecord | None) -> None:
        """This is the record now; None: there is none."""
        before = self._records.pop(key, None)
        if before is not None:
            self._count(before, -1)
        if record is not None:
            self._records[key] = record
            self._count(record, 1)

    def _count(self, record: ChainRecord, step: int) -> None:
        brokers = [member.broker for member in record.chain]
        for broker in brokers:
            self.load.replicas[broker] += step
        self.load.heads[brokers[0]] += step
        self.load.tails[brokers[-1]] += step
        joins = record.joining is not None
        self.joining += step * joins
        self.unsettled += step * (joins or len(brokers) < record.factor)


def place(
    partition: int, factor: int, candidates: Sequence[Candidate], load: Load, *, mode: Mode = "spread", active: str = ""
) -> list[str]:
    """The chain of a new partition, head first; shorter than `factor` when there are too few brokers."""
    brokers = sorted(candidates, key=lambda candidate: candidate.broker)
    if not brokers:
        return []
    if mode == "active-passive":
        head = active if any(c.broker == active for c in brokers) else brokers[0].broker
    elif mode == "multi-primary":
        head = brokers[partition % len(brokers)].broker
    else:
        head = min(brokers, key=lambda c: (load.heads[c.broker], load.replicas[c.broker], c.broker)).broker
    chain = [head]
    while len(chain) < min(factor, len(brokers)):
        chain.append(next_member(chain, brokers, load))
    return chain


def next_member(chain: Sequence[str], candidates: Sequence[Candidate], load: Load) -> str:
    """Who to add to a chain: another zone first, then who holds least, and as tail least often."""
    zones = {candidate.zone for candidate in candidates if candidate.broker in chain and candidate.zone}
    return min(
        (candidate for candidate in candidates if candidate.broker not in chain),
        key=lambda c: (c.zone in zones, load.replicas[c.broker], load.tails[c.broker], c.broker),
    ).broker


def better_head(chain: Sequence[str], load: Load, *, mode: Mode, active: str, wanted: str) -> str | None:
    """Which member should be the head instead; None when it is well as it is."""
    head = chain[0]
    if mode == "active-passive":
        return active if active in chain and active != head else None
    if mode == "multi-primary":
        return wanted if wanted in chain and wanted != head else None
    least = min(chain, key=lambda broker: (load.heads[broker], broker))
    return least if load.heads[head] - load.heads[least] > 1 else None
