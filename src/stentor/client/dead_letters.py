"""Dead letters: jobs that are not tried again go into a topic of their own, each exactly once; and back, on demand.

The head of a queue's partition gives dead jobs to one of its consumers, as numbered burials, one at a time. It
publishes them under a producer identity that belongs to the partition, with the number as its generation. If it dies
before it has said so, another one publishes the very same batches: brokers recognise them, and write them once.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import msgspec

from stentor import limits
from stentor.errors import PublishError, StentorError, TopicNotFound
from stentor.wire import batch
from stentor.wire import queue_messages as m
from stentor.wire.queue_rows import DEAD_PREFIX, own_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stentor.client.async_client import AsyncClient
    from stentor.client.message import Message
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.client.queue_port import QueuePort
    from stentor.wire.batch import Encoded
    from stentor.wire.rows import Headers

logger = logging.getLogger(__name__)

REDRIVE_CURSOR: Final = "redrive"
"""The cursor of a dead-letter topic that says how far its letters were put back."""

_BATCH_BYTES: Final = 4 * limits.MIB  # far below what a batch may have
_AGAIN_S: Final = 1.0  # when dead jobs are put aside again that could not be
_REDRIVEN_AT_ONCE: Final = 500  # letters whose messages are in memory at one time


def dead_topic(queue: str, named: str) -> str:
    """Where dead jobs of a queue go."""
    return named or f"{queue}.dead"


def dead_headers(queue: str, partition: int, job: m.DeadJob) -> Headers:
    """What a dead letter says beside its own headers."""
    said = {
        "reason": job.history[-1][1] if job.history else "",
        "attempts": str(job.attempts),
        "topic": queue,
        "partition": str(partition),
        "offset": str(job.offset),
        "first-at": str(job.history[0][0]) if job.history else "",
        "last-at": str(job.history[-1][0]) if job.history else "",
        "history": msgspec.json.encode(job.history).decode(),
        "traceback": job.trace,
    }
    return [(DEAD_PREFIX + name, text.encode()) for name, text in said.items() if text]


class Undertaker:
    """Puts the dead jobs of one consumer's queue into the dead-letter topic."""

    def __init__(self, consumer: QueueConsumer) -> None:
        self._consumer = consumer
        self._under_way: dict[tuple[int, int], asyncio.Task[None]] = {}  # by partition and number

    def begin(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> None:
        """Bury some jobs, unless that is under way."""
        key = port.partition, burial.number
        if key not in self._under_way:
            task = self._consumer.core.loop.create_task(self._bury(port, burial, messages))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))

    async def _bury(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> None:
        while True:
            try:
                await self._publish(port, burial, messages)
                await port.confirm_burial(burial.number)
            except StentorError as error:
                logger.warning("dead jobs of queue %s cannot be put aside yet: %s", self._consumer.name, error)
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _publish(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> None:
        consumer, client = self._consumer, self._consumer.client
        topic = dead_topic(consumer.name, consumer.settings.dead_letter_topic)
        if topic not in consumer.core.routes:
            await client.create_topic(topic, exist_ok=True)
            await consumer.core.refresh_routes()
        identity = f"dead letters of {consumer.topic_id}/{port.partition}"
        producer = await client._producer_core(topic, identity=identity, secret="", generation=burial.number)  # noqa: SLF001
        try:
            lane = producer.lanes[0]
            outcomes = []
            for encoded in self._batches(port, burial, messages):
                outcome: asyncio.Future[None] = consumer.core.loop.create_future()
                outcomes.append(outcome)
                lane.add_encoded(encoded, [(0, _told(outcome), encoded.first_timestamp_us)])
            lane.awake = True
            lane.pump()
            await asyncio.gather(*outcomes)
        finally:
            producer.discard()

    def _batches(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> Iterator[Encoded]:
        """Always the same ones for the same burial: they may be sent by several consumers."""
        gathered: list[tuple[Message, Headers]] = []
        size = 0
        for job in burial.jobs:
            message = messages[job.offset]
            headers = own_headers(message.headers) + dead_headers(self._consumer.name, port.partition, job)
            del headers[limits.MESSAGE_HEADERS_MAX :]  # its own come first: a letter can be put back as it was
            gathered.append((message, headers))
            size += len(message.value or b"") + len(message.key or b"") + sum(len(value or b"") for _, value in headers)
            if size > _BATCH_BYTES:
                yield _encoded(gathered)
                gathered, size = [], 0
        if gathered:
            yield _encoded(gathered)

    async def close(self) -> None:
        """Leave it to others."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _encoded(gathered: list[tuple[Message, Headers]]) -> Encoded:
    messages = [message for message, _ in gathered]
    return batch.encode(
        [message.timestamp_us for message in messages],
        [message.key for message in messages],
        [message.value for message in messages],
        [headers for _, headers in gathered],
    )


def _told(outcome: asyncio.Future[None]) -> object:
    def tell(_: object, error: StentorError | None) -> None:
        if outcome.done():
            return
        if error is None:
            outcome.set_result(None)
        else:
            outcome.set_exception(error)

    return tell


async def redrive(client: AsyncClient, queue: str, topic: str, limit: int | None, timeout: float | None) -> int:
    """Put dead letters back into their queue, as new jobs; how many. Each letter once, unless this is killed: then
    the last few may be put back twice.
    """
    deadline = client._core.deadline(timeout)  # noqa: SLF001 - a part of the client
    try:
        found = await client.describe_topic(topic, timeout=deadline.left())
    except TopicNotFound:
        return 0
    moved: dict[int, int] = {}
    for cursor in await client.cursors(topic, timeout=deadline.left()):
        if cursor.name == REDRIVE_CURSOR:
            moved = dict(cursor.positions)
    start = {topic: {each.partition: max(each.start, moved.get(each.partition, 0)) for each in found.partitions}}
    done = 0
    pending: list[Message] = []
    async for message in client.read(topic, start=start, end="now", limit=limit, timeout=deadline.left()):
        pending.append(message)
        if len(pending) == _REDRIVEN_AT_ONCE:
            done += await _put_back(client, queue, topic, pending)
            pending = []
    return done + await _put_back(client, queue, topic, pending)


async def _put_back(client: AsyncClient, queue: str, topic: str, letters: list[Message]) -> int:
    outcomes = await asyncio.gather(
        *(
            client.publish(queue, letter.value, key=letter.key, headers=own_headers(letter.headers) or None)
            for letter in letters
            if dict(letter.headers).get(DEAD_PREFIX + "topic", b"") in (queue.encode(), b"")
        ),
        return_exceptions=True,
    )
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise PublishError(f"Dead letters of {topic} could not be put back: {outcome}") from outcome
    if letters:
        positions = {letter.partition: letter.offset + 1 for letter in letters}
        await client.move_cursor(topic, REDRIVE_CURSOR, positions)
    return len(outcomes)
