"""The tail cache: a partition's newest chunks, kept in memory so that live subscribers cost no read.

Chunks are immutable bytes of whole batches; a thousand subscribers are sent the same object. The
cache is bounded in bytes and forgets from the front; whoever needs more reads the log.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from stentor import limits
from stentor.wire.header import extents


def _from_offset(chunk: bytes, offset: int) -> bytes:
    """A chunk from the batch that holds an offset on."""
    return chunk[next((place for place, _, _, end in extents(chunk) if end > offset), 0) :]


class TailCache:
    """The newest chunks of one partition, in offset order and without gaps."""

    __slots__ = ("_bases", "_bytes", "_chunks", "_ends", "_limit")

    def __init__(self, limit: int = limits.TAIL_CACHE_BYTES) -> None:
        self._bases: list[int] = []
        self._ends: list[int] = []
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._limit = limit

    def add(self, base_offset: int, end_offset: int, chunk: bytes) -> None:
        self._bases.append(base_offset)
        self._ends.append(end_offset)
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        if self._bytes > self._limit:
            self._trim()

    def _trim(self) -> None:
        """Forget down to half the limit at once, so that trimming is rare."""
        excess = self._bytes - self._limit // 2
        count = 1 + bisect_left(list(accumulate(map(len, self._chunks))), excess)
        count = min(count, len(self._chunks))
        self._bytes -= sum(map(len, self._chunks[:count]))
        del self._bases[:count], self._ends[:count], self._chunks[:count]

    def take(self, position: int, committed: int, max_bytes: int) -> tuple[list[bytes], int, int] | None:
        """Whole chunks from the one that holds `position`, below `committed`: (chunks, next, size).

        None when the cache does not reach back to `position`.
        """
        ends = self._ends
        index = bisect_left(ends, position + 1)
        if index == len(ends) or self._bases[index] > position:
            return None
        chunks: list[bytes] = []
        size, next_offset = 0, position
        while index < len(ends) and ends[index] <= committed:
            chunk = self._chunks[index]
            if self._bases[index] < position:
                chunk = _from_offset(chunk, position)
            if chunks and size + len(chunk) > max_bytes:
                break
            chunks.append(chunk)
            size += len(chunk)
            next_offset = ends[index]
            index += 1
        return (chunks, next_offset, size) if chunks else None

    def forget_below(self, offset: int) -> None:
        """The log holds less than this below an offset: what it was compacted to is read from disk."""
        count = bisect_left(self._ends, offset + 1)
        self._bytes -= sum(map(len, self._chunks[:count]))
        del self._bases[:count], self._ends[:count], self._chunks[:count]

    def clear(self) -> None:
        """The log was cut back: what it ends with now is read from disk first."""
        self._bases, self._ends, self._chunks, self._bytes = [], [], [], 0

    @property
    def bytes(self) -> int:
        return self._bytes
