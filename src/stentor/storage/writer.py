"""Appending to a log: one write, no lock, no sync; and beginning a new segment when one is full.

Runs in the loop thread only. An append refuses before it writes a byte if the disk would be left with
less than the reserve (K5). How much room there is, is asked at most every `ROOM_CHECK_S` or
`ROOM_CHECK_BYTES`; but nobody is refused on an old answer, so a log goes on by itself as soon as there is
room. If the disk fills up in spite of that, the file is cut back to where it was.

Writing into a file that grows makes each sync write the file's new size and blocks too. So the file is
grown ahead, in steps, by zeros: a sync then takes a third less time. Recovery finds zeros behind the
last batch after a crash and cuts them off; a segment that is closed is cut to its size at once.

A roll creates the next file and takes a snapshot of the derived state, no more: syncing and sealing the old
segment is left to the next sync, in its thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from stentor.errors import CorruptData, DiskFull
from stentor.limits import KIB, MIB
from stentor.storage.files import NO_DESCRIPTOR_ERRNOS, Buffer, storage_error, write_at
from stentor.storage.segment import LOG_SUFFIX, Segment, create_segment, segment_path
from stentor.storage.state import LogState
from stentor.wire.header import BatchHeader

ROOM_CHECK_S: Final = 0.1
ROOM_CHECK_BYTES: Final = 16 * MIB
"""Many logs share a disk: each looks again after this time or this much, whichever comes first."""

ALLOCATION_BYTES_MIN: Final = 64 * KIB
ALLOCATION_BYTES_MAX: Final = 8 * MIB
"""Room is taken ahead in steps as large as the segment is, between these: a quiet log stays small."""

FULL_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class LogWriter:
    """The writing side of one log; used by the loop thread only."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.snapshot: Callable[[], bytes] | None = None
        """Gives the state derived from the log as of its end; called when a segment is begun."""
        self._room_bytes = 0
        """What may be appended before the disk is asked again."""
        self._room_until = 0.0
        """When it is asked again at the latest."""

    def append(self, chunk: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Write batches that are stamped and sealed; they are in the log, and not on disk, on return."""
        state = self._state
        if state.failed is not None or state.closed:
            state.check_writable("append")
        size = len(chunk)
        end = checked_end(headers, state.end, size)
        if size > self._room_bytes or time.monotonic() >= self._room_until:
            self._check_room(size)
        active = state.segments[-1]
        if active.size + size > state.settings.segment_bytes and active.end > active.base:
            active = self.roll()
        position, file, index = active.size, active.file, active.index
        assert file is not None
        assert index is not None
        if position + size > active.allocated:
            self._allocate(active, position + size)
        try:
            written = os.pwrite(file.fd, chunk, position)
            if written != size:
                write_at(file, [memoryview(chunk)[written:]], position + written)
        except OSError as error:
            self._undo(active, error)
        self._room_bytes -= size
        index.add(headers, position)
        active.size = active.file_bytes = position + size
        active.end = end
        state.end = end
        state.appends += 1

    def roll(self) -> Segment:
        """Begin a new segment at the end of the log."""
        state = self._state
        state.check_writable("append")
        active = state.segments[-1]
        if active.end == active.base:
            return active
        snapshot = self.snapshot() if self.snapshot is not None else None
        try:
            segment = create_segment(state.directory, state.identity, state.end, time.time_ns() // 1000)
        except OSError as error:
            path = segment_path(state.directory, state.end, LOG_SUFFIX)
            if error.errno in FULL_ERRNOS | NO_DESCRIPTOR_ERRNOS:
                raise storage_error(error, operation="create", path=path) from error
            raise state.fail(f"The segment {path.name} could not be created: {error}.", "append") from error
        give_back(active)
        segment.snapshot = snapshot
        with state.lock:
            state.segments = (*state.segments, segment)
        state.files_created += 1
        return segment

    def _allocate(self, active: Segment, needed: int) -> None:
        """Ask the disk for room ahead of the writes; an optimisation, so a refusal changes nothing."""
        ahead = min(max(active.size, ALLOCATION_BYTES_MIN), ALLOCATION_BYTES_MAX)
        until = min(needed + ahead, max(self._state.settings.segment_bytes, needed))
        active.allocated = until
        if ahead > self._room_bytes // 2 or active.file is None:
            return
        with contextlib.suppress(OSError):
            os.posix_fallocate(active.file.fd, active.size, until - active.size)

    def _check_room(self, size: int) -> None:
        state = self._state
        file = state.segments[-1].file
        assert file is not None
        found = os.fstatvfs(file.fd)
        free = found.f_bavail * found.f_frsize
        reserve = state.settings.disk_reserve_bytes
        room = free - reserve
        if room < size:
            self._room_bytes = 0
            raise DiskFull(
                f"The disk of {state.directory} has {free} bytes left; {size} for this append and "
                f"{reserve} in reserve are needed.",
                hint="Free some space, or shorten the retention. Then the broker accepts writes again by itself.",
                operation="append",
                object=str(state.identity),
                free=free,
                reserve=reserve,
            )
        self._room_bytes = min(room, max(ROOM_CHECK_BYTES, size))
        self._room_until = time.monotonic() + ROOM_CHECK_S

    def _undo(self, active: Segment, error: OSError) -> NoReturn:
        """Take back a write that did not succeed, so that the file ends with a whole batch again."""
        state = self._state
        assert active.file is not None
        self._room_bytes = 0
        active.allocated = active.size
        try:
            os.ftruncate(active.file.fd, active.size)
        except OSError as second:
            reason = f"A write failed ({error}) and could not be taken back ({second})."
            raise state.fail(reason, "append") from error
        if error.errno in FULL_ERRNOS:
            raise storage_error(error, operation="append to", path=active.path()) from error
        raise state.fail(f"A write failed: {error}.", "append") from error


def checked_end(headers: Sequence[BatchHeader], end: int, size: int) -> int:
    """The end of the log after these batches. Numbered wrongly, they are refused, and the log stays as it is."""
    for header in headers:
        if header.base_offset != end:
            raise CorruptData(f"A batch has offset {header.base_offset}; the log ends at {end}.", operation="append")
        end = header.base_offset + header.span
        size -= header.length
    if size:
        raise CorruptData(f"The headers do not describe the chunk: {size} bytes differ.", operation="append")
    return end


def give_back(segment: Segment) -> None:
    """Cut off the room that a segment was given and does not need any more."""
    if segment.allocated > segment.size and segment.file is not None:
        segment.allocated = segment.size
        with contextlib.suppress(OSError):
            os.ftruncate(segment.file.fd, segment.size)
