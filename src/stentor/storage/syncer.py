"""Putting a log on disk: group commit, and sealing what is no longer written.

A sync captures the end of the log, syncs the directory if files were created in it, then every segment
with unsynced bytes, oldest first, and moves `synced_end` up behind each (K6). So `synced_end` never passes
a segment that is not on disk, however many are waiting.

Then segments that are no longer appended to are sealed: their index, and the snapshot that was taken
when the next one was begun, are written. A crash before that costs a scan of the segment, nothing else;
a full disk postpones it to the next sync.

A sync that failed is never tried again (K3): the kernel may have dropped the pages and called
them clean, and a second sync would then succeed without having written anything. The log is stopped. A sync that
found no descriptor to open the directory with has synced nothing, and is tried again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from stentor.errors import InternalError, StorageError
from stentor.storage.files import NO_DESCRIPTOR_ERRNOS, FileKind, atomic_write, seal, storage_error, sync_directory
from stentor.storage.index import encode_index
from stentor.storage.model import Identity
from stentor.storage.segment import INDEX_SUFFIX, SNAPSHOT_SUFFIX, Segment
from stentor.storage.state import LogState, logger


class LogSyncer:
    """The syncing side of one log; one call at a time, in any thread."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._directory_synced = state.files_created
        self.syncs = 0
        self.sync_us_total = 0
        self.sync_us_max = 0

    def sync(self) -> int:
        """Put everything on disk that is in the log now; return the end that is then safe."""
        state = self._state
        state.check_writable("sync")
        if not state.sync_lock.acquire(blocking=False):
            raise InternalError(f"Two syncs of the log of {state.identity} at once.", operation="sync")
        try:
            began = time.perf_counter_ns()
            end = state.end
            unsealed = unsealed_segments(state.segments)
            self._sync_files(end, unsealed)
            self._measure((time.perf_counter_ns() - began) // 1000)
            for segment in unsealed[:-1]:
                if not self._seal(segment):
                    break  # in order, so that the next sync finds it again
            self._write_snapshots(unsealed)
            return end
        finally:
            state.sync_lock.release()

    def _sync_files(self, end: int, unsealed: Sequence[Segment]) -> None:
        state = self._state
        created = state.files_created
        try:
            if created != self._directory_synced:
                sync_directory(state.directory)
                self._directory_synced = created
            for segment in unsealed:
                size = segment.size
                if size > segment.synced_size:
                    assert segment.file is not None
                    os.fdatasync(segment.file.fd)
                    segment.synced_size = size
                state.synced_end = max(state.synced_end, min(end, segment.end))
        except OSError as error:
            if error.errno in NO_DESCRIPTOR_ERRNOS:  # the directory could not be opened: nothing failed to be written
                raise storage_error(error, operation="sync", path=state.directory) from error
            raise state.fail(f"A sync failed: {error}.", "sync") from error

    def _measure(self, took_us: int) -> None:
        self.syncs += 1
        self.sync_us_total += took_us
        self.sync_us_max = max(self.sync_us_max, took_us)

    def _seal(self, segment: Segment) -> bool:
        try:
            seal_segment(segment, self._state.identity)
        except StorageError as error:
            logger.warning("%s is not sealed yet: %s", segment.path(), error)
            return False
        return True

    def _write_snapshots(self, unsealed: Sequence[Segment]) -> None:
        for segment in unsealed:
            snapshot = segment.snapshot
            if snapshot is None:
                continue
            try:
                write_snapshot(segment, snapshot)
                segment.snapshot = None
            except StorageError as error:
                logger.warning("The snapshot of %s is not written yet: %s", segment.path(), error)


def unsealed_segments(segments: Sequence[Segment]) -> Sequence[Segment]:
    """The segments at the end that are not sealed yet: the active one, and any that wait."""
    first = len(segments) - 1
    while first > 0 and not segments[first - 1].sealed:
        first -= 1
    return segments[first:]


def seal_segment(segment: Segment, identity: Identity) -> None:
    """Write the index of a segment that is on disk and final, and let go of memory and descriptor."""
    index, file = segment.index, segment.file
    assert index is not None
    assert file is not None
    segment.file_bytes = file.bytes()
    summary, data = encode_index(
        index,
        identity,
        base=segment.base,
        end=segment.end,
        data_bytes=segment.size,
        file_bytes=segment.file_bytes,
    )
    atomic_write(segment.path(INDEX_SUFFIX), data)
    segment.summary = summary
    segment.sealed = True
    segment.index = None
    segment.file = None


def write_snapshot(segment: Segment, snapshot: bytes) -> None:
    """Keep the derived state as of the segment's base; the base is part of what is sealed."""
    payload = segment.base.to_bytes(8, "little") + snapshot
    atomic_write(segment.path(SNAPSHOT_SUFFIX), seal(FileKind.SNAPSHOT, payload))
