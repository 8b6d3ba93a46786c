"""The tail cache: a partition's newest chunks, kept in memory so that live subscribers cost no read.

Chunks are immutable bytes of whole batches; a thousand subscribers are sent the same object. The
cache is bounded in bytes and forgets from the front; whoever needs more reads the log.

Anybody may write to many partitions, so the caches of a broker have one budget, too (S7). When it is used up, the cache
that has got nothing for longest is emptied: its readers have had what it holds, or are behind and read the log. Caches
that get nothing for a while are emptied anyhow.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.wire.header import extents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHUNK_BYTES: Final = 160
"""What a chunk takes beside its bytes: Python's objects for it and for its offsets, and their places in lists."""

MACHINE_SHARE: Final = 16
"""On a small machine the budget is its memory divided by this."""


def budget_of(machine: int) -> int:
    """Return the budget for the caches of a broker on a machine with this much memory."""
    return min(limits.TAIL_CACHES_BYTES, machine // MACHINE_SHARE)


class TailBudget:
    """The memory budget that all tail caches of one broker share. Only the broker's loop uses it."""

    def __init__(self, limit: int = limits.TAIL_CACHES_BYTES) -> None:
        self.limit = limit
        self.used = 0
        # Caches that hold something; the one that got something last is at the end. None marks what came since the
        # last look for idle ones.
        self._order: OrderedDict[TailCache | None, None] = OrderedDict()

    def got(self, cache: TailCache) -> None:
        """Note that a cache holds a new chunk, which it has counted; empty others if it does not fit."""
        order = self._order
        order[cache] = None
        order.move_to_end(cache)
        while self.used > self.limit:
            oldest, _ = order.popitem(last=False)
            if oldest is not None:
                oldest.clear()

    def forget(self, cache: TailCache) -> None:
        """Note that a cache holds nothing any more."""
        self._order.pop(cache, None)

    def idle(self) -> Iterator[Callable[[], object]]:
        """Return what empties the caches that got nothing since this was called last, one by one."""
        order = self._order
        while None in order:
            oldest, _ = order.popitem(last=False)
            if oldest is not None:
                yield oldest.clear
        order[None] = None

    def check_invariants(self) -> None:
        """Called by tests."""
        caches = [cache for cache in self._order if cache is not None]
        assert self.used == sum(cache.held for cache in caches)
        assert all(cache.held for cache in caches)
        assert self.used <= self.limit


def _from_offset(chunk: bytes, offset: int) -> bytes:
    """A chunk from the batch that holds an offset on."""
    return chunk[next((place for place, _, _, end in extents(chunk) if end > offset), 0) :]


class TailCache:
    """The newest chunks of one partition, in offset order and without gaps."""

    __slots__ = ("_bases", "_budget", "_bytes", "_chunks", "_ends", "_limit")

    def __init__(self, limit: int = limits.TAIL_CACHE_BYTES, budget: TailBudget | None = None) -> None:
        self._bases: list[int] = []
        self._ends: list[int] = []
        self._chunks: list[bytes] = []
        self._bytes = 0
        self._limit = limit
        self._budget = TailBudget() if budget is None else budget

    def add(self, base_offset: int, end_offset: int, chunk: bytes) -> None:
        self._bases.append(base_offset)
        self._ends.append(end_offset)
        self._chunks.append(chunk)
        self._bytes += len(chunk)
        budget = self._budget
        budget.used += len(chunk) + CHUNK_BYTES
        if self._bytes > self._limit:
            self._trim()
        if self._chunks:
            budget.got(self)

    def _trim(self) -> None:
        """Forget down to half the limit at once, so that trimming is rare."""
        excess = self._bytes - self._limit // 2
        count = 1 + bisect_left(list(accumulate(map(len, self._chunks))), excess)
        self._forget(min(count, len(self._chunks)))

    def _forget(self, count: int) -> None:
        """Forget this many chunks at the front."""
        if count == len(self._chunks):
            self.clear()
            return
        size = sum(map(len, self._chunks[:count]))
        self._bytes -= size
        self._budget.used -= size + count * CHUNK_BYTES
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
        self._forget(bisect_left(self._ends, offset + 1))

    def clear(self) -> None:
        """Forget everything: what the log ends with is read from disk first."""
        self._budget.used -= self.held
        self._bases, self._ends, self._chunks, self._bytes = [], [], [], 0
        self._budget.forget(self)

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def held(self) -> int:
        """What this takes of the budget."""
        return self._bytes + len(self._chunks) * CHUNK_BYTES
