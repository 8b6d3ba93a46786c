"""Work beside the requests: tasks that end with the broker, and whose failure is told."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from stentor.broker.loop_watch import LoopWatch, Measured
from stentor.errors import CoordinationUnavailable

if TYPE_CHECKING:
    from collections.abc import Coroutine

logger = logging.getLogger(__name__)


class Background:
    """The tasks of one broker."""

    def __init__(self, loop: asyncio.AbstractEventLoop, watch: LoopWatch) -> None:
        self._loop = loop
        self._watch = watch
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin a task that nobody waits for."""
        name = getattr(work, "__qualname__", "work")
        task = self._loop.create_task(Measured(self._watch, work, lambda: f"background task {name}"))
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None or self.closed:
            return
        traceback = None if isinstance(error, CoordinationUnavailable) else error  # that is no fault of ours
        logger.error("a background task of this broker failed: %s", error, exc_info=traceback)

    async def close(self) -> None:
        """End everything that is under way."""
        self.closed = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
