"""Looking at the batches of a segment: are they whole, ours, and in their place?

A batch is *valid* at a position if its magic, header checksum and body checksum hold, its topic and
partition are ours, and its base offset is the one expected there (K1). `verified_headers` walks valid
batches in a buffer; `scan_segment` walks a whole file with it and is what recovery, the doctor and the
examination of damage all use.

Where a batch is not valid, the scan looks for the next valid one whose offset is not below the expected:

1. If the header can still be trusted, directly behind the batch, where its length points.
2. Otherwise at each later occurrence of the magic number, byte by byte. A candidate must have both
   checksums right, be ours, end within the file, and keep below `ceiling`, the first offset that cannot be
   in this segment. The last segment has no such neighbour; there, a candidate may not be further away
   than that many lost bytes could hold (`_plausible_end`), so that bytes in a message's payload that
   imitate a batch cannot carry the log's offsets away.

What lies between is a `DamagedRange`. Bytes at the end with no valid batch after them are the scan's
`tail`: torn or damaged, which only the caller can decide (K2).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Final

import msgspec
from crc32c import crc32c

from stentor.errors import CorruptData
from stentor.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, KIB, MIB
from stentor.storage.files import FileHandle, read_at
from stentor.storage.index import SparseIndex
from stentor.storage.model import SEGMENT_HEADER_BYTES, DamagedRange, Identity
from stentor.wire.header import CHECKED_FROM, HEADER_BYTES, LAYOUT, MAGIC, BatchHeader, check_body, check_header

SCAN_WINDOW_BYTES: Final = 1 * MIB
"""What a scan reads at once: many small batches, or a few of the largest usual ones."""

HEADER_WINDOW_BYTES: Final = 64 * KIB
"""What a walk over headers alone reads at once: two index intervals."""

OFFSET_MAX: Final = 2**63 - 1
"""Offsets are signed 64-bit numbers in the index."""


class Scan:
    """What a scan of one segment found."""

    __slots__ = ("batches", "damaged", "end", "index", "size", "tail_bytes", "tail_header", "tail_is_blank")

    def __init__(self, base: int) -> None:
        self.index = SparseIndex()
        self.size = SEGMENT_HEADER_BYTES
        """Where the last valid batch ends."""
        self.end = base
        """The first offset after the last valid batch."""
        self.batches = 0
        self.damaged: list[DamagedRange] = []
        self.tail_bytes = 0
        """How many bytes follow that are no valid batch."""
        self.tail_is_blank = True
        """Only zeros follow: room that was taken and not written to."""
        self.tail_header: BatchHeader | None = None
        """The header at the beginning of the tail, if it can be read."""


def verified_headers(
    view: memoryview, identity: Identity, expected: int, ceiling: int
) -> tuple[list[BatchHeader], int]:
    """The headers of the valid batches that follow each other from the view's start, and where they stop."""
    headers: list[BatchHeader] = []
    topic_id, partition = identity.topic_id, identity.partition
    unpack_from = LAYOUT.unpack_from
    position, end = 0, len(view)
    last = end - HEADER_BYTES
    while position <= last:
        fields = unpack_from(view, position)
        length = fields[2]
        body, stop = position + HEADER_BYTES, position + length
        if (
            stop > end
            or stop < body
            or fields[0] != MAGIC
            or fields[7] != expected
            or fields[5] != partition
            or fields[4] != topic_id
            or not fields[15]
            or crc32c(view[position + CHECKED_FROM : body]) != fields[1]
            or crc32c(view[body:stop]) != fields[3]
        ):
            break
        expected += fields[15]
        if expected > ceiling:
            break
        headers.append(BatchHeader(*fields[1:]))
        position = stop
    return headers, position


class Extent(msgspec.Struct, frozen=True):
    """Where and for whom a scan looks."""

    file: FileHandle
    identity: Identity
    size: int
    """Bytes from here on are not looked at."""
    ceiling: int | None
    """The first offset that cannot be in this segment; None in the last one."""


OnBatch = Callable[[BatchHeader, memoryview], None]
"""Gets a batch's header and its body, which is valid only during the call."""


def scan_segment(extent: Extent, base: int, on_batch: OnBatch | None = None) -> Scan:
    """Check every batch of a segment; `on_batch` sees each valid one, in order."""
    scan = Scan(base)
    ceiling = OFFSET_MAX if extent.ceiling is None else extent.ceiling
    window_bytes = SCAN_WINDOW_BYTES
    while scan.size < extent.size:
        window = memoryview(read_at(extent.file, min(window_bytes, extent.size - scan.size), scan.size))
        headers, stop = verified_headers(window, extent.identity, scan.end, ceiling)
        if headers:
            window_bytes = SCAN_WINDOW_BYTES
            _take(scan, headers, stop)
            if on_batch is not None:
                _show(window, headers, on_batch)
            continue
        needed = _claimed_bytes(window, extent.size - scan.size)
        if needed > len(window) and needed != window_bytes:
            window_bytes = needed
            continue
        if not _skip_damage(extent, scan):
            break
    return scan


def _take(scan: Scan, headers: list[BatchHeader], stop: int) -> None:
    scan.index.add(headers, scan.size)
    scan.size += stop
    scan.end = headers[-1].end_offset
    scan.batches += len(headers)


def _show(window: memoryview, headers: list[BatchHeader], on_batch: OnBatch) -> None:
    position = 0
    for header in headers:
        on_batch(header, window[position + HEADER_BYTES : position + header.length])
        position += header.length


def _claimed_bytes(window: memoryview, left: int) -> int:
    """The length that the batch at the window's start claims, if it could be true; else nothing."""
    try:
        header = check_header(window)
    except CorruptData:
        return 0
    return header.length if header.length <= left else 0


def _skip_damage(extent: Extent, scan: Scan) -> bool:
    """Note the damage at the scan's position and go on behind it; False if nothing valid follows."""
    broken = readable_header(extent, scan.size, scan.end)
    found = find_valid_batch(extent, scan.size, scan.end)
    if found is None:
        scan.tail_bytes = extent.size - scan.size
        scan.tail_header = broken
        scan.tail_is_blank = is_blank(extent.file, scan.size, extent.size)
        return False
    position, header = found
    missing = position == scan.size
    if header.base_offset > scan.end or not missing:
        reason = "batches are missing" if missing else "bytes fail their checksum"
        scan.damaged.append(DamagedRange(scan.end, header.base_offset, scan.size, position, reason))
    scan.size, scan.end = position, header.base_offset
    scan.index.next_entry_at = 0
    return True


def readable_header(extent: Extent, position: int, expected: int) -> BatchHeader | None:
    """The header at `position` if it can be trusted, whatever became of its body."""
    try:
        header = check_header(_header_bytes(extent, position))
    except CorruptData:
        return None
    return header if _fits(extent, header, expected, OFFSET_MAX) else None


def find_valid_batch(extent: Extent, position: int, expected: int) -> tuple[int, BatchHeader] | None:
    """The first valid batch at or after `position` whose base offset is at least `expected`."""
    header = valid_batch_at(extent, position, expected, OFFSET_MAX)
    if header is not None:
        return position, header
    broken = readable_header(extent, position, expected)
    if broken is not None:
        behind = position + broken.length
        header = valid_batch_at(extent, behind, broken.end_offset, OFFSET_MAX)
        if header is not None:
            return behind, header
        if behind == extent.size:
            return None
    for candidate in _magic_positions(extent, position + 1):
        ceiling = OFFSET_MAX if extent.ceiling is not None else _plausible_end(expected, candidate - position)
        header = valid_batch_at(extent, candidate, expected, ceiling)
        if header is not None:
            return candidate, header
    return None


def valid_batch_at(extent: Extent, position: int, expected: int, base_max: int) -> BatchHeader | None:
    """The header of the batch at `position`, if it is valid, ours, and in its place."""
    try:
        header = check_header(_header_bytes(extent, position))
        if not _fits(extent, header, expected, base_max) or position + header.length > extent.size:
            return None
        check_body(read_at(extent.file, header.length, position), 0, header)
    except CorruptData:
        return None
    return header


def _header_bytes(extent: Extent, position: int) -> bytes:
    return read_at(extent.file, max(min(HEADER_BYTES, extent.size - position), 0), position)


def _fits(extent: Extent, header: BatchHeader, expected: int, base_max: int) -> bool:
    identity = extent.identity
    if header.topic_id != identity.topic_id or header.partition != identity.partition or header.span == 0:
        return False
    ceiling = OFFSET_MAX if extent.ceiling is None else extent.ceiling
    return expected <= header.base_offset <= base_max and header.end_offset <= ceiling


def _plausible_end(expected: int, lost_bytes: int) -> int:
    """The furthest offset that `lost_bytes` of batches could reach."""
    return expected + BATCH_MESSAGES_MAX * (lost_bytes // HEADER_BYTES)


def _magic_positions(extent: Extent, position: int) -> Iterator[int]:
    """Every place from `position` on where a batch could begin."""
    overlap = len(MAGIC) - 1
    while position < extent.size:
        window = read_at(extent.file, min(SCAN_WINDOW_BYTES, extent.size - position), position)
        if len(window) <= overlap:
            return
        place = window.find(MAGIC)
        while place >= 0:
            yield position + place
            place = window.find(MAGIC, place + 1)
        position += len(window) - overlap


def is_blank(file: FileHandle, position: int, end: int) -> bool:
    """Are there only zeros between these positions?"""
    while position < end:
        piece = read_at(file, min(SCAN_WINDOW_BYTES, end - position), position)
        if piece.strip(b"\0"):
            return False
        position += max(len(piece), 1)
    return True


def walk_headers(extent: Extent, position: int) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch from `position` on, bodies unread; CorruptData where it breaks."""
    window, window_at = b"", position
    while position < extent.size:
        place = position - window_at
        if place + HEADER_BYTES > len(window):
            window = read_at(extent.file, min(HEADER_WINDOW_BYTES, extent.size - position), position)
            window_at, place = position, 0
        header = check_header(window, place)
        if not _fits(extent, header, 0, OFFSET_MAX) or position + header.length > extent.size:
            raise CorruptData("A batch is not where the log has it.")
        yield position, header
        position += header.length


_EXTENT = struct.Struct("<4sIII12s4xQ44xI8x")
"""What a read checks of a batch: magic, checksum, length, body checksum, topic and partition, base offset, span."""
assert _EXTENT.size == HEADER_BYTES


def find_batch(view: bytes, at: int, offset: int) -> int | None:
    """Walk from the batch with base offset `at` to the one that holds `offset`; its place in the view.

    The way is only looked at, not verified: who reads the batch found there verifies it.
    """
    position, last = 0, len(view) - HEADER_BYTES
    while position <= last:
        magic, _, length, _, _, base, span = _EXTENT.unpack_from(view, position)
        if magic != MAGIC or base != at or length < HEADER_BYTES:
            return None
        at += span
        if offset < at:
            return position
        position += length
    return None


def verify_batches(view: memoryview, expected: int, limit: int, marks: bytes) -> tuple[int, int, bool]:
    """Check whole batches from the view's start; no batch may end beyond offset `limit`.

    Returns where they stop, the offset expected there, and whether a bad batch was what stopped them.
    """
    unpack_from = _EXTENT.unpack_from
    position, end = 0, len(view)
    last = end - HEADER_BYTES
    while position <= last:
        magic, header_checksum, length, body_checksum, mine, base, span = unpack_from(view, position)
        body, stop = position + HEADER_BYTES, position + length
        if (
            magic != MAGIC
            or base != expected
            or mine != marks
            or stop < body
            or length > BATCH_BYTES_MAX
            or not span
            or crc32c(view[position + CHECKED_FROM : body]) != header_checksum
        ):
            return position, expected, True
        if stop > end or expected + span > limit:
            break
        if crc32c(view[body:stop]) != body_checksum:
            return position, expected, True
        expected += span
        position = stop
        alike = min(_RUN_MAX, (end - position) // length, limit - expected)
        if (
            span == 1
            and alike >= _RUN_MIN
            and _is_run(view[position : position + alike * length], length, expected, marks)
        ):
            expected += alike
            position += alike * length
    return position, expected, False


_RUN_MAX: Final = 256
_RUN_MIN: Final = 8
"""One-message batches of one length are checked together, as many at once as fit the processor's cache."""


@lru_cache(maxsize=256)
def _run_layouts(length: int) -> tuple[struct.Struct, struct.Struct]:
    """Two views of a batch of this length: what a read checks, and the ranges that checksums cover."""
    body = length - HEADER_BYTES
    return (
        struct.Struct(f"<4sIII12s4xQ44xI8x{body}x"),
        struct.Struct(f"<{CHECKED_FROM}x{HEADER_BYTES - CHECKED_FROM}s{body}s"),
    )


def _is_run(view: memoryview, length: int, expected: int, marks: bytes) -> bool:
    """Whether these are one-message batches of this length that follow each other, all of them valid.

    All in C, a column at a time: quiet topics are made of such batches, and one by one each costs a
    microsecond. If anything is amiss the careful loop finds out what.
    """
    count = len(view) // length
    if _EXTENT.unpack_from(view, (count - 1) * length)[5] != expected + count - 1:
        return False
    fields, checked = _run_layouts(length)
    magics, header_sums, lengths, body_sums, mine, bases, spans = zip(*fields.iter_unpack(view), strict=True)
    heads, bodies = zip(*checked.iter_unpack(view), strict=True)
    return (
        magics.count(MAGIC) == lengths.count(length) == mine.count(marks) == spans.count(1) == count
        and bases == tuple(range(expected, expected + count))
        and tuple(map(crc32c, bodies)) == body_sums
        and tuple(map(crc32c, heads)) == header_sums
    )
