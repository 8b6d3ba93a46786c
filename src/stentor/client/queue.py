"""Queues as applications use them: jobs are put, handed out, and acknowledged one by one.

    with client.queue("jobs") as jobs:
        jobs.put("resize 7.png")
        for job in jobs:            # done when the next one is asked for
            ...

A job belongs to one consumer at a time. It is handed out again if its consumer is gone, gives it back, or fails, and
goes to the dead-letter topic after `max_attempts` of the queue. A consumer holds some jobs that it has not begun, so
that it need not wait; their lease is kept beside whatever handlers do.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self

from stentor.client.deadline import Deadline
from stentor.client.help import explained
from stentor.client.job import Job, as_delay_ms
from stentor.client.queue_core import JobReceipt, QueueCore, job_options, open_queue_core
from stentor.client.queue_run import PlainRun, make_queue_run, settle_done
from stentor.client.queue_work import QueueRun
from stentor.client.queues import QueueInfo, QueuePeek, describe_queue, peek_queue, purge_queue
from stentor.client.workers import WorkStatistics
from stentor.client.workers_run import is_handler, run_here
from stentor.client.workers_terms import FINISH_S
from stentor.errors import Closed, InvalidArgument, LeaseLost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from datetime import datetime

    from stentor.client.async_client import AsyncClient
    from stentor.client.options import HeadersLike
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.client.queue_run import ConsumerStatistics, QueueRunOptions
    from stentor.client.sync_client import Client
    from stentor.client.workers_terms import WorkMode

_UNIQUE_FOR_S = 3_600.0  # an hour: as long as a caller may try again


class _QueueFace:
    """What the sync and the async queue share."""

    def __init__(self, core: QueueCore) -> None:
        self._core = core
        self._run: QueueRun | PlainRun | None = None  # the last one
        self._stopped = False  # `stop` was called while there was no run: the next one ends at once

    @property
    def name(self) -> str:
        """The queue's name."""
        return self._core.name

    @property
    def dead_letter_topic(self) -> str:
        """The topic that dead jobs go to."""
        return self._core.dead_letters

    def statistics(self) -> ConsumerStatistics:
        """How many jobs this consumer holds, has begun, and has lost; and what `run` has done and is doing."""
        consumer = self._core.consumer
        held = {"held": 0, "begun": 0, "lost": 0} if consumer is None else consumer.statistics()
        counted = WorkStatistics() if self._run is None else self._run.statistics()
        return {
            "held": held["held"],
            "begun": held["begun"],
            "lost": held["lost"],
            "done": counted.done,
            "failed": counted.failed,
            "in_work": counted.in_work,
            "waiting": counted.waiting,
            "workers_died": counted.died,
        }

    def _consumer(self) -> QueueConsumer:
        consumer = self._core.consumer
        if consumer is None:
            raise LeaseLost(f"This consumer of queue {self.name} was handed no job.", object=self.name)
        return consumer

    def _begin_run(
        self, handler: Callable[..., object] | str, options: QueueRunOptions, *, asynchronous: bool
    ) -> QueueRun | PlainRun:
        run = make_queue_run(self._core, handler, options, asynchronous=asynchronous)
        self._core.core.check_open()
        self._core.runs.add(run)  # before looking: whoever stops it now sees it, or has said so before
        if self._stopped:
            self._stopped = False
            self._stop_run(run)
        self._run = run
        return run

    def _stop_run(self, run: QueueRun | PlainRun) -> None:
        """From any thread."""
        run.stopping = True  # also for a handler that stops its own run, and takes no other job
        self._core.core.loop.call_soon_threadsafe(run.stop)

    def _stop(self) -> None:
        """Stop all runs; if there is none, the next one."""
        self._stopped = True
        runs = list(self._core.runs)
        for run in runs:
            self._stop_run(run)
        if runs:
            self._stopped = False

    def _runs_to_end(self) -> list[QueueRun]:
        """Those that must finish before this is closed; not if one of their handlers closes it."""
        return [] if is_handler() else [run for run in self._core.runs if isinstance(run, QueueRun)]

    def _extend(self, job: Job, seconds: Any) -> None:
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
            raise InvalidArgument(f"seconds={seconds!r} is not a time.", hint="Use a number above zero.")
        if not job.is_held:
            job.settle()  # says why
        job.port.limit(job, seconds)


@explained("Queue")
class Queue(_QueueFace):
    """A work queue: put jobs, or take them. Thread-safe. Use as a context manager: leaving it gives jobs back."""

    def __init__(self, client: Client, core: QueueCore) -> None:
        super().__init__(core)
        self._client = client
        self._timeout: float | None = None  # the last one that `get` was given, and found to be one

    def put(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        *,
        delay: float | None = None,
        at: datetime | int | None = None,
        priority: int = 0,
        ttl: float | None = None,
        unique: bytes | str | None = None,
        unique_for: float = _UNIQUE_FOR_S,
        timeout: float | None = None,
    ) -> JobReceipt:
        """Put a job, and wait until it is committed."""
        options = job_options(delay, at, priority, ttl, unique, unique_for)
        if not options.headers:
            receipt = self._client.publish(self.name, value, key=key, headers=headers, timeout=timeout)
            return JobReceipt(self.name, receipt.partition, receipt.offset, receipt.timestamp_us)
        return self._client._call(self._core.put(value, key, headers, options, timeout))  # noqa: SLF001 - two halves

    def put_many(
        self,
        values: Sequence[bytes | str],
        keys: Sequence[bytes | str | None] | None = None,
        *,
        delay: float | None = None,
        at: datetime | int | None = None,
        priority: int = 0,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> int:
        """Put many jobs, and wait until all of them are committed. Returns how many."""
        options = job_options(delay, at, priority, ttl, None, 0)
        return self._client._call(self._core.put_many(values, keys, options, timeout))  # noqa: SLF001

    def get(self, timeout: float | None = None) -> Job:
        """The next job; DeadlineExceeded when none comes in time. Settle it with `ack` or `nack`."""
        tracing = self._core.core.tracing
        if tracing is None:
            return self._next(timeout)
        began = time.time_ns()
        job = self._next(timeout)
        tracing.received(job, began)
        return job

    def _next(self, timeout: float | None = None) -> Job:
        consumer = self._core.consumer
        if consumer is None or self._core.rests:
            consumer = self._client._call(self._core.consume())  # noqa: SLF001
        if timeout is not None and timeout is not self._timeout:
            Deadline(timeout)  # raises if it is no time
            self._timeout = timeout
        job = None if consumer.closed else consumer.take_one()
        return self._wait_for_job(consumer, timeout) if job is None else job

    def _wait_for_job(self, consumer: QueueConsumer, timeout: float | None) -> Job:
        deadline = Deadline(timeout)
        while True:
            job = self._client._call(consumer.take(1, deadline))[0]  # noqa: SLF001
            if consumer.may_begin(job):  # this thread may have stood still since the loop looked
                return job
            taken = None if consumer.closed else consumer.take_one()
            if taken is not None:
                return taken

    def __iter__(self) -> Iterator[Job]:
        while True:
            try:
                job = self._next()
            except Closed:
                return
            yield job
            settle_done(self._core, job)

    def run(
        self,
        handler: Callable[..., object] | str,
        *,
        workers: int = 1,
        mode: WorkMode | None = None,
        batch: int | None = None,
        time_limit: float | None = None,
        finish_within: float = FINISH_S,
    ) -> None:
        """Call the handler with every job, until the queue is closed or `stop` is called.

        A job is done when its handler returns, and has failed if it raises: then it is tried again, or is dead after
        its last attempt. One job at a time, unless there are more workers.
        """
        options: QueueRunOptions = {
            "workers": workers,
            "mode": mode,
            "batch": batch,
            "time_limit": time_limit,
            "finish_within": finish_within,
        }
        run = self._begin_run(handler, options, asynchronous=False)
        try:
            if isinstance(run, PlainRun):
                self._work(run)
            else:
                with suppress(Closed):  # so was the client
                    run_here(self._core.core.loop, run, run.pool)
        finally:
            self._core.runs.discard(run)

    def _work(self, run: PlainRun) -> None:
        """In this thread."""
        while True:
            try:
                job = run.at_hand()
                if job is None:
                    job = self._client._call(run.next())  # noqa: SLF001 - two halves of one thing
                    if job is not None and not run.may_begin(job):  # this thread may have stood still since
                        continue
            except Closed:
                return
            if job is None:
                return
            try:
                run.handler(job)
            except Exception as error:  # noqa: BLE001 - whatever it is, the job has failed and others go on
                run.failed(job, error)
            else:
                run.done(job)

    def stop(self) -> None:
        """Let `run` end: nothing more is taken, and what is in work is finished first. It does not wait.

        If nothing runs yet, the next `run` ends at once.
        """
        self._stop()

    def ack(self, job: Job, *, wait: bool = True, timeout: float | None = None) -> None:
        """A job is done. LeaseLost if it is not this consumer's any more, or was settled before."""
        consumer = self._core.consumer or self._consumer()
        if wait:
            self._client._call(consumer.settled(job, timeout, consumer.finish))  # noqa: SLF001
        else:
            consumer.finish(job)

    def nack(
        self,
        job: Job,
        *,
        delay: float | None = None,
        error: BaseException | str | None = None,
        dead: bool = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        """A job is not done: it is handed out again, or is dead after its last attempt."""
        consumer, delay_ms = self._consumer(), as_delay_ms(delay)
        back = partial(consumer.give_back, delay_ms=delay_ms, error=error, dead=dead)
        if wait:
            self._client._call(consumer.settled(job, timeout, back))  # noqa: SLF001
        else:
            back(job)

    def extend(self, job: Job, seconds: float) -> None:
        """The work on a job may take so much longer, from now on."""
        self._extend(job, seconds)

    def redrive(self, limit: int | None = None, *, timeout: float | None = None) -> int:
        """Put dead letters back into the queue, as new jobs, the oldest first. Returns how many."""
        return self._client._call(self._core.redrive(limit, timeout))  # noqa: SLF001

    def describe(self, *, timeout: float | None = None) -> QueueInfo:
        """How many jobs wait, are in work, have failed and are dead."""
        return self._client._call(describe_queue(self._core.core, self.name, timeout))  # noqa: SLF001

    def peek(self, limit: int = 10, *, timeout: float | None = None) -> list[QueuePeek]:
        """The first jobs that are not finished, without taking them."""
        return self._client._call(peek_queue(self._core.client, self.name, limit, timeout))  # noqa: SLF001

    def purge(self, *, timeout: float | None = None) -> int:
        """End all jobs that nobody works on. Returns how many there were."""
        return self._client._call(purge_queue(self._core.core, self.name, timeout))  # noqa: SLF001

    def close(self) -> None:
        """Settle what is done, give back the rest, and leave. Workers of a `run` finish what is in work first."""
        for run in self._runs_to_end():
            self._stop_run(run)
            run.ended.wait(run.terms.finish_s)
        if not self._core.closed and not self._core.core.closed:
            self._client._call(self._core.close())  # noqa: SLF001

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("Queue", asynchronous=True)
class AsyncQueue(_QueueFace):
    """The same for `async` code. Any number of tasks may take jobs from it."""

    async def put(
        self,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        *,
        delay: float | None = None,
        at: datetime | int | None = None,
        priority: int = 0,
        ttl: float | None = None,
        unique: bytes | str | None = None,
        unique_for: float = _UNIQUE_FOR_S,
        timeout: float | None = None,
    ) -> JobReceipt:
        """Put a job, and wait until it is committed."""
        options = job_options(delay, at, priority, ttl, unique, unique_for)
        return await self._core.put(value, key, headers, options, timeout)

    async def put_many(
        self,
        values: Sequence[bytes | str],
        keys: Sequence[bytes | str | None] | None = None,
        *,
        delay: float | None = None,
        at: datetime | int | None = None,
        priority: int = 0,
        ttl: float | None = None,
        timeout: float | None = None,
    ) -> int:
        """Put many jobs, and wait until all of them are committed. Returns how many."""
        return await self._core.put_many(values, keys, job_options(delay, at, priority, ttl, None, 0), timeout)

    async def get(self, timeout: float | None = None) -> Job:
        """The next job; DeadlineExceeded when none comes in time. Settle it with `ack` or `nack`."""
        began = time.time_ns()
        job = await self._next(timeout)
        if self._core.core.tracing is not None:
            self._core.core.tracing.received(job, began)
        return job

    async def _next(self, timeout: float | None = None) -> Job:
        return (await (await self._core.consume()).take(1, timeout))[0]

    async def __aiter__(self) -> AsyncIterator[Job]:
        while True:
            try:
                job = await self._next()
            except Closed:
                return
            yield job
            settle_done(self._core, job)

    async def run(
        self,
        handler: Callable[..., object] | str,
        *,
        workers: int = 1,
        mode: WorkMode | None = None,
        batch: int | None = None,
        time_limit: float | None = None,
        finish_within: float = FINISH_S,
    ) -> None:
        """Call the handler with every job, until the queue is closed or `stop` is called.

        A job is done when its handler returns, and has failed if it raises: then it is tried again, or is dead after
        its last attempt. One job at a time, unless there are more workers.
        """
        options: QueueRunOptions = {
            "workers": workers,
            "mode": mode,
            "batch": batch,
            "time_limit": time_limit,
            "finish_within": finish_within,
        }
        run = self._begin_run(handler, options, asynchronous=True)
        try:
            if isinstance(run, PlainRun):
                await self._work(run)
            else:
                await run.run()
        finally:
            self._core.runs.discard(run)

    async def _work(self, run: PlainRun) -> None:
        """In this task."""
        while (job := await run.next()) is not None:
            try:
                answer = run.handler(job)
                if isawaitable(answer):
                    await answer
            except Exception as error:  # noqa: BLE001 - whatever it is, the job has failed and others go on
                run.failed(job, error)
            else:
                run.done(job)

    def stop(self) -> None:
        """Let `run` end: nothing more is taken, and what is in work is finished first. It does not wait.

        If nothing runs yet, the next `run` ends at once.
        """
        self._stop()

    async def ack(self, job: Job, *, wait: bool = True, timeout: float | None = None) -> None:
        """A job is done. LeaseLost if it is not this consumer's any more, or was settled before."""
        consumer = self._consumer()
        if wait:
            await consumer.settled(job, timeout, consumer.finish)
        else:
            consumer.finish(job)

    async def nack(
        self,
        job: Job,
        *,
        delay: float | None = None,
        error: BaseException | str | None = None,
        dead: bool = False,
        wait: bool = True,
        timeout: float | None = None,
    ) -> None:
        """A job is not done: it is handed out again, or is dead after its last attempt."""
        consumer, delay_ms = self._consumer(), as_delay_ms(delay)
        back = partial(consumer.give_back, delay_ms=delay_ms, error=error, dead=dead)
        if wait:
            await consumer.settled(job, timeout, back)
        else:
            back(job)

    async def extend(self, job: Job, seconds: float) -> None:
        """The work on a job may take so much longer, from now on."""
        self._extend(job, seconds)

    async def redrive(self, limit: int | None = None, *, timeout: float | None = None) -> int:
        """Put dead letters back into the queue, as new jobs, the oldest first. Returns how many."""
        return await self._core.redrive(limit, timeout)

    async def describe(self, *, timeout: float | None = None) -> QueueInfo:
        """How many jobs wait, are in work, have failed and are dead."""
        return await describe_queue(self._core.core, self.name, timeout)

    async def peek(self, limit: int = 10, *, timeout: float | None = None) -> list[QueuePeek]:
        """The first jobs that are not finished, without taking them."""
        return await peek_queue(self._core.client, self.name, limit, timeout)

    async def purge(self, *, timeout: float | None = None) -> int:
        """End all jobs that nobody works on. Returns how many there were."""
        return await purge_queue(self._core.core, self.name, timeout)

    async def close(self) -> None:
        """Settle what is done, give back the rest, and leave. Workers of a `run` finish what is in work first."""
        for run in self._runs_to_end():
            self._stop_run(run)
            await run.wait_ended()
        if not self._core.closed and not self._core.core.closed:
            await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


async def open_queue(
    client: AsyncClient, name: str, prefetch: int, limit: float | None, timeout: float | None
) -> AsyncQueue:
    """A queue, for async code."""
    return AsyncQueue(await open_queue_core(client, name, prefetch, limit, timeout))
