"""Queues, as consumers and operators use them: jobs taken, settled, described. Each is asked of a partition head."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stentor import limits
from stentor.broker.long_requests import PIECE
from stentor.broker.partitions.read_end import until_known
from stentor.core import queue_events as q
from stentor.core import refusals
from stentor.core.holders import NOBODY
from stentor.core.queue import ENDED, FRESH
from stentor.core.queue_jobs import pairs
from stentor.errors import InvalidArgument, NotReady
from stentor.wire import queue_messages as m
from stentor.wire.messages import Done

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from stentor.broker.cluster.trust import Trust
    from stentor.broker.environment import BrokerIdentity
    from stentor.broker.long_requests import LongRequests
    from stentor.broker.partitions.serving import Serving
    from stentor.broker.queues.heads import QueueHeads, QueueLead
    from stentor.core.queue_events import QueueEvent
    from stentor.ports import Clock


class QueueDesk:
    """Takes what is asked about jobs to the heads that decide it."""

    def __init__(
        self,
        identity: BrokerIdentity,
        clock: Clock,
        *,
        trust: Trust,
        serving: Serving,
        heads: QueueHeads,
        long_requests: LongRequests,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._trust = trust
        self._serving = serving
        self.heads = heads
        self._long_requests = long_requests

    async def serve(self, client: object, request: Any, shown: bytes = NOBODY) -> Any:
        """Answer one request about a queue, by somebody who has shown a secret: this is its hash (C36)."""
        if not self._trust.queues:
            raise refusals.being_upgraded("queues")
        if isinstance(request, m.DescribeQueue):
            return await self._describe(client, request)
        return await _HANDLERS[type(request)](self, request, shown)

    def _lead(self, request: m.QueueRequest) -> QueueLead:
        return self.heads.lead(request.topic_id, request.partition)

    async def _decided(self, lead: QueueLead, event: Callable[[int], QueueEvent]) -> Any:
        """Ask, until it is committed. NotReady at the deadline: it may be committed yet, and may be asked again."""
        ticket, answer = lead.ask(event)
        try:
            async with asyncio.timeout(limits.CURSOR_MOVE_S):
                return await answer
        except TimeoutError:
            raise NotReady(
                f"{lead.partition.name} did not commit within {limits.CURSOR_MOVE_S:g} s.",
                hint="Try again when its chain is whole.",
                object=lead.partition.name,
            ) from None
        finally:
            lead.forget(ticket)

    # --- consumers ------------------------------------------------------------------------------

    async def _renew(self, request: m.RenewJobs, shown: bytes) -> m.JobsRenewed:
        lead = await self.heads.confirmed(request.topic_id, request.partition)
        named = [(offset, attempt, time_ms * 1_000) for offset, attempt, time_ms in request.limits]
        heard = await self._decided(lead, lambda ticket: q.HolderHeard(ticket, request.holder, named, shown))
        policy = lead.head.policy
        return m.JobsRenewed(
            lease_ms=policy.lease_us // 1_000,
            overdue=heard.overdue,
            recalls=policy.holders,
            dead=bool(lead.state.dead or lead.state.burial is not None),
        )

    async def _take(self, request: m.TakeJobs, shown: bytes) -> m.JobsTaken:
        known, came = _pairs(request.known), self._clock.monotonic()
        lead = self._lead(request)
        ticket, answer = lead.ask(
            lambda ticket: q.JobsWanted(
                ticket, request.holder, request.number, request.jobs_max, shown, request.reports
            )
        )
        given: Any = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(request.wait_ms / 1_000):
                    given = await answer
        finally:
            lead.forget(ticket, request.holder)
        return m.JobsTaken() if given is None else await self._given(lead, given, known, came)

    async def _given(
        self, lead: QueueLead, given: q.GiveJobs, known: list[tuple[int, int]], came: float
    ) -> m.JobsTaken:
        burial, jobs = given.burial, lead.state.jobs
        dead = [] if burial is None else [offset for offset in burial.offsets if offset in jobs]
        ranges = [*pairs(given.fresh), *((offset, 1) for offset in (*given.noted, *dead))]
        if known:
            ranges = _without(ranges, *known[0])
        batches = await lead.bodies(ranges) if ranges else b""
        task = None
        if burial is not None:
            told = [
                m.DeadJob(offset=offset, attempts=job.attempts, history=list(job.history), trace=job.trace)
                for offset in dead
                if (job := jobs.get(offset)) is not None
            ]
            token, returns = self._burial_token(lead, burial), lead.head.policy.holders
            task = m.BurialTask(number=burial.number, jobs=told, token=token, returns=returns)
        waited_s = self._clock.monotonic() - came  # before it is looked what is left: rather too little than too much
        return m.JobsTaken(
            used=given.used,
            fresh=given.fresh,
            noted=given.noted,
            attempts=given.attempts,
            burial=task,
            batches=batches,
            fence=given.fence,
            left_ms=self._left_ms(lead, given),
            waited_ms=int(waited_s * 1_000) if given.left_us else 0,
            alone=given.alone,
        )

    def _burial_token(self, lead: QueueLead, burial: q.GiveBurial) -> bytes:
        """Return the token of the id that a burial is published under; it is the same one from every head."""
        topic_id, index = lead.partition.key
        series = [str(burial.series)] if burial.series else []
        return self._trust.token("dead letters", f"{topic_id}/{index}", *series) if burial.proven else b""

    def _left_ms(self, lead: QueueLead, given: q.GiveJobs) -> list[int]:
        """How long each of the noted jobs may wait now for its beginning: some passed since it was decided."""
        now_us, jobs = self._clock.now_us(), lead.state.jobs

        def left_ms(offset: int, then_us: int) -> int:
            job = jobs.get(offset)
            left_us = then_us if job is None or not then_us else job.expires_us - now_us
            return max(1, left_us // 1_000) if then_us else 0

        return [left_ms(*pair) for pair in zip(given.noted, given.left_us, strict=True)] if given.left_us else []

    async def _await_recall(self, request: m.AwaitRecall, shown: bytes) -> m.JobsRecalled:
        lead = self._lead(request)
        ticket, answer = lead.ask(lambda ticket: q.RecallAwaited(ticket, request.holder, shown))
        asked: Any = None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(request.wait_ms / 1_000):
                    asked = await answer
        finally:
            lead.forget(ticket, request.holder)
        return m.JobsRecalled(count=0 if asked is None else asked.count)

    async def _fetch(self, request: m.FetchJobs, _: bytes) -> m.JobBatches:
        lead = self._lead(request)
        ranges = [
            (first, count) for first, count in _pairs(request.ranges) if count and first < lead.partition.committed
        ]
        return m.JobBatches(batches=await lead.bodies(ranges))

    async def _settle(self, request: m.SettleJobs, shown: bytes) -> m.SettledJobs:
        _check_claims(request)
        lead = self._lead(request)
        back = [
            q.GivenBack(
                each.offset,
                each.attempt,
                None if each.delay_ms is None else each.delay_ms * 1_000,
                each.counted,
                each.dead,
                each.why,
                each.trace,
            )
            for each in request.back
        ]
        settled = await self._decided(
            lead,
            lambda ticket: q.JobsSettled(
                ticket, request.holder, request.sequence, request.first, request.later, back, shown, request.begun
            ),
        )
        return m.SettledJobs(refused=settled.refused)

    async def _leave(self, request: m.LeaveQueue, shown: bytes) -> Done:
        await self._decided(self._lead(request), lambda ticket: q.HolderLeaving(ticket, request.holder, shown))
        return Done()

    async def _confirm_burial(self, request: m.ConfirmBurial, shown: bytes) -> Done:
        await self._decided(
            self._lead(request), lambda ticket: q.JobsBuried(ticket, request.number, shown, request.left)
        )
        return Done()

    # --- operators ------------------------------------------------------------------------------

    async def _purge(self, request: m.PurgeQueue, _: bytes) -> Done:
        lead = await self.heads.confirmed(request.topic_id, request.partition)
        await self._decided(lead, q.PurgeJobs)
        return Done()

    async def _describe(self, client: object, request: m.DescribeQueue) -> m.QueueDescribed:
        lead = await self.heads.confirmed(request.topic_id, request.partition)
        described = await self._long_requests.walk(client, self._describing(lead, request.jobs_max))
        await until_known(lead.partition, lead.state.end)  # what was looked at is so (C20)
        return described

    def _describing(self, lead: QueueLead, most: int) -> Generator[None, None, m.QueueDescribed]:
        jobs = yield from self._jobs(lead, most)
        counts, dying = lead.state.statistics(), lead.state.dying(lead.head.policy.attempts_max)
        consumers = counts.pop("holders")
        return m.QueueDescribed(head=self._identity.broker_id, consumers=consumers, jobs=jobs, dying=dying, **counts)

    def _jobs(self, lead: QueueLead, most: int) -> Generator[None, None, list[m.JobState]]:
        """The first jobs that have not ended, in pieces."""
        state, now_us = lead.state, self._clock.now_us()
        found: list[m.JobState] = []
        offset = state.first_open()
        while len(found) < most and offset < state.end:
            mark, job = state.mark(offset), state.jobs.get(offset)
            if job is not None:
                held = "held" if job.holder else "delayed" if job.due_us > now_us else "waiting"
                why = job.history[-1][1] if job.history else ""
                found.append(
                    m.JobState(
                        offset=offset,
                        state="dead" if job.dead else held,
                        attempts=job.attempts,
                        due_us=job.due_us,
                        priority=job.priority,
                        why=why,
                        unbegun=job.unbegun,
                    )
                )
            elif mark != ENDED:
                state_name = "waiting" if mark == FRESH else "held"
                found.append(m.JobState(offset=offset, state=state_name, attempts=state.attempts(offset)))
            offset = state.next_open(offset + 1)
            if len(found) % PIECE == 0:
                yield
        return found


def _pairs(numbers: list[int]) -> list[tuple[int, int]]:
    if len(numbers) % 2:
        raise InvalidArgument("Numbers that stand in pairs are not even.")
    return list(pairs(numbers))


def _without(ranges: list[tuple[int, int]], first: int, count: int) -> list[tuple[int, int]]:
    """Ranges without what is in another one."""
    end = first + count
    below = [(begin, min(begin + size, first) - begin) for begin, size in ranges if begin < first]
    above = [(max(begin, end), begin + size - max(begin, end)) for begin, size in ranges if begin + size > end]
    return below + above


def _check_claims(request: m.SettleJobs) -> None:
    """No job may be named twice."""
    runs = _pairs(request.first)
    for (first, count), (following, _) in pairwise([*runs, (2**63, 0)]):
        if not count or first + count > following:
            raise InvalidArgument("Ranges of finished jobs overlap, are empty or do not rise.")
    if sum(count for _, count in runs) > 2 * m.JOBS_SETTLED_MAX:
        raise InvalidArgument(f"More than {2 * m.JOBS_SETTLED_MAX} jobs are settled at once.")
    singles = [offset for offset, _ in _pairs(request.later)] + [each.offset for each in request.back]
    named = sorted([*runs, *((offset, 1) for offset in singles)])
    if any(first + count > following for (first, count), (following, _) in pairwise(named)):
        raise InvalidArgument("A job is settled twice in one request.")
    _pairs(request.begun)


_HANDLERS: dict[type, Callable[[QueueDesk, Any, bytes], Any]] = {
    m.RenewJobs: QueueDesk._renew,  # noqa: SLF001 - the table is part of the class
    m.TakeJobs: QueueDesk._take,  # noqa: SLF001
    m.FetchJobs: QueueDesk._fetch,  # noqa: SLF001
    m.SettleJobs: QueueDesk._settle,  # noqa: SLF001
    m.AwaitRecall: QueueDesk._await_recall,  # noqa: SLF001
    m.LeaveQueue: QueueDesk._leave,  # noqa: SLF001
    m.ConfirmBurial: QueueDesk._confirm_burial,  # noqa: SLF001
    m.PurgeQueue: QueueDesk._purge,  # noqa: SLF001
}
