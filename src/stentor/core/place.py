"""Where a replica stands in its chain, by the record of its epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stentor.core.records import ChainRecord, Member


class Place:
    """A replica's place: who is before it, who is after it."""

    def __init__(self) -> None:
        self.record: ChainRecord | None = None
        self.position: int | None = None  # in the chain; None: not a member
        self.joins = False  # this replica is the record's joiner

    def find(self, record: ChainRecord, me: Member) -> None:
        """C3: a member is this very log in this very incarnation."""
        self.record = record
        self.position = next((index for index, member in enumerate(record.chain) if member == me), None)
        self.joins = record.joining == me

    @property
    def brokers(self) -> tuple[str, ...]:
        return () if self.record is None else tuple(member.broker for member in self.record.chain)

    @property
    def is_head(self) -> bool:
        return self.position == 0

    @property
    def is_tail(self) -> bool:
        return self.position is not None and self.record is not None and self.position == len(self.record.chain) - 1

    @property
    def to_quorum(self) -> int:
        """How many members, from this one down, make a majority together with those above."""
        return 0 if self.position is None or self.record is None else max(0, self.record.quorum - self.position)

    @property
    def predecessor(self) -> Member | None:
        if self.record is None or self.is_head:
            return None
        if self.joins:
            return self.record.chain[-1]
        return None if self.position is None else self.record.chain[self.position - 1]

    @property
    def successor(self) -> Member | None:
        if self.record is None or self.position is None:
            return None
        return self.record.joining if self.is_tail else self.record.chain[self.position + 1]
