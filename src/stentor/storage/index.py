"""The sparse index of a segment: where to begin reading for an offset or for a time.

There is one entry for the first batch and then one for the first batch after each
`INDEX_INTERVAL_BYTES` of log. An entry holds the batch's base offset and position, and the largest
appended-at and message timestamp among all batches *before* it in the segment. The largest timestamp
so far only grows, whatever order messages came in, so it can be bisected: the first batch with a
timestamp at or above T lies before the first entry whose "largest so far" reaches T, and not before the
entry that precedes that one.

While a segment is written, its index lives in memory in four flat arrays (32 bytes an entry, 256 KiB
for a full segment). When the segment is sealed, the index is written beside it and forgotten:

     {base:020d}.index
     ┌──────────────────────┬─────────┬───────────┬─────────────┬────────────┐
     │ summary, sealed      │ offsets │ positions │ appended-at │ timestamps │
     │ (MessagePack)        │ 8 × n   │ 8 × n     │ 8 × n       │ 8 × n      │
     └──────────────────────┴─────────┴───────────┴─────────────┴────────────┘

The summary says all that opening a log needs (end, sizes, epochs), so that the columns are loaded only
when somebody reads there. It also holds the columns' CRC32C and the size of the segment it describes.
An index is never trusted over the log: a reader checks that the batch it was led to is the one it
wants, and an index that is missing, damaged or of another size is rebuilt by scanning the segment.

Threads: the loop thread appends entries, others search. `offsets` is appended last, and a search looks
only at entries that `offsets` already counts, so it never sees half an entry.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final

import msgspec
from crc32c import crc32c

from stentor.errors import CorruptData
from stentor.limits import INDEX_INTERVAL_BYTES
from stentor.storage.files import SEAL_BYTES, FileKind, seal, sealed_length, unseal
from stentor.storage.model import Identity
from stentor.wire.header import BatchHeader

NEVER_US: Final = -(2**63)
"""Smaller than every time: the maximum of nothing."""

SUMMARY_BYTES_MAX: Final = 1024 * 1024
"""Epochs change with chain members, so a segment sees a few; a summary beyond this is not one."""


class IndexSummary(msgspec.Struct, frozen=True, array_like=True):
    """What opening a log must know of a sealed segment."""

    topic_id: int
    partition: int
    log_id: int
    base_offset: int
    end_offset: int
    """The first offset after the segment, offsets lost to damage included."""
    data_bytes: int
    """Where the last whole batch ends."""
    file_bytes: int
    """The size of the file when it was sealed. Another size: the summary is not to be used."""
    appended_at_us_max: int
    timestamp_us_max: int
    epochs: tuple[tuple[int, int], ...]
    """(epoch, first offset) for each change of epoch inside the segment."""
    entries: int
    entries_checksum: int


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.msgpack.Decoder(IndexSummary)


class SparseIndex:
    """The entries of one segment, and the running maxima from which the next entry is made."""

    __slots__ = (
        "appended",
        "appended_at_us_max",
        "epoch",
        "epochs",
        "next_entry_at",
        "offsets",
        "positions",
        "timestamp_us_max",
        "timestamps",
    )

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")
        self.appended = array("q")
        self.timestamps = array("q")
        self.appended_at_us_max = NEVER_US
        self.timestamp_us_max = NEVER_US
        self.epochs: list[tuple[int, int]] = []
        self.epoch = -1
        """The epoch of the newest batch."""
        self.next_entry_at = 0
        """The first batch at or beyond this position gets an entry."""

    def add(self, headers: Iterable[BatchHeader], position: int) -> None:
        """Note batches that follow each other from `position` on."""
        appended_max = self.appended_at_us_max
        timestamp_max = self.timestamp_us_max
        for header in headers:
            if position >= self.next_entry_at:
                self.positions.append(position)
                self.appended.append(appended_max)
                self.timestamps.append(timestamp_max)
                self.offsets.append(header.base_offset)
                self.next_entry_at = position + INDEX_INTERVAL_BYTES
            if header.epoch != self.epoch:
                self.epoch = header.epoch
                self.epochs.append((header.epoch, header.base_offset))
            if header.appended_at_us > appended_max:  # noqa: PLR1730 - a call of max() would double the loop's time
                appended_max = header.appended_at_us
            if header.last_timestamp_us > timestamp_max:  # noqa: PLR1730 - the same
                timestamp_max = header.last_timestamp_us
            position += header.length
        self.appended_at_us_max = appended_max
        self.timestamp_us_max = timestamp_max

    def place_of(self, offset: int) -> tuple[int, int] | None:
        """Base offset and position of the last indexed batch that begins at or before `offset`."""
        place = bisect_right(self.offsets, offset) - 1
        return (self.offsets[place], self.positions[place]) if place >= 0 else None

    def last_start(self, position_max: int, offset_max: int) -> tuple[int, int] | None:
        """Offset and position of the last indexed batch that begins at or before both."""
        count = len(self.offsets)
        place = min(
            bisect_right(self.positions, position_max, 0, count), bisect_right(self.offsets, offset_max, 0, count)
        )
        return (self.offsets[place - 1], self.positions[place - 1]) if place else None

    def place_of_time(self, timestamp_us: int) -> tuple[int, int] | None:
        """Where to begin looking for the first batch with a message at or after `timestamp_us`."""
        count = len(self.offsets)
        if count == 0:
            return None
        place = max(bisect_left(self.timestamps, timestamp_us, 0, count) - 1, 0)
        return self.offsets[place], self.positions[place]

    def bytes(self) -> int:
        """The memory that the entries take."""
        return 4 * 8 * len(self.offsets)


def encode_index(
    index: SparseIndex, identity: Identity, *, base: int, end: int, data_bytes: int, file_bytes: int
) -> tuple[IndexSummary, bytes]:
    """The summary and the whole content of an index file."""
    columns = b"".join(
        _little_endian(column).tobytes()
        for column in (index.offsets, index.positions, index.appended, index.timestamps)
    )
    summary = IndexSummary(
        topic_id=identity.topic_id,
        partition=identity.partition,
        log_id=identity.log_id,
        base_offset=base,
        end_offset=end,
        data_bytes=data_bytes,
        file_bytes=file_bytes,
        appended_at_us_max=index.appended_at_us_max,
        timestamp_us_max=index.timestamp_us_max,
        epochs=tuple(index.epochs),
        entries=len(index.offsets),
        entries_checksum=crc32c(columns),
    )
    return summary, seal(FileKind.INDEX, msgspec.msgpack.encode(summary)) + columns


def decode_summary(data: bytes, *, what: str) -> IndexSummary:
    """The summary at the beginning of an index file."""
    try:
        return _decoder.decode(unseal(FileKind.INDEX, data, what=what))
    except msgspec.MsgspecError as error:
        raise CorruptData(f"{what} cannot be decoded: {error}.", object=what) from error


def summary_length(start: bytes) -> int:
    """How many bytes of an index file its summary takes."""
    length = sealed_length(start[:SEAL_BYTES])
    if length > SUMMARY_BYTES_MAX:
        raise CorruptData(f"An index summary claims {length} bytes; the limit is {SUMMARY_BYTES_MAX}.")
    return length


def decode_index(data: bytes, *, what: str) -> tuple[IndexSummary, SparseIndex]:
    """A whole index file."""
    summary = decode_summary(data, what=what)
    columns = memoryview(data)[summary_length(data) :]
    if len(columns) != 32 * summary.entries or crc32c(columns) != summary.entries_checksum:
        raise CorruptData(f"The entries of {what} fail their checksum.", object=what)
    index = SparseIndex()
    width = 8 * summary.entries
    for place, column in enumerate((index.offsets, index.positions, index.appended, index.timestamps)):
        column.frombytes(columns[place * width : (place + 1) * width])
        if sys.byteorder == "big":
            column.byteswap()
    index.appended_at_us_max = summary.appended_at_us_max
    index.timestamp_us_max = summary.timestamp_us_max
    index.epochs = list(summary.epochs)
    index.epoch = index.epochs[-1][0] if index.epochs else -1
    index.next_entry_at = index.positions[-1] + INDEX_INTERVAL_BYTES if index.positions else 0
    return summary, index


def _little_endian(column: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return column
    swapped = array("q", column)
    swapped.byteswap()
    return swapped
