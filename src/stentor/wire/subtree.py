"""What a stream of a subtree sends of a table's batches: the rows whose keys are in the subtree, with their offsets.

Rows that are left of batches next to each other go into one sparse batch (`wire.sparse`), which covers the offsets from
the first of these batches to the last. Batches of which nothing is left vanish: the delivery says how far it goes. A
batch of which everything is left goes as it is, and so does one that cannot be written again (C34).

A few kilobytes may expand to 32 MiB. What takes much room is never Python's, and is joined with nothing. How long
filtering takes is judged by what batches expand to (`is_small`), and it is done in pieces (`Filtering`).

The bodies of all batches are checked, also of those that vanish: what is encoded anew has checksums of its own, and
must not hide damage.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

from stentor import limits
from stentor.errors import CorruptData, LimitExceeded
from stentor.wire import arrow_message, bodies, deltas, sparse
from stentor.wire.header import (
    COMPRESSION_MASK,
    ENCODING_ARROW,
    HEADER_BYTES,
    SPARSE,
    BatchHeader,
    check_body,
    check_header,
    extents,
    unpack,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stentor.wire.rows import Columns

_JOINED_BYTES_MAX: Final = limits.DELIVERY_BYTES  # of rows in one batch, expanded: one push, whatever came in
_LARGE_BYTES: Final = 64 * limits.KIB  # rows of a batch, expanded, from which on it is Arrow that takes them out
_PIECE_BYTES: Final = 32 * limits.MIB  # expanded, in one go: some 50 ms of a thread, then others have their turn


class SubtreePart(NamedTuple):
    """What is left of batches for a subtree."""

    parts: list[bytes]
    rows: int
    removed: int  # messages of any key that a compaction took from these batches


class Filtering:
    """Gathers what is left of batches, in order, a piece at a time."""

    def __init__(self, chunks: Iterable[bytes], subtree: bytes, floor: int = 0) -> None:
        """What compactions have removed is counted from `floor` on."""
        self._subtree = subtree
        self._floor = floor
        self._batches = self._checked(chunks)
        self._parts: list[bytes] = []
        self._rows = 0
        self._removed = 0
        self._first: BatchHeader | None = None  # of the batches whose rows are gathered
        self._last: BatchHeader | None = None
        self._gathered = sparse.nothing()
        self._bytes = 0

    def go_on(self) -> SubtreePart | None:
        """Filter more batches; return what is left of all once they are done. CorruptData if some are damaged."""
        room = _PIECE_BYTES
        for header, whole in self._batches:
            room -= self._batch(header, whole)
            if room <= 0:
                return None
        self._flush()
        return SubtreePart(self._parts, self._rows, self._removed)

    def _checked(self, chunks: Iterable[bytes]) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Those that may have rows of the subtree."""
        for chunk in chunks:
            position, view = 0, memoryview(chunk)
            while position < len(chunk):
                header = check_header(chunk, position)
                check_body(chunk, position, header)
                end = position + header.length
                if header.attributes & SPARSE:
                    self._removed += sparse.lacking(header, chunk, position, self._floor)
                if self._may_hold(chunk, position + HEADER_BYTES, end, header):
                    yield header, view[position:end]
                position = end

    def _may_hold(self, chunk: bytes, begin: int, end: int, header: BatchHeader) -> bool:
        """Keys lie in a body as they are, unless it is compressed: a look at the bytes spares decoding most of them."""
        if header.passed_over:
            return False
        return bool(header.attributes & COMPRESSION_MASK) or chunk.find(self._subtree, begin, end) >= 0

    def _batch(self, header: BatchHeader, whole: memoryview) -> int:
        """Take what is wanted of a batch; return what it expanded to."""
        size = _expanded_bytes(header, whole)
        try:
            if size > _LARGE_BYTES and header.encoding == ENCODING_ARROW:
                self._large(header, whole)
            else:
                self._small(header, whole)
        except (CorruptData, LimitExceeded):
            # Its checksum holds, so it is no damage of this copy if nobody can read it. Nor if what is wanted of it
            # cannot be written again: then readers leave out the rest.
            self._as_it_is(header, whole)
        return size

    def _small(self, header: BatchHeader, whole: memoryview) -> None:
        found = sparse.rows_of(header, whole[HEADER_BYTES:])
        wanted = self._wanted(found.keys)
        if all(wanted):
            self._as_it_is(header, whole)
        elif any(wanted):
            self._gather(header, found.chosen(wanted))

    def _large(self, header: BatchHeader, whole: memoryview) -> None:
        body, arrow = whole[HEADER_BYTES:], bodies.arrow()
        offsets = deltas.offsets(header, body)
        decoded = arrow.decode(deltas.rows(header, body), header.count)
        wanted = self._wanted(decoded.column(1).to_pylist())
        if all(wanted):
            self._as_it_is(header, whole)
            return
        indexes = list(compress(range(header.count), wanted))
        if not indexes:
            return
        chosen, offsets = arrow.taken(decoded, indexes), list(compress(offsets, wanted))
        if chosen.nbytes <= _LARGE_BYTES:
            self._gather(header, _rows(offsets, arrow.columns(chosen)))
            return
        alone = sparse.merged_alone(header, offsets, chosen)
        self._flush()
        self._parts.append(alone)
        self._rows += len(offsets)

    def _wanted(self, keys: Sequence[bytes | None]) -> list[bool]:
        return [key is not None and key.startswith(self._subtree) for key in keys]

    def _as_it_is(self, header: BatchHeader, whole: memoryview) -> None:
        self._flush()
        self._parts.append(bytes(whole))
        self._rows += header.count

    def _gather(self, header: BatchHeader, chosen: sparse.Rows) -> None:
        """Join these rows with those of the batches before, unless all of them are too many for one batch."""
        size = chosen.size()
        if size > _JOINED_BYTES_MAX:
            alone = sparse.merge(header, header.base_offset, header.end_offset, chosen, header.appended_at_us)
            self._flush()
            self._parts.append(alone)
        else:
            if (
                self._first is None
                or self._bytes + size > _JOINED_BYTES_MAX
                or not sparse.are_alike(self._first, header)
            ):
                self._flush()
                self._first = header
            self._last = header
            self._gathered.extend(chosen)
            self._bytes += size
        self._rows += len(chosen.offsets)

    def _flush(self) -> None:
        """What was gathered becomes a batch."""
        if self._first is None or self._last is None:
            return
        first, last = self._first, self._last
        appended_at_us = max(first.appended_at_us, last.appended_at_us)
        self._parts.append(sparse.merge(first, first.base_offset, last.end_offset, self._gathered, appended_at_us))
        self._first = self._last = None
        self._gathered, self._bytes = sparse.nothing(), 0


def is_small(chunks: Iterable[bytes], most: int) -> bool:
    """Return whether batches, expanded if they are compressed, take no more than this together."""
    for chunk in chunks:
        view = memoryview(chunk)
        for position, length, _, _ in extents(chunk):
            most -= _expanded_bytes(unpack(chunk, position), view[position : position + length])
            if most < 0:
                return False
    return True


def _expanded_bytes(header: BatchHeader, whole: memoryview) -> int:
    if not header.attributes & COMPRESSION_MASK:
        return header.length
    return arrow_message.expanded_bytes(deltas.rows(header, whole[HEADER_BYTES:]), header.count)


def _rows(offsets: list[int], columns: Columns) -> sparse.Rows:
    timestamps, keys, values, headers = columns
    return sparse.Rows(offsets, list(timestamps), keys, values, [None] * len(offsets) if headers is None else headers)
