"""Threads for the disk: syncs that acknowledge, reads of history, chores.

Group commit needs little latency, so it has its own threads and a plain queue instead of futures:
the loop hands a log over, the thread syncs it and calls back into the loop.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import TYPE_CHECKING, Any

from stentor.errors import InternalError, StentorError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

logger = logging.getLogger(__name__)


class DiskThreads:
    """A few threads that run blocking work and report to the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threads: int, name: str) -> None:
        self.loop = loop
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
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
            try:
                self.loop.call_soon_threadsafe(done, result, error)
            except RuntimeError:  # the loop is closed: nobody is waiting any more
                return
            del work, done, result, error, item

    def close(self) -> None:
        """Finish what is queued, then end the threads."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
