"""Whether this broker's disk takes writes (C31): a small synced write, now and then, and the room that is left.

A broker of a cluster says with every heartbeat whether it can write; a single broker, which nobody can replace, tells
its operator, and probes rarely while all is well. The probe has a thread of its own, because a disk that hangs does not
answer. How long an answer is outstanding is counted in ticks of the loop, not in time: a process that was paused must
not blame its disk.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.storage.directory import PROBE_FILE
from stentor.storage.files import NO_DESCRIPTOR_ERRNOS, FileHandle

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

    from stentor.broker.disk_threads import DiskThreads
    from stentor.errors import StentorError

logger = logging.getLogger(__name__)

_FULL_TICKS: Final = int(2 * limits.DISK_PROBE_S / limits.PEER_HEARTBEAT_S) + 1
_ROOM_AGAIN: Final = 1.25  # of the reserve: room that comes and goes must not make members come and go


class DiskHealth:
    """What is known of the disk under one data directory."""

    def __init__(self, directory: Path, reserve_bytes: int, interval_s: float = limits.DISK_PROBE_S) -> None:
        self.interval_s = interval_s  # between two probes of a disk that is well
        self._path = directory / PROBE_FILE
        self._reserve_bytes = reserve_bytes
        self._probes = 0  # finished ones
        self._seen_probes = 0
        self._waiting_ticks = 0  # for how long the same probe has been under way, with the pause before it
        self._took_ticks = 0  # the same, of the last one that has finished
        self._full = False
        self._full_ticks = 0  # an append found no room, whatever the probe says
        self._failure = ""
        self._told = ""
        self._file: FileHandle | None = None  # kept open: the probe needs no descriptor when none can be had
        self._closed = False
        self._thread: DiskThreads | None = None
        self._next: asyncio.TimerHandle | None = None  # when the next probe is due; None while one is under way

    def start(self, thread: DiskThreads) -> None:
        """Probe from now on, in this one thread."""
        self._thread = thread
        self._begin()

    def close(self) -> None:
        """A thread that hangs in the disk is left behind."""
        if self._next is not None:
            self._next.cancel()
        if self._thread is not None:
            self._thread.leave()
            self._thread = None
        self._closed = True
        self._file = None  # a probe that is under way has its own reference

    # --- in the loop ----------------------------------------------------------------------------

    def tick(self) -> bool:
        """Called with every heartbeat: whether writes are taken."""
        finished = self._probes != self._seen_probes
        if finished:
            self._took_ticks = self._waiting_ticks
        self._waiting_ticks = 0 if finished else self._waiting_ticks + 1
        self._seen_probes = self._probes
        self._full_ticks = max(0, self._full_ticks - 1)
        why = self.why_not()
        if why != self._told:
            logger.log(logging.ERROR if why else logging.INFO, "%s", why or "the disk takes writes again")
            self._told = why
        return not why

    def found_full(self) -> None:
        """An append was refused for lack of room."""
        if not self._full_ticks and self._next is not None:
            self._next.cancel()
            self._begin()
        self._full_ticks = _FULL_TICKS

    def why_not(self) -> str:
        """Why the disk takes no writes, in a sentence; empty while it does."""
        if self._full or self._full_ticks:
            return f"The disk of {self._path.parent} is full: less than {self._reserve_bytes} bytes are free."
        if self._failure:
            return f"The disk of {self._path.parent} takes no writes: {self._failure}."
        if self._is_late:
            return f"The disk of {self._path.parent} has not finished a small write for {limits.REPLICA_STALL_S:g} s."
        return ""

    @property
    def stalls(self) -> bool:
        """Whether the disk takes no writes only because a small one has waited for long: it may only be slow."""
        return self._is_late and not (self._full or self._full_ticks or self._failure)

    @property
    def waits_us(self) -> int:
        """For how long a small write waits for the disk: the one under way, or the last one if it took longer."""
        pause_ticks = int(self.interval_s / limits.PEER_HEARTBEAT_S)
        ticks = max(self._waiting_ticks, self._took_ticks) - pause_ticks
        return max(0, int(ticks * limits.PEER_HEARTBEAT_S * 1_000_000))

    @property
    def _is_late(self) -> bool:
        return self._waiting_ticks > self._stall_ticks()

    def pause_s(self) -> float:
        """Until the next probe: one that finds something wrong is soon followed by another, to see when it is over."""
        return limits.DISK_PROBE_S if self._full or self._full_ticks or self._failure else self.interval_s

    def _stall_ticks(self) -> int:
        """Counted from the end of a probe, so that the pause before the next one is no stall."""
        pause_s = max(0.0, self.interval_s - limits.DISK_PROBE_S)
        return int((limits.REPLICA_STALL_S + pause_s) / limits.PEER_HEARTBEAT_S)

    def _begin(self) -> None:
        if self._thread is not None:
            self._next = None
            self._thread.submit(self._probe, self._probed)

    def _probed(self, _: object, error: StentorError | None) -> None:
        if error is not None:
            self._failure = error.message
        self._probes += 1
        if self._thread is not None:
            self._next = self._thread.loop.call_later(self.pause_s(), self._begin)

    # --- in the thread --------------------------------------------------------------------------

    def _probe(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._file = None  # the next probe opens it again
            if error.errno not in NO_DESCRIPTOR_ERRNOS:  # strangers can bring those about; the disk is as it was
                self._failure = str(error)
        else:
            self._failure = ""
        if self._closed:
            self._file = None  # this probe was under way as the broker stopped, and has opened the file again

    def _write(self) -> None:
        found = os.statvfs(self._path.parent)
        free = found.f_bavail * found.f_frsize
        self._full = free < self._reserve_bytes * (_ROOM_AGAIN if self._full else 1.0)
        file = self._file = self._file or self._opened()
        os.pwrite(file.fd, self._probes.to_bytes(8, "little"), 0)
        os.fdatasync(file.fd)

    def _opened(self) -> FileHandle:
        with suppress(FileNotFoundError):
            return FileHandle(self._path, write=True)
        return FileHandle(self._path, write=True, create=True)
