"""`queue.run`: what it takes, checked; and the plain run, which is one handler at a time where it is called."""

from __future__ import annotations

import inspect
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from stentor.client.queue_share import AHEAD_S
from stentor.client.queue_work import AHEAD_PER_WORKER, QueueRun, note_failure
from stentor.client.workers import WorkStatistics
from stentor.client.workers_handler import load_handler, name_handler
from stentor.client.workers_run import check_handler, make_pool, mode_for
from stentor.client.workers_terms import WorkTerms
from stentor.errors import Closed, InvalidArgument, LeaseLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.job import Job
    from stentor.client.queue_core import QueueCore
    from stentor.client.workers_terms import WorkMode


class QueueRunOptions(TypedDict):
    """What `run` takes besides the handler."""

    workers: int
    mode: WorkMode | None
    batch: int | None
    time_limit: float | None
    finish_within: float


class ConsumerStatistics(TypedDict):
    """What a consumer of a queue counts."""

    held: int  # jobs that it has
    begun: int  # of these: those that somebody works on
    lost: int  # jobs that were taken from it
    done: int  # jobs that `run` has finished
    failed: int  # attempts that failed
    in_work: int  # jobs that workers have
    waiting: int  # those that wait for a worker
    workers_died: int  # worker processes that were replaced


class PlainRun:
    """One handler at a time, in the thread or task that called `run`."""

    def __init__(self, core: QueueCore, handler: Callable[..., Any]) -> None:
        self._core = core
        self.handler = handler
        self.counted = WorkStatistics()
        self.stopping = False

    def at_hand(self) -> Job | None:
        """A job that is here already. Any thread."""
        consumer = self._core.consumer
        if consumer is None or consumer.closed or self.stopping or self._core.rests:
            return None
        return consumer.take_one()

    async def next(self) -> Job | None:
        """The next job; None at the end. In the client's loop."""
        try:
            consumer = await self._core.consume()
            found = await consumer.take(1, stopped=lambda: self.stopping)
        except Closed:
            found = []
        if found:
            return found[0]
        return None

    def may_begin(self, job: Job) -> bool:
        """Return whether a job may begin in this thread; else it waits again."""
        return self._core.consumer is not None and self._core.consumer.may_begin(job)

    def done(self, job: Job) -> None:
        """The handler has returned: acknowledged, unless it has settled its job by itself, or lost it."""
        self.counted.done += 1
        settle_done(self._core, job)

    def failed(self, job: Job, error: Exception) -> None:
        """The handler has raised."""
        self.counted.failed += 1
        note_failure(job, error)
        if job.is_held and self._core.consumer is not None:
            with suppress(LeaseLost):  # it is over since a moment ago
                self._core.consumer.give_back(job, error=error)

    def stop(self) -> None:
        """End when the handler returns. In the client's loop."""
        self.stopping = True
        if self._core.consumer is not None:
            self._core.consumer.wake()
            self._core.core.loop.call_soon(self._core.rest)  # once those that were woken wait no more

    def statistics(self) -> WorkStatistics:
        """What was done."""
        return self.counted


def settle_done(core: QueueCore, job: Job) -> None:
    """A job is done, unless it was settled by hand, or lost."""
    if job.is_held and core.consumer is not None:
        try:
            core.consumer.finish(job)
        except LeaseLost as error:
            note_failure(job, error)


def make_queue_run(
    core: QueueCore, handler: Callable[..., Any] | str, options: QueueRunOptions, *, asynchronous: bool
) -> QueueRun | PlainRun:
    """A run that can be begun; InvalidArgument if it cannot be."""
    check_handler(handler)
    tracing = core.core.tracing
    limit = options["time_limit"]
    terms = WorkTerms(
        workers=options["workers"],
        mode=mode_for(handler, options["mode"], asynchronous=asynchronous),
        ordered_by=None,  # a queue that has an order hands out no two jobs of one key
        batch=options["batch"],
        attempts=1,  # the queue counts them
        time_limit_s=core.limit_s if limit is None else limit,
        finish_s=options["finish_within"],
        ahead=core.prefetch,
        ahead_per_worker=AHEAD_PER_WORKER,
        ahead_s=AHEAD_S,
        fatal=False,
    )
    terms.check()
    if isinstance(handler, str) and terms.mode != "process":
        handler = load_handler(name_handler(handler))
        terms = msgspec.structs.replace(terms, mode=mode_for(handler, options["mode"], asynchronous=asynchronous))
    own = "async" if asynchronous else "thread"
    if terms.workers == 1 and terms.mode == own and terms.batch is None and limit is None and callable(handler):
        if own == "thread" and inspect.iscoroutinefunction(handler):
            raise InvalidArgument("An async handler needs mode='async'.")
        return PlainRun(core, handler if tracing is None else tracing.traced(handler))
    if any(isinstance(run, QueueRun) for run in core.runs):
        raise InvalidArgument(
            f"Workers run on this consumer of queue {core.name} already.",
            hint="Use more workers, or let every run have a client.queue of its own.",
            object=core.name,
        )
    pool = make_pool(handler, terms, asynchronous=asynchronous, here=False, tracing=tracing)
    return QueueRun(core, pool, terms)
