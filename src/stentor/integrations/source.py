"""A queue as the worker of another framework takes from it: jobs now or later, settled by any thread.

Frameworks cannot do anything about a job that was lost meanwhile: it is logged, and others have it.
"""

from __future__ import annotations

import logging
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
        """A job that is here already."""
        while self.early:
            job = self.early.popleft()
            if job.is_held:
                return job
        return self.consumer.take_one()

    def take(self, timeout_s: float) -> Job | None:
        """A job, if one comes in time."""
        try:
            return self.take_now() or self._queue.get(timeout=timeout_s)
        except DeadlineExceeded:
            return None

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
