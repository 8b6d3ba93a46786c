"""What a stream of a subtree sends of a table's batches: the rows whose keys are in the subtree, with their offsets.

Rows that are left of batches next to each other go into one sparse batch (`wire.sparse`), which covers the offsets from
the first of these batches to the last. Batches of which nothing is left vanish: the delivery says how far it goes. A
batch of which everything is left goes as it is.

The bodies of all batches are checked, also of those that vanish: what is encoded anew has checksums of its own, and
must not hide damage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stentor import limits
from stentor.errors import CorruptData, LimitExceeded
from stentor.wire import sparse
from stentor.wire.header import COMPRESSION_MASK, HEADER_BYTES, SPARSE, BatchHeader, check_body, check_header

if TYPE_CHECKING:
    from collections.abc import Iterable

_JOINED_BYTES_MAX: Final = limits.DELIVERY_BYTES  # of rows in one batch: one push, whatever came in


class SubtreeRows:
    """Gathers what is left of batches, in order."""

    def __init__(self, subtree: bytes, floor: int) -> None:
        self._subtree = subtree
        self._floor = floor
        self.parts: list[bytes] = []
        self.rows = 0
        self.removed = 0  # messages, of any key, that a compaction took from these batches, from the floor on
        self._first: BatchHeader | None = None  # of the batches whose rows are gathered
        self._last: BatchHeader | None = None
        self._gathered = sparse.nothing()
        self._bytes = 0

    def add(self, chunk: bytes) -> None:
        """More batches."""
        position, view = 0, memoryview(chunk)
        while position < len(chunk):
            header = check_header(chunk, position)
            check_body(chunk, position, header)
            end = position + header.length
            if header.attributes & SPARSE:
                self.removed += sparse.lacking(header, chunk, position, self._floor)
            if self._may_hold(chunk, position + HEADER_BYTES, end, header):
                self._batch(header, view[position:end])
            position = end

    def _may_hold(self, chunk: bytes, begin: int, end: int, header: BatchHeader) -> bool:
        """Keys lie in a body as they are, unless it is compressed: a look at the bytes spares decoding most of them."""
        if header.passed_over:
            return False
        return bool(header.attributes & COMPRESSION_MASK) or chunk.find(self._subtree, begin, end) >= 0

    def _batch(self, header: BatchHeader, whole: memoryview) -> None:
        try:
            found = sparse.rows_of(header, whole[HEADER_BYTES:])
        except CorruptData:  # its checksum holds: what nobody can read goes as it is, and is no damage of this copy
            self.flush()
            self.rows += header.count
            self.parts.append(bytes(whole))
            return
        wanted = [key is not None and key.startswith(self._subtree) for key in found.keys]
        count = sum(wanted)
        if not count:
            return
        self.rows += count
        if count == len(wanted):
            self.flush()
            self.parts.append(bytes(whole))
            return
        if self._first is not None and not (sparse.are_alike(self._first, header) and self._bytes < _JOINED_BYTES_MAX):
            self.flush()
        if self._first is None:
            self._first = header
        self._last = header
        chosen = found.chosen(wanted)
        self._gathered.extend(chosen)
        self._bytes += sum(len(value or b"") for value in chosen.values)
        if self._bytes > limits.BATCH_BYTES_MAX // 2:  # one batch of large rows: it is its own
            self._alone(header, whole)

    def _alone(self, header: BatchHeader, whole: memoryview) -> None:
        if self._first is header:
            try:
                self.flush()
            except LimitExceeded:  # it was compressed and is nearly all wanted: readers leave out the rest
                self._reset()
                self.parts.append(bytes(whole))

    def flush(self) -> None:
        """What was gathered becomes a batch."""
        if self._first is not None and self._last is not None:
            first, last = self._first, self._last
            appended_at_us = max(first.appended_at_us, last.appended_at_us)
            merged = sparse.merge(first, first.base_offset, last.end_offset, self._gathered, appended_at_us)
            self.parts.append(merged)
            self._reset()

    def _reset(self) -> None:
        self._first = self._last = None
        self._gathered, self._bytes = sparse.nothing(), 0


class SubtreePart(NamedTuple):
    """What is left of batches for a subtree."""

    parts: list[bytes]
    rows: int
    removed: int  # messages of any key that a compaction took from these batches


def kept(chunks: Iterable[bytes], subtree: bytes, floor: int = 0) -> SubtreePart:
    """Batches with those rows alone whose keys are in a subtree; CorruptData if some are damaged. What compactions have
    removed is counted from `floor` on.
    """
    found = SubtreeRows(subtree, floor)
    for chunk in chunks:
        found.add(chunk)
    found.flush()
    return SubtreePart(found.parts, found.rows, found.removed)
