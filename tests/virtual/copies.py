"""Copies of a partition as the checks see them: what their machines were told, and what is on their disks."""

from __future__ import annotations

from bisect import bisect_left
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from stentor import limits
from stentor.core.cursors import Cursors
from stentor.core.table import TableState
from stentor.wire import header as batch_header

if TYPE_CHECKING:
    from tests.virtual.world import Process

    from stentor.broker.partitions.partition import Partition
    from stentor.core.dedupe import Dedupe
    from stentor.core.derived import DerivedState, States
    from stentor.core.records import Key, Member
    from stentor.storage.log import PartitionLog

READ_BYTES = 1 << 30


class Batch(NamedTuple):
    """A batch by its header."""

    base_offset: int
    end_offset: int
    epoch: int
    producer_id: int
    generation: int
    sequence: int
    body_checksum: int
    refused: bool = False

    @property
    def passed_over(self) -> bool:
        return self.refused

    @property
    def control(self) -> bool:
        return False

    @property
    def name(self) -> tuple[int, int, int]:
        return self.producer_id, self.generation, self.sequence


_BASE, _END = itemgetter(0), itemgetter(1)


def committed_cursors(states: States) -> dict[Any, Any] | None:
    """All cursors that are committed, if the partition is one that cursors are derived from."""
    cursors = next((state for state in states if isinstance(state, Cursors)), None)
    return None if cursors is None else dict(cursors._committed)


def of_header(header: Any) -> Batch:
    return Batch(
        header.base_offset,
        header.end_offset,
        header.epoch,
        header.producer_id,
        header.generation,
        header.sequence,
        header.body_checksum,
        header.refused,
    )


def read_log(log: PartitionLog) -> list[Batch]:
    """Every batch that is on the disk."""
    found, offset = [], log.start
    while offset < log.end:
        part = log.read(offset, log.end, READ_BYTES)
        if part.next_offset <= offset:
            break
        found += [of_header(batch_header.unpack(part.data, place)) for place, *_ in batch_header.extents(part.data)]
        offset = part.next_offset
    return found


class Copy:
    """One copy of a partition, since it was opened."""

    def __init__(self, partition: Partition, process: Process | None, *, readable: bool) -> None:
        self.partition, self.process = partition, process
        self.key: Key = partition.key
        self.me: Member = partition.replica.me
        self.place = f"{self.me.broker}, life {self.me.incarnation}, partition {self.key[1]}"
        self.in_memory = partition.log.in_memory
        self._synced = (
            partition.log.synced_end
        )  # what its disk was asked to sync; recovery has synced what it found (K3a)
        self.epoch = partition.replica.epoch  # the highest that it adopted
        self.noted = 0  # up to here it is noted who has it on disk
        self.compared = 0  # up to here its committed batches were compared with what others have
        self.readable = readable  # else a fault took something of it, and what it holds is not known
        self.batches = read_log(partition.log) if readable else []
        self.horizons: dict[Key, int] = {}  # below these, logs are compacted, each by itself: nothing is compared there

    @property
    def safe(self) -> int:
        """What its disk was asked to sync; of a copy in memory, all that it holds while its process lives."""
        return self.partition.log.end if self.in_memory else self._synced

    @safe.setter
    def safe(self, end: int) -> None:
        self._synced = end

    @property
    def is_lost(self) -> bool:
        """Whether it was in the memory of a process that has ended."""
        return self.in_memory and self.process is not None and self.process.dead

    @property
    def horizon(self) -> int:
        return self.horizons.get(self.key, 0)

    def at(self, offset: int) -> Batch | None:
        if offset < self.horizon:
            return None
        index = bisect_left(self.batches, offset, key=_BASE)
        return self.batches[index] if index < len(self.batches) else None

    def between(self, start: int, end: int) -> list[Batch]:
        first = bisect_left(self.batches, max(start, self.horizon) + 1, key=_END)
        return self.batches[first : bisect_left(self.batches, end + 1, key=_END)]

    def cut(self, end: int) -> None:
        """The log ends here; one that begins here anew holds nothing."""
        while self.batches and self.batches[-1].end_offset > end:
            self.batches.pop()
        self.safe = min(self.safe, end)
        if self.partition.log.start >= end:
            self.batches.clear()
            self.safe, self.readable = end, True

    def file_synced(self, path: str) -> int | None:
        """One of its files is safe, with all that is in it: so many bytes."""
        for segment in reversed(self.partition.log._state.segments):
            if path.endswith(segment.path().name):
                self.safe = max(self.safe, segment.end)
                return int(segment.size)
        return None


def derive(batches: list[Batch]) -> dict[int, list[Batch]]:
    """What must be remembered of producers after these batches, which are all that were ever written."""
    found: dict[int, list[Batch]] = {}
    for batch in batches:
        if batch.producer_id:
            window = found.pop(batch.producer_id, [])
            if window and window[-1].generation != batch.generation:
                window = []
            found[batch.producer_id] = [*window, batch][-limits.PRODUCER_IN_FLIGHT_BATCHES_MAX :]
    return {producer: [_unstamped(batch) for batch in window] for producer, window in found.items()}


def remembered(dedupe: Dedupe) -> dict[int, list[Batch]]:
    """What is remembered of them."""
    _, producers = msgspec.msgpack.decode(dedupe.snapshot(), strict=False)
    return {
        producer: [
            Batch(base, end, 0, producer, generation, sequence, checksum, refused)
            for sequence, checksum, base, end, _, refused in window
        ]
        for producer, (generation, window) in producers.items()
    }


def versions(state: DerivedState) -> frozenset[tuple[bytes, int]]:
    """What is at which version, of a state that has no snapshots."""
    return frozenset(state._committed.items()) if isinstance(state, TableState) else frozenset()


def pending_end(state: DerivedState) -> int:
    """Up to where a table has what is not committed."""
    return state._pending[-1][0] if isinstance(state, TableState) and state._pending else 0


def _unstamped(batch: Batch) -> Batch:
    return batch._replace(epoch=0)
