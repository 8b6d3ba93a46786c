"""A queue as the worker of another framework takes from it: jobs now or later, settled by any thread.

A framework holds more jobs than it works on. So a job that it takes has not begun: `begin` says so, right before its
handler is called, and only then its attempt counts if the process dies.

Frameworks cannot do anything about a job that was lost meanwhile: it is logged, and others have it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from stentor.core.queue_limits import QUEUE_PREFETCH, QUEUE_PREFETCH_MAX
from stentor.errors import DeadlineExceeded, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.job import Job
    from stentor.client.queue import Queue
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.integrations.per_process import ClientPerProcess

logger = logging.getLogger(__name__)


def checked_prefetch(prefetch: int) -> int:
    """What a framework asks for, within what a consumer may hold; 0 says that the framework does not care."""
    return min(prefetch, QUEUE_PREFETCH_MAX) if prefetch > 0 else QUEUE_PREFETCH


class JobSource:
    """One consumer of one queue."""

    def __init__(self, clients: ClientPerProcess, name: str, prefetch: int) -> None:
        self._client = clients.client()
        self._queue: Queue = clients.consumer(name, checked_prefetch(prefetch))
        self.consumer: QueueConsumer = self._client._call(self._queue._core.consume())  # noqa: SLF001 - below its face
        self.early: deque[Job] = deque()  # taken while somebody waited for several sources

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._queue.name

    def take_now(self) -> Job | None:
        """A job that is here already. Its work has not begun."""
        while self.early:
            for job in self.consumer.begin([self.early.popleft()]):
                return job
        return self.consumer.hand_over()

    def take(self, timeout_s: float) -> Job | None:
        """A job, if one comes in time. Its work has not begun."""
        job = self.take_now()
        if job is not None:
            return job
        began = time.time_ns()
        job = self._client._call(self._next(timeout_s))  # noqa: SLF001 - in the client's loop
        if job is not None and self.consumer.core.tracing is not None:
            self.consumer.core.tracing.received(job, began)
        return job

    async def _next(self, timeout_s: float) -> Job | None:
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for job in self.consumer.begin(await self.consumer.draw(1)):
                        return job
        except TimeoutError as error:
            if isinstance(error, DeadlineExceeded):
                raise
            return None

    def begin(self, job: Job) -> bool:
        """Return whether a handler may begin with a job that was taken, and count the attempt from here on.

        False if others have the job by now. It waits for the head if nothing is certain without it.
        """
        if self.consumer.begins(job):
            return True
        began: bool = self._client._call(self.consumer.begins_surely(job))  # noqa: SLF001 - in the client's loop
        return began

    def hold_at_most(self, prefetch: int) -> None:
        """Change how many jobs this consumer may hold; 0 stops it, and leaves it what it works on."""
        if self.consumer.closed:
            return
        while not prefetch and self.early:
            self.release(self.early.popleft())
        self._client._call(self._hold_at_most(prefetch))  # noqa: SLF001 - in the client's loop

    async def _hold_at_most(self, prefetch: int) -> None:
        self.consumer.hold_at_most(prefetch)

    # --- settling -------------------------------------------------------------------------------

    def ack(self, job: Job) -> None:
        """It is done."""
        _settle(lambda: self._queue.ack(job, wait=False))

    def bury(self, job: Job, error: BaseException | str | None = None) -> None:
        """It goes to the dead-letter topic."""
        _settle(lambda: self._queue.nack(job, dead=True, error=error, wait=False))

    def try_again(self, job: Job, error: BaseException | str | None = None) -> None:
        """It failed: handed out again after the queue's pause, or dead after its last attempt."""
        _settle(lambda: self._queue.nack(job, error=error, wait=False))

    def release(self, job: Job) -> None:
        """Nobody began it: it is handed out again at once, and the attempt is not counted."""
        _settle(lambda: self.consumer.give_back(job, delay_ms=0, counted=False))

    def close(self) -> None:
        """Settle what is done, and give back the rest."""
        self._queue.close()


def _settle(how: Callable[[], object]) -> None:
    try:
        how()
    except LeaseLost as error:
        logger.warning("%s", error)
