"""What the threads of one log share, and why that is safe.

Three kinds of threads work on a log:

* the **loop thread** appends (and so rolls to new segments): one thread, no lock per append;
* one **sync thread** at a time syncs, and seals segments that are no longer appended to;
* any number of **worker threads** read, look up times, and retire old segments.

The rules that make this safe:

1. **Bytes before sizes before ends.** An append first writes the file, then the index entries, then
   `segment.size`, then `segment.end`, then `state.end`. A thread that saw an end therefore finds the size
   and the bytes below it. Only the loop thread writes these fields, so no lock guards them; attribute
   loads and stores are atomic in CPython.
2. **The list of segments is a tuple that is replaced, never changed**, under `lock`, which is held for the
   replacement only, never across I/O. A reader takes the tuple once and works on it. A segment
   that was retired meanwhile is still readable through an open handle (`files.FileHandle`); one that
   cannot be opened any more sends the reader back to the current tuple.
3. **A sync captures `end` first and the tuple afterwards** (K6). A roll publishes the new segment before
   anything is appended to it, so the tuple holds every segment below the captured end.
4. **Sealing publishes `summary` before it drops `index`.** Whoever finds no index finds the summary.
5. **Cutting the log back** (`truncate`) is the only act that takes bytes away under a reader. It
   raises `cuts`; a reader that finds bad bytes condemns them only if `cuts` did not move since it began.
   Appends and syncs do not run during a cut: the owner sees to that, and `sync_lock` enforces half of it.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import msgspec

from stentor.errors import Closed, LogFailed, StorageError
from stentor.storage.files import FileKind, atomic_write, seal, unseal
from stentor.storage.model import Identity, LogSettings
from stentor.storage.segment import Segment

logger = logging.getLogger("stentor.storage")


class FailureMark(msgspec.Struct, frozen=True):
    """Why a log takes no more writes; kept outside the log's own directory (K3)."""

    synced_end: int
    """Where the last successful sync ended: what lies beyond may be in memory only. -1: not known."""
    reason: str
    failed_at_us: int


# Made here, under the import lock: msgspec crashes when two threads look at a new type at once.
_decoder = msgspec.json.Decoder(FailureMark)


class LogState:
    """The fields that more than one part of a log uses."""

    __slots__ = (
        "appends",
        "closed",
        "cuts",
        "directory",
        "end",
        "failed",
        "files_created",
        "identity",
        "lock",
        "segments",
        "settings",
        "sync_lock",
        "synced_end",
    )

    def __init__(self, directory: Path, identity: Identity, settings: LogSettings) -> None:
        self.directory = directory
        self.identity = identity
        self.settings = settings
        """Replaced whole by the owner; each act takes it once."""
        self.segments: tuple[Segment, ...] = ()
        """In order, without holes; the last is the active one."""
        self.end = 0
        """The offset that the next batch gets. Written by the loop thread."""
        self.synced_end = 0
        """Everything below is on disk. Written by the sync thread."""
        self.files_created = 0
        """Counts segment files, so that a sync knows whether the directory must be synced too."""
        self.appends = 0
        self.cuts = 0
        """Counts acts that took bytes away from the end of the log."""
        self.failed: str | None = None
        """Why this log takes no more writes; never unset."""
        self.closed = False
        self.lock = threading.Lock()
        """Guards the replacement of `segments`."""
        self.sync_lock = threading.Lock()
        """Held by a sync or a cut: one at a time."""

    def check_writable(self, operation: str) -> None:
        """Refuse work on a log that failed or was closed."""
        if self.failed is not None:
            raise LogFailed(
                f"The log of {self.identity} accepts no more writes: {self.failed}",
                hint="Check the disk. The messages up to the last successful sync are safe and can be read.",
                operation=operation,
                object=str(self.identity),
                synced_end=self.synced_end,
            )
        self.check_open(operation)

    def check_open(self, operation: str) -> None:
        """Refuse work on a log that was closed."""
        if self.closed:
            raise Closed(f"The log of {self.identity} is closed.", operation=operation, object=str(self.identity))

    def fail(self, reason: str, operation: str) -> LogFailed:
        """Stop this log for good (K3), and leave a mark that outlives the process if the disk lets us."""
        self.failed = reason
        mark = FailureMark(self.synced_end, reason, time.time_ns() // 1000)
        try:
            atomic_write(mark_path(self.directory), seal(FileKind.FAILURE, msgspec.json.encode(mark)))
        except StorageError as error:
            logger.warning("The failure of the log of %s could not be recorded: %s", self.identity, error)
        logger.error("The log of %s has failed: %s", self.identity, reason)
        return LogFailed(
            f"The log of {self.identity} has failed: {reason}",
            hint="Check the disk and the system log. The messages up to the last successful sync are safe.",
            operation=operation,
            object=str(self.identity),
            synced_end=self.synced_end,
        )


def mark_path(directory: Path) -> Path:
    """Where the failure of the log in `directory` is recorded."""
    return directory.with_name(directory.name + ".FAILED")


def read_mark(directory: Path) -> FailureMark | None:
    """The recorded failure of the log in `directory`; an unreadable record still is one."""
    path = mark_path(directory)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _decoder.decode(unseal(FileKind.FAILURE, data, what=str(path)))
    except (StorageError, msgspec.MsgspecError):
        return FailureMark(-1, "a sync failed earlier; the record of it is damaged.", 0)
