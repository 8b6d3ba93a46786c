"""The log of a partition of a memory topic: the same batches as a `PartitionLog`, never written anywhere.

    segments   [oldest] [ … ] [ … ] [active]     each an eighth of the topic's retention_bytes
    a segment  chunks, as they were appended: one batch, or a run of them from the predecessor

What a log on disk promises about order, offsets and reads holds here too. What does not: nothing outlives the process.
A copy that is opened again is another copy, with another id (C3), and begins where its chain's record says.

Memory is bounded. The head lets whole segments go as soon as their messages are committed and more than
`retention_bytes` would stay, and the members after it follow. What is not committed cannot go: beyond twice
`retention_bytes`, appends are refused until the chain has caught up.

Threads. As in `storage.state`: the loop appends; a chunk is there before the end that covers it; the tuple of segments
is replaced, never changed, under a lock that is held for the replacement only. Other threads read and let go.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final

from stentor.core.memory_limits import MEMORY_TOPIC_BYTES
from stentor.errors import Closed, InvalidArgument, NotReady, OffsetOutOfRange
from stentor.limits import KIB
from stentor.storage.earlier import Earlier
from stentor.storage.log import PartitionLog
from stentor.storage.model import Deriving, Identity, LogSettings, LogSlice, RecoveryReport
from stentor.storage.writer import checked_end
from stentor.wire.header import HEADER_BYTES, extents, unpack
from stentor.wire.statistics import LogStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stentor.storage.files import Buffer
    from stentor.wire.header import BatchHeader

_SEGMENTS: Final = 8
"""The retention is divided into so many segments: it is exceeded by one of them at most."""

_SEGMENT_BYTES_MIN: Final = 64 * KIB

_NOTHING_FOUND: Final = RecoveryReport(
    segments=0,
    scanned_bytes=0,
    replayed_batches=0,
    snapshot_offset=None,
    truncated=(),
    damaged=(),
    rebuilt_indexes=(),
    foreign_files=(),
    notes=(),
    seconds=0.0,
)


class MemorySegment:
    """A part of the log that is let go as a whole."""

    __slots__ = ("appended_at_us_max", "base", "bases", "chunks", "end", "ends", "epochs", "size", "snapshot")

    def __init__(self, base: int, snapshot: bytes | None) -> None:
        self.base = base
        self.snapshot = snapshot
        """The state derived from everything below `base`; None: there is none to speak of."""
        self.bases: list[int] = []
        self.ends: list[int] = []
        self.chunks: list[bytes] = []
        self.epochs: list[tuple[int, int]] = []
        """(epoch, first offset) of each epoch in it."""
        self.end = base
        self.size = 0
        self.appended_at_us_max = 0

    def append(self, chunk: bytes, headers: Sequence[BatchHeader]) -> None:
        for header in headers:
            if not self.epochs or self.epochs[-1][0] != header.epoch:
                self.epochs.append((header.epoch, header.base_offset))
        self.appended_at_us_max = max(self.appended_at_us_max, headers[-1].appended_at_us)
        self.chunks.append(chunk)
        self.bases.append(headers[0].base_offset)
        self.ends.append(headers[-1].end_offset)  # last: readers count these
        self.size += len(chunk)
        self.end = headers[-1].end_offset

    def batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Each batch with its body, in order."""
        for chunk in self.chunks[:]:
            view = memoryview(chunk)
            for position, length, _, _ in extents(chunk):
                yield unpack(chunk, position), view[position + HEADER_BYTES : position + length]

    def until(self, offset: int) -> MemorySegment:
        """The same without what lies at or behind an offset, the end of a batch."""
        kept = MemorySegment(self.base, self.snapshot)
        for chunk in self.chunks:
            part = _part(chunk, 0, offset)
            if part:
                kept.append(part, [unpack(part, position) for position, *_ in extents(part)])
        return kept


class MemorySearch:
    """A search for what one producer wrote under one generation, below an offset (C32): one slice is enough."""

    def __init__(self, segments: Sequence[MemorySegment], producer_id: int, generation: int, before: int) -> None:
        self.found: dict[int, Earlier] = {}
        self._segments = segments
        self._who = (producer_id, generation)
        self._before = before

    def go_on(self) -> bool:
        """Look through everything; the search is over then."""
        for segment in self._segments:
            if segment.base >= self._before:
                break
            for header, _ in segment.batches():
                if (header.producer_id, header.generation) == self._who and header.base_offset < self._before:
                    self.found[header.sequence] = Earlier(
                        header.body_checksum,
                        header.base_offset,
                        header.end_offset,
                        header.appended_at_us,
                        header.refused,
                    )
        return True


class MemoryLog:
    """One partition's log in memory, empty at first; used as a `PartitionLog` is."""

    def __init__(self, identity: Identity, settings: LogSettings, *, start: int = 0) -> None:
        self.identity = identity
        self.settings = settings
        self.recovery = _NOTHING_FOUND
        self.failed: str | None = None
        """Never: there is no disk that could fail it."""
        self.damaged: list[tuple[int, int]] = []
        """Never any."""
        self.snapshot: Callable[[], bytes] | None = None
        """Gives the derived state as of `end`; called when a segment is begun."""
        self._segments: tuple[MemorySegment, ...] = (MemorySegment(start, None),)
        self._lock = threading.Lock()
        self._end = start
        self._appends = 0
        self._closed = False

    # --- properties -----------------------------------------------------------------------------

    @property
    def in_memory(self) -> bool:
        """Whether a restart takes it: yes."""
        return True

    @property
    def start(self) -> int:
        """The first offset that the log holds."""
        return self._segments[0].base

    @property
    def end(self) -> int:
        """The offset that the next message gets."""
        return self._end

    @property
    def synced_end(self) -> int:
        """Everything below this is as safe as it will ever be: all of it."""
        return self._end

    @property
    def is_over_limit(self) -> bool:
        """Whether it holds so much that the oldest segment should go."""
        segments = self._segments
        return len(segments) > 1 and sum(segment.size for segment in segments[1:]) >= self._bytes_kept

    @property
    def grows(self) -> bool:
        """Whether more messages take more memory: no more once the oldest go as new ones come."""
        return self.bytes < self._bytes_kept

    @property
    def _bytes_kept(self) -> int:
        kept = self.settings.retention_bytes
        return MEMORY_TOPIC_BYTES if kept is None else kept

    def epochs(self) -> list[tuple[int, int]]:
        """(epoch, first offset) for each epoch in the log, from batch headers alone (C9)."""
        found: list[tuple[int, int]] = []
        for segment in self._segments:
            for epoch, first_offset in segment.epochs:
                if not found or found[-1][0] != epoch:
                    found.append((epoch, first_offset))
        return found

    def statistics(self) -> LogStatistics:
        """The log in numbers."""
        return LogStatistics(
            start=self.start,
            end=self._end,
            synced_end=self._end,
            bytes=self.bytes,
            segments=len(self._segments),
            appends=self._appends,
            in_memory=True,
        )

    # --- writing --------------------------------------------------------------------------------

    def append(self, chunk: Buffer, headers: Sequence[BatchHeader]) -> None:
        """Put stamped and sealed batches at the end: `chunk` holds them, `headers` describes them."""
        self._check_open("append")
        end = checked_end(headers, self._end, len(chunk))
        self._check_room()
        active = self._segments[-1]
        if active.size and active.size + len(chunk) > max(self._bytes_kept // _SEGMENTS, _SEGMENT_BYTES_MIN):
            self.roll()
            active = self._segments[-1]
        active.append(bytes(chunk), headers)
        self._appends += 1
        self._end = end

    def _check_room(self) -> None:
        held, kept = self.bytes, self._bytes_kept
        if held > 2 * max(kept, _SEGMENT_BYTES_MIN):
            raise NotReady(
                f"The memory of {self.identity} is full: {held} bytes are held, most of them not committed yet; the"
                f" topic's retention is {kept}.",
                hint="Its chain is behind: try again in a moment. If this lasts, look for a member that stands still.",
                operation="append",
                object=str(self.identity),
            )

    def roll(self) -> None:
        """Begin a new segment now, so that retention can take the present one later. Loop thread."""
        if self._segments[-1].size:
            fresh = MemorySegment(self._end, None if self.snapshot is None else self.snapshot())
            with self._lock:
                self._segments = (*self._segments, fresh)

    def roll_due(self, now_us: int) -> bool:
        """Is everything in the active segment past its retention age, so that it should be closed?"""
        active = self._segments[-1]
        return bool(active.size) and self._is_too_old(active, now_us)

    def sync(self) -> int:
        """There is nothing to bring anywhere; the end."""
        return self._end

    # --- reading --------------------------------------------------------------------------------

    def read(self, offset: int, limit: int, max_bytes: int, *, trusted: bool = False) -> LogSlice:  # noqa: ARG002
        """Whole batches from the one that holds `offset` on, none ending beyond `limit`.

        At least one batch if there is one, otherwise about `max_bytes` at most, from one segment.
        """
        self._check_open("read")
        end, segments = self._end, self._segments
        if not segments[0].base <= offset <= end:
            raise self._out_of_range(offset, segments[0].base, end)
        if offset >= min(limit, end):
            return LogSlice(b"", offset, offset)
        segment = segments[bisect_right(segments, offset, key=lambda each: each.base) - 1]
        found: list[bytes] = []
        size, next_offset, first_offset = 0, offset, offset
        for place in range(bisect_right(segment.ends, offset), len(segment.ends)):
            chunk = segment.chunks[place]
            if segment.bases[place] < offset or segment.ends[place] > limit:
                chunk = _part(chunk, offset, limit)
            if not chunk or (found and size + len(chunk) > max_bytes):
                break
            if not found:
                first_offset = unpack(chunk).base_offset
            found.append(chunk)
            size += len(chunk)
            next_offset = segment.ends[place] if segment.ends[place] <= limit else _end_of(chunk)
        return LogSlice(b"".join(found), first_offset, next_offset)

    def offset_for_time(self, timestamp_us: int, *, limit: int) -> int:
        """The base offset of the first batch with a message at or after the time; `limit` if none."""
        for segment in self._segments:
            for header, _ in segment.batches():
                if header.base_offset >= limit:
                    return limit
                if header.last_timestamp_us >= timestamp_us:
                    return header.base_offset
        return limit

    def search(self, producer_id: int, generation: int, before: int) -> MemorySearch:
        """A search, not begun yet, for what a producer wrote under a generation below an offset (C32)."""
        return MemorySearch(self._segments, producer_id, generation, before)

    def derive(self, derived: Deriving) -> None:
        """Derive states from snapshots and the batches after them."""
        segments = self._segments
        first = 0
        for place in range(len(segments) - 1, -1, -1):
            snapshot = segments[place].snapshot
            if snapshot is not None and derived.restore(snapshot, segments[place].base):
                first = place
                break
        else:
            derived.restore(None, segments[0].base)
        for segment in segments[first:]:
            for header, body in segment.batches():
                derived.replay(header, body)

    # --- shortening -----------------------------------------------------------------------------

    def start_snapshot(self) -> bytes | None:
        """The state derived from everything below `start`."""
        return self._segments[0].snapshot

    def keep_start_snapshot(self, snapshot: bytes) -> None:
        """Keep the state derived from what came before this copy of the log began."""
        self._segments[0].snapshot = snapshot

    def retain(self, now_us: int, *, committed: int) -> int:
        """Let segments go that are too old or too many; returns the new start."""
        with self._lock:
            segments = self._segments
            self._segments = segments[self._expired(segments, now_us, committed) :]
        return self.start

    def retention_end(self, now_us: int, *, committed: int, passed: int = 0, wait_bytes: int | None = None) -> int:  # noqa: ARG002
        """Below which offset everything is too old or too much; nobody is waited for."""
        segments = self._segments
        expired = self._expired(segments, now_us, committed)
        return segments[expired - 1].end if expired else self.start

    def retire_below(self, start: int, *, committed: int) -> int:
        """Let segments go that are wholly below an offset, as the head has; returns the new start."""
        with self._lock:
            ends = [segment.end for segment in self._segments[:-1]]
            self._segments = self._segments[bisect_right(ends, min(start, committed)) :]
        return self.start

    def _expired(self, segments: Sequence[MemorySegment], now_us: int, committed: int) -> int:
        """How many of the oldest may go; never the active one."""
        left = sum(segment.size for segment in segments)
        for place, segment in enumerate(segments[:-1]):
            left -= segment.size
            if segment.end > committed or not (self._is_too_old(segment, now_us) or left >= self._bytes_kept):
                return place
        return len(segments) - 1

    def _is_too_old(self, segment: MemorySegment, now_us: int) -> bool:
        age_s = self.settings.retention_age_s
        return age_s is not None and segment.appended_at_us_max < now_us - int(age_s * 1_000_000)

    def truncate(self, offset: int, *, committed: int) -> None:
        """Cut the log back so that it ends at `offset`, a batch boundary. No append may run meanwhile."""
        self._check_open("truncate")
        if not max(committed, self.start) <= offset <= self._end:
            raise InvalidArgument(
                f"The log of {self.identity} cannot be cut back to {offset}: it starts at {self.start}, "
                f"is committed up to {committed} and ends at {self._end}.",
                operation="truncate",
                object=str(self.identity),
            )
        with self._lock:
            segments = self._segments
            keep = bisect_left(segments, offset, key=lambda each: each.base) or 1
            last = segments[keep - 1]
            last = last if last.end <= offset else last.until(offset)
            if last.end != offset:
                raise InvalidArgument(
                    f"Offset {offset} of {self.identity} is not the end of a batch; {last.end} is.",
                    operation="truncate",
                    object=str(self.identity),
                )
            self._segments = (*segments[: keep - 1], last)
            self._end = offset

    def close(self) -> None:
        """Let go of everything."""
        self._closed = True
        with self._lock:
            self._segments = (MemorySegment(self._end, None),)

    def delete(self) -> None:
        """Remove the log for good."""
        self.close()

    def _check_open(self, operation: str) -> None:
        if self._closed:
            raise Closed(f"The log of {self.identity} is closed.", operation=operation, object=str(self.identity))

    def _out_of_range(self, offset: int, start: int, end: int) -> OffsetOutOfRange:
        where = "before the start" if offset < start else "beyond the end"
        return OffsetOutOfRange(
            f"Offset {offset} is {where} of {self.identity}, which holds {start} to {end - 1}.",
            hint='Read from "earliest" for the oldest message, or from "latest" for new ones.',
            operation="read",
            object=str(self.identity),
            start=start,
            end=end,
        )

    @property
    def bytes(self) -> int:
        """The memory that its batches take."""
        return sum(segment.size for segment in self._segments)


AnyLog = PartitionLog | MemoryLog
"""The log of a partition, wherever it is kept."""


def on_disk(log: AnyLog) -> PartitionLog:
    """The log of a topic that cannot be a memory topic."""
    assert isinstance(log, PartitionLog)
    return log


def _part(chunk: bytes, offset: int, limit: int) -> bytes:
    """The batches of a chunk from the one that holds `offset` on, none ending beyond `limit`."""
    first = last = None
    for position, length, _, end in extents(chunk):
        if end > limit:
            break
        if end > offset:
            first = position if first is None else first
            last = position + length
    return b"" if first is None else chunk[first:last]


def _end_of(chunk: bytes) -> int:
    return max(end for _, _, _, end in extents(chunk))
