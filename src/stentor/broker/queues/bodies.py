"""The messages of jobs, as the batches that hold them: from memory if they are new, else from the log.

A batch is passed on as it is, unless much of it is not wanted, or it is very large: then it is sent with some of its
messages. To cut a batch means to read all of it, so that is done in a thread (C35). What was read from the log has more
batches than one request asks for, so the last reads are kept: consumers take jobs in the order of the log, and most
requests go on where another one stopped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.errors import LimitExceeded
from stentor.wire import sparse
from stentor.wire.header import HEADER_BYTES, extents, unpack

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterable

    from stentor.broker.partitions.partition import Partition
    from stentor.errors import StentorError
    from stentor.wire.header import BatchHeader

BODIES_BYTES_MAX: Final = 4 * limits.MIB
"""What one answer brings, but for a single larger message; a client asks for the rest."""

READS_KEPT_MAX: Final = 32
"""Reads of logs that are kept for queues, one of a partition: 16 MiB together."""

_CUT_FROM: Final = 16  # a batch of fewer messages is not worth being cut
_WASTE_BYTES_MAX: Final = 256 * limits.KIB  # what is sent in vain: to cut a batch costs more than to send so much


class WantedJobs:
    """Rising ranges of offsets, none of which touch."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        self._ranges: list[tuple[int, int]] = []
        for first, count in sorted(ranges):
            if self._ranges and first <= (end := sum(self._ranges[-1])):
                first, count = self._ranges[-1][0], max(end, first + count) - self._ranges[-1][0]  # noqa: PLW2901
                self._ranges.pop()
            self._ranges.append((first, count))
        self._firsts = [first for first, _ in self._ranges]

    def next(self, offset: int) -> int | None:
        """The first that is wanted from an offset on."""
        place = bisect_right(self._firsts, offset) - 1
        if place >= 0 and offset < sum(self._ranges[place]):
            return offset
        return self._firsts[place + 1] if place + 1 < len(self._firsts) else None

    def within(self, base: int, end: int) -> list[int]:
        """Those between two offsets."""
        found: list[int] = []
        place = max(0, bisect_right(self._firsts, base) - 1)
        while place < len(self._ranges) and self._firsts[place] < end:
            first, count = self._ranges[place]
            found.extend(range(max(first, base), min(first + count, end)))
            place += 1
        return found

    def whole(self, base: int, end: int) -> bool:
        """Whether all between two offsets are wanted."""
        place = bisect_right(self._firsts, base) - 1
        return place >= 0 and end <= sum(self._ranges[place])


class JobReads:
    """The last reads of logs for queues, one of a partition, by whoever leads it."""

    def __init__(self) -> None:
        self._reads: OrderedDict[object, LogRead] = OrderedDict()

    def find(self, lead: object, offset: int) -> LogRead | None:
        """What was read, if it holds an offset."""
        read = self._reads.get(lead)
        return read if read is not None and read.holds(offset) else None

    def keep(self, lead: object, read: LogRead) -> None:
        """Keep a read instead of the one before, unless it is large; the oldest ones go."""
        self._reads.pop(lead, None)
        if len(read.data) <= limits.DELIVERY_BYTES:
            self._reads[lead] = read
        if len(self._reads) > READS_KEPT_MAX:
            self._reads.popitem(last=False)

    def forget(self, lead: object) -> None:
        """It does not lead any more."""
        self._reads.pop(lead, None)


class LogRead:
    """Batches that were read at once, and where each of them is."""

    def __init__(self, data: bytes, following: int) -> None:
        self.data = data
        self.following = following  # the offset behind them
        self._batches = list(extents(data))
        self._bases = [base for _, _, base, _ in self._batches]
        self.is_large = any(length > _WASTE_BYTES_MAX for _, length, _, _ in self._batches)  # one may have to be cut

    def holds(self, offset: int) -> bool:
        """Whether an offset is in one of them."""
        return bool(self._bases) and self._bases[0] <= offset < self.following

    def chosen(self, wanted: WantedJobs, offset: int) -> list[bytes]:
        """Its batches with messages that are wanted from an offset on."""
        return _chosen(self.data, self._batches[max(0, bisect_right(self._bases, offset) - 1) :], wanted)


async def read_bodies(
    partition: Partition, ranges: list[tuple[int, int]], reads: JobReads | None = None, lead: object = None
) -> bytes:
    """The batches that hold these jobs, in order, up to a limit. `reads`: what is kept for who leads the partition."""
    wanted, size = WantedJobs(ranges), 0
    found: list[bytes] = []
    offset = wanted.next(0)
    while offset is not None and size < BODIES_BYTES_MAX:
        taken = partition.tail.take(offset, partition.committed, limits.DELIVERY_BYTES)
        if taken is not None:
            following = taken[1]
            choose = partial(_chosen_of, taken[0], wanted)
            large = any(len(chunk) > _WASTE_BYTES_MAX for chunk in taken[0])
        else:
            read = await _read_at(partition, offset, reads, lead)
            choose, following, large = partial(read.chosen, wanted, offset), read.following, read.is_large
        for part in await _beside(partition, choose) if large else choose():
            if found and size + len(part) > BODIES_BYTES_MAX:
                return b"".join(found)  # with more, the answer might not fit a frame
            found.append(part)
            size += len(part)
        if following <= offset:
            break
        offset = wanted.next(following)
    return found[0] if len(found) == 1 else b"".join(found)


def _chosen_of(chunks: list[bytes], wanted: WantedJobs) -> list[bytes]:
    return [part for chunk in chunks for part in _chosen(chunk, extents(chunk), wanted)]


def _chosen(chunk: bytes, batches: Iterable[tuple[int, int, int, int]], wanted: WantedJobs) -> list[bytes]:
    """The batches with messages that are wanted; neighbours that are passed on as they are in one piece."""
    parts: list[bytes] = []
    begin = stop = 0  # of that piece
    for position, length, base, end in batches:
        following = wanted.next(base)
        if following is None:
            break
        if following >= end:
            continue
        header = unpack(chunk, position)
        if header.passed_over:
            continue
        within = _cut_to(header, length, wanted)
        if within is None and position == stop and stop - begin + length <= BODIES_BYTES_MAX:
            stop += length
            continue
        if stop > begin:
            parts.append(chunk[begin:stop])
        begin, stop = position, position + length
        if within is not None:
            parts.append(_cut(chunk, position, header, within))
            begin = stop
            if length > BODIES_BYTES_MAX:
                break  # so much is enough
    if stop > begin:
        parts.append(chunk[begin:stop])
    return parts


def _cut_to(header: BatchHeader, length: int, wanted: WantedJobs) -> list[int] | None:
    """The messages to which a batch is cut; None: it is passed on as it is."""
    base, end, count = header.base_offset, header.end_offset, header.count
    if count > 1 and length > BODIES_BYTES_MAX:
        return wanted.within(base, end)
    if count < _CUT_FROM or length <= _WASTE_BYTES_MAX or wanted.whole(base, end):
        return None
    within = wanted.within(base, end)
    wasted = length - length * len(within) // count
    return within if 2 * len(within) < count and wasted > _WASTE_BYTES_MAX else None


def _cut(chunk: bytes, position: int, header: BatchHeader, within: list[int]) -> bytes:
    """A batch with these messages alone; with the first of them, if all are too much for one answer."""
    body = memoryview(chunk)[position + HEADER_BYTES : position + header.length]
    while True:
        with suppress(LimitExceeded):
            cut = sparse.keep(header, body, {offset - header.base_offset for offset in within})
            if len(cut) <= BODIES_BYTES_MAX or len(within) == 1:
                return cut
        within = within[: len(within) // 2]


async def _read_at(partition: Partition, offset: int, reads: JobReads | None, lead: object) -> LogRead:
    """The batches from an offset on, as the log has them."""
    known = None if reads is None else reads.find(lead, offset)
    if known is not None:
        return known
    found = await _beside(partition, partial(partition.log.read, offset, partition.committed, limits.DELIVERY_BYTES))
    read = LogRead(found.data, found.next_offset)
    if reads is not None:
        reads.keep(lead, read)
    return read


async def _beside(partition: Partition, work: Callable[[], Any]) -> Any:
    """Do what takes long beside the loop."""
    done: Future[Any] = partition.loop.create_future()

    def finish(found: Any, error: StentorError | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(partition.read_failed(error))
        else:
            done.set_result(found)

    partition.reads.submit(work, finish)
    return await done
