"""Threads for the disk: syncs that acknowledge, reads of history, chores.

Group commit needs little latency, so it has its own threads and a plain queue instead of futures:
the loop hands a log over, the thread syncs it and calls back into the loop.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.core.slowness import SyncTimes
from stentor.errors import InternalError, StentorError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

logger = logging.getLogger(__name__)

_HANGS_PER_TICK = 0.1  # fewer, smoothed, than this: the disk is not busy, it hangs


class DiskThreads:
    """A few threads that run blocking work and report to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threads: int, name: str) -> None:
        self.loop = loop
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.finished = 0  # pieces of work, so far
        self.times = SyncTimes()  # of the syncs among it; only in the loop
        self._threads = [
            threading.Thread(target=self._run, name=f"stentor-{name}-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], Any], done: Callable[[Any, StentorError | None], None]) -> None:
        """Run `work` in a thread, then `done(result, error)` in the loop."""
        self._queue.put((work, done))

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, done = item
            result, error = None, None
            try:
                result = work()
            except StentorError as known:
                error = known
            except Exception as unknown:
                logger.exception("unexpected error in a disk thread")
                error = InternalError(f"{type(unknown).__name__}: {unknown}")
            self.finished += 1  # by several threads: it need not be exact
            try:
                self.loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:  # the loop is closed: nobody is waiting any more
                return
            del work, done, result, error, item

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for a thread."""
        return self._queue.qsize()

    def leave(self) -> None:
        """End the threads when they have finished what is queued; one that hangs in the disk stays behind."""
        for _ in self._threads:
            self._queue.put(None)

    def close(self) -> None:
        """Finish what is queued, then end the threads."""
        self.leave()
        for thread in self._threads:
            thread.join()


class SyncLoad:
    """Whether the disk has more syncs to do than it can: they come to an end, but wait for long."""

    def __init__(self, threads: DiskThreads) -> None:
        self._threads = threads
        self._finished = 0
        self._per_tick = 0.0  # how many come to an end, lately

    def tick(self) -> bool:
        """Called with every beat of the cluster."""
        done, self._finished = self._threads.finished - self._finished, self._threads.finished
        self._per_tick = 0.8 * self._per_tick + 0.2 * done
        ticks = limits.BUSY_S / limits.PEER_HEARTBEAT_S
        return self._per_tick > _HANGS_PER_TICK and self._threads.waiting > ticks * self._per_tick
