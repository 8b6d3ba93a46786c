"""Where a replica stands in its chain, by the record of its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.core.records import ChainRecord, Member


class ChainPosition:
    """A replica's position: who is before it, who is after it."""

    def __init__(self) -> None:
        self.record: ChainRecord | None = None
        self.index: int | None = None  # in the chain; None: not a member
        self.joins = False  # this replica is the record's joiner

    def find(self, record: ChainRecord, me: Member) -> None:
        """C3: a member is this very log in this very incarnation."""
        self.record = record
        self.index = next((index for index, member in enumerate(record.chain) if member == me), None)
        self.joins = record.joining == me

    def leaves_out(self, broker: str) -> bool:
        """Whether the chain does without this broker."""
        return self.record is not None and broker not in self.brokers

    @property
    def brokers(self) -> tuple[str, ...]:
        return () if self.record is None else tuple(member.broker for member in self.record.chain)

    @property
    def is_head(self) -> bool:
        return self.index == 0

    @property
    def is_tail(self) -> bool:
        return self.index is not None and self.record is not None and self.index == len(self.record.chain) - 1

    @property
    def to_quorum(self) -> int:
        """How many members, from this one down, make a majority together with those above."""
        return 0 if self.index is None or self.record is None else max(0, self.record.quorum - self.index)

    @property
    def predecessor(self) -> Member | None:
        if self.record is None or self.is_head:
            return None
        if self.joins:
            return self.record.chain[-1]
        return None if self.index is None else self.record.chain[self.index - 1]

    @property
    def successor(self) -> Member | None:
        if self.record is None or self.index is None:
            return None
        return self.record.joining if self.is_tail else self.record.chain[self.index + 1]
