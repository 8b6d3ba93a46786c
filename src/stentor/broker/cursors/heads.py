"""What the head of a partition of the internal topic does with cursors: appends records, and tells what is committed.

A record is a batch of one message, published here as a client's would be. It is answered once it is committed (C20).
A record that changes nothing is not appended; that nothing newer is known is confirmed by the whole chain (C30).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.broker.partitions.interfaces import Request
from stentor.core import refusals
from stentor.core.acks import ALL
from stentor.core.cursors import RECOVERY, Cursors, CursorsOf, Moved
from stentor.core.groups import Groups
from stentor.core.names import CURSORS_TOPIC
from stentor.errors import GroupInUse, LimitExceeded, NotReady, StentorError
from stentor.wire import cursor_records
from stentor.wire.header import unpack
from stentor.wire.peer import CursorsFound

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.partitions.interfaces import DeferredSync
    from stentor.broker.partitions.partition import Partition
    from stentor.broker.partitions.serving import Serving
    from stentor.core.cursors import CursorRecord
    from stentor.core.replica_events import Answer
    from stentor.ports import Clock
    from stentor.wire.peer import CursorQuestion


class CursorHeads:
    """The partitions of the internal topic that this broker leads."""

    def __init__(self, clock: Clock, catalogue: Catalogue, serving: Serving) -> None:
        self._clock = clock
        self._catalogue = catalogue
        self._serving = serving

    def led(self) -> Iterator[Partition]:
        """Those that this broker leads now, and that are at work."""
        topic = self._catalogue.topics.get(CURSORS_TOPIC)
        for key in () if topic is None else topic.keys:
            try:
                partition = self._serving.partition(*key)
            except StentorError:
                continue  # elsewhere
            if partition.replica.position.is_head and partition.replica.active:
                yield partition

    async def serve(self, index: int, question: CursorQuestion) -> CursorsFound:
        """Answer a question, or take a record and answer with what its cursor is then. NotHead if another leads."""
        topic = self._catalogue.topics.get(CURSORS_TOPIC)
        if topic is None:
            raise NotReady(f"This broker has not heard of {CURSORS_TOPIC} yet.", hint="Try again in a moment.")
        partition = self._serving.partition(topic.record.id, index)
        replica = partition.replica
        if not replica.position.is_head:
            raise refusals.not_head(next(iter(replica.position.brokers), ""), replica.epoch, replica.revision)
        cursors = cursors_of(partition)
        if not isinstance(question, CursorsOf):
            _check_unused(partition, question)
        if isinstance(question, CursorsOf) or not cursors.is_news(question):
            await self._serving.find_end(partition, stale=False)
        else:
            await self._append(partition, cursors, question)
        return _found(partition, cursors, question)

    async def _append(self, partition: Partition, cursors: Cursors, record: CursorRecord) -> None:
        """Until it is committed. NotReady at the deadline: it may be committed yet, and may be said again."""
        if isinstance(record, Moved):
            check_size(partition, cursors, record)
            record = msgspec.structs.replace(record, at_us=self._clock.now_us())
        topic_id, index = partition.key
        batch = cursor_records.encode(record, self._clock.now_us(), topic_id=topic_id, partition=index)
        await committed_soon(partition, publish_record(partition, batch))


def _check_unused(partition: Partition, record: CursorRecord) -> None:
    """Whether a record changes the positions of a group whose members commit them: only they may, by other requests."""
    if not record.name or (isinstance(record, Moved) and record.by == RECOVERY):
        return
    groups = next((state for state in partition.replica.states if isinstance(state, Groups)), None)
    group = None if groups is None else groups.get(record.name)
    if group is not None and group.members:
        raise GroupInUse(
            f"Cursor {record.name} is the position of group {record.name}, which has {len(group.members)} members.",
            hint="Only they move it. Stop them first, or wait until they count as gone.",
            object=record.name,
        )


def publish_record(partition: Partition, batch: bytearray) -> asyncio.Future[None]:
    """Append a batch, now; the outcome is known once it is committed."""
    waiting = _Waiting(partition.loop.create_future())
    partition.publish(memoryview(batch), unpack(batch), Request(waiting, 0), ALL)
    return waiting.outcome


async def committed_soon(partition: Partition, *outcomes: asyncio.Future[None]) -> None:
    """Until all of these are committed. NotReady at the deadline: they may be committed yet, and may be said again."""
    try:
        async with asyncio.timeout(limits.CURSOR_MOVE_S):
            await asyncio.gather(*outcomes)
    except TimeoutError:
        raise NotReady(
            f"{partition.name} did not commit within {limits.CURSOR_MOVE_S:g} s.",
            hint="Try again when its chain is whole.",
            object=partition.name,
        ) from None


class _Waiting:
    """Publishes one batch, and waits for its outcome."""

    def __init__(self, outcome: asyncio.Future[None]) -> None:
        self.outcome = outcome

    def published(self, correlation: int, answer: Answer) -> None:  # noqa: ARG002
        if not self.outcome.done():
            self.outcome.set_result(None)

    def fail(self, correlation: int, error: StentorError, operation: str, what: str = "") -> None:  # noqa: ARG002
        if not self.outcome.done():
            self.outcome.set_exception(error)

    def flush(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def defer_sync(self, sync: DeferredSync) -> bool:  # noqa: ARG002
        return False


def check_size(partition: Partition, cursors: Cursors, record: CursorRecord, *, reserved: int = 0) -> None:
    """Whether there is room for a record; `reserved`: and so much more, for members of groups. What takes no more room
    than before is never refused.
    """
    size, most = cursors.size_with(record), limits.CURSOR_SIZE_MAX + reserved
    if size > most and size > cursors.size:
        raise LimitExceeded(
            f"{partition.name} would hold {size} cursors and positions; the limit is {most}.",
            hint="Delete cursors that nobody moves any more (`stentor cursor delete`).",
            object=partition.name,
        )


def cursors_of(partition: Partition) -> Cursors:
    """The cursors that are derived from a partition's log."""
    return next(state for state in partition.replica.states if isinstance(state, Cursors))


def _found(partition: Partition, cursors: Cursors, question: CursorQuestion) -> CursorsFound:
    if isinstance(question, CursorsOf):
        found = [
            (topic_id, name, cursor)
            for topic_id in question.topic_ids
            for name, cursor in cursors.of_topic(topic_id).items()
        ]
    else:
        cursor = cursors.get(question.name, question.topic_id)
        found = [] if cursor is None else [(question.topic_id, question.name, cursor)]
    return CursorsFound(cursors=found, at=partition.committed)
