"""One partition of a queue, as one consumer works on it: takes jobs, settles them, keeps its lease.

    take loop     asks for jobs while there is room for them        one request under way
    settle loop   tells how jobs ended (`client.queue_settling`)    one request under way
    renew loop    keeps the lease, beside whatever handlers do

All of them talk to the head of the partition, find the new one when it changes, and ask again with the same number: the
head answers from the log what it decided before. The lease is counted from when a renewal was *sent*, by a clock that
counts suspension (`client.certain`), so it ends here before a head hands the jobs to somebody else. Then everything
begins anew, under another id. Before a job begins, in the very thread that begins it, `may_begin` is asked; if the
lease is not certain then, `sure` asks the head.

    recall loop   waits for the head to ask for jobs that have not begun, because others have nothing to do

How many jobs are held follows from how long they take (`JobShare`): two at first, then what is done in AHEAD_S.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from contextlib import suppress
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.client.certain import OWN_SHARE, Certainty, clock_of
from stentor.client.job import Job
from stentor.client.job_messages import JobMessages
from stentor.client.queue_settling import JobSettling
from stentor.client.queue_share import JobShare
from stentor.core.queue_jobs import pairs, ranges
from stentor.errors import (
    Closed,
    ConnectionFailed,
    CoordinationUnavailable,
    LeaseLost,
    NotHead,
    NotReady,
    OutOfDescriptors,
    PartitionNotFound,
    StentorError,
)
from stentor.wire import queue_messages as m

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from collections.abc import Set as AbstractSet

    from stentor.client.message import Message
    from stentor.client.queue_consumer import QueueConsumer

logger = logging.getLogger(__name__)

_AGAIN: Final = (Closed, ConnectionFailed, CoordinationUnavailable, NotReady, OutOfDescriptors)  # Closed: the broker's
_RENEWALS_PER_LEASE: Final = 4  # so that some of them may be lost
_LIMITS_TOLD_MAX: Final = 2_000  # in one renewal: what a control message has room for
_offset: Final = attrgetter("offset")
_WAIT_MS: Final = 20_000  # a request for jobs that finds none is asked again after this
_DEAD_WAIT_MS: Final = 200  # a consumer that has no room for jobs puts dead ones aside, if there are some
_UNREADABLE: Final = "the message of this job cannot be read"
_RECALL_AGAIN_S: Final = 1.0  # a holder that is unknown just now tries again to hear of what others need


class QueuePort:
    """One consumer's way to one partition."""

    def __init__(self, consumer: QueueConsumer, partition: int, share: int) -> None:
        self._consumer = consumer
        self._core = consumer.core
        self.partition = partition
        self._clock = clock_of(self._core.loop)
        self.share = JobShare(share)
        self.holder = b""
        self.lease_s = 0.0
        self._certainty = Certainty(self._clock)
        self._recalls = False  # the head asks for jobs back that others need
        self._unsure: set[asyncio.Future[None]] = set()  # who waits until the lease is certain, or over
        self.held: dict[int, Job] = {}
        self._bodies = JobMessages(consumer.name, partition)
        self._number = 1
        self._limits: dict[int, tuple[int, int, int]] = {}  # jobs that began, and how long they may take
        self._renew_now = asyncio.Event()
        self._room_now = asyncio.Event()
        self._looks_for_dead = False
        self._renewed = asyncio.Event()
        self._settling = JobSettling(self, consumer)
        self.finish = self._settling.finish  # called for each job: one way less to go
        self._tasks: list[asyncio.Task[bool]] = []
        self._begin_life()

    def _begin_life(self) -> None:
        """Under another id: nothing of what was held is this consumer's."""
        for job in self.held.values():
            job.lose()
        self._settling.begin_anew()
        self.holder = secrets.token_bytes(m.HOLDER_BYTES)
        self.held, self._limits = {}, {}
        self._bodies.forget()
        self._number = 1
        self._certainty.end()
        self._wake_unsure()
        self._renewed.clear()
        self._renew_now.set()
        self._room_now.set()

    def owns(self, holder: bytes, until: float = math.inf) -> bool:
        """Whether the lease of this id is not over, nor the time of an attempt. Any thread."""
        now = self._clock()
        return now < self._certainty.until and now < until and holder == self.holder

    def may_begin(self, job: Job) -> bool:
        """Whether the lease is certain, and the job's ttl not over: asked right before it begins, in any thread."""
        now = self._clock()
        return now < self._certainty.sure_until and now < job.begin_by and job.holder == self.holder

    def certain_until(self, job: Job) -> float:
        """Until when `may_begin` stays true without another renewal."""
        return min(self._certainty.sure_until, job.begin_by)

    def is_expired(self, job: Job) -> bool:
        """Whether a job's ttl is over, and nobody has begun it."""
        return self._clock() >= job.begin_by

    async def sure(self, job: Job) -> bool:
        """Ask the head before a job begins; return False if it is not this consumer's any more. In the client's loop.

        The lease is certain then; and of a job that must begin alone, the beginning is committed.
        """
        while job.is_open and job.holder == self.holder and not self._certainty.holds:
            if self.check_lease():
                return False
            waiting = self._core.loop.create_future()
            self._unsure.add(waiting)
            self._renew_now.set()
            await waiting
        if not job.is_held:
            return False
        if job.alone and not job.told:
            await self._settling.tell_begun(job)
        return job.is_held

    def _wake_unsure(self) -> None:
        waiting, self._unsure = self._unsure, set()
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def begin(self, job: Job, limit_s: float) -> None:
        """The work on a job begins, and may take so long."""
        job.until = self._clock() + limit_s
        self._tell_limit(job, limit_s)

    # --- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take jobs."""
        work = (self._renew_loop, self._take_loop, self._settling.loop, self._recall_loop)
        self._tasks = [self._core.loop.create_task(self._go_on(loop)) for loop in work]

    async def _go_on(self, work: Any) -> bool:
        """Whether it came to its end."""
        try:
            await work()
        except StentorError as error:
            self._consumer.failed(error)
        except Exception as error:  # a bug of ours must not look like silence
            logger.exception("queue %s/%d", self._consumer.name, self.partition)
            self._consumer.failed(StentorError(f"{type(error).__name__}: {error}"))
        else:
            return True
        return False

    async def close(self) -> None:
        """Send what is settled, give the rest back, and leave."""
        renew, take, settle, recall = self._tasks
        take.cancel()
        recall.cancel()
        for job in list(self.held.values()):
            if job.is_open:
                self.give_back(job, delay_ms=0, counted=job.begun)
                job.lose()
        self._settling.end()
        with suppress(TimeoutError, StentorError):  # whoever does not hear of it counts this one as gone soon
            if await self._soon(asyncio.shield(settle)):  # else what it holds may have begun, and that counts
                await self._consumer.undertaker.finish_own(self)
                await self._soon(self.ask(m.LeaveQueue(**self.where, holder=self.holder)))
        for task in (renew, settle):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._begin_life()

    @staticmethod
    async def _soon(work: Awaitable[Any]) -> Any:
        async with asyncio.timeout(limits.LINK_CLOSE_S * 2):
            return await work

    def give_back(
        self,
        job: Job,
        *,
        delay_ms: int | None = None,
        counted: bool = True,
        dead: bool = False,
        why: str = "",
        trace: str = "",
    ) -> None:
        """A job is not done. Any thread."""
        if dead or (counted and job.attempt >= self._consumer.settings.max_attempts):
            self._consumer.undertaker.expect(self)
        self._settling.give_back(
            m.JobReturn(
                offset=job.message.offset,
                attempt=job.attempt,
                delay_ms=delay_ms,
                counted=counted,
                dead=dead,
                why=why,
                trace=trace,
            )
        )

    async def settled(self, job: Job) -> None:
        """Until what was said about a job is committed; LeaseLost if it was not its consumer's any more."""
        await self._settling.settled(job)

    @property
    def where(self) -> dict[str, int]:
        """Its topic and number, as requests name it."""
        return {"topic_id": self._consumer.topic_id, "partition": self.partition}

    async def ask(self, request: Any) -> Any:
        """Ask the head of the partition, until it answers. LeaseLost if the id that asks is this consumer's no more."""
        core, consumer = self._core, self._consumer
        while True:
            core.check_open()
            over = getattr(request, "holder", self.holder) != self.holder
            if over and not isinstance(request, m.SettleJobs):  # no head may ever know it: it held nothing
                raise LeaseLost(f"The lease of this consumer of queue {consumer.name} was over.", object=consumer.name)
            link = core.routing.head_link(consumer.name, consumer.topic_id, self.partition)
            if link is None:
                await core.changes(limits.LINK_WATCH_S)
                continue
            self._bodies.ask(link)
            try:
                return await link.request(request)
            except _AGAIN as error:
                self._bodies.forget()
                if isinstance(error, NotHead):
                    core.routing.redirected(consumer.name, self.partition, error)
                core.refusals[consumer.name] = error
                if isinstance(request, m.TakeJobs):
                    self._renew_now.set()  # a new head gives nothing to who was not heard by it, and held nothing
                await core.changes(limits.PRODUCER_RESEND_S)
            except PartitionNotFound:
                route = core.routes.get(consumer.name)
                if len(core.links.brokers) < 2 or route is None or route.id != consumer.topic_id:
                    raise
                await core.changes(limits.LINK_WATCH_S)

    async def describe(self) -> m.QueueDescribed:
        """What is in the partition."""
        described: m.QueueDescribed = await self.ask(m.DescribeQueue(**self.where))
        return described

    async def take_dead_jobs(self, wait_ms: int) -> None:
        """Bury dead jobs, if the head has some for this consumer soon. Nobody else may ask for jobs beside this."""
        await self._renewed.wait()
        asked = m.TakeJobs(
            topic_id=self._consumer.topic_id,
            partition=self.partition,
            holder=self.holder,
            number=self._number,
            jobs_max=0,
            wait_ms=wait_ms,
            known=[],
            reports=True,
        )
        await self._took(await self.ask(asked), self._clock())

    async def confirm_burial(self, number: int, left: list[int]) -> None:
        """Dead jobs are in the dead-letter topic, but for some that need another id to get there."""
        await self.ask(m.ConfirmBurial(**self.where, number=number, left=left))

    # --- the lease ------------------------------------------------------------------------------

    async def _renew_loop(self) -> None:
        while True:
            pause_s = self.lease_s / _RENEWALS_PER_LEASE if self._renewed.is_set() else 0.0
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._renew_now.wait()
            self._renew_now.clear()
            await self._renew()

    async def _renew(self) -> None:
        holder = self.holder
        sent_at = self._clock()
        told = list(self._limits)[:_LIMITS_TOLD_MAX]
        named = [self._limits.pop(offset) for offset in told]
        if self._limits:
            self._renew_now.set()
        patience_s = self.lease_s or self._core.timeout
        try:
            async with asyncio.timeout(patience_s):
                answer = await self.ask(m.RenewJobs(**self.where, holder=holder, limits=named))
        except LeaseLost:
            if holder == self.holder:
                self._lost_lease()
            return
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            self.check_lease()
            return
        if holder != self.holder:
            return
        if self.check_lease():
            return  # it came too late: jobs may have been passed over meanwhile
        self.lease_s, self._recalls = answer.lease_ms / 1_000, answer.recalls
        if answer.dead:
            self.look_for_dead_jobs()
        self._certainty.renewed(sent_at, self.lease_s)
        self._renewed.set()
        self._wake_unsure()
        self._take_news(named, answer, sent_at)

    def _take_news(self, named: list[tuple[int, int, int]], answer: m.JobsRenewed, sent_at: float) -> None:
        """The head has heard of limits, and says which attempts took longer than theirs."""
        for offset, attempt, limit_ms in named:
            job = self.held.get(offset)
            if job is not None and job.attempt == attempt:
                job.until = max(job.until, sent_at + OWN_SHARE * limit_ms / 1_000)
        for offset, attempt in pairs(answer.overdue):
            job = self.held.get(offset)
            if job is not None and job.attempt == attempt:
                del self.held[offset]
                job.lose()
                self._consumer.note_lost(job)
                self._room_now.set()

    def check_lease(self) -> bool:
        """Whether the lease is over; then everything begins anew."""
        over = self._renewed.is_set() and self._certainty.is_over
        if over:
            self._lost_lease()
        return over

    def _lost_lease(self) -> None:
        jobs = list(self.held.values())
        self._begin_life()
        for job in jobs:
            self._consumer.note_lost(job)

    # --- taking ---------------------------------------------------------------------------------

    async def _take_loop(self) -> None:
        while True:
            await self._renewed.wait()
            room = self.share.now - len(self.held)
            if room < self._consumer.least_room(self.share.now):
                if self._looks_for_dead:
                    self._looks_for_dead = False
                    await self._take_dead_jobs_beside()
                    continue
                self._room_now.clear()
                await self._room_now.wait()
                self.share.went(len(self.held), self._clock())
                continue
            self._looks_for_dead = False  # whoever asks for jobs gets those as well
            holder, asked_at = self.holder, self._clock()
            asked = m.TakeJobs(
                topic_id=self._consumer.topic_id,
                partition=self.partition,
                holder=holder,
                number=self._number,
                jobs_max=min(room, m.JOBS_TAKEN_MAX),
                wait_ms=_WAIT_MS,
                known=self._bodies.known,
                reports=True,
            )
            try:
                answer = await self.ask(asked)
            except LeaseLost:
                self.check_lease()
                self._renewed.clear()
                self._renew_now.set()
                continue
            if holder == self.holder and not self._took_run(answer):
                await self._took(answer, asked_at)
            self.share.came(len(self.held), self._clock())

    def look_for_dead_jobs(self) -> None:
        """Have dead jobs put aside soon, although this consumer holds as many jobs as it wants."""
        self._looks_for_dead = True
        self._room_now.set()

    async def _take_dead_jobs_beside(self) -> None:
        try:
            await self.take_dead_jobs(_DEAD_WAIT_MS)
        except LeaseLost:
            self.check_lease()

    def _took_run(self, answer: m.JobsTaken) -> bool:
        """What nearly all answers are: first attempts of jobs next to each other, with their messages."""
        if len(answer.fresh) != 2 or answer.noted or answer.burial is not None:
            return False
        offsets = range(answer.fresh[0], sum(answer.fresh))
        messages = self._bodies.find(answer.batches, offsets.start, offsets.stop)
        if len(messages) != len(offsets) or not self.held.keys().isdisjoint(offsets):
            return False
        self._number += answer.used
        jobs = list(map(Job, messages, repeat(1), repeat(self), repeat(self.holder), repeat(answer.fence)))
        self.held.update(zip(offsets, jobs, strict=True))
        self._consumer.deliver(jobs)
        return True

    async def _took(self, answer: m.JobsTaken, asked_at: float) -> None:
        holder = self.holder
        attempts = dict(zip(answer.noted, answer.attempts, strict=True))
        for first, count in pairs(answer.fresh):
            attempts.update(dict.fromkeys(range(first, first + count), 1))
        dead = [] if answer.burial is None else [job.offset for job in answer.burial.jobs]
        messages = await self._messages(answer.batches, attempts.keys() | dead if dead else attempts.keys())
        if holder != self.holder:
            return
        self._number += answer.used
        unreadable = self._unreadable(attempts.keys() | dead)
        self._bodies.unreadable.clear()
        for offset in unreadable & attempts.keys():  # no handler can do anything about it
            self._consumer.undertaker.expect(self)
            self._settling.give_back(m.JobReturn(offset=offset, attempt=attempts[offset], dead=True, why=_UNREADABLE))
        if not (attempts.keys() <= messages.keys() and self.held.keys().isdisjoint(attempts)):
            named = attempts.items()
            attempts = {each: times for each, times in named if each in messages and not self._has(each, times)}
        jobs = [Job(messages[offset], attempt, self, holder, answer.fence) for offset, attempt in attempts.items()]
        left_ms_of = dict(zip(answer.noted, answer.left_ms, strict=False))
        looked_at = asked_at + answer.waited_ms / 1_000  # or later; this process may have stood still since then
        for job in jobs if left_ms_of or answer.alone else ():
            job.alone = answer.alone
            if left_ms := left_ms_of.get(job.message.offset, 0):
                job.begin_by = looked_at + left_ms / 1_000
        self.held.update(zip(attempts, jobs, strict=True))
        if jobs:
            self._consumer.deliver(jobs)
        if answer.burial is not None and messages.keys() | unreadable >= set(dead):  # else it is told again
            self._consumer.undertaker.begin(self, answer.burial, messages)

    def _has(self, offset: int, attempt: int) -> bool:
        """Whether it came before. A later attempt says that the one before it was taken from this consumer."""
        job = self.held.get(offset)
        if job is None or job.attempt == attempt:
            return job is not None
        job.lose()
        self._consumer.note_lost(job)
        return False

    async def _messages(self, batches: bytes, wanted: AbstractSet[int]) -> dict[int, Message]:
        """The messages of jobs, and perhaps others; those that an answer had no room for are fetched."""
        found: dict[int, Message] = {}
        missing, fetched = sorted(wanted), False
        while missing:
            messages = self._bodies.find(batches, missing[0], missing[-1] + 1)
            found.update(zip(map(_offset, messages), messages, strict=True))
            before, missing = len(missing), sorted(wanted - found.keys() - self._unreadable(wanted))
            if not missing:
                break
            if fetched and len(missing) == before:
                logger.error("queue %s/%d: jobs have no messages: %s", self._consumer.name, self.partition, missing[:5])
                break
            asked = m.FetchJobs(**self.where, ranges=ranges(missing)[: 2 * m.JOBS_SETTLED_MAX])
            batches, fetched = (await self.ask(asked)).batches, True
            if not batches:
                logger.error("queue %s/%d: jobs have no messages: %s", self._consumer.name, self.partition, missing[:5])
                break
        return found

    def _unreadable(self, wanted: AbstractSet[int]) -> set[int]:
        """Of these jobs: whose messages were sent and cannot be decoded."""
        return {offset for run in self._bodies.unreadable for offset in wanted if offset in run}

    def want(self, waiting: int) -> None:
        """So many callers wait for a job, and all that is here has begun."""
        self.share.want(len(self.held), waiting)

    def freed(self) -> None:
        """A job is not in the way of others any more, or somebody waits for one."""
        if self.share.now - len(self.held) >= self._consumer.least_room(self.share.now):
            self._room_now.set()

    # --- giving back what others need -----------------------------------------------------------

    async def _recall_loop(self) -> None:
        while True:
            await self._renewed.wait()
            if not self._recalls:  # brokers of an older version are among them
                await asyncio.sleep(self.lease_s / _RENEWALS_PER_LEASE)
                continue
            try:
                answer = await self.ask(m.AwaitRecall(**self.where, holder=self.holder, wait_ms=_WAIT_MS))
            except StentorError as error:  # the other loops know what to do about it
                logger.debug("queue %s/%d: %s", self._consumer.name, self.partition, error)
                await asyncio.sleep(_RECALL_AGAIN_S)
                continue
            if answer.count:
                self._consumer.spare(self, answer.count)

    def tell_begun(self) -> None:
        """Let the head know of jobs that have begun since it was told last."""
        self._settling.wake_for_begun()

    # --- how long the work on a job may take ----------------------------------------------------

    def limit(self, job: Job, seconds: float) -> None:
        """The work on a job goes on: it may take this long from now on, or longer. Any thread."""
        job.extended_until = max(job.extended_until, self._clock() + seconds)
        if job.until < math.inf:  # else it may take any time already
            job.until = max(job.until, self._clock() + seconds)
            self._tell_limit(job, seconds)

    def _tell_limit(self, job: Job, seconds: float) -> None:
        """Tell the head, with what its clock may be faster: it ends an attempt only after this client has."""
        limit_ms = math.ceil(seconds / OWN_SHARE * 1_000)
        self._core.loop.call_soon_threadsafe(self._limit, job, seconds, limit_ms)

    def _limit(self, job: Job, seconds: float, limit_ms: int) -> None:
        if not job.is_settled:
            offset = job.message.offset
            before = self._limits.get(offset, (offset, job.attempt, 0))
            self._limits[offset] = offset, job.attempt, max(limit_ms, before[2] if before[1] == job.attempt else 0)
            self._renew_now.set()
            self._core.loop.call_later(seconds, self._overtime, job)

    def _overtime(self, job: Job) -> None:
        """The work on a job took too long: it is given back, before the head takes it away."""
        if self.held.get(job.message.offset) is not job or not job.is_open or job.holder != self.holder:
            return
        left = job.until - self._clock()
        if left > 0:
            self._core.loop.call_later(left, self._overtime, job)
            return
        job.lose()
        self._consumer.note_lost(job)
        self.give_back(job, why="the attempt took longer than its consumer allows")
