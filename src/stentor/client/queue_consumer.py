"""A consumer of a queue, in the client's loop: takes jobs from all partitions, hands them out, settles them.

Whoever works on jobs needs three operations of it, and nothing else:

    await consumer.take(10)              some jobs, as soon as there are any; their work begins
    await consumer.done(jobs)            they are finished
    await consumer.failed_jobs(pairs)    jobs and their errors: tried again later, or dead

Workers that have some jobs waiting (`client.queue_work`) take them with `draw`, and say with `begin` whose work begins.
The worker of another framework (`integrations.source`) takes with `hand_over` and `draw`, and asks with `begins` or
`begins_surely` before its handler is called.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from stentor.client.dead_letters import Undertaker
from stentor.client.deadline import Deadline
from stentor.client.job import HELD, Job, reason_of
from stentor.client.queue_port import QueuePort
from stentor.errors import Closed, DeadlineExceeded, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stentor.client.async_client import AsyncClient
    from stentor.client.queue_work import QueueRun
    from stentor.wire.messages import TopicRoute

logger = logging.getLogger(__name__)

BEGUN_SOON_S: Final = 0.05
"""Until a head hears of a job that has begun, if nothing else is sent: quick ones have ended before."""


class QueueConsumer:
    """One consumer of one queue."""

    def __init__(self, client: AsyncClient, route: TopicRoute, *, prefetch: int, limit_s: float | None) -> None:
        self.client = client
        self.core = client._core  # noqa: SLF001 - a part of the client
        self.name = route.name
        self.topic_id = route.id
        self.settings = route.settings
        self.limit_s = limit_s
        self.lost = 0  # jobs that were taken from this consumer
        self._jobs: deque[Job] = deque()  # taken, and not begun
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._came = asyncio.Event()  # jobs, since it was looked whether some have begun
        self._error: StentorError | None = None
        self.undertaker = Undertaker(self)
        share = max(1, prefetch // len(route.partitions))
        self._telling: asyncio.Task[None] | None = None  # tells heads what has begun
        self._ports = [QueuePort(self, index, share) for index in range(len(route.partitions))]
        self.is_paused = False  # it takes no more, and gives back what comes
        self.run: QueueRun | None = None  # the workers that take jobs, if there are any
        # Marks jobs that have begun in the worker of another framework, if that does not say so by itself.
        self.looks_for_begun: Callable[[], None] | None = None
        self.closed = False
        self._closing: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to take jobs."""
        self.core.leavers.add(self.close)
        for port in self._ports:
            port.start()
        self._telling = self.core.loop.create_task(self._tell_begun())

    async def _tell_begun(self) -> None:
        """Let heads know which jobs have begun, soon: attempts count by that if this process dies."""
        while True:
            if not any(port.held for port in self._ports):
                self._came.clear()
                await self._came.wait()
            await asyncio.sleep(BEGUN_SOON_S)
            self.note_begun()
            for port in self._ports:
                if port.held:
                    port.tell_begun()

    def note_begun(self) -> None:
        """Ask the workers which of their jobs have begun; others say it themselves."""
        if self.run is not None:
            self.run.note_begun()
        if self.looks_for_begun is not None:
            self.looks_for_begun()

    # --- for ports ------------------------------------------------------------------------------

    def least_room(self, share: int) -> int:
        """How many jobs to ask for at least: many at once, unless somebody waits for the next one."""
        short = self._waiting and (self.run is None or self.run.is_short)
        return 1 if short else max(1, share // 2)

    def deliver(self, jobs: list[Job]) -> None:
        """Jobs came."""
        self._came.set()
        if self.is_paused:
            self._release(jobs)
            return
        self._jobs.extend(jobs)
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)
                return

    def failed(self, error: StentorError) -> None:
        """Nothing more can come."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                waiting.set_result(None)

    def note_lost(self, job: Job) -> None:
        """A job is another's now."""
        self.lost += 1
        logger.warning("attempt %d of job %s/%d@%d is lost", job.attempt, job.queue, job.partition, job.offset)

    # --- working --------------------------------------------------------------------------------

    async def take(
        self, most: int = 1, timeout: float | Deadline | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> list[Job]:
        """Some jobs, as soon as there are any. Their work begins. DeadlineExceeded when none comes in time.

        None at all once `stopped` says so; who changes what it says calls `wake`.
        """
        deadline = timeout if isinstance(timeout, Deadline) else Deadline(timeout)
        while not stopped():
            self._check()
            found: list[Job] = []
            while len(found) < most and (job := self.take_one()) is not None:
                found.append(job)
            if found:
                return found
            if self._jobs:
                await self._take_surely(deadline)
            else:
                await self._news(deadline)
        return []

    async def _take_surely(self, deadline: Deadline) -> None:
        """Ask the head about the next job, which may not begin without; it comes first then, or is gone."""
        try:
            job = self._jobs.popleft()
        except IndexError:  # another thread was faster
            return
        try:
            async with deadline.bound():
                sure = await job.port.sure(job)
        except TimeoutError as error:
            self._jobs.appendleft(job)
            if isinstance(error, StentorError):
                raise
            raise self._late(deadline) from error
        except BaseException:
            self._jobs.appendleft(job)
            raise
        if sure:
            job.alone = False
            self._jobs.appendleft(job)

    async def draw(self, most: int) -> list[Job]:
        """Some jobs of one partition, as soon as there are any. Their work has not begun."""
        forever = Deadline(None)
        while True:
            self._check()
            found = self._draw_now(most)
            if found:
                return found
            await self._news(forever)

    async def _news(self, deadline: Deadline) -> None:
        """Until jobs came, or the end."""
        waiting = self.core.loop.create_future()
        self._waiting.append(waiting)
        for port in self._ports:
            if not self._jobs:
                port.want(len(self._waiting))
            port.freed()
        try:
            async with deadline.bound():
                await waiting
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self._late(deadline) from error
        finally:
            with suppress(ValueError):
                self._waiting.remove(waiting)
            if self._jobs and self._waiting:
                self.deliver([])  # another one looks

    def _late(self, deadline: Deadline) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"Queue {self.name} had no job within {deadline.seconds:g} s.",
            hint="There may be none, or others have them: `stentor queue describe` shows it.",
            operation="get",
            object=self.name,
        )

    def take_one(self) -> Job | None:
        """Return a job that is here already and may begin; its work begins. Any thread.

        None if there is none, or its head must be asked first.
        """
        jobs = self._jobs
        while jobs:
            try:
                job = jobs.popleft()
            except IndexError:  # another thread was faster
                return None
            if job.state == HELD and not job.alone and job.port.may_begin(job):
                job.begun = True
                if self.limit_s is not None:
                    job.port.begin(job, self.limit_s)
                return job
            if job.port.is_expired(job):
                self._release([job])
            elif job.is_held:
                jobs.appendleft(job)
                return None
        return None

    def hand_over(self) -> Job | None:
        """Return a job that is here already, or None. Its work has not begun. Any thread."""
        while found := self._draw_now(1):
            for job in self.begin(found):
                return job
        return None

    def begins(self, job: Job) -> bool:
        """Begin the work on a job that was handed over, and return True if its head need not be asked. Any thread."""
        if not job.is_open or job.alone or not job.port.may_begin(job):
            return False
        job.begun = True
        if self.limit_s is not None:
            job.port.begin(job, self.limit_s)
        return True

    async def begins_surely(self, job: Job) -> bool:
        """Begin the work on a job that was handed over; ask its head first if need be.

        False if the job is this consumer's no more. One whose ttl is over goes back.
        """
        while job.is_held:
            if not self.begin([job]):
                return False
            if self.begins(job):
                return True
            if await job.port.sure(job):
                job.alone = False
        return False

    def may_begin(self, job: Job) -> bool:
        """Return whether a job that was taken may begin in this very thread; else it waits here again."""
        if job.port.may_begin(job):
            return True
        if job.is_held:
            job.begun = False
            self._jobs.appendleft(job)
        return False

    def spare(self, port: QueuePort, count: int) -> None:
        """Others need jobs: give back so many that nobody here has begun, the last ones first."""
        found: list[Job] = []
        others: list[Job] = []
        with suppress(IndexError):
            while len(found) < count:
                job = self._jobs.pop()
                (found if job.port is port else others).append(job)
        self._jobs.extend(reversed(others))
        if len(found) < count and self.run is not None:
            found += self.run.spare(port.partition, count - len(found))
        self._release(found)

    def _draw_now(self, most: int) -> list[Job]:
        found: list[Job] = []
        with suppress(IndexError):
            while len(found) < most:
                job = self._jobs.popleft()
                if found and job.port is not found[0].port:
                    self._jobs.appendleft(job)
                    break
                found.append(job)
        return found

    def begin(self, jobs: list[Job]) -> list[Job]:
        """The work on jobs that were drawn is about to begin. Those that are this consumer's no more are left out, and
        those whose ttl is over go back.
        """
        held = [job for job in jobs if job.is_held]
        expired = [job for job in held if job.port.is_expired(job)]
        self._release(expired)
        return [job for job in held if job.is_open] if expired else held

    def unbegin(self, jobs: list[Job]) -> None:
        """Nobody came to work on these: they wait again."""
        for job in jobs:
            job.begun = False

    def _check(self) -> None:
        self.core.check_loop()
        self.core.check_open()
        if self._error is not None:
            raise self._error
        if self.closed:
            raise Closed(f"This consumer of queue {self.name} is closed.")

    def finish(self, job: Job) -> None:
        """A job is done; told to the head soon. LeaseLost if it is not this consumer's any more. Any thread."""
        job.settle()
        job.port.finish(job)

    def give_back(
        self, job: Job, *, delay_ms: int | None = None, error: Any = None, counted: bool = True, dead: bool = False
    ) -> None:
        """A job is not done; told to the head soon. Any thread."""
        job.settle()
        why, trace = reason_of(error)
        job.port.give_back(job, delay_ms=delay_ms, counted=counted, dead=dead, why=why, trace=trace)

    async def done(self, jobs: Iterable[Job]) -> None:
        """Jobs are finished: returns when that is committed. LeaseLost if one is not this consumer's any more."""
        told = list(jobs)
        for job in told:
            self.finish(job)
        await self._settled(told)

    async def failed_jobs(self, jobs: Iterable[tuple[Job, BaseException | str | None]]) -> None:
        """Jobs failed with these errors: returns when that is committed."""
        told = list(jobs)
        for job, error in told:
            self.give_back(job, error=error)
        await self._settled([job for job, _ in told])

    async def _settled(self, jobs: list[Job]) -> None:
        outcomes = await asyncio.gather(*(job.port.settled(job) for job in jobs), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def settled(self, job: Job, timeout: float | None, say: Callable[[Job], None]) -> None:
        """Say something about a job, and wait until that is committed."""
        deadline = self.core.deadline(timeout)
        say(job)
        try:
            async with deadline.bound():
                await job.port.settled(job)
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self.core.late("settle", deadline.seconds, self.core.refusals.get(self.name)) from error

    async def bury_all(self) -> None:
        """Put all dead jobs aside that wait for it. For a consumer that takes no jobs."""
        await asyncio.gather(*(self.undertaker.finish(port, while_it_helps=True) for port in self._ports))

    def hold_at_most(self, prefetch: int) -> None:
        """Hold at most so many jobs from now on. With 0 take no more, and give back those that nobody has begun."""
        self.is_paused = not prefetch
        most = max(1, prefetch // len(self._ports)) if prefetch else 0
        for port in self._ports:
            if port.share.allow(most):
                port.freed()
        if self.is_paused:
            self._release([self._jobs.popleft() for _ in range(len(self._jobs))])

    def hold_in_each(self, share: int) -> None:
        """Hold so many jobs of each partition from now on: whoever calls knows how long they take."""
        for port in self._ports:
            if port.share.pin(share):
                port.freed()

    @property
    def partitions(self) -> int:
        """Of how many it takes jobs."""
        return len(self._ports)

    @property
    def is_waited_for(self) -> bool:
        """Whether somebody waits for a job."""
        return bool(self._waiting)

    def _release(self, jobs: list[Job]) -> None:
        """Nobody began these: others may have them, as if they had not been handed out."""
        for job in jobs:
            if job.is_held:
                self.give_back(job, delay_ms=0, counted=False)

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """Settle what is finished, give back the rest, and leave."""
        if self._closing is None:
            self.closed = True
            if self.run is not None:
                self.run.stop()  # what nobody has begun goes back uncounted
            self._closing = self.core.loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        self.core.leavers.discard(self.close)
        if self._telling is not None:
            self._telling.cancel()
        await asyncio.gather(*(port.close() for port in self._ports), return_exceptions=True)
        await self.undertaker.close()
        self._jobs.clear()
        self.failed(Closed(f"This consumer of queue {self.name} is closed."))

    def statistics(self) -> dict[str, int]:
        """What this consumer holds."""
        held = [job for port in self._ports for job in list(port.held.values())]
        return {"held": len(held), "begun": sum(job.begun and job.is_open for job in held), "lost": self.lost}
