"""What the coordination store and brokers say about partitions: records, members, batches, epoch tables.

The chain record is the only authority on a partition (C1). It is changed only by compare-and-swap:
the new chain is the old one minus members, plus one proven joiner at its tail, or a permutation of it.
A change of `joining` alone moves the revision and not the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Key = tuple[int, int]
"""A partition: (topic id, index)."""


class Member(msgspec.Struct, frozen=True):
    """A replica by name: a wiped disk or a restart makes another one (C3)."""

    broker: str
    log_id: int
    incarnation: int

    def same_log(self, other: Member) -> bool:
        return self.broker == other.broker and self.log_id == other.log_id


class Reservation(msgspec.Struct, frozen=True):
    """Offsets of a memory topic: which may have been given out, as far as anybody knows (`core.reservation`)."""

    end: int
    """No head gives out this offset, or one behind it, under this record."""
    begins: int = 0
    """Where the log began when all of its copies were lost last."""
    epoch: int = 0
    """In which epoch that was; 0: never."""


class ChainRecord(msgspec.Struct, frozen=True):
    """The authority on a partition (C1)."""

    epoch: int
    chain: tuple[Member, ...]
    joining: Member | None = None
    """Gets backlog and live data, and counts for nothing until a longer chain is swapped in (C11)."""
    eligible: tuple[Member, ...] = ()
    """Removed by the change that crossed below the minimum: still hold all that is committed (C8)."""
    committed: int = 0
    """At least this much was committed at the change: a member that ends below it is damaged (C13)."""
    proposal: int = 0
    """Tells one's own swap from another's after an unknown outcome (C17)."""
    factor: int = 1
    min_replicas: int = 1
    reserved: Reservation | None = None
    """Of a memory topic."""

    @property
    def quorum(self) -> int:
        """The place in the chain that `ack=quorum` waits for: a majority of the configured factor (C7)."""
        return self.factor // 2 + 1

    @property
    def members(self) -> tuple[Member, ...]:
        """The chain, and the joiner behind it."""
        return self.chain if self.joining is None else (*self.chain, self.joining)

    def before(self, member: Member) -> Member | None:
        """Who feeds a member or the joiner; None for the head, and for who has no place."""
        if member == self.joining:
            return self.chain[-1]
        place = self.chain.index(member) if member in self.chain else 0
        return self.chain[place - 1] if place else None

    @property
    def is_short(self) -> bool:
        """Whether too few members are left for anything to be committed (C8)."""
        return len(self.chain) < self.min_replicas

    def resettled(self, factor: int, min_replicas: int) -> ChainRecord | None:
        """With the topic's factor and minimum as they are now; None if they have not changed."""
        if (self.factor, self.min_replicas) == (factor, min_replicas):
            return None
        # A chain that is long enough from now on commits without those who may still lead (C8).
        eligible = self.eligible if len(self.chain) < min_replicas else ()
        return msgspec.structs.replace(
            self, epoch=self.epoch + 1, factor=factor, min_replicas=min_replicas, eligible=eligible
        )


class Batch(Protocol):
    """What the core needs to know of a batch: a part of its header."""

    @property
    def base_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def generation(self) -> int: ...
    @property
    def sequence(self) -> int: ...
    @property
    def body_checksum(self) -> int: ...
    @property
    def appended_at_us(self) -> int: ...
    @property
    def refused(self) -> bool: ...
    @property
    def passed_over(self) -> bool: ...
    @property
    def control(self) -> bool: ...


class HeldRecord(msgspec.Struct, frozen=True):
    """A record as the store has it."""

    record: ChainRecord
    revision: int


class EpochTable:
    """Which epoch wrote which offsets: (epoch, first offset), from batch headers alone (C9)."""

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._epochs: list[int] = []
        self._firsts: list[int] = []
        for epoch, first in entries:
            self.note(epoch, first)

    def note(self, epoch: int, base_offset: int) -> None:
        """A batch of this epoch was appended at this offset."""
        if not self._epochs or self._epochs[-1] != epoch:
            self._epochs.append(epoch)
            self._firsts.append(base_offset)

    def cut(self, end: int) -> None:
        """The log ends here now."""
        while self._firsts and self._firsts[-1] >= end:
            self._firsts.pop()
            self._epochs.pop()

    def clear(self) -> None:
        self._epochs, self._firsts = [], []

    def epoch_before(self, offset: int) -> int:
        """The epoch of the batch that ends at this offset; 0 at the beginning of everything."""
        place = bisect_right(self._firsts, offset - 1)
        return self._epochs[place - 1] if place else 0

    def continues(self, end: int, previous: int) -> bool:
        """C9: the batch before is of the same epoch in both logs; 0 when retention has let it go in one of them."""
        known = self.epoch_before(end)
        return previous == known or not previous or not known

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._firsts, strict=True))

    @property
    def last(self) -> int:
        return self._epochs[-1] if self._epochs else 0


def common_end(ours: Sequence[tuple[int, int]], our_end: int, theirs: Sequence[tuple[int, int]], their_end: int) -> int:
    """Up to where two logs are the same: where the newest epoch that both know ends first (C9).

    One head wrote each epoch and every log of an epoch begins as its head's did, so the same epoch in both
    means the same batches up to the shorter end. -1 when they have no epoch in common.
    """
    ends = _ends(theirs, their_end)
    for epoch, end in reversed(_ends(ours, our_end).items()):
        if epoch in ends:
            return min(end, ends[epoch])
    return -1


def common_part(
    ours: Sequence[tuple[int, int]],
    our_start: int,
    our_end: int,
    theirs: Sequence[tuple[int, int]],
    their_start: int,
    their_end: int,
) -> int | None:
    """Where the other log must be cut to be a part of ours; None when nothing of what is left is known to be."""
    cut = common_end(ours, our_end, theirs, their_end)
    if our_start <= their_start <= our_end:
        cut = max(cut, their_start)  # what retention has let go there was committed: our log has it too
    return cut if cut >= max(our_start, their_start) else None


def _ends(table: Sequence[tuple[int, int]], end: int) -> dict[int, int]:
    following = [*(first for _, first in table[1:]), end]
    return {epoch: last for (epoch, _), last in zip(table, following, strict=False)}
