"""The log of one partition: segment files of batches, as received.

    PartitionLog ─┬─ writer     append, roll                loop thread
                  ├─ syncer     group commit, sealing       one sync thread at a time
                  ├─ reader     read, offset_for_time       any threads
                  ├─ retention  retire old segments         any one thread
                  └─ compaction write segments anew         any one thread
                     all on one `LogState`; state.py argues why that is safe without a lock per append

**What is promised.** `append` puts whole batches at the end, or raises and leaves the log as it was. After
`sync` returned N, everything below N survives a power cut. `read` returns only batches that were
verified in that very read. What cannot be read any more is refused with the range and the offset where
reading can go on; everything else stays readable. Offsets are never given twice.

**What the owner does.** Set `snapshot` to a function that gives the derived states as of `log.end`: it
is called inside `append`, before the chunk is written, so apply a batch to that state only after its
append returned. Call `sync` in a thread, one at a time. Record `synced_end` and the commit floor in the
journal, and give them back to `open`.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path

from stentor.core.horizon import DELETIONS_KEPT_S, Horizon
from stentor.errors import CorruptData, InvalidArgument
from stentor.storage.compaction import Compaction
from stentor.storage.damage import record_damage
from stentor.storage.earlier import Search
from stentor.storage.files import PRIVATE_FOLDER, Buffer, FileHandle, storage_error, sync_directory
from stentor.storage.model import (
    Deriving,
    Identity,
    LogFloor,
    LogSettings,
    LogSlice,
    RecoveryReport,
)
from stentor.storage.reader import INDEX_CACHE, LogReader
from stentor.storage.recovery import Recovery, load_snapshot
from stentor.storage.retention import (
    expired_segments,
    overdue_segments,
    remove_files,
    remove_log,
    retire_segment,
    segments_below,
)
from stentor.storage.scan import Extent, Scan, scan_segment
from stentor.storage.segment import INDEX_SUFFIX, Segment
from stentor.storage.state import LogState, read_mark
from stentor.storage.syncer import LogSyncer, write_snapshot
from stentor.storage.writer import LogWriter, give_back
from stentor.wire.header import BatchHeader
from stentor.wire.statistics import LogStatistics


class PartitionLog:
    """One partition's log in one directory. Made by `PartitionLog.open`."""

    def __init__(self, state: LogState, recovery: RecoveryReport) -> None:
        self._state = state
        self._writer = LogWriter(state)
        self._syncer = LogSyncer(state)
        self._reader = LogReader(state)
        self.recovery = recovery
        """What opening the log found and did."""

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        topic_id: int,
        partition: int,
        log_id: int,
        settings: LogSettings,
        floor: LogFloor | None = None,
        derived: Deriving | None = None,
        start: int = 0,
        unclean: bool = False,
    ) -> PartitionLog:
        """Recover the log in `directory`, or begin one at offset `start` if there is none.

        `derived` are the states to derive from it: snapshots first, then every batch after them. `unclean` cuts a
        log whose sync failed back to its last successful sync and lets it take writes again; otherwise such a log
        opens for reading only.
        """
        try:
            directory.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        except OSError as error:
            raise storage_error(error, operation="create", path=directory) from error
        state = LogState(directory, Identity(topic_id, partition, log_id), settings)
        recovery = Recovery(
            state,
            floor or LogFloor(0, 0),
            derived,
            start=start,
            mark=read_mark(directory),
            unclean=unclean,
        )
        return cls(state, recovery.run())

    # --- properties -----------------------------------------------------------------------------

    @property
    def identity(self) -> Identity:
        """Whose log this is."""
        return self._state.identity

    @property
    def directory(self) -> Path:
        """Where its files are."""
        return self._state.directory

    @property
    def settings(self) -> LogSettings:
        """What the operator chose; may be replaced at any time."""
        return self._state.settings

    @settings.setter
    def settings(self, settings: LogSettings) -> None:
        self._state.settings = settings

    @property
    def snapshot(self) -> Callable[[], bytes] | None:
        """Gives the derived state as of `end`; called when a segment is begun."""
        return self._writer.snapshot

    @snapshot.setter
    def snapshot(self, snapshot: Callable[[], bytes] | None) -> None:
        self._writer.snapshot = snapshot

    @property
    def in_memory(self) -> bool:
        """Whether a restart takes it: no."""
        return False

    @property
    def is_over_limit(self) -> bool:
        """Whether something should go at once: never, a disk has room until the next look at its retention."""
        return False

    @property
    def start(self) -> int:
        """The first offset that the log holds."""
        return self._state.segments[0].base

    @property
    def end(self) -> int:
        """The offset that the next message gets."""
        return self._state.end

    @property
    def synced_end(self) -> int:
        """Everything below this is on disk."""
        return self._state.synced_end

    @property
    def damaged(self) -> list[tuple[int, int]]:
        """Offset ranges [first, next) that are refused."""
        return [
            (damage.first_offset, damage.next_offset) for segment in self._state.segments for damage in segment.damaged
        ]

    @property
    def failed(self) -> str | None:
        """Why the log takes no more writes; None while it does."""
        return self._state.failed

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, first offset) for each epoch in the log, from batch headers alone (C9)."""
        found: list[tuple[int, int]] = []
        for segment in self._state.segments:
            for epoch, first_offset in segment.epochs:
                if not found or found[-1][0] != epoch:
                    found.append((epoch, first_offset))
        return found

    def statistics(self) -> LogStatistics:
        """The log in numbers."""
        state, syncer = self._state, self._syncer
        return LogStatistics(
            start=self.start,
            end=state.end,
            synced_end=state.synced_end,
            bytes=self.bytes,
            segments=len(state.segments),
            appends=state.appends,
            syncs=syncer.syncs,
            sync_us_total=syncer.sync_us_total,
            sync_us_max=syncer.sync_us_max,
            failed=state.failed is not None,
            damaged=tuple(self.damaged),
        )

    # --- writing --------------------------------------------------------------------------------

    def append(self, chunk: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Put stamped and sealed batches at the end: `chunk` holds them, `headers` describes them.

        Raises DiskFull before anything is written; LogFailed if the log takes no more writes.
        """
        self._writer.append(chunk, headers)

    def roll(self) -> None:
        """Begin a new segment now, so that retention can take the present one later. Loop thread."""
        self._writer.roll()

    def roll_due(self, now_us: int) -> bool:
        """Is everything in the active segment past its retention age, so that it should be closed?"""
        age_s = self._state.settings.retention_age_s
        active = self._state.segments[-1]
        if age_s is None or active.end == active.base:
            return False
        return active.appended_at_us_max < now_us - int(age_s * 1_000_000)

    def sync(self) -> int:
        """Put the log on disk; returns the end captured before, which is now safe (K6)."""
        return self._syncer.sync()

    # --- reading --------------------------------------------------------------------------------

    def read(self, offset: int, limit: int, max_bytes: int, *, trusted: bool = False) -> LogSlice:
        """Whole verified batches from the one that holds `offset` on, none ending beyond `limit`.

        At least one batch if there is one, otherwise about `max_bytes` at most, from one segment. Raises
        OffsetOutOfRange, or CorruptData with `detail["resume_at"]`. With `trusted`, what this process
        appended is not verified again: the caller's reader does.
        """
        return self._reader.read(offset, limit, max_bytes, trusted=trusted)

    def offset_for_time(self, timestamp_us: int, *, limit: int) -> int:
        """The base offset of the first batch with a message at or after the time; `limit` if none."""
        return self._reader.offset_for_time(timestamp_us, limit)

    def search(self, producer_id: int, generation: int, before: int) -> Search:
        """A search, not begun yet, for what a producer wrote under a generation below an offset (C32)."""
        return Search(self._state, self._reader, producer_id, generation, before)

    def derive(self, derived: Deriving) -> None:
        """Derive states from snapshots and the batches after them, as `open` does."""
        state = self._state
        with self._reader.examining:  # no compaction replaces a segment meanwhile
            segments = state.segments
            first = self._restore_newest(derived, segments)
            for segment in segments[first:]:
                extent = Extent(segment.handle(), state.identity, segment.size, segment.end)
                scan_segment(extent, segment.base, derived.replay)

    def _restore_newest(self, derived: Deriving, segments: Sequence[Segment]) -> int:
        """Hand over snapshots; from which segment on batches are needed."""
        for place in range(len(segments) - 1, -1, -1):
            snapshot = segments[place].snapshot or _snapshot_of(segments[place])
            if snapshot is not None and derived.restore(snapshot, segments[place].base):
                return place
        derived.restore(None, segments[0].base)
        return 0

    # --- compacting -----------------------------------------------------------------------------

    def roll_behind(self, offset: int) -> bool:
        """Begin a new segment if the active one holds something below an offset, so that it can be compacted."""
        if self._state.segments[-1].base >= offset:
            return False
        self._writer.roll()
        return True

    def compaction(
        self, horizon: Horizon, *, committed: int, kept_us: int = DELETIONS_KEPT_S * 1_000_000
    ) -> Compaction:
        """A compaction, not begun yet, of what is below a horizon; deletions are kept for so long. One at a time."""
        return Compaction(self._state, self._reader, horizon, committed, kept_us)

    def bytes_since(self, offset: int) -> tuple[int, int]:
        """The size of the segments that begin below an offset, and of the others."""
        below = sum(segment.size for segment in self._state.segments if segment.base < offset)
        return below, sum(segment.size for segment in self._state.segments) - below

    def end_of_older(self, appended_at_us: int) -> int:
        """Below which offset everything was appended before a time; a little less, perhaps."""
        for segment in self._state.segments:
            if segment.appended_at_us_max >= appended_at_us:
                index = self._reader.index_of(segment)
                place = bisect_left(index.appended, appended_at_us, 0, len(index.offsets))
                return index.offsets[place - 1] if place else segment.base
        return self.end

    # --- shortening -----------------------------------------------------------------------------

    def start_snapshot(self) -> bytes | None:
        """The state derived from everything below `start`."""
        first = self._state.segments[0]
        return first.snapshot or _snapshot_of(first)

    def keep_start_snapshot(self, snapshot: bytes) -> None:
        """Keep the state derived from what came before this copy of the log began."""
        write_snapshot(self._state.segments[0], snapshot)

    def retain(self, now_us: int, *, committed: int) -> int:
        """Let segments go that are too old or too many; returns the new start."""
        state = self._state
        return self._retire(lambda: expired_segments(state.segments, state.settings, now_us, committed))

    def retention_end(self, now_us: int, *, committed: int, passed: int = 0, wait_bytes: int | None = None) -> int:
        """Below which offset everything is too old or too much, if all that is committed could go. With `wait_bytes`,
        the newest of it stay: so much of what is not below `passed`.
        """
        expired = expired_segments(self._state.segments, self._state.settings, now_us, committed)
        if wait_bytes is not None:
            expired = overdue_segments(expired, passed, wait_bytes)
        return expired[-1].end if expired else self.start

    def retire_below(self, start: int, *, committed: int) -> int:
        """Let segments go that are wholly below an offset, as the head has; returns the new start."""
        state = self._state
        return self._retire(lambda: segments_below(state.segments, start, committed))

    def _retire(self, choose: Callable[[], Sequence[Segment]]) -> int:
        state = self._state
        with self._reader.examining:
            if state.closed:
                return self.start
            expired = choose()
            with state.lock:
                state.segments = state.segments[len(expired) :]
            for segment in expired:
                retire_segment(segment)
                INDEX_CACHE.discard(segment.serial)
        return self.start

    def truncate(self, offset: int, *, committed: int) -> None:
        """Cut the log back so that it ends at `offset`, a batch boundary, and put that on disk.

        No append and no sync may run meanwhile. The state derived from the log must be derived again.
        """
        state = self._state
        state.check_writable("truncate")
        with state.sync_lock, self._reader.examining:
            self._check_cut(offset, committed)
            if offset == state.end:
                return
            segments = state.segments
            keep = sum(segment.base <= offset for segment in segments)
            last = segments[keep - 1]
            scan = self._scan_until(last, offset)
            state.cuts += 1
            self._reader.forget()
            with state.lock:
                state.segments = segments[:keep]
                state.end = offset
            state.synced_end = min(state.synced_end, offset)
            try:
                for segment in reversed(segments[keep:]):
                    remove_files(state.directory, segment.base)
                    INDEX_CACHE.discard(segment.serial)
                self._cut_segment(last, scan)
            except OSError as error:
                raise state.fail(f"The log could not be cut back: {error}.", "truncate") from error
            state.synced_end = offset

    def _check_cut(self, offset: int, committed: int) -> None:
        state = self._state
        if not max(committed, self.start) <= offset <= state.end:
            raise InvalidArgument(
                f"The log of {state.identity} cannot be cut back to {offset}: it starts at {self.start}, "
                f"is committed up to {committed} and ends at {state.end}.",
                operation="truncate",
                object=str(state.identity),
            )

    def _scan_until(self, segment: Segment, offset: int) -> Scan:
        state = self._state
        scan = scan_segment(Extent(segment.handle(), state.identity, segment.size, offset), segment.base)
        if scan.end != offset:
            raise InvalidArgument(
                f"Offset {offset} of {state.identity} is not the end of a batch; {scan.end} is.",
                operation="truncate",
                object=str(state.identity),
            )
        return scan

    def _cut_segment(self, segment: Segment, scan: Scan) -> None:
        segment.path(INDEX_SUFFIX).unlink(missing_ok=True)
        record_damage(segment, scan.damaged, self._state.identity)
        sync_directory(segment.directory)
        INDEX_CACHE.discard(segment.serial)
        segment.index, segment.summary, segment.sealed = scan.index, None, False
        segment.end, segment.file = scan.end, FileHandle(segment.path(), write=True)
        segment.size = segment.file_bytes = segment.synced_size = segment.allocated = scan.size
        os.ftruncate(segment.file.fd, scan.size)
        os.fsync(segment.file.fd)

    def close(self) -> None:
        """Put everything on disk and let go of the files. Reads under way may finish."""
        state = self._state
        if state.closed:
            return
        try:
            if state.failed is None:
                give_back(state.segments[-1])
                self.sync()
        finally:
            self._let_go()

    def delete(self) -> None:
        """Remove the log for good. Files that are not ours stay, and so does the directory then."""
        self._let_go()
        with self._reader.examining:
            remove_log(self._state.directory)

    def _let_go(self) -> None:
        """No more writes, and no more descriptors or memory than reads under way still hold."""
        self._state.closed = True
        for segment in self._state.segments:
            segment.file = None
            INDEX_CACHE.discard(segment.serial)

    @property
    def bytes(self) -> int:
        """The size of all segment files."""
        return sum(segment.file_bytes for segment in self._state.segments)


def _snapshot_of(segment: Segment) -> bytes | None:
    try:
        return load_snapshot(segment.directory, segment.base)
    except CorruptData:
        return None
