"""Finding the batches that a producer wrote earlier, by their headers alone.

A head that no longer remembers a batch may say that it is written only if it finds that very batch (C32). The
search goes backwards from an offset, the newest index entries first, because whoever asks again asks about what
was written not long ago. It stops as soon as it is certain that there is no more: at sequence 0 of the generation,
or at an older generation of the same producer, since generations only grow along the log.

A search is cut into slices, so that reads of history get their turn between them; and all slices of a search
together look at no more than PRODUCER_SEARCH_BATCHES_MAX headers and PRODUCER_SEARCH_BYTES_MAX bytes.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import msgspec
from crc32c import crc32c

from stentor.limits import KIB, PRODUCER_SEARCH_BATCHES_MAX, PRODUCER_SEARCH_BYTES_MAX
from stentor.storage.files import read_at, storage_error
from stentor.storage.model import SEGMENT_HEADER_BYTES
from stentor.wire.header import CHECKED_FROM, HEADER_BYTES, MAGIC, unpack

if TYPE_CHECKING:
    from stentor.storage.reader import LogReader
    from stentor.storage.segment import Segment
    from stentor.storage.state import LogState

_LOOK: Final = struct.Struct("<4sII20xQ32xQI12x")
"""What the search looks at in every header: magic, checksum, length, base offset, producer, generation."""
assert _LOOK.size == HEADER_BYTES

_SLICE_BATCHES: Final = 10_000
"""A few milliseconds of work."""

_STRIDE_ENTRIES: Final = 32
"""Index entries that are looked through together: a megabyte of small batches."""

_WINDOW_BYTES: Final = 64 * KIB


class Earlier(msgspec.Struct, frozen=True, gc=False):
    """One batch that a producer wrote."""

    checksum: int
    base_offset: int
    end_offset: int
    appended_at_us: int
    refused: bool = False


class Search:
    """A search for what one producer wrote under one generation, below an offset. Used by one thread at a time."""

    def __init__(self, state: LogState, reader: LogReader, producer_id: int, generation: int, before: int) -> None:
        self.found: dict[int, Earlier] = {}  # by sequence
        self.over = False
        self._state = state
        self._reader = reader
        self._producer_id = producer_id
        self._generation = generation
        self._before = before  # what begins here or later was looked at already
        self._batches_left = PRODUCER_SEARCH_BATCHES_MAX
        self._bytes_left = PRODUCER_SEARCH_BYTES_MAX

    def go_on(self) -> bool:
        """Look through the next slice; whether the search is over."""
        stop_at = self._batches_left - _SLICE_BATCHES
        try:
            while not self.over and self._batches_left > stop_at:
                self._step()
        except FileNotFoundError:
            self.over = True  # retention took the segment: what was in it cannot be found any more
        except OSError as error:
            raise storage_error(error, operation="read", path=self._state.directory) from error
        return self.over

    def _step(self) -> None:
        segment = next((s for s in reversed(self._state.segments) if s.base < self._before), None)
        if segment is None or self._batches_left <= 0 or self._bytes_left <= 0:
            self.over = True
            return
        index = self._reader.index_of(segment)
        last = bisect_left(index.offsets, self._before, 0, len(index.offsets))
        first = max(0, last - _STRIDE_ENTRIES)
        if last == 0:
            self._before = segment.base
            return
        self._look_through(segment, index.positions[first], index.offsets[first])

    def _look_through(self, segment: Segment, position: int, first_offset: int) -> None:
        """The batches from a position on that begin before where the search has come to."""
        file, size = segment.handle(), segment.size
        window, window_at = b"", position
        position = max(position, SEGMENT_HEADER_BYTES)
        while position + HEADER_BYTES <= size:
            place = position - window_at
            if place + HEADER_BYTES > len(window):
                window, window_at, place = read_at(file, min(_WINDOW_BYTES, size - position), position), position, 0
                self._bytes_left -= len(window)
                if len(window) < HEADER_BYTES:
                    break
            magic, checksum, length, base_offset, producer_id, generation = _LOOK.unpack_from(window, place)
            if base_offset >= self._before or magic != MAGIC or length < HEADER_BYTES:
                break  # damaged, perhaps: then what lies behind it in this stretch is not found
            self._batches_left -= 1
            if producer_id == self._producer_id and generation <= self._generation:
                header = window[place : place + HEADER_BYTES]
                if crc32c(header[CHECKED_FROM:]) == checksum:
                    self._note(header)
            position += length
        self._before = first_offset

    def _note(self, bytes_of_header: bytes) -> None:
        """A batch of the producer: the one that is sought, or a sign that there is nothing before it."""
        header = unpack(bytes_of_header)
        if header.generation == self._generation:
            self.found[header.sequence] = Earlier(
                header.body_checksum, header.base_offset, header.end_offset, header.appended_at_us, header.refused
            )
        # The rest of this stretch is looked through nevertheless: it lies behind this batch.
        self.over = self.over or header.sequence == 0 or header.generation < self._generation
