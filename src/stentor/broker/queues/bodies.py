"""The messages of jobs, as the batches that hold them: from memory if they are new, else from the log.

A batch is passed on as it is, unless only few of its messages are wanted, or it is very large: then it is sent with
some of them.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.errors import LimitExceeded
from stentor.wire import sparse
from stentor.wire.header import HEADER_BYTES, extents, unpack

if TYPE_CHECKING:
    from asyncio import Future

    from stentor.broker.partitions.partition import Partition
    from stentor.errors import StentorError
    from stentor.wire.header import BatchHeader

BODIES_BYTES_MAX: Final = 4 * limits.MIB
"""What one answer brings, but for a single larger message; a client asks for the rest."""

_CUT_FROM: Final = 16  # a batch of fewer messages is not worth being cut


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


async def read_bodies(partition: Partition, ranges: list[tuple[int, int]]) -> bytes:
    """The batches that hold these jobs, in order, up to a limit."""
    wanted, size = WantedJobs(ranges), 0
    found: list[bytes] = []
    offset = wanted.next(0)
    while offset is not None and size < BODIES_BYTES_MAX:
        taken = partition.tail.take(offset, partition.committed, limits.DELIVERY_BYTES)
        chunks, following = taken[:2] if taken is not None else await _from_log(partition, offset)
        for chunk in chunks:
            for part in _chosen(chunk, wanted):
                if found and size + len(part) > BODIES_BYTES_MAX:
                    return b"".join(found)  # with more, the answer might not fit a frame
                found.append(part)
                size += len(part)
        if following <= offset:
            break
        offset = wanted.next(following)
    return b"".join(found)


def _chosen(chunk: bytes, wanted: WantedJobs) -> list[bytes]:
    parts: list[bytes] = []
    for position, length, base, end in extents(chunk):
        following = wanted.next(base)
        if following is None:
            break
        if following >= end:
            continue
        header = unpack(chunk, position)
        if header.passed_over:
            continue
        if header.count > 1 and length > BODIES_BYTES_MAX:
            parts.append(_cut(chunk, position, header, wanted.within(base, end)))
            break  # so much is enough
        if header.count >= _CUT_FROM and not wanted.whole(base, end):
            within = wanted.within(base, end)
            if 2 * len(within) < header.count:
                parts.append(_cut(chunk, position, header, within))
                continue
        parts.append(chunk[position : position + length])
    return parts


def _cut(chunk: bytes, position: int, header: BatchHeader, within: list[int]) -> bytes:
    """A batch with these messages alone; with the first of them, if all are too much for one answer."""
    body = memoryview(chunk)[position + HEADER_BYTES : position + header.length]
    while True:
        with suppress(LimitExceeded):
            cut = sparse.keep(header, body, {offset - header.base_offset for offset in within})
            if len(cut) <= BODIES_BYTES_MAX or len(within) == 1:
                return cut
        within = within[: len(within) // 2]


async def _from_log(partition: Partition, offset: int) -> tuple[list[bytes], int]:
    done: Future[tuple[list[bytes], int]] = partition.loop.create_future()

    def finish(found: Any, error: StentorError | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(partition.read_failed(error))
        else:
            done.set_result(([found.data], found.next_offset))

    partition.reads.submit(partial(partition.log.read, offset, partition.committed, limits.DELIVERY_BYTES), finish)
    return await done
