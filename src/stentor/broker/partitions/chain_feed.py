"""A feed: the log of a partition on its way to the successor, from the tail cache or from history.

It sends whatever is appended, at once and before any sync, for as long as the successor's connection takes
it. The replica machine says from where (StartFeed) and when to stop (StopFeed); what arrives is checked by the
successor's machine, so a feed has nothing to decide.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from stentor import limits
from stentor.wire import frames, peer, sparse
from stentor.wire.frames import Kind
from stentor.wire.header import HEADER_BYTES, unpack

if TYPE_CHECKING:
    from stentor.broker.disk_threads import DiskThreads
    from stentor.broker.partitions.interfaces import DataLink
    from stentor.broker.partitions.tail_cache import TailCache
    from stentor.core.chain_messages import Down
    from stentor.core.records import Key
    from stentor.core.replica import Replica
    from stentor.core.replica_events import StartFeed
    from stentor.errors import StentorError
    from stentor.storage.memory_log import AnyLog

_PUSHES_PER_TURN = 8  # then the loop looks at others


class Holding(Protocol):
    """The compactions of that partition."""

    def holds(self, position: int) -> bool: ...


class Fed(Protocol):
    """The partition whose batches are sent."""

    log: AnyLog
    tail: TailCache
    reads: DiskThreads
    key: Key

    @property
    def replica(self) -> Replica: ...
    @property
    def compaction(self) -> Holding: ...

    def feed_failed(self, error: StentorError) -> None: ...
    def read_failed(self, error: StentorError) -> StentorError: ...


class ChainFeed:
    """One partition's batches to one other broker."""

    def __init__(self, partition: Fed, link: DataLink, effect: StartFeed) -> None:
        self.partition = partition
        self.link = link
        self.position = effect.base
        self._epoch = effect.epoch
        self._attempt = effect.attempt
        self._reading = False
        self._down: Down | None = None  # to be said, unless the batches say it
        self._told_start = -1
        self.closed = False
        link.join(self)

    def wake(self) -> None:
        """Something was appended: send it at the end of this turn, together with what else comes in it."""
        if not self._reading:
            self.link.coalescing.gather(self._end_turn)

    def tell(self, down: Down) -> None:
        """Say how far this log is on disk; batches that leave in the same turn say it too."""
        self._down = down
        if self._reading:
            self._say()
        else:
            self.wake()

    def _say(self) -> None:
        down, self._down = self._down, None
        if down is not None and not self.closed:
            self._told_start = down.start
            self.link.send(peer.ForPartition(*self.partition.key, down))

    def _end_turn(self) -> None:
        self._pump()
        self._say()

    def _pump(self) -> None:
        partition = self.partition
        for _ in range(_PUSHES_PER_TURN):
            end = partition.log.end
            if self.closed or self._reading or self.position >= end:
                return
            if partition.compaction.holds(self.position):
                return  # it wakes the feed when it is over
            if not self.link.writable:
                return  # the link wakes its feeds when it takes more
            found = partition.tail.take(self.position, end, limits.DELIVERY_BYTES)
            if found is None:
                self._read_history(end)
                return
            chunks, next_offset, size = found
            self._push(chunks, next_offset, size)
        self.wake()

    def _push(self, chunks: list[bytes], next_offset: int, size: int) -> None:
        partition = self.partition
        replica = partition.replica
        base = unpack(chunks[0]).base_offset
        durable = replica.durable_here()
        if self._down is not None and self._down.durable <= durable and self._down.start == self._told_start:
            self._down = None
        prefix = frames.HEADER.pack(peer.REPLICATE.size + size, Kind.REPLICATE, 0, 0, 0) + peer.REPLICATE.pack(
            *partition.key,
            self._epoch,
            self._attempt,
            replica.table.epoch_before(base),
            base,
            max(0, durable),
            replica.quorum_wanted(),
        )
        self.link.write([prefix, *chunks], len(prefix) + size)
        self.position = next_offset

    def _read_history(self, end: int) -> None:
        self._reading = True
        # Verified here: the successor could only refuse what is damaged, again and again.
        read = partial(self.partition.log.read, self.position, end, limits.DELIVERY_BYTES)
        self.partition.reads.submit(read, self._history_read)

    def _history_read(self, found: Any, error: StentorError | None) -> None:
        self._reading = False
        if self.closed:
            return
        if error is not None:
            self.partition.feed_failed(error)
            return
        if found.next_offset > self.position:
            data = _from_offset(found.data, self.position)
            self._push([data], found.next_offset, len(data))
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.link.leave(self)


def _from_offset(data: bytes, offset: int) -> bytes:
    """Batches from an offset on. A successor may end inside of what a compaction has merged here into one batch."""
    header = unpack(data)
    if header.base_offset >= offset:
        return data
    body = memoryview(data)[HEADER_BYTES : header.length]
    return sparse.behind(header, body, offset) + data[header.length :]
