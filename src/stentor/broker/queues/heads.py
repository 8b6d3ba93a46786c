"""What the heads of queues' partitions do: performs the effects of their machines (`core.queue_head`).

A `QueueLead` is one partition that this broker leads, in one epoch. With another epoch everything that is not in the
log begins anew: leases in full (C21), and whoever waits asks again.

    requests ──► QueueHead ──end of the turn──► one control batch ──► log, chain ──committed──► answers
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from stentor import limits
from stentor.broker.partitions.interfaces import Request
from stentor.broker.queues.bodies import JobReads, read_bodies
from stentor.core import decisions, refusals
from stentor.core import queue_events as q
from stentor.core.acks import ALL
from stentor.core.queue import QueueState
from stentor.core.queue_head import HOLDERS_MAX, QueueHead, QueuePolicy
from stentor.errors import InternalError, InvalidArgument, LeaseLost, LimitExceeded, NotReady, StentorError
from stentor.wire import queue_rows
from stentor.wire.header import HEADER_BYTES, extents, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.broker.background import Background
    from stentor.broker.cluster.trust import Trust
    from stentor.broker.partitions.interfaces import DeferredSync
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.partitions.serving import Serving
    from stentor.core.queue_events import QueueAnswer, QueueEvent
    from stentor.core.records import Key
    from stentor.core.replica_events import Answer
    from stentor.ports import Clock
    from stentor.wire.messages import TopicSettings

logger = logging.getLogger(__name__)

_MOVED_AT_ONCE: Final = 1_000  # jobs that are appended again, each with its message
_MOVED_IN_A_TURN: Final = 100  # of the loop
_MOVE_AGAIN_S: Final = 5.0  # by then the steps before are applied


class QueueLead:
    """One partition of a queue that this broker leads, in one epoch."""

    def __init__(self, partition: Partition, clock: Clock, reads: JobReads, trust: Trust) -> None:
        self.partition = partition
        self._trust = trust
        self._reads = reads
        self.epoch = partition.replica.epoch
        self.state = queue_of(partition)
        self.head = QueueHead(self.state, self._policy())
        self._clock = clock
        self._waiting: dict[int, asyncio.Future[QueueAnswer]] = {}
        self._tickets = 0
        self._scheduled = False
        self._ended = False
        self._skipped = 0  # records that were reported

    def _policy(self) -> QueuePolicy:
        return policy_of(self.partition.settings, holders=self._trust.holders, proves=self._trust.makes_tokens)

    @property
    def is_current(self) -> bool:
        replica = self.partition.replica
        return replica.epoch == self.epoch and replica.position.is_head and replica.active and not replica.wedged

    # --- asking ---------------------------------------------------------------------------------

    def ask(self, event: Callable[[int], QueueEvent]) -> tuple[int, asyncio.Future[QueueAnswer]]:
        """Take a request; its answer comes when all that it depends on is committed."""
        self._tickets += 1
        ticket = self._tickets
        answer = self._waiting[ticket] = self.partition.loop.create_future()
        self._step(event(ticket))
        self.turn_soon()
        return ticket, answer

    def give_up(self, offsets: list[int]) -> None:
        """These jobs cannot be kept: they go to the dead letters, unless somebody has them meanwhile."""
        self._step(q.JobsStuck(offsets))
        self.turn_soon()

    def forget(self, ticket: int, holder: bytes | None = None) -> None:
        """Nobody waits for this answer any more: jobs that this holder asked for, or what is decided at once."""
        if self._waiting.pop(ticket, None) is not None and holder is not None and not self._ended:
            self._step(q.AskerGone(ticket, holder))

    async def bodies(self, ranges: list[tuple[int, int]]) -> bytes:
        """The batches that hold these jobs, up to a limit."""
        found = await read_bodies(self.partition, ranges, self._reads, self)
        if self._ended:
            self._reads.forget(self)
        return found

    # --- time -----------------------------------------------------------------------------------

    def turn_soon(self) -> None:
        """Decide what gathered, at the end of this turn of the loop."""
        if not self._scheduled and not self._ended:
            self._scheduled = True
            self.partition.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        if self._ended or not self.is_current:
            return
        self.head.policy = self._policy()
        self._step(q.QueueTurn(self.partition.committed, self._clock.now_us()))
        self.partition.followers.wait(self)  # to be woken by the next commit
        if self.head.unfinished:
            self.turn_soon()

    def pump(self) -> None:
        """More is committed. Of a later epoch that says nothing: what this one appended may have been cut off."""
        if self._ended or not self.is_current:
            return
        self._step(q.QueueCommitted(self.partition.committed))
        if self.head.waits or self.head.unfinished:
            self.turn_soon()
        elif not self._scheduled:
            self.partition.followers.wait(self)

    def tick(self) -> None:
        """With every beat of the broker."""
        if not self.is_current:
            return
        if self.state.skipped > self._skipped:
            new, self._skipped = self.state.skipped - self._skipped, self.state.skipped
            logger.warning(
                "%s: %d records of this queue could not be applied and are left out", self.partition.name, new
            )
        takes = decisions.may_publish(self.partition.replica, ALL) is None
        self._step(q.QueueTick(counts=takes))
        due_us = self.head.next_due_us
        due = due_us is not None and due_us <= int(self._clock.monotonic() * 1_000_000)
        if due or self.head.may_recall or self.head.unfinished:
            self.turn_soon()

    # --- effects --------------------------------------------------------------------------------

    def _step(self, event: QueueEvent) -> None:
        for effect in self.head.step(event, int(self._clock.monotonic() * 1_000_000)):
            if isinstance(effect, q.AppendSteps):
                self._append(effect)
                continue
            waiting = self._waiting.pop(effect.ticket, None)
            if waiting is None or waiting.done():
                continue
            if isinstance(effect, q.RefuseAsker):
                waiting.set_exception(_refusal(self.partition.topic, effect.why))
            else:
                waiting.set_result(effect)

    def _append(self, effect: q.AppendSteps) -> None:
        topic_id, index = self.partition.key
        batch = queue_rows.encode_steps(effect.steps, topic_id=topic_id, partition=index)
        publisher = _StepsPublisher()
        if len(batch) > limits.BATCH_BYTES_MAX:  # readers of the log would take it for damage
            publisher.error = InternalError(f"Steps of {self.partition.name} have {len(batch)} bytes.")
        else:
            self.partition.publish(memoryview(batch), unpack(batch), Request(publisher, 0), ALL)
        if publisher.error is not None:
            logger.info("steps of %s were not taken: %s", self.partition.name, publisher.error)
            self._step(q.StepsRefused())
            return
        self._step(q.StepsAppended(self.partition.replica.end))
        self._step(q.QueueCommitted(self.partition.committed))
        self.turn_soon()  # what the steps gave back may be handed out

    def end(self) -> None:
        """Another one leads, or will: whoever waits asks again."""
        self._ended = True
        self.partition.followers.forget(self)
        self._reads.forget(self)
        self.state.news = None
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(NotReady("The head of the queue changes.", hint="Try again in a moment."))
                answer.exception()  # its asker may be gone


class QueueHeads:
    """The partitions of queues that are led here, as far as somebody has asked for them."""

    def __init__(self, clock: Clock, serving: Serving, background: Background, trust: Trust) -> None:
        self._clock = clock
        self._trust = trust
        self._serving = serving
        self._background = background
        self._leads: dict[Key, QueueLead] = {}
        self._reads = JobReads()
        self._moving: dict[Key, float] = {}  # when jobs of a partition may be appended again the next time

    def lead(self, topic_id: int, index: int) -> QueueLead:
        """The lead of a partition. NotHead if another broker leads it."""
        partition = self._serving.partition(topic_id, index)
        replica = partition.replica
        if not replica.position.is_head:
            raise refusals.not_head(next(iter(replica.position.brokers), ""), replica.epoch, replica.revision)
        if (refusal := decisions.may_publish(replica, ALL)) is not None:
            raise refusal
        lead = self._leads.get(partition.key)
        if lead is not None and lead.partition is partition and lead.is_current:
            return lead
        if partition.settings.kind != "queue":
            raise InvalidArgument(
                f"Topic {partition.topic} is no queue.",
                hint="Make queues with client.create_topic(name, kind='queue').",
                object=partition.topic,
            )
        if lead is not None:
            lead.end()
        lead = self._leads[partition.key] = QueueLead(partition, self._clock, self._reads, self._trust)
        if not lead.is_current:
            raise NotReady(f"{partition.name} is not at work yet.", hint="Try again in a moment.")
        return lead

    async def confirmed(self, topic_id: int, index: int) -> QueueLead:
        """The same, and its whole chain has confirmed since now that it leads (C30)."""
        lead = self.lead(topic_id, index)
        await self._serving.find_end(lead.partition, stale=False)
        if not lead.is_current:
            raise NotReady(f"The chain of {lead.partition.name} changed.", hint="Try again in a moment.")
        return lead

    def tick(self) -> None:
        """With every beat of the broker."""
        for key, lead in list(self._leads.items()):
            if not lead.is_current or lead.partition.deleted:
                lead.end()
                del self._leads[key]
                continue
            try:
                lead.tick()
            except Exception:  # a bug of ours must not stop the heart of the broker
                logger.exception("%s: its queue cannot go on", lead.partition.name)

    # --- jobs that keep old segments ------------------------------------------------------------

    def pinned(self, partition: Partition, until: int) -> None:
        """Retention would let go of what is below an offset, but for jobs that wait: append those again, some at a
        time.
        """
        state, now = queue_of(partition), self._clock.monotonic()
        leads = partition.replica.position.is_head and partition.replica.active and not partition.deleted
        if not leads or self._moving.get(partition.key, 0.0) > now:
            return
        moving = list(islice((each for each in state.noted_below(until) if _is_movable(state, each)), _MOVED_AT_ONCE))
        if moving:
            self._moving[partition.key] = now + _MOVE_AGAIN_S
            self._background.spawn(self._move(partition, moving))

    async def _move(self, partition: Partition, offsets: list[int]) -> None:
        """Append jobs again. One that cannot be is dead: it would keep the log for ever, and all other jobs move on."""
        stuck: list[int] = []
        try:
            batches, stuck = await self._again(partition, offsets)
        except StentorError as error:
            logger.warning("%s: jobs that keep old segments cannot be read together: %s", partition.name, error)
            batches = []
            for offset in offsets:
                with suppress(StentorError):  # its turn comes again
                    found, unreadable = await self._again(partition, [offset])
                    batches += found
                    stuck += unreadable
        for number, batch in enumerate(batches):
            partition.publish(memoryview(batch), unpack(batch), Request(_StepsPublisher(), 0), ALL)
            if number % _MOVED_IN_A_TURN == _MOVED_IN_A_TURN - 1:
                await asyncio.sleep(0)
        if stuck:
            logger.error(
                "%s: %d jobs, at offsets %s, cannot be appended again and go to the dead letters",
                partition.name,
                len(stuck),
                stuck[:5],
            )
            with suppress(StentorError):
                self.lead(*partition.key).give_up(stuck)

    async def _again(self, partition: Partition, offsets: list[int]) -> tuple[list[bytearray], list[int]]:
        """These jobs as batches of their own, as far as one read brings them, and those of which none can be made."""
        data = await read_bodies(partition, [(offset, 1) for offset in offsets])
        done: asyncio.Future[tuple[list[bytearray], list[int]]] = partition.loop.create_future()

        def finish(found: Any, error: StentorError | None) -> None:
            if not done.done() and error is not None:
                done.set_exception(error)
            elif not done.done():
                done.set_result(found)

        partition.reads.submit(partial(_appended_again, data, set(offsets), partition.key), finish)
        return await done

    def check_invariants(self) -> None:
        """Called by the simulator."""
        for lead in self._leads.values():
            if lead.is_current:
                lead.head.check_invariants()


class _StepsPublisher:
    """Publishes steps. Whether the log took them is known at once, and a commit is heard of in another way."""

    def __init__(self) -> None:
        self.error: StentorError | None = None

    def published(self, correlation: int, answer: Answer) -> None: ...

    def fail(self, correlation: int, error: StentorError, operation: str, what: str = "") -> None:  # noqa: ARG002
        self.error = error

    def flush(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def defer_sync(self, sync: DeferredSync) -> bool:  # noqa: ARG002
        return False


def _appended_again(data: bytes, wanted: set[int], key: Key) -> tuple[list[bytearray], list[int]]:
    """In a thread: a batch may expand to many megabytes."""
    found: list[bytearray] = []
    stuck: list[int] = []
    for position, length, _, _ in extents(data):
        header, body = unpack(data, position), memoryview(data)[position + HEADER_BYTES : position + length]
        batches, unreadable = queue_rows.appended_again(header, body, wanted, topic_id=key[0], partition=key[1])
        found += batches
        stuck += unreadable
    return found, stuck


def queue_of(partition: Partition) -> QueueState:
    """The queue that is derived from a partition's log."""
    return next(state for state in partition.replica.states if isinstance(state, QueueState))


def policy_of(settings: TopicSettings, *, holders: bool, proves: bool) -> QueuePolicy:
    """Return what a queue's settings say about attempts, whether the cluster's feature level is HOLDERS (C27), and
    whether this broker gives out tokens.
    """
    pause_us = settings.retry_delay_ms * 1_000
    return QueuePolicy(settings.lease_s * 1_000_000, settings.max_attempts, pause_us, holders, proves)


def _is_movable(state: QueueState, offset: int) -> bool:
    """Where jobs of one key are done in order, a job's place is its turn, unless it is late anyhow."""
    job = state.jobs[offset]
    return not (job.holder or job.dead) and not (state.ordered and (job.attempts or not job.due_us))


def _refusal(queue: str, why: str) -> StentorError:
    if why == "lost":
        return LeaseLost(
            f"This consumer of queue {queue} was not heard of for as long as its lease; its jobs are others' now.",
            hint="It begins anew by itself. A process that stands still for so long needs a longer lease_s.",
            object=queue,
        )
    if why == "full":
        return LimitExceeded(
            f"Queue {queue} has no room for another consumer of this client: a partition has at most {HOLDERS_MAX}, and"
            " one client at most as many as others may still add.",
            hint="Close consumers that are not used: one client.queue is one consumer.",
            object=queue,
        )
    if why == "other":
        return LeaseLost(
            f"These jobs of queue {queue} belong to a consumer that has shown another secret.",
            hint="Only the client that was handed a job can settle it.",
            object=queue,
        )
    if why == "overtaken":
        return NotReady("A later request of this consumer came before this one.", hint="Nothing more is needed.")
    return NotReady("The queue did not take this now.", hint="Try again in a moment.", object=queue)
