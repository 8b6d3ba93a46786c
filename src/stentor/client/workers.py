"""Workers: handlers run beside each other and beside the I/O, and what they finish is settled (the Guide's Black Box).

    source ──take──► plan ──parcels──► pool: threads, tasks or processes
       ▲                                 │ reports
       └──── done, failed, back ─────────┘

`Workers` lives in one event loop. It takes messages while there is room (`ahead`), gives every worker one parcel or two
(`client.workers_plan` keeps the order), and tells the source what became of each message (`client.workers_source`).

How large a parcel is follows from how long a message took lately: about PARCEL_S of work. So a quick handler costs one
hop per thousands of messages, and a slow one gets them one by one. A worker that does not go on for RECALL_S gives back
what it has not begun, and the others get that: a slow message stops nobody but those that must wait for it.

The end: nothing more is taken, and what was not begun goes back. What is in work may finish, for `finish_s` at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.client.certain import boottime, clock_of
from stentor.client.job import Job
from stentor.client.workers_plan import WorkPlan
from stentor.work_errors import HandlerTimeout

if TYPE_CHECKING:
    from stentor.client.workers_plan import Parcel
    from stentor.client.workers_pool import PoolWorker, WorkerPool
    from stentor.client.workers_source import WorkItem, WorkSource
    from stentor.client.workers_terms import WorkTerms

logger = logging.getLogger(__name__)

PARCEL_S: Final = 0.02
"""How much work is given away at once: long beside a hop, short beside the patience of whoever stops the workers."""

PARCEL_MESSAGES_MAX: Final = 4_096
"""However quick they are: what a worker has cannot be given to another without asking."""

SECOND_PARCEL_S: Final = 0.005
"""A worker whose messages take less has its next parcel before it is done with the first, and never waits for it."""

RECALL_S: Final = 0.2
"""A worker that did not go on for this long gives back what it has not begun."""

WATCH_S: Final = 0.1
"""How often it is looked whether the workers go on."""


class WorkStatistics(msgspec.Struct):
    """What workers count."""

    done: int = 0
    failed: int = 0
    in_work: int = 0  # messages that workers have
    waiting: int = 0  # taken, and with no worker yet
    died: int = 0  # workers that were replaced


class Workers:
    """One run of a handler over a source."""

    def __init__(self, source: WorkSource, pool: WorkerPool, terms: WorkTerms) -> None:
        self._source = source
        self._pool = pool
        self._terms = terms
        self._plan = WorkPlan(terms.ordered_by, terms.workers)
        self.counted = WorkStatistics()
        self._message_s: float | None = None  # how long one takes, lately
        self._taken = 0  # taken, and not settled
        self._room = asyncio.Event()
        self._deaths: Counter[tuple[str, int, int]] = Counter()  # workers that a message killed
        self._settling: set[asyncio.Task[None]] = set()
        self._taking: asyncio.Task[None] | None = None
        self._stopping = False
        self._failure: BaseException | None = None
        self._idle: asyncio.Future[None] | None = None  # nothing is in work any more
        self._clock = boottime

    # --- from beginning to end ------------------------------------------------------------------

    async def run(self) -> None:
        """Work until the source ends or `stop` is called; raises what ended it."""
        loop = asyncio.get_running_loop()
        if self._stopping:
            return
        self._idle = loop.create_future()
        self._clock = clock_of(loop)
        try:
            if not await self._open(loop):
                return
            self._room.set()
            self._taking = loop.create_task(self._take())
            watching = loop.create_task(self._watch())
            try:
                await asyncio.shield(self._idle)
            finally:
                self._taking.cancel()
                watching.cancel()
                await asyncio.gather(self._taking, watching, return_exceptions=True)
        finally:
            settling = list(self._settling)
            for task in settling:
                task.cancel()
            await asyncio.gather(*settling, return_exceptions=True)
            self._give_back()
            await self._pool.close()
        if self._failure is not None:
            raise self._failure

    async def _open(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Start the pool; return False if the run was stopped before, which need not wait for slow handlers to load."""
        assert self._idle is not None
        opening = loop.create_task(self._pool.open(self))
        try:
            await asyncio.wait({opening, self._idle}, return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
            return opening.done()
        finally:
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)

    def stop(self, failure: BaseException | None = None) -> None:
        """Take nothing more, and end when everything in work is finished. In the loop."""
        if failure is not None and self._failure is None:
            self._failure = failure
        if self._stopping or self._idle is None:
            self._stopping = True
            return
        self._stopping = True
        if self._taking is not None:
            self._taking.cancel()
        self._source_back(self._plan.forget_all())
        for worker in list(self._pool.workers):
            self._pool.recall(worker)
        asyncio.get_running_loop().call_later(self._terms.finish_s, self._out_of_time)
        self._look_whether_idle()

    def _out_of_time(self) -> None:
        assert self._idle is not None
        if not self._idle.done():
            logger.warning("handlers did not finish within %g s; their messages go back", self._terms.finish_s)
            self._idle.set_result(None)

    def _look_whether_idle(self) -> None:
        if not self._stopping or self._idle is None or self._idle.done() or self._settling:
            return
        if not any(worker.parcels for worker in self._pool.workers):
            self._idle.set_result(None)

    def _give_back(self) -> None:
        """What nobody has finished."""
        for worker in self._pool.workers:
            for parcel in worker.parcels:
                self._source_back(parcel.kept)
        self._source_back(self._plan.forget_all())

    def _source_back(self, messages: list[WorkItem]) -> None:
        if messages:
            self._taken -= len(messages)
            self._source.back(messages)

    # --- taking and giving ----------------------------------------------------------------------

    async def _take(self) -> None:
        try:
            while not self._stopping:
                await self._room.wait()
                most = min(self.ahead() - self._taken, self._terms.batch or PARCEL_MESSAGES_MAX)
                messages = await self._source.take(max(1, most))
                if messages is None:
                    break
                self._taken += len(messages)
                if self._taken >= self.ahead():
                    self._room.clear()
                self._plan.add(messages)
                self._dispatch()
                await asyncio.sleep(0)  # reports, and heartbeats, come between
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - whoever called run hears of it
            self.stop(error)
        else:
            self.stop()

    def ahead(self) -> int:
        """How many messages may be taken and not finished: some seconds of work, not more than is allowed."""
        least = self._terms.ahead_per_worker * self._terms.workers * (self._terms.batch or 1)
        if self._message_s is None:
            return min(self._terms.ahead, least)
        some = int(self._terms.ahead_s * self._terms.workers * (self._terms.batch or 1) / max(self._message_s, 1e-9))
        return max(1, min(self._terms.ahead, max(least, some)))

    def _size(self) -> int:
        """How many messages are a parcel now."""
        if self._terms.batch is not None:
            return self._terms.batch
        if self._message_s is None:
            return 1
        return max(1, min(PARCEL_MESSAGES_MAX, int(PARCEL_S / max(self._message_s, 1e-9))))

    def _dispatch(self) -> None:
        """Give every worker something; then, if messages are quick, something more."""
        if self._stopping:
            return
        quick = self._message_s is not None and self._message_s < SECOND_PARCEL_S
        for depth in (0, 1) if quick else (0,):
            for worker in self._pool.workers:
                if not self._plan.waiting:
                    return
                if len(worker.parcels) == depth and not worker.recalled and not worker.asking:
                    self._hand(worker)

    def _hand(self, worker: PoolWorker) -> None:
        """The next parcel of what is still to be done, if there is one."""
        while (parcel := self._plan.cut(self._size(), worker.parcels[-1] if worker.parcels else None)) is not None:
            wanted = self._source.begin(parcel.messages)
            gone = len(parcel.messages) - len(wanted)
            if gone:
                self._taken -= gone
                self._room.set()
                parcel.keep_only(wanted)
            if wanted:
                parcel.until = self._source.certain_until(wanted)
                if parcel.leased and self._clock() >= parcel.until:
                    self._ask_first(worker, parcel)
                    return
                if not worker.parcels:
                    worker.since = asyncio.get_running_loop().time()
                self._pool.hand(worker, parcel)
                return
            self._plan.release(parcel)

    def _ask_first(self, worker: PoolWorker, parcel: Parcel) -> None:
        """It is not certain that these may begin. Their worker waits for them, so that they begin once it is."""
        worker.asking = True

        async def ask() -> None:
            try:
                await self._source.ask(parcel.messages)
            except Exception as error:  # noqa: BLE001 - whoever called run hears of it
                self.stop(error)
            finally:
                worker.asking = False
                self._put_back(parcel, parcel.messages, begun=False)
                self._plan.release(parcel)
            self._dispatch()

        task = asyncio.get_running_loop().create_task(ask())
        self._settling.add(task)
        task.add_done_callback(self._settled)

    # --- reports of the pool --------------------------------------------------------------------

    def finished(self, worker: PoolWorker, seconds: float, rest: int) -> None:
        """A worker is done with its first parcel, but for so many messages at its end."""
        parcel = worker.parcels.popleft()
        worker.recalled = False
        worker.since = asyncio.get_running_loop().time()
        if rest:
            self._return(parcel, rest)
        kept = parcel.kept
        if kept:
            one = seconds / (1 if self._terms.batch else len(kept) + parcel.settled)
            self._message_s = one if self._message_s is None else (self._message_s + one) / 2
        self._plan.release(parcel)
        self._settle(kept, parcel.errors)
        self._dispatch()
        self._look_whether_idle()

    def recalled(self, worker: PoolWorker, rests: dict[int, int], position: tuple[int, int]) -> None:
        """Messages at the ends of parcels were taken back: the others get them. The latest first, so order stays."""
        for parcel in reversed(worker.parcels):
            rest = rests.get(parcel.number, 0)
            if rest:
                self._return(parcel, rest)
        self._settle_finished(worker, *position)
        self._dispatch()

    def _settle_finished(self, worker: PoolWorker, number: int, finished: int) -> None:
        """What is finished of a parcel counts, however long the next message takes."""
        parcel = worker.parcels[0] if worker.parcels else None
        if self._terms.batch or parcel is None or parcel.number != number or finished <= parcel.settled:
            return
        some = parcel.messages[parcel.settled : finished]
        parcel.settled = finished
        offsets = {message.offset for message in some}
        errors = [each for each in list(parcel.errors) if each[0].offset in offsets]
        for each in errors:
            parcel.errors.remove(each)
        self._settle(some, errors)

    def _return(self, parcel: Parcel, rest: int) -> None:
        kept = parcel.kept
        parcel.rest += rest
        self._put_back(parcel, kept[len(kept) - rest :], begun=False)

    def _put_back(self, parcel: Parcel, messages: list[WorkItem], *, begun: bool) -> None:
        if not begun and messages:
            self._source.recalled(messages)
        if self._stopping:
            self._source_back(messages)
        else:
            self._source_back(self._plan.put_back(parcel, messages))

    def died(self, worker: PoolWorker, done: int, error: Exception, *, again: bool) -> None:
        """A worker is gone. What it had not begun goes to others; what it died of is tried again, or has failed."""
        self.counted.died += 1
        parcels = list(worker.parcels)
        worker.parcels.clear()
        for parcel in reversed(parcels[1:]):
            self._put_back(parcel, parcel.kept, begun=False)
            self._plan.release(parcel)
        if parcels:
            first, kept = parcels[0], parcels[0].kept
            begun = not first.leased or self._pool.started(worker, first) > done
            done, culprits = (0, len(kept)) if self._terms.batch else (max(0, done - first.settled), 1)
            culprits *= begun
            guilty, rest = kept[done : done + culprits], kept[done + culprits :]
            self._put_back(first, rest, begun=False)
            failed = list(first.errors)
            if guilty and again and not self._is_last_attempt(guilty[0]):
                logger.warning("%s is tried again: %s", _name(guilty[0]), getattr(error, "message", error))
                self._put_back(first, guilty, begun=True)
            else:
                failed += [(message, error) for message in guilty]
                done += len(guilty)
            self._plan.release(first)
            self._settle(kept[:done], failed)
        self._dispatch()
        self._look_whether_idle()

    def _is_last_attempt(self, message: WorkItem) -> bool:
        place = message.topic, message.partition, message.offset
        self._deaths[place] += 1
        if self._deaths[place] < self._terms.attempts:
            return False
        del self._deaths[place]
        return True

    def came(self) -> None:
        """Another worker is there."""
        self._dispatch()

    def broke(self, error: Exception) -> None:
        """There will be no workers."""
        self.stop(error)

    # --- settling -------------------------------------------------------------------------------

    def _settle(self, messages: list[WorkItem], errors: list[tuple[WorkItem, Exception]]) -> None:
        if errors:
            failed = {message.offset for message, _ in errors}
            messages = [message for message in messages if message.offset not in failed]
            for message, error in errors:
                task = asyncio.get_running_loop().create_task(self._fail(message, error))
                self._settling.add(task)
                task.add_done_callback(self._settled)
        if messages:
            self._taken -= len(messages)
            self.counted.done += len(messages)
            self._source.done(messages)
            if self._taken < self.ahead():
                self._room.set()

    async def _fail(self, message: WorkItem, error: Exception) -> None:
        self._taken -= 1
        self.counted.failed += 1
        try:
            await self._source.failed(message, error)
        except Exception as ending:  # noqa: BLE001 - whoever called run hears of it
            self.stop(ending)
        self._room.set()

    def _settled(self, task: asyncio.Task[None]) -> None:
        self._settling.discard(task)
        self._look_whether_idle()

    # --- what the source asks -------------------------------------------------------------------

    def forget(self, topic: str, partition: int) -> None:
        """The source lost a partition: what waits of it, or was not begun, is not worked on."""
        self._taken -= len(self._plan.forget(topic, partition))
        for worker in list(self._pool.workers):
            if any(parcel.strand.partition == (topic, partition) for parcel in worker.parcels):
                self._pool.recall(worker)
        self._room.set()

    def spare(self, topic: str, partition: int, most: int) -> list[WorkItem]:
        """Others need messages that nobody here has begun: take some out, the last ones."""
        found = self._plan.spare(topic, partition, most)
        self._taken -= len(found)
        return found

    def begun(self) -> list[WorkItem]:
        """Return what handlers have begun, and have not returned from, of what somebody can take away."""
        found: list[WorkItem] = []
        for worker in self._pool.workers:
            parcel = worker.parcels[0] if worker.parcels else None
            if parcel is not None and parcel.leased:
                found += parcel.messages[parcel.settled : self._pool.started(worker, parcel)]
        return found

    @property
    def is_short(self) -> bool:
        """Whether nothing waits for a worker."""
        return not self._plan.waiting

    def is_at_work(self, topic: str, partition: int) -> bool:
        """Whether a worker has something of a partition."""
        return any(
            parcel.strand.partition == (topic, partition) and parcel.kept
            for worker in self._pool.workers
            for parcel in worker.parcels
        )

    def statistics(self) -> WorkStatistics:
        """What was done, and what is being done. Any thread may ask."""
        self.counted.waiting = self._plan.waiting
        at_work = [parcel for worker in list(self._pool.workers) for parcel in list(worker.parcels)]
        self.counted.in_work = sum(len(parcel.messages) - parcel.rest for parcel in at_work)
        return self.counted

    # --- watching -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Notice workers that do not go on."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(WATCH_S)
            for worker in list(self._pool.workers):
                with suppress(IndexError):
                    self._look_at(worker, loop.time())

    def _look_at(self, worker: PoolWorker, now: float) -> None:
        position = self._pool.position(worker)
        if position != worker.position:
            worker.position, worker.since, worker.recalled = position, now, False
        if not worker.parcels:
            return
        stuck_s, limit_s = now - worker.since, self._terms.time_limit_s
        if limit_s is not None and stuck_s > limit_s and not self._is_extended(worker):
            self._give_up(worker, limit_s)
        elif stuck_s > RECALL_S and not worker.recalled:
            worker.recalled = True
            self._pool.recall(worker)

    def _is_extended(self, worker: PoolWorker) -> bool:
        """Return whether a job that a worker has begun was given more time by its handler."""
        parcel, now = worker.parcels[0], self._clock()
        begun = parcel.messages[parcel.settled : self._pool.started(worker, parcel)]
        return any(isinstance(item, Job) and item.extended_until > now for item in begun)

    def _give_up(self, worker: PoolWorker, limit_s: float) -> None:
        parcel = worker.parcels[0]
        place = _name(parcel.kept[0]) if parcel.kept else f"{parcel.strand.partition[0]}/{parcel.strand.partition[1]}"
        error = HandlerTimeout(
            f"A handler did not finish within {limit_s:g} s, near {place}.",
            hint="Make it faster, or allow more time with time_limit.",
            operation="run",
            object=place,
        )
        logger.error("%s", error.message)
        self._pool.give_up(worker, error)


def _name(message: WorkItem) -> str:
    return f"{message.topic}/{message.partition}@{message.offset}"
