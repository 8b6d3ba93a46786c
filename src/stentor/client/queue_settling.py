"""How the jobs of one partition ended, told to its head: what gathers while a request is under way is the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final

from stentor import limits
from stentor.client.job import lost
from stentor.core.queue_jobs import pairs, ranges
from stentor.errors import LeaseLost
from stentor.wire import queue_messages as m

if TYPE_CHECKING:
    from stentor.client.job import Job
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.client.queue_port import QueuePort

_LOOKED_THROUGH_MAX: Final = 64  # of so few held jobs it is looked with each request which have begun
_BESIDE_FAILED_MAX: Final = 1_000  # jobs that are settled beside some with tracebacks: one control message has them


class JobSettling:
    """Of one consumer, at one partition. Any thread adds to it; the rest is for the client's loop."""

    def __init__(self, port: QueuePort, consumer: QueueConsumer) -> None:
        self._port = port
        self._consumer = consumer
        self._loop = consumer.core.loop
        self._finished: deque[Job] = deque()
        self._failed: deque[m.JobReturn] = deque()
        self._begun: list[Job] = []  # what the head should hear of soon
        self._awake = False  # the loop will look by itself
        self._now = asyncio.Event()
        self._sequence = 1
        # Who wants to hear how a job was settled; False: its lease was over before that was said to the head.
        self._waiting: dict[tuple[int, int], asyncio.Future[bool]] = {}
        self._ending = False

    def begin_anew(self) -> None:
        """The consumer has another id: nothing of what was held is its own any more.

        Of what is on its way, the head says what became of it.
        """
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_result(False)
        self._waiting = {}
        self._finished.clear()
        self._failed.clear()
        self._begun = []
        self._sequence = 1

    def finish(self, job: Job) -> None:
        """A job is done. Any thread."""
        self._finished.append(job)
        if not self._awake:
            self._wake()

    def give_back(self, returned: m.JobReturn) -> None:
        """A job is not done. Any thread."""
        self._failed.append(returned)
        self._wake()

    def _wake(self) -> None:
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._now.set)

    async def settled(self, job: Job) -> None:
        """Until what was said about a job is committed; LeaseLost if it was not its consumer's any more.

        Called in the turn of the loop in which that was said: afterwards it may have been answered already.
        """
        port, key = self._port, (job.message.offset, job.attempt)
        if not port.owns(job.holder):
            raise lost(job)
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = self._loop.create_future()
        if not await asyncio.shield(waiting):
            raise lost(job)

    def end(self) -> None:
        """Nothing more comes: the loop ends when all is told."""
        self._ending = True
        self._now.set()

    async def loop(self) -> None:
        """Tell the head."""
        while not self._ending or self._has_news:
            await self._now.wait()
            self._now.clear()
            self._awake = False  # before looking: who adds something now wakes this again
            while self._has_news:
                await self._settle()

    @property
    def _has_news(self) -> bool:
        return bool(self._finished or self._failed or self._begun)

    # --- what has begun -------------------------------------------------------------------------

    def wake_for_begun(self) -> None:
        """Tell the head of jobs that have begun and are not finished, if there are some that it does not know of."""
        self._begun = self._find_begun()
        if self._begun:
            self._wake()

    def _find_begun(self) -> list[Job]:
        return [job for job in self._port.held.values() if job.begun and not job.told and job.is_open]

    async def tell_begun(self, job: Job) -> None:
        """Tell the head that a job begins, and wait until that is committed."""
        job.begun = True
        key = job.message.offset, -job.attempt  # of the same job, the end may be waited for as well
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = self._loop.create_future()
        self.wake_for_begun()
        await asyncio.shield(waiting)

    async def _settle(self) -> None:
        port, holder = self._port, self._port.holder
        most = _BESIDE_FAILED_MAX if self._failed else m.JOBS_SETTLED_MAX
        finished = [self._finished.popleft() for _ in range(min(len(self._finished), most))]
        failed = self._some_failed()
        if self._begun or len(self._port.held) <= _LOOKED_THROUGH_MAX:
            self._consumer.note_begun()
            self._begun = self._find_begun()
        begun, self._begun = self._begun[:_BESIDE_FAILED_MAX], []
        own = [job for job in finished if job.holder == holder]
        later = sorted((job.message.offset, job.attempt) for job in own if job.attempt != 1)
        asked = m.SettleJobs(
            **port.where,
            holder=holder,
            sequence=self._sequence,
            first=ranges(sorted([job.message.offset for job in own if job.attempt == 1])),
            later=[number for pair in later for number in pair],
            begun=[number for job in begun for number in (job.message.offset, job.attempt)],
            back=failed,
        )
        for job in begun:
            job.told = True
        for job in own:
            self._let_go(job.message.offset, job.attempt)
        for each in failed:
            self._let_go(each.offset, each.attempt)
        port.freed()
        waiting_for_it = self._waiting_for(own, failed)
        try:
            answer = await port.ask(asked)
        except LeaseLost:
            port.check_lease()
            return
        else:
            refused = set(pairs(answer.refused))
            self._tell(own, waiting_for_it, refused)
        finally:
            _leave(waiting_for_it)
        if holder != port.holder:
            return
        self._sequence += 1
        if failed and self._consumer.undertaker.expects(port):
            port.look_for_dead_jobs()
        self._tell_begun(begun, refused)

    def _tell_begun(self, begun: list[Job], refused: set[tuple[int, int]]) -> None:
        """The head knows that these have begun, unless it had given them to others."""
        for job in begun:
            key = job.message.offset, job.attempt
            if key in refused and self._port.held.get(key[0]) is job and job.is_open:
                del self._port.held[key[0]]
                job.lose()
                self._consumer.note_lost(job)
            waiting = self._waiting.pop((key[0], -key[1]), None)
            if waiting is not None and not waiting.done():
                waiting.set_result(True)

    def _waiting_for(
        self, finished: list[Job], failed: list[m.JobReturn]
    ) -> dict[tuple[int, int], asyncio.Future[bool]]:
        """Return who waits for what is about to be said; nobody waits for most."""
        if not self._waiting:
            return {}
        keys = [(job.message.offset, job.attempt) for job in finished]
        keys += [(each.offset, each.attempt) for each in failed]
        return {key: self._waiting.pop(key) for key in keys if key in self._waiting}

    def _let_go(self, offset: int, attempt: int) -> None:
        """An attempt is not held any more; a later one, which the head may have given meanwhile, is."""
        job = self._port.held.pop(offset, None)
        if job is not None and job.attempt != attempt:
            self._port.held[offset] = job

    def _some_failed(self) -> list[m.JobReturn]:
        """As many as one control message has room for, with their tracebacks."""
        found: list[m.JobReturn] = []
        size = 0
        while self._failed and size < limits.CONTROL_BODY_BYTES_MAX // 4:
            each = self._failed.popleft()
            found.append(each)
            size += 64 + len(each.why.encode(errors="replace")) + len(each.trace.encode(errors="replace"))
        return found

    def _tell(
        self,
        finished: list[Job],
        waiting_for_it: dict[tuple[int, int], asyncio.Future[bool]],
        refused: set[tuple[int, int]],
    ) -> None:
        """Whoever waits hears how it ended."""
        for job in finished if refused else ():
            if (job.message.offset, job.attempt) in refused:
                job.lose()
                self._consumer.note_lost(job)
        for key, waiting in waiting_for_it.items():
            if waiting.done():
                continue
            if key not in refused:
                waiting.set_result(True)
                continue
            waiting.set_exception(
                LeaseLost(
                    f"Attempt {key[1]} of job {self._consumer.name}/{self._port.partition}@{key[0]} is not this"
                    " consumer's any more.",
                    hint="The job is handed out again. Whatever its handler did may be done twice.",
                    object=self._consumer.name,
                )
            )
            waiting.exception()  # nobody may look at it


def _leave(waiting_for_it: dict[tuple[int, int], asyncio.Future[bool]]) -> None:
    """Nobody can say any more what became of these."""
    for waiting in waiting_for_it.values():
        if not waiting.done():
            waiting.set_result(False)
