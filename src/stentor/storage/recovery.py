"""Opening a log: find out what is on the disk, and believe no more of it than can be checked.

1. **List.** Files of ours by name; anything else is foreign: left alone and reported.
2. **Identify.** Each segment's header must name this topic, partition and log. A segment of somebody
   else in the sequence is refused. A damaged header costs nothing if the batches behind it are ours. A last
   segment that holds no batch, behind one that was never sealed, was begun and never synced: it is removed, and
   the one before it is the last. Segments that a compaction replaced, and a crash left behind, are removed.
3. **Restore.** Derived states get the newest snapshot that can be read, older ones as long as one of them is missing,
   and every later batch during the scan (C19). Without any snapshot, all batches.
4. **Scan.** A segment that is not the last, whose index matches the file's size, was on disk and whole when
   it was sealed: it is not scanned, so that a large log opens fast. All others are, byte for byte.
5. **Judge** what does not check out (K2). It is a torn tail, and cut off, only if it is in the last
   segment, at or past the recorded synced end, and no valid batch follows. (Zeros are room that was taken
   ahead; they are cut off without a word.) Anything else is damage: the range is recorded and refused, the
   file stays as it is, and writing goes on in a new segment. Offsets are never given twice: the next
   one is at or above the recorded synced end, every recorded damage and every valid batch that was found.
6. **Sync** what was scanned before any end is reported (K3a): after a kill the page cache may hold
   what the disk does not.

A log that failed (K3) is opened as it was at its last successful sync and stays failed, readable, with nothing
changed on disk; with `unclean` it is cut back to that point and takes writes again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from stentor.errors import CorruptData, DirectoryUnusable, StorageError
from stentor.storage.damage import load_damage, record_damage
from stentor.storage.files import (
    SEAL_BYTES,
    FileHandle,
    FileKind,
    read_at,
    storage_error,
    sync_directory,
    unseal,
)
from stentor.storage.index import IndexSummary, decode_summary, summary_length
from stentor.storage.model import (
    SEGMENT_HEADER_BYTES,
    DamagedRange,
    Deriving,
    LogFloor,
    RecoveryReport,
    Truncation,
)
from stentor.storage.retention import put_aside, remove_files, remove_temporaries
from stentor.storage.scan import OFFSET_MAX, Extent, OnBatch, Scan, find_valid_batch, is_blank, scan_segment
from stentor.storage.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_MAGIC,
    SNAPSHOT_SUFFIX,
    Segment,
    SegmentHeader,
    create_segment,
    list_segments,
    read_segment_header,
    segment_path,
)
from stentor.storage.state import FailureMark, LogState, logger, mark_path
from stentor.storage.syncer import seal_segment


def load_snapshot(directory: Path, base: int) -> bytes | None:
    """The derived state as of `base`; None if there is no snapshot. CorruptData if it cannot be used."""
    path = segment_path(directory, base, SNAPSHOT_SUFFIX)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    payload = unseal(FileKind.SNAPSHOT, data, what=str(path))
    if payload[:8] != base.to_bytes(8, "little"):
        raise CorruptData(f"{path} is the snapshot of another offset.", object=str(path))
    return bytes(payload[8:])


def load_summary(directory: Path, base: int) -> IndexSummary | None:
    """The summary of a sealed segment; None if there is none that can be used."""
    try:
        file = FileHandle(segment_path(directory, base, INDEX_SUFFIX))
    except FileNotFoundError:
        return None
    try:
        start = read_at(file, SEAL_BYTES, 0)
        return decode_summary(read_at(file, summary_length(start), 0), what="index")
    except CorruptData:
        return None


def covered_end(directory: Path, base: int) -> int:
    """Where a segment ends that a compaction wrote; 0 for any other."""
    path = segment_path(directory, base, LOG_SUFFIX)
    try:
        return read_segment_header(FileHandle(path), what=str(path)).covered_to
    except CorruptData:
        return 0


class ForeignSegment(DirectoryUnusable):
    """A file in the place of a segment is none of this log's."""


class Recovery:
    """One opening of one log."""

    def __init__(
        self,
        state: LogState,
        floor: LogFloor,
        derived: Deriving | None,
        *,
        start: int,
        mark: FailureMark | None,
        unclean: bool,
    ) -> None:
        self._state = state
        self._directory = state.directory
        self._identity = state.identity
        self._floor_end = max(floor.synced_end, floor.committed)
        self._derived = derived
        self._start = start
        self._mark = mark
        self._frozen = mark is not None and not unclean
        """A failed log is looked at, not touched."""
        self._cut_at: int | None = None
        """Where a failed log ended at its last successful sync."""
        if mark is not None:
            self._cut_at = mark.synced_end if mark.synced_end >= 0 else self._floor_end
            self._floor_end = min(self._floor_end, self._cut_at)
        self._scanned: list[Segment] = []
        self._scanned_bytes = 0
        self._replayed = 0
        self._snapshot_offset: int | None = None
        self._truncated: list[Truncation] = []
        self._rebuilt: list[str] = []
        self._notes: list[str] = []
        self._headless: set[int] = set()
        """Bases of segments whose header is damaged."""

    def run(self) -> RecoveryReport:
        """Bring the state up to what the disk holds."""
        began = time.perf_counter()
        state = self._state
        state.synced_end = self._floor_end
        try:
            bases, foreign = list_segments(self._directory)
            remove_temporaries(self._directory)  # what a crash left of an unfinished write
            segments = self._recover(self._reachable(bases))
            if self._frozen:
                assert self._mark is not None
                state.failed = self._mark.reason
            else:
                self._make_durable(segments)
        except OSError as error:
            raise storage_error(error, operation="open", path=self._directory) from error
        state.segments = tuple(segments)
        state.end = state.synced_end = segments[-1].end
        return RecoveryReport(
            segments=len(segments),
            scanned_bytes=self._scanned_bytes,
            replayed_batches=self._replayed,
            snapshot_offset=self._snapshot_offset,
            truncated=tuple(self._truncated),
            damaged=tuple((d.first_offset, d.next_offset) for segment in segments for d in segment.damaged),
            rebuilt_indexes=tuple(self._rebuilt),
            foreign_files=tuple(foreign),
            notes=tuple(self._notes),
            seconds=time.perf_counter() - began,
        )

    def _reachable(self, bases: list[int]) -> list[int]:
        """The segments that count: all, or those below the last successful sync of a failed log."""
        if self._cut_at is None:
            return bases
        kept = [base for base in bases if base < self._cut_at] or bases[:1]
        if not self._frozen:
            for base in reversed(bases[len(kept) :]):
                path = segment_path(self._directory, base, LOG_SUFFIX)
                self._truncated.append(Truncation(path.name, path.stat().st_size, 0, base, None))
                remove_files(self._directory, base)
        return kept

    def _recover(self, bases: list[int]) -> list[Segment]:
        if not bases:
            self._restore([], self._start)
            return self._begin()
        bases = self._without_empty_tail(self._without_replaced(bases))
        segments = [self._identify(base, following) for base, following in _pairs(bases)]
        replay_from = self._restore(bases, bases[0])
        for segment, following in zip(segments, [*bases[1:], None], strict=True):
            replay = None if self._derived is None or segment.base < replay_from else self._derived.replay
            self._examine(segment, following, replay)
        if not self._frozen:
            segments = self._activate(segments)
        return segments

    def _without_replaced(self, bases: list[int]) -> list[int]:
        """Without segments that a compaction has put into the one before them, and a crash kept it from removing."""
        kept: list[int] = []
        covered_to = 0
        for base in bases:
            if base < covered_to:
                if not self._frozen:
                    remove_files(self._directory, base)
                continue
            kept.append(base)
            covered_to = max(covered_to, covered_end(self._directory, base))
        return kept

    def _without_empty_tail(self, bases: list[int]) -> list[int]:
        """After a roll that no sync followed, the old segment is the last that matters, and may be torn."""
        while not self._frozen and len(bases) > 1 and self._never_synced(bases[-2], bases[-1]):
            self._discard(bases[-1])
            bases = bases[:-1]
        return bases

    def _never_synced(self, previous: int, last: int) -> bool:
        """Is the last segment one that nobody can have relied on? It holds nothing, nor was the one before sealed."""
        summary = load_summary(self._directory, previous)
        if last < self._floor_end or load_damage(self._directory, last) != ():
            return False
        if summary is not None and summary.end_offset == last:
            return False
        file = FileHandle(segment_path(self._directory, last, LOG_SUFFIX))
        try:
            ours = self._names_us(read_segment_header(file, what="segment"), last)
        except CorruptData:
            ours = _begins_like_a_segment(file)
        return ours and self._holds_nothing(file, last, OFFSET_MAX)

    def _holds_nothing(self, file: FileHandle, base: int, ceiling: int) -> bool:
        extent = Extent(file, self._identity, file.bytes(), ceiling)
        return find_valid_batch(extent, SEGMENT_HEADER_BYTES, base) is None

    def _discard(self, base: int) -> None:
        """Remove a segment that was created and never synced; put it aside if that is not beyond doubt."""
        path = segment_path(self._directory, base, LOG_SUFFIX)
        file = FileHandle(path)
        size = file.bytes()
        if not is_blank(file, SEGMENT_HEADER_BYTES, size):
            self._truncated.append(Truncation(path.name, size, 0, base, None))
        if read_at(file, len(SEGMENT_MAGIC), 0) == SEGMENT_MAGIC or is_blank(file, 0, size):
            remove_files(self._directory, base)
        else:
            put_aside(self._directory, base)
        self._notes.append(f"{path.name} was created but never synced, so it was created again.")

    def _begin(self) -> list[Segment]:
        """An empty directory: a new log, or one whose files are gone."""
        first = self._create(self._start)
        if self._floor_end <= self._start:
            return [first]
        self._notes.append(f"All segments are missing; the log ended at {self._floor_end} or later.")
        self._condemn(first, Scan(self._start), self._floor_end, "batches are missing")
        return self._activate([first])

    def _create(self, base: int) -> Segment:
        segment = create_segment(self._directory, self._identity, base, time.time_ns() // 1000)
        self._scanned.append(segment)
        return segment

    # --- identify -------------------------------------------------------------------------------

    def _identify(self, base: int, following: int | None) -> Segment:
        segment = Segment(self._directory, base)
        path = segment.path()
        file = FileHandle(path)
        segment.file_bytes = file.bytes()
        try:
            header = read_segment_header(file, what=str(path))
        except CorruptData as error:
            self._identify_by_content(segment, file, following, error)
            return segment
        identity = self._identity
        if not self._names_us(header, base):
            raise self._not_ours(
                path,
                f"it says topic {header.topic_id:016x} partition {header.partition} log {header.log_id:x} "
                f"offset {header.base_offset}, expected {identity} log {identity.log_id:x} offset {base}",
            )
        return segment

    def _names_us(self, header: SegmentHeader, base: int) -> bool:
        identity = self._identity
        found = (header.topic_id, header.partition, header.log_id, header.base_offset)
        return found == (identity.topic_id, identity.partition, identity.log_id, base)

    def _identify_by_content(
        self, segment: Segment, file: FileHandle, following: int | None, error: CorruptData
    ) -> None:
        """A segment without a readable header is ours if its batches are, or if there is nothing in it."""
        path = segment.path()
        empty = self._holds_nothing(file, segment.base, following or OFFSET_MAX)
        if empty and not _begins_like_a_segment(file):
            raise self._not_ours(path, error.message) from error
        if empty and following is None and segment.base >= self._floor_end and not self._frozen:
            self._discard(segment.base)
            create_segment(self._directory, self._identity, segment.base, time.time_ns() // 1000)
            segment.file_bytes = SEGMENT_HEADER_BYTES
            return
        self._headless.add(segment.base)
        self._notes.append(f"The header of {path.name} is damaged; its batches were checked one by one.")

    def _not_ours(self, path: Path, why: str) -> ForeignSegment:
        return ForeignSegment(
            f"{path} is not a segment of {self._identity}: {why.rstrip('.')}.",
            hint="The broker did not change it. Move it elsewhere, or restore the file that belongs there.",
            operation="open",
            object=str(path),
        )

    # --- restore --------------------------------------------------------------------------------

    def _restore(self, bases: Sequence[int], start: int) -> int:
        """Hand over usable snapshots, the newest first; return the offset from which batches must be replayed."""
        if self._derived is None:
            return OFFSET_MAX
        for base in reversed(bases):
            try:
                snapshot = load_snapshot(self._directory, base)
            except CorruptData as error:
                self._notes.append(f"{error.message} The broker uses an older one.")
                continue
            if snapshot is not None:
                if self._snapshot_offset is None:
                    self._snapshot_offset = base
                if self._derived.restore(snapshot, base):
                    return base
        self._derived.restore(None, start)
        return start

    # --- scan and judge -------------------------------------------------------------------------

    def _examine(self, segment: Segment, following: int | None, replay: OnBatch | None) -> None:
        """Trust a sealed segment, or scan it; then fill in what is known about it."""
        recorded = load_damage(self._directory, segment.base)
        summary = load_summary(self._directory, segment.base)
        if following is None or recorded is None or not self._trusted(segment, summary, following):
            summary = None
        if summary is not None and replay is None:
            self._trust(segment, summary, recorded or (), following)
            return
        scan = self._scan(segment, following, replay)
        if summary is not None and scan.end == summary.end_offset:
            self._trust(segment, summary, scan.damaged, following)
            return
        self._fill(segment, scan)
        if following is None:
            self._judge_last(segment, scan, recorded or ())
        elif scan.end < following:
            self._condemn(segment, scan, following, "bytes fail their checksum" if scan.tail_bytes else "")
        elif scan.damaged:
            self._record(segment, scan.damaged)

    def _trusted(self, segment: Segment, summary: IndexSummary | None, following: int | None) -> bool:
        identity = self._identity
        return (
            summary is not None
            and following is not None
            and (summary.topic_id, summary.partition) == (identity.topic_id, identity.partition)
            and summary.log_id == identity.log_id
            and summary.base_offset == segment.base
            and summary.file_bytes == segment.file_bytes
            and summary.data_bytes <= segment.file_bytes
            and segment.base <= summary.end_offset <= following
        )

    def _trust(
        self,
        segment: Segment,
        summary: IndexSummary,
        damaged: Sequence[DamagedRange],
        following: int | None,
    ) -> None:
        segment.size = summary.data_bytes
        segment.synced_size = segment.file_bytes
        segment.end = summary.end_offset
        segment.damaged = tuple(damaged)
        segment.summary = summary
        segment.sealed = True
        segment.index = None
        segment.file = None
        if following is not None and following > segment.end:
            within = [damage for damage in damaged if damage.first_offset < segment.end]
            gap = DamagedRange(segment.end, following, segment.size, segment.file_bytes, "batches are missing")
            self._record(segment, [*within, gap])
            segment.end = following

    def _scan(self, segment: Segment, following: int | None, replay: OnBatch | None) -> Scan:
        segment.file = FileHandle(segment.path())
        ceiling = following
        if self._cut_at is not None:
            ceiling = self._cut_at if following is None else min(following, self._cut_at)
        scan = scan_segment(Extent(segment.file, self._identity, segment.file_bytes, ceiling), segment.base, replay)
        self._scanned.append(segment)
        self._scanned_bytes += segment.file_bytes
        if replay is not None:
            self._replayed += scan.batches
        return scan

    def _fill(self, segment: Segment, scan: Scan) -> None:
        segment.index = scan.index
        segment.size = scan.size
        segment.end = scan.end
        segment.damaged = tuple(scan.damaged)

    def _judge_last(self, segment: Segment, scan: Scan, recorded: Sequence[DamagedRange]) -> None:
        """The tail of the last segment: torn, or damaged (K2)."""
        if self._frozen:
            return
        floor = max([self._floor_end, *(damage.next_offset for damage in recorded)])
        if scan.end < floor:
            if scan.tail_header is not None:
                floor = max(floor, scan.tail_header.end_offset)
            reason = "bytes fail their checksum" if scan.tail_bytes else "batches are missing"
            self._condemn(segment, scan, floor, reason)
        elif scan.damaged:
            self._record(segment, scan.damaged)
        elif scan.tail_bytes:
            self._cut_tail(segment, scan)

    def _condemn(self, segment: Segment, scan: Scan, until: int, reason: str) -> None:
        """Everything from the last valid batch of a segment to `until` is lost."""
        reason = reason or "batches are missing"
        lost = DamagedRange(scan.end, until, scan.size, max(segment.file_bytes, scan.size), reason)
        segment.end = until
        self._record(segment, [*scan.damaged, lost])

    def _record(self, segment: Segment, damaged: Sequence[DamagedRange]) -> None:
        if self._frozen:
            segment.damaged = tuple(damaged)
        else:
            record_damage(segment, damaged, self._identity)

    def _cut_tail(self, segment: Segment, scan: Scan) -> None:
        path, size = segment.path(), segment.file_bytes
        segment.file = FileHandle(path, write=True)
        os.ftruncate(segment.file.fd, scan.size)
        segment.file_bytes = scan.size
        if not scan.tail_is_blank:
            next_offset = scan.tail_header.end_offset if scan.tail_header is not None else None
            self._truncated.append(Truncation(path.name, size, scan.size, scan.end, next_offset))
            logger.warning("%s had a torn tail: cut from %d to %d bytes.", path, size, scan.size)

    # --- go on ----------------------------------------------------------------------------------

    def _activate(self, segments: list[Segment]) -> list[Segment]:
        """Choose where writing goes on: in the last segment if it is sound, else in a new one."""
        last = segments[-1]
        if last.damaged or last.base in self._headless or last.file_bytes != last.size:
            return [*segments, self._create(max(last.end, self._floor_end))]
        last.path(INDEX_SUFFIX).unlink(missing_ok=True)
        last.file = FileHandle(last.path(), write=True)
        last.allocated = last.size
        return segments

    def _make_durable(self, segments: Sequence[Segment]) -> None:
        try:
            for segment in self._scanned:
                if segment.file is not None:
                    os.fdatasync(segment.file.fd)
                    segment.synced_size = segment.size
            sync_directory(self._directory)
            sync_directory(self._directory.parent)
        except OSError as error:
            raise self._state.fail(f"A sync failed during recovery: {error}.", "open") from error
        for segment in segments[:-1]:
            if not segment.sealed:
                self._seal(segment)
        if self._mark is not None:
            mark_path(self._directory).unlink(missing_ok=True)
            sync_directory(self._directory.parent)

    def _seal(self, segment: Segment) -> None:
        self._rebuilt.append(segment.path(INDEX_SUFFIX).name)
        try:
            seal_segment(segment, self._identity)
        except StorageError as error:
            self._notes.append(f"{segment.path().name} is not sealed yet: {error.message}")


def _pairs(bases: list[int]) -> list[tuple[int, int | None]]:
    return list(zip(bases, [*bases[1:], None], strict=True))


def _begins_like_a_segment(file: FileHandle) -> bool:
    """Could a crash have left this of the beginning of a segment: the magic, a part of it, or nothing?"""
    return SEGMENT_MAGIC.startswith(read_at(file, len(SEGMENT_MAGIC), 0).rstrip(b"\0"))
