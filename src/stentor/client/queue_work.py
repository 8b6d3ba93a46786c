"""A queue as a source of work: jobs wait in the plan of the workers, begin with them, and are settled one by one.

    consumer ──draw──► plan ──begin──► worker ──► done: acknowledged
       ▲                 ▲────recalled───┘ └────► failed: tried again after its pause, or dead after its last attempt
       └─────back────────┘

The lease of a job is its consumer's: it is kept beside whatever handlers do, also for jobs that only wait here. An
attempt counts once a worker has begun it. What goes back without that does not count, so jobs may wait here at no cost
but that others cannot have them meanwhile: a consumer holds what its workers do in about half a second, or two for
each, and gives back what it has not begun if others have nothing to do.

Two jobs of one key are never here together if the queue is ordered by key, so workers need no order of their own.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, cast

from stentor.client.workers import Workers, WorkStatistics
from stentor.client.workers_pool import Interrupted
from stentor.client.workers_source import log_failure
from stentor.errors import Closed, LeaseLost

if TYPE_CHECKING:
    from stentor.client.job import Job
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.client.queue_core import QueueCore
    from stentor.client.workers_pool import WorkerPool
    from stentor.client.workers_terms import WorkTerms


AHEAD_PER_WORKER: Final = 2
"""Jobs, or batches of them, however long they take: one in work, and the next one at hand."""


def name_job(job: Job) -> str:
    """For people."""
    return f"{job.queue}/{job.partition}@{job.offset}"


def note_failure(job: Job, error: Exception) -> None:
    """Log that an attempt failed."""
    log_failure(f"attempt {job.attempt} of job {name_job(job)}", error)


class QueueSource:
    """What a queue gives workers: a `WorkSource`."""

    def __init__(self, core: QueueCore, terms: WorkTerms) -> None:
        self._core = core
        self._terms = terms
        self._consumer: QueueConsumer | None = None
        self.workers: Workers | None = None

    async def open(self) -> QueueConsumer:
        """Begin to take jobs."""
        consumer = self._consumer = await self._core.consume()
        return consumer

    @property
    def consumer(self) -> QueueConsumer:
        """Whose jobs these are."""
        assert self._consumer is not None
        return self._consumer

    async def take(self, limit: int) -> list[Job] | None:
        """Of one partition after the other, as their jobs come."""
        self._hold()
        try:
            return await self.consumer.draw(limit)
        except Closed:
            return None

    def _hold(self) -> None:
        """Hold as many jobs as the workers need: those of any partition must do for all of them."""
        assert self.workers is not None
        consumer, terms = self.consumer, self._terms
        needed = max(terms.workers * (terms.batch or 1), -(-self.workers.ahead() // consumer.partitions))
        consumer.hold_in_each(min(needed, max(1, self._core.prefetch // consumer.partitions)))

    def begin(self, jobs: list[Job]) -> list[Job]:
        """A worker is about to get these. Each attempt counts once its handler has begun."""
        return self.consumer.begin(jobs)

    def certain_until(self, jobs: list[Job]) -> float:
        """Until when these may be begun without asking."""
        port = jobs[0].port  # all are of one partition
        if any(job.alone for job in jobs):
            return 0.0
        return min(port.certain_until(job) for job in jobs) if len(jobs) > 1 else port.certain_until(jobs[0])

    async def ask(self, jobs: list[Job]) -> None:
        """Ask the head; those that are this consumer's no more are left out by `begin`."""
        for job in jobs:
            if await job.port.sure(job):
                job.alone = False

    def recalled(self, jobs: list[Job]) -> None:
        """A worker did not come to these."""
        self.consumer.unbegin(jobs)

    def note_begun(self) -> None:
        """Look which jobs the workers have begun."""
        assert self.workers is not None
        for job in self.workers.begun():
            cast("Job", job).begun = True

    def done(self, jobs: list[Job]) -> None:
        """Acknowledge them, but for those that their handler has settled by itself."""
        for job in jobs:
            if job.is_held:
                with suppress(LeaseLost):  # it is over since a moment ago
                    self.consumer.finish(job)

    async def failed(self, job: Job, error: Exception) -> None:
        """Tried again, or dead; whatever it is, others go on."""
        note_failure(job, error)
        if job.is_held:
            with suppress(LeaseLost):
                self.consumer.give_back(job, error=error)
        if isinstance(error, Interrupted):
            raise error

    def back(self, jobs: list[Job]) -> None:
        """Others may have them at once. Those that a worker has begun count as attempts."""
        consumer = self.consumer
        self.note_begun()
        for job in jobs:
            if job.is_held:
                begun = job.begun
                why = "its consumer stopped before the handler had finished" if begun else None
                with suppress(LeaseLost):
                    consumer.give_back(job, delay_ms=0, counted=begun, error=why)


class QueueRun:
    """One `run` with workers, in the client's loop."""

    def __init__(self, core: QueueCore, pool: WorkerPool, terms: WorkTerms) -> None:
        self._core = core
        self.pool = pool
        self.terms = terms
        self.stopping = False
        self.ended = threading.Event()
        self._over = asyncio.Event()  # the same for whoever waits in the loop
        self._source = QueueSource(core, terms)
        self._workers = self._source.workers = Workers(self._source, pool, terms)

    async def run(self) -> None:
        """Until the queue is closed, `stop` is called, or the workers cannot go on."""
        try:
            consumer = await self._source.open()
            consumer.run = self
            try:
                await self._workers.run()
            finally:
                consumer.run = None
        finally:
            self.stopping = True
            self.ended.set()
            self._over.set()
            self._core.rest()

    @property
    def is_short(self) -> bool:
        """Whether nothing waits for a worker."""
        return self._workers.is_short

    def note_begun(self) -> None:
        """Look which jobs the workers have begun."""
        self._source.note_begun()

    def spare(self, partition: int, most: int) -> list[Job]:
        """Take out jobs of a partition that wait for a worker, because others have nothing to do."""
        return cast("list[Job]", self._workers.spare(self._core.name, partition, most))

    async def wait_ended(self) -> None:
        """Until what is in work is finished, or its time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.terms.finish_s):
                await self._over.wait()

    def stop(self) -> None:
        """Take nothing more; end when what is in work is finished."""
        self.stopping = True
        self._workers.stop()
        self._core.core.loop.call_soon(self._core.rest)  # once nobody waits for jobs to come

    def statistics(self) -> WorkStatistics:
        """What was done."""
        return self._workers.statistics()
