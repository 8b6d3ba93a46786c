"""Compaction: sealed segments below a horizon are written anew, with the last message of each key (C23).

    before   │ segment 0       │ segment 40      │ segment 90  │ active …
    pass 1   └─ which offset has the last message of each key? ─┘     the horizon X is not below segment 90's end
    pass 2   │ what is left of 0 and 40, as one │ 90, the same │ active …

A message below X goes if a later one below X has its key. A deletion goes too if it lies below `deletions_until` and
nothing of its key is left before it. Offsets and order stay: what is left of batches next to each other becomes one
sparse batch that covers all their offsets (`wire.sparse`). No batch covers two epochs, so epoch tables stay the same.

**What cannot be written again stays as it is** (C33, C34): a batch that nobody can read, and one that holds a message
larger than heads take by now. What should have gone of it is there still, so deletions of its keys stay, too; of
a batch that cannot be read nobody knows the keys, so then all deletions stay.

**Crashes.** A group of segments becomes one file: written under a temporary name, synced, renamed over the first of the
group; then the others are removed. The new file says in its header where it ends. So whatever begins below that is a
leftover, and recovery removes it. Groups go from the oldest to the newest, each on disk before the next: a deletion
goes only after all that it deletes.

**Readers** in the middle go on. They hold segments that are no longer in the list, with open files. Who opens a file
too late finds other bytes, which fail the checks of a read, and begins again with the present list.

The work comes in slices, so that whoever drives it can limit how much is done in a second. One thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Final

import msgspec

from stentor.core.horizon import HORIZON, Horizon
from stentor.errors import CorruptData, DiskFull, LimitExceeded, StorageError
from stentor.limits import BATCH_MESSAGES_MAX, KIB, MIB
from stentor.storage.files import (
    TEMPORARY_SUFFIX,
    FileHandle,
    atomic_write,
    storage_error,
    sync_directory,
    write_at,
)
from stentor.storage.index import SparseIndex, encode_index
from stentor.storage.model import SEGMENT_HEADER_BYTES
from stentor.storage.reader import INDEX_CACHE, LogReader
from stentor.storage.retention import remove_files
from stentor.storage.segment import INDEX_SUFFIX, SNAPSHOT_SUFFIX, Segment, pack_segment_header
from stentor.storage.state import LogState, logger
from stentor.wire import batch as batches
from stentor.wire import sparse
from stentor.wire.header import HEADER_BYTES, BatchHeader, extents, unpack
from stentor.wire.sparse import Rows
from stentor.wire.table_rows import CONDITION

COMPACTION_SLICE_BYTES: Final = 256 * KIB
"""A few milliseconds of work in a read thread: reads of history get their turn in between."""

COMPACTION_KEYS_MAX: Final = 4_000_000
"""A compaction notes where each key was last, at about 150 bytes each. What lies beyond so many keys stays as it is."""

COMPACTION_KEYS_BYTES_MAX: Final = 256 * MIB
"""The same for long keys: of all that are noted together."""

COMPACTED_BATCH_BYTES: Final = 256 * KIB
"""Into batches of about this size what is left of small ones is merged: what a push to a subscriber is."""

_WORTH: Final = 0.1
"""A single segment that would lose less than this share of its size stays as it is."""


class CompactionReport(msgspec.Struct):
    """What a compaction has done so far."""

    bytes_read: int = 0
    bytes_before: int = 0  # of segments that were written anew
    bytes_after: int = 0
    rows_before: int = 0  # messages below the horizon
    rows_dropped: int = 0  # of segments that were written anew
    batches_kept: int = 0  # as they were, because they cannot be written again
    segments_before: int = 0
    segments_after: int = 0


class Compaction:
    """One compaction of one log."""

    def __init__(self, state: LogState, reader: LogReader, horizon: Horizon, committed: int, kept_us: int) -> None:
        self.report = CompactionReport()
        self.on_phase: Callable[[str], None] = _nothing
        """Told between any two changes of the disk, by name: for tests that stop it there."""
        self.replaces = False
        """The next slice puts a file into its place: readers that keep copies must not stand before it (C23)."""
        self._state = state
        self._reader = reader
        self._until = horizon.offset  # below it, the last message of each key is enough
        self._deletions_until = horizon.deletions_until
        self._together_us = kept_us // 8  # see _Merger
        self._segments = _ready(state, horizon.offset, committed)
        self._last: dict[bytes, int] = {}  # the offset of each key's last message
        self._key_bytes = 0  # of those keys
        self._stale: set[bytes] = set()  # keys of which something is left that should have gone
        self._unreadable = False  # there are batches of which nobody knows the keys
        self._steps = self._run()

    @property
    def possible(self) -> bool:
        """Whether there is anything to compact yet."""
        return bool(self._segments)

    @property
    def whole(self) -> bool:
        """Whether it would reach the horizon. Else the last segments are not on disk yet, or one is damaged."""
        return bool(self._segments) and self._segments[-1].end >= self._until

    def go_on(self) -> int | None:
        """Do the next slice: how many bytes were handled; None when all is done. Raises what the disk raises."""
        try:
            return next(self._steps, None)
        except OSError as error:
            raise storage_error(error, operation="compact", path=self._state.directory) from error

    def close(self) -> None:
        """Leave it; what is half done is removed."""
        self._steps.close()

    def _run(self) -> Generator[int, None, None]:
        for segment in self._segments:
            yield from self._note_keys(segment)
        place = 0
        while place < len(self._segments) and not self._state.closed:
            place += yield from self._write_group(self._segments[place:])

    def _batches(self, segment: Segment) -> Iterator[tuple[BatchHeader, bytes, int]]:
        """The batches of a segment, verified, with the number of bytes that were read for each slice's last one."""
        offset = segment.base
        while offset < segment.end and not self._state.closed:
            found = self._reader.read(offset, segment.end, COMPACTION_SLICE_BYTES)
            if found.next_offset <= offset:
                break
            for position, length, _, end in extents(found.data):
                batch = found.data[position : position + length]
                yield unpack(batch), batch, len(found.data) if end == found.next_offset else 0
            offset = found.next_offset

    # --- pass 1 ---------------------------------------------------------------------------------

    def _note_keys(self, segment: Segment) -> Iterator[int]:
        """Note where the last message of each key is. Beyond so many keys, the rest of the log stays as it is."""
        last = self._last
        for header, batch, size in self._batches(segment):
            if header.base_offset >= self._until:
                break
            if len(last) + header.count > COMPACTION_KEYS_MAX or self._key_bytes > COMPACTION_KEYS_BYTES_MAX:
                self._until = header.base_offset
                break
            rows = _readable(header, batch)
            if rows is None:
                self._unreadable = True
                rows = sparse.nothing()
            for key, offset in zip(rows.keys, rows.offsets, strict=True):
                if key is not None:
                    if key not in last:
                        self._key_bytes += len(key)
                    last[key] = offset
            self.report.rows_before += header.count
            self.report.bytes_read += size
            if size:
                yield size

    # --- pass 2 ---------------------------------------------------------------------------------

    def _write_group(self, segments: Sequence[Segment]) -> Generator[int, None, int]:
        """Write the first of these segments as one, as many as fit; returns how many they were."""
        report = msgspec.structs.replace(self.report)
        output = _Output(self._state, segments[0].base)
        merger = _Merger(output, self._deletions_until, self._together_us)
        dropped: set[bytes] = set()
        group: list[Segment] = []
        try:
            self.on_phase("begun")
            for segment in segments:
                if (
                    group and output.size + merger.size > self._state.settings.segment_bytes // 2
                ):  # so it ends below one and a half of them
                    break
                yield from self._rewrite(segment, merger, dropped)
                group.append(segment)
            if self._state.closed:
                return len(segments)
            merger.flush()
            before = sum(segment.file_bytes for segment in group)
            if len(group) == 1 and before - output.size < before * _WORTH:
                self._stale |= dropped
                self.report = report
                return 1
            output.finish(group[-1].end)
            self.on_phase("written")
            self.replaces = True
            yield 0
            self.replaces = False
            if self._replace(group, output):
                self.report.bytes_before += before
                self.report.bytes_after += output.size
                self.report.segments_before += len(group)
                self.report.segments_after += 1
            else:
                self._stale |= dropped
            return len(group)
        finally:
            output.discard()

    def _rewrite(self, segment: Segment, merger: _Merger, dropped: set[bytes]) -> Iterator[int]:
        for header, batch, size in self._batches(segment):
            if header.base_offset >= self._until or (header.control and header.generation != HORIZON):
                merger.copy(header, batch)
            elif (rows := _readable(header, batch)) is None:
                self.report.batches_kept += 1
                merger.copy(header, batch)
            else:
                self._shrink(header, batch, rows, merger, dropped)
            if size:
                self.report.bytes_read += size
                yield size

    def _shrink(self, header: BatchHeader, batch: bytes, rows: Rows, merger: _Merger, dropped: set[bytes]) -> None:
        """What is left of a batch."""
        kept = rows.chosen(self._wanted(rows))
        gone = len(rows.offsets) - len(kept.offsets)
        if not _can_be_rewritten(kept):
            self.report.batches_kept += 1
            if gone:
                self._stale.update(key for key in rows.keys if key is not None)
            merger.copy(header, batch)
            return
        merger.add(header, batch, kept)
        if gone:
            self.report.rows_dropped += gone
            dropped.update(key for key in rows.keys if key is not None)

    def _wanted(self, rows: Rows) -> list[bool]:
        """Which rows of a batch stay."""
        last, stale = self._last, self._stale
        deletions_until = 0 if self._unreadable else self._deletions_until
        return [
            key is None
            or (offset >= last.get(key, -1) and (value is not None or offset >= deletions_until or key in stale))
            for key, value, offset in zip(rows.keys, rows.values, rows.offsets, strict=True)
        ]

    # --- putting it into place ------------------------------------------------------------------

    def _replace(self, group: Sequence[Segment], output: _Output) -> bool:
        """The new file instead of a group; False if something happened to the group meanwhile."""
        state, fresh = self._state, output.segment
        with self._reader.examining:
            if state.closed or not _follow_each_other(group, state.segments):
                return False
            fresh.path(INDEX_SUFFIX).unlink(missing_ok=True)
            sync_directory(state.directory)
            self.on_phase("index removed")
            handles = [segment.handle() for segment in group]
            for segment, handle in zip(group, handles, strict=True):
                segment.file, segment.replaced = handle, True  # who holds it reads on, wherever its name leads by then
            try:
                output.path.replace(fresh.path())
            except OSError:
                for segment in group:
                    segment.file, segment.replaced = None, False
                raise
            with state.lock:
                first = state.segments.index(group[0])
                state.segments = (*state.segments[:first], fresh, *state.segments[first + len(group) :])
            sync_directory(state.directory)
            self.on_phase("renamed")
            try:
                atomic_write(fresh.path(INDEX_SUFFIX), output.index_file)
            except StorageError as error:
                logger.warning("The index of %s is not written: %s", fresh.path(), error)
            self.on_phase("sealed")
            for segment in reversed(group[1:]):
                remove_files(state.directory, segment.base)
                self.on_phase("removed")
            for segment in group:
                INDEX_CACHE.discard(segment.serial)
        return True


class _Output:
    """A segment that is being written."""

    def __init__(self, state: LogState, base: int) -> None:
        self.segment = Segment(state.directory, base)
        self.path = self.segment.path().with_name(self.segment.path().name + TEMPORARY_SUFFIX)
        self._state = state
        self._room = _room(state)
        self.path.unlink(missing_ok=True)
        self._file = FileHandle(self.path, write=True, create=True)
        self._index = SparseIndex()
        self.index_file = b""
        self.size = SEGMENT_HEADER_BYTES

    def write(self, header: BatchHeader, batch: bytes) -> None:
        """Put a batch at the end."""
        self._room -= len(batch)
        if self._room < 0:
            raise DiskFull(
                f"The disk of {self._state.directory} has too little room left to compact a log.",
                hint="Free some space. Compaction is tried again later.",
            )
        write_at(self._file, [batch], self.size)
        self._index.add((header,), self.size)
        self.size += len(batch)

    def finish(self, end: int) -> None:
        """The header, and everything on disk."""
        state, segment = self._state, self.segment
        header = pack_segment_header(state.identity, segment.base, time.time_ns() // 1000, end)
        write_at(self._file, [header], 0)
        os.fsync(self._file.fd)
        segment.end = end
        segment.size = segment.file_bytes = segment.synced_size = segment.allocated = self.size
        segment.summary, self.index_file = encode_index(
            self._index, state.identity, base=segment.base, end=end, data_bytes=self.size, file_bytes=self.size
        )
        segment.index, segment.sealed = None, True
        INDEX_CACHE.put(segment.serial, self._index)

    def discard(self) -> None:
        """Remove the file, unless it is in its place."""
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)


class _Merger:
    """Puts what is left of batches next to each other into one. The age of a batch is that of its newest message, so
    those far apart stay apart as long as deletions among them are kept: else they would be kept for longer.
    """

    def __init__(self, output: _Output, deletions_until: int, together_us: int) -> None:
        self._output = output
        self._together_us = together_us
        self._deletions_until = deletions_until
        self._base = self._end = 0
        self._like: BatchHeader | None = None  # None: nothing is gathered
        self._rows = sparse.nothing()
        self.size = 0  # of what is gathered, about
        self._appended_at_us = 0

    def add(self, header: BatchHeader, batch: bytes, kept: Rows) -> None:
        """The rows that are left of a batch."""
        size = kept.size()
        if not self._takes(header, size, has_rows=bool(kept.offsets)):
            self.flush()
        if len(kept.offsets) == header.count and header.length >= COMPACTED_BATCH_BYTES // 4 and header.count:
            self.copy(header, batch)
            return
        if header.length > COMPACTED_BATCH_BYTES:
            self.flush()
            self._write(header, header.base_offset, header.end_offset, _plain(header, kept), header.appended_at_us)
            return
        if self._like is None:
            self._base, self._like, self._appended_at_us = header.base_offset, header, header.appended_at_us
        if kept.offsets:
            if not self._rows.offsets:
                self._like, self._appended_at_us = header, header.appended_at_us
            self._appended_at_us = max(self._appended_at_us, header.appended_at_us)
            self._rows.extend(_plain(header, kept))
            self.size += size
        self._end = header.end_offset

    def _takes(self, header: BatchHeader, size: int, *, has_rows: bool) -> bool:
        like = self._like
        if like is None:
            return True
        if like.epoch != header.epoch or header.end_offset - self._base > BATCH_MESSAGES_MAX:
            return False
        if not has_rows or not self._rows.offsets:
            return True
        near = (
            header.appended_at_us - like.appended_at_us <= self._together_us
            or header.end_offset <= self._deletions_until
        )
        return near and sparse.are_alike(like, header) and self.size + size <= COMPACTED_BATCH_BYTES

    def copy(self, header: BatchHeader, batch: bytes) -> None:
        """A batch as it is."""
        self.flush()
        self._output.write(header, batch)

    def flush(self) -> None:
        """Write what was gathered."""
        if self._like is not None:
            like, self._like = self._like, None
            rows, self._rows = self._rows, sparse.nothing()
            self.size = 0
            self._write(like, self._base, self._end, rows, self._appended_at_us)

    def _write(self, like: BatchHeader, base: int, end: int, rows: Rows, appended_at_us: int) -> None:
        """As one batch, or as several if one cannot hold them: some rows may take more room than all of them did."""
        try:
            merged = sparse.merge(like, base, end, rows, appended_at_us)
        except LimitExceeded:
            if len(rows.offsets) == 1:
                raise
            middle = rows.offsets[len(rows.offsets) // 2]
            before = [offset < middle for offset in rows.offsets]
            self._write(like, base, middle, rows.chosen(before), appended_at_us)
            self._write(like, middle, end, rows.chosen([not each for each in before]), appended_at_us)
            return
        self._output.write(unpack(merged), merged)


def _readable(header: BatchHeader, batch: bytes) -> Rows | None:
    """Return the rows of a batch; None if it cannot be read. What is damaged on the disk was found before."""
    try:
        return sparse.rows_of(header, memoryview(batch)[HEADER_BYTES:])
    except CorruptData:
        return None


def _can_be_rewritten(rows: Rows) -> bool:
    """Return whether each row fits into a batch by itself, in any encoding and for every reader: heads take no others
    (C34), but logs may hold some from before heads looked.
    """
    return all(map(batches.is_within_limits, rows.keys, rows.values, rows.headers))


def _plain(header: BatchHeader, rows: Rows) -> Rows:
    """Rows without the conditions on which they were taken."""
    if not header.conditional:
        return rows
    named = [[pair for pair in pairs or () if pair[0] != CONDITION] or None for pairs in rows.headers]
    return rows._replace(headers=named)


def _ready(state: LogState, horizon: int, committed: int) -> Sequence[Segment]:
    """The oldest segments that are final, committed and sound, and begin below the horizon; and the states that were
    derived from them are on disk.
    """
    segments = state.segments
    count = 0
    for segment in segments[:-1]:
        if segment.base >= horizon or segment.end > committed or not segment.sealed or segment.damaged:
            break
        count += 1
    while count and not segments[count].path(SNAPSHOT_SUFFIX).exists():
        count -= 1
    return segments[:count]


def _follow_each_other(group: Sequence[Segment], segments: Sequence[Segment]) -> bool:
    """Whether the log still has these segments, as they were."""
    if group[0] not in segments or any(segment.damaged for segment in group):
        return False
    first = segments.index(group[0])
    return tuple(segments[first : first + len(group)]) == tuple(group)


def _room(state: LogState) -> int:
    """How many bytes may be written besides the log itself."""
    found = os.statvfs(state.directory)
    return found.f_bavail * found.f_frsize - 2 * state.settings.disk_reserve_bytes


def _nothing(_: str) -> None:
    """Nobody listens."""
