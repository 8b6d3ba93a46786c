"""Reading a log: whole batches from an offset on, and the offset for a time.

A read finds its segment by bisecting the bases, a place at or shortly before the offset in the sparse
index, and reads from there once. A reader that goes on where its last read ended skips the index: the
place is remembered (`_cursors`). Every batch that leaves here has been verified in this very read: both
checksums, topic, partition, and the offset it must have.

The exception is a *trusted* read, for those who check everything themselves, as subscribers do: what this
process appended itself was checked when it was taken, and is handed out as it stands, from one place
that the index knows to another. A history of one-message batches would else cost a microsecond for each.
A subscriber that finds damage reports it, and the read that follows verifies.

When a batch is not what it must be, the whole segment is examined: scanned from its start, so that
neither the index nor any length field is believed. The damaged ranges are recorded and refused, and the
read is tried again; what lies outside of them stays readable. The index is replaced too: if the scan
finds nothing wrong, it was the index that lied.

Indexes of sealed segments are kept in one cache for all logs of the process, bounded in bytes, so that
memory does not grow with what the logs hold.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from typing import Final

from stentor.errors import CorruptData, OffsetOutOfRange, StorageError
from stentor.limits import BATCH_BYTES_MAX, INDEX_CACHE_BYTES, INDEX_INTERVAL_BYTES
from stentor.storage.damage import damage_error, record_damage
from stentor.storage.files import FileHandle, atomic_write, read_at, storage_error
from stentor.storage.index import SparseIndex, decode_index, encode_index
from stentor.storage.model import SEGMENT_HEADER_BYTES, DamagedRange, LogSlice
from stentor.storage.scan import Extent, Scan, find_batch, scan_segment, verify_batches, walk_headers
from stentor.storage.segment import INDEX_SUFFIX, Segment
from stentor.storage.state import LogState, logger
from stentor.wire.header import HEADER_BYTES, MAGIC, unpack

CURSORS_MAX: Final = 32
"""Places remembered per log. When it is full it is emptied: a lost place costs one index lookup."""

ATTEMPTS_MAX: Final = 4
"""A read is tried again after a segment was retired or examined; more than this is not bad luck."""


class IndexCache:
    """The indexes of sealed segments that were used last, bounded in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._indexes: OrderedDict[int, SparseIndex] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, serial: int) -> SparseIndex | None:
        """The index of the segment with this serial, if it is here."""
        with self._lock:
            index = self._indexes.get(serial)
            if index is not None:
                self._indexes.move_to_end(serial)
            return index

    def put(self, serial: int, index: SparseIndex) -> None:
        """Keep an index; the one that was not used for longest goes."""
        with self._lock:
            self._discard(serial)
            self._indexes[serial] = index
            self._bytes += index.bytes()
            while self._bytes > self._bytes_max and len(self._indexes) > 1:
                self._discard(next(iter(self._indexes)))

    def discard(self, serial: int) -> None:
        """Forget the index of a segment that is gone."""
        with self._lock:
            self._discard(serial)

    def bytes(self) -> int:
        """The memory that is in use."""
        return self._bytes

    def _discard(self, serial: int) -> None:
        index = self._indexes.pop(serial, None)
        if index is not None:
            self._bytes -= index.bytes()


INDEX_CACHE: Final = IndexCache(INDEX_CACHE_BYTES)


class LogReader:
    """The reading side of one log; every method may be called in any thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._marks = state.identity.marks
        self._own_from = state.end
        """What this process appends begins here; what is below was found on disk."""
        self._cursors: dict[int, tuple[int, int]] = {}
        """next offset of a read → (serial of the segment, position): where its successor begins."""
        self.examining = threading.Lock()
        """Held while a segment is scanned and its damage or index written; also by acts that remove files."""

    def read(self, offset: int, limit: int, max_bytes: int, *, trusted: bool = False) -> LogSlice:
        """Whole batches from the one that holds `offset` on, none that ends beyond `limit`."""
        state = self._state
        for _ in range(ATTEMPTS_MAX):
            cuts, end, segments = state.cuts, state.end, state.segments
            if not segments[0].base <= offset <= end:
                raise self._out_of_range(offset, segments[0].base, end)
            if offset >= limit or offset == end:
                return LogSlice(b"", offset, offset)
            segment = segments[bisect_right(segments, offset, key=_base) - 1]
            damage = segment.damage_at(offset) if segment.damaged else None
            if damage is not None:
                raise damage_error(segments, damage, state.identity)
            try:
                found = None
                if trusted and offset >= self._own_from and not segment.damaged:
                    found = self._read_own(segment, offset, limit, max_bytes)
                found = found or self._read_segment(segment, offset, limit, max_bytes)
                if found is not None:
                    return found
                self._examine(segment, cuts)
            except FileNotFoundError:
                state.check_open("read")  # retired meanwhile: the current segments know
            except OSError as error:
                raise storage_error(error, operation="read", path=segment.path()) from error
        raise self._unreadable(offset)

    def _read_segment(self, segment: Segment, offset: int, limit: int, max_bytes: int) -> LogSlice | None:
        """One read of one segment; None if what stands there is not what must stand there."""
        size = segment.size
        file = segment.handle()
        at, position = self._place(segment, offset)
        stop_at = _clean_until(segment, position, size)
        lead = 0 if at == offset else INDEX_INTERVAL_BYTES + HEADER_BYTES
        data = read_at(file, min(max(max_bytes, HEADER_BYTES) + lead, stop_at - position), position)
        skipped = find_batch(data, at, offset)
        if skipped is None:
            return None
        first = unpack(data, skipped)
        position += skipped
        if len(data) - skipped < first.length:
            if first.length > BATCH_BYTES_MAX or position + first.length > stop_at:
                return None
            data, skipped = read_at(file, first.length, position), 0
            if len(data) < first.length:
                return None
        view = memoryview(data)[skipped : skipped + max(max_bytes, first.length)]
        stop, next_offset, bad = verify_batches(view, first.base_offset, limit, self._marks)
        if stop == 0:
            return None if bad else LogSlice(b"", offset, offset)
        self._remember(next_offset, segment.serial, position + stop)
        return LogSlice(data if stop == len(data) else bytes(view[:stop]), first.base_offset, next_offset)

    def _read_own(self, segment: Segment, offset: int, limit: int, max_bytes: int) -> LogSlice | None:
        """Batches of our own, unread, up to where the index knows that one begins; None if it does not."""
        file = segment.handle()
        at, position = self._place(segment, offset)
        end = self.index_of(segment).last_start(position + max_bytes, limit)
        if end is None or end[0] <= offset:
            return None
        data = read_at(file, end[1] - position, position)
        skipped = 0 if at == offset else find_batch(data, at, offset)
        if skipped is None or data[skipped : skipped + len(MAGIC)] != MAGIC or len(data) < end[1] - position:
            return None
        if segment.replaced:  # perhaps before the file was opened: then these are bytes of another one
            return None
        self._remember(end[0], segment.serial, end[1])
        first_offset = offset if at == offset else unpack(data, skipped).base_offset
        return LogSlice(data[skipped:] if skipped else data, first_offset, end[0])

    def _remember(self, offset: int, serial: int, position: int) -> None:
        if len(self._cursors) >= CURSORS_MAX:
            self._cursors.clear()
        self._cursors[offset] = (serial, position)

    def _place(self, segment: Segment, offset: int) -> tuple[int, int]:
        """Base offset and position of a batch at or before `offset`."""
        cursor = self._cursors.get(offset)
        if cursor is not None and cursor[0] == segment.serial and cursor[1] < segment.size:
            return offset, cursor[1]
        place = self.index_of(segment).place_of(offset) or (segment.base, SEGMENT_HEADER_BYTES)
        return _behind_damage(segment, place, offset)

    def forget(self) -> None:
        """Forget remembered places; the log was cut back."""
        self._cursors.clear()

    def index_of(self, segment: Segment) -> SparseIndex:
        """The index of a segment: from memory, from its file, or by scanning."""
        index = segment.index or INDEX_CACHE.get(segment.serial) or self._load_index(segment)
        if index is None:
            with self.examining:
                index = self._load_index(segment)
                if index is None and segment.replaced:
                    raise FileNotFoundError(segment.path(INDEX_SUFFIX))
                if index is None:
                    scan = self._scan(segment, segment.handle(), segment.size, segment.end)
                    index = self._rebuild_index(segment, scan)
        return index

    def _load_index(self, segment: Segment) -> SparseIndex | None:
        path = segment.path(INDEX_SUFFIX)
        try:
            summary, index = decode_index(path.read_bytes(), what=str(path))
        except (CorruptData, FileNotFoundError):
            return None
        if summary != segment.summary:
            return None
        INDEX_CACHE.put(segment.serial, index)
        return index

    def _rebuild_index(self, segment: Segment, scan: Scan) -> SparseIndex:
        logger.warning("The index of %s has been rebuilt by a scan.", segment.path())
        if segment.summary is not None:
            scan.index.epochs = list(segment.summary.epochs)  # also those of batches that are damaged now
        summary, data = encode_index(
            scan.index,
            self._state.identity,
            base=segment.base,
            end=segment.end,
            data_bytes=segment.size,
            file_bytes=segment.file_bytes,
        )
        segment.summary = summary
        try:
            atomic_write(segment.path(INDEX_SUFFIX), data)
        except StorageError as error:
            logger.warning("The index of %s could not be written: %s", segment.path(), error)
        INDEX_CACHE.put(segment.serial, scan.index)
        return scan.index

    def _scan(self, segment: Segment, file: FileHandle, size: int, end: int) -> Scan:
        return scan_segment(Extent(file, self._state.identity, size, max(end, segment.end)), segment.base)

    def _examine(self, segment: Segment, cuts: int) -> None:
        """Find out what is wrong with a segment, and write it down."""
        state = self._state
        known = segment.damaged
        with self.examining:
            if segment.damaged is not known:
                return
            end = segment.end
            size = segment.size
            scan = self._scan(segment, segment.handle(), size, end)
            if state.cuts != cuts or segment not in state.segments:
                return
            damaged = list(scan.damaged)
            if scan.end < end:
                damaged.append(DamagedRange(scan.end, end, scan.size, size, _reason_of_tail(scan)))
            self._cursors.clear()
            if damaged:
                record_damage(segment, damaged, state.identity)
            if segment.sealed:
                self._rebuild_index(segment, scan)

    def offset_for_time(self, timestamp_us: int, limit: int) -> int:
        """The base offset of the first batch with a message at or after `timestamp_us`; `limit` if none."""
        state = self._state
        for _ in range(ATTEMPTS_MAX):
            cuts = state.cuts
            for segment in state.segments:
                if segment.base >= limit:
                    return limit
                if segment.timestamp_us_max < timestamp_us:
                    continue
                try:
                    offset = self._find_time(segment, timestamp_us)
                except CorruptData:
                    self._examine(segment, cuts)
                    break
                except FileNotFoundError:
                    state.check_open("read")
                    break  # retired meanwhile
                except OSError as error:
                    raise storage_error(error, operation="read", path=segment.path()) from error
                if offset is not None:
                    return min(offset, limit)
            else:
                return limit
        raise self._unreadable(state.segments[0].base)

    def _find_time(self, segment: Segment, timestamp_us: int) -> int | None:
        size = segment.size
        file = segment.handle()
        place = self.index_of(segment).place_of_time(timestamp_us)
        position = SEGMENT_HEADER_BYTES if place is None else place[1]
        while position < size:
            for damage in segment.damaged:
                if damage.from_position <= position < damage.to_position:
                    position = damage.to_position
            stop_at = _clean_until(segment, position, size)
            for at, header in walk_headers(Extent(file, self._state.identity, stop_at, None), position):
                if header.last_timestamp_us >= timestamp_us:
                    return header.base_offset
                position = at + header.length
        return None

    def _out_of_range(self, offset: int, start: int, end: int) -> OffsetOutOfRange:
        where = "before the start" if offset < start else "beyond the end"
        return OffsetOutOfRange(
            f"Offset {offset} is {where} of {self._state.identity}, which holds {start} to {end - 1}.",
            hint='Read from "earliest" for the oldest message, or from "latest" for new ones.',
            operation="read",
            object=str(self._state.identity),
            start=start,
            end=end,
        )

    def _unreadable(self, offset: int) -> CorruptData:
        return CorruptData(
            f"Offset {offset} of {self._state.identity} cannot be read, and a scan does not say why.",
            hint="Check the disk and the system log.",
            operation="read",
            object=str(self._state.identity),
        )


def _base(segment: Segment) -> int:
    return segment.base


def _reason_of_tail(scan: Scan) -> str:
    return "bytes fail their checksum" if scan.tail_bytes else "batches are missing"


def _clean_until(segment: Segment, position: int, size: int) -> int:
    """Where the next damaged range after `position` begins, or the segment ends."""
    for damage in segment.damaged:
        if damage.from_position >= position and damage.to_position > position:
            return min(damage.from_position, size)
    return size


def _behind_damage(segment: Segment, place: tuple[int, int], offset: int) -> tuple[int, int]:
    """Move a place that damage separates from `offset` to the first batch behind the damage."""
    for damage in segment.damaged:
        if damage.next_offset <= offset and damage.to_position > place[1]:
            place = (damage.next_offset, damage.to_position)
    return place
