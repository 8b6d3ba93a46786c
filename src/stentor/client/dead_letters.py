"""Dead letters: jobs that are not tried again go into a topic of their own, each exactly once (`client.redrive`: back).

The head of a queue's partition gives dead jobs to one of its consumers, as numbered burials, one at a time. It
publishes them under a producer identity that belongs to the partition, with the number as its generation. If it dies
before it has said so, another one publishes the very same batches: brokers recognise them, and write them once. The
head gives both of them the token of that identity, which nobody else knows (C36). What an older broker gives has no
token, and goes under an identity that can be guessed.

Every consumer that is given a burial learns the token, so any of them can send something else under that identity, and
the letters of other burials are refused. A consumer that meets this says which letters cannot be written. For each of
them it knows that: a broker has looked in the log, or has something else under that number. These jobs come again, in a
later burial, and the head gives those that follow another identity. It writes down which one with each burial. The
identity is not changed before that: a partition remembers as many producers as PRODUCERS_PER_PARTITION_MAX, and a
consumer that stood still could write its letters again once theirs is forgotten.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from stentor import limits
from stentor.client.identity import ProducerIdentity
from stentor.core.dedupe import TAKEN, lasting_id
from stentor.errors import LeaseLost, StentorError
from stentor.wire import batch
from stentor.wire import queue_messages as m
from stentor.wire.queue_rows import DEAD_PREFIX, own_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stentor.client.async_client import AsyncClient
    from stentor.client.lane import Lane
    from stentor.client.message import Message
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.client.queue_port import QueuePort
    from stentor.wire.batch import Encoded
    from stentor.wire.rows import Headers

logger = logging.getLogger(__name__)

_BATCH_BYTES: Final = 4 * limits.MIB  # far below what a batch may have
_AGAIN_S: Final = 1.0  # when dead jobs are put aside again that could not be
_PATIENCE_S: Final = 3.0  # of somebody who leaves, with dead jobs that are not put aside
_TRIED_S: Final = 60.0  # how long a burial is tried; whoever is to do it still is told again by the head
_LOOK_AGAIN_MS: Final = 200  # another consumer may be at it meanwhile


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


class Letter(NamedTuple):
    """A dead job, as it is put aside."""

    timestamp_us: int
    key: bytes | None
    value: bytes | None
    headers: Headers


def letter_of(message: Message | None, said: Headers) -> Letter:
    """A dead job with what is said of it. What no message may hold is left out, and that is said: one job that was
    accepted by an older broker must not keep all others from being put aside (C34). None: it cannot be read.
    """
    if message is None:
        return Letter(0, None, None, [*said, _left_out("its message cannot be read")])
    key, value, headers = message.key, message.value, own_headers(message.headers)
    missing: list[str] = []
    if value is not None and len(value) > limits.MESSAGE_VALUE_BYTES_MAX:
        missing.append(f"its value of {len(value)} bytes")
        value = None
    if key is not None and len(key) > limits.MESSAGE_KEY_BYTES_MAX:
        missing.append(f"its key of {len(key)} bytes")
        key = None
    if batch.header_bytes(headers) + batch.header_bytes(said) > limits.MESSAGE_HEADERS_BYTES_MAX:
        missing.append(f"its headers of {batch.header_bytes(headers)} bytes")
        headers = []
    if missing:
        headers.append(_left_out(", ".join(missing)))
    headers += said
    del headers[limits.MESSAGE_HEADERS_MAX :]  # its own come first: a letter can be put back as it was
    return Letter(message.timestamp_us, key, value, headers)


def _left_out(what: str) -> tuple[str, bytes]:
    return f"{DEAD_PREFIX}left-out", what.encode()


class Undertaker:
    """Puts the dead jobs of one consumer's queue into the dead-letter topic."""

    def __init__(self, consumer: QueueConsumer) -> None:
        self._consumer = consumer
        self._under_way: dict[tuple[int, int], asyncio.Task[None]] = {}  # by partition and number
        self._expected: set[int] = set()  # partitions of which jobs died here

    def begin(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> None:
        """Bury some jobs, unless that is under way."""
        key = port.partition, burial.number
        if key not in self._under_way:
            task = self._consumer.core.loop.create_task(self._bury(port, burial, messages))
            self._under_way[key] = task
            task.add_done_callback(lambda _: self._under_way.pop(key, None))

    def expect(self, port: QueuePort) -> None:
        """A job is dead, by what this consumer says. Any thread."""
        self._expected.add(port.partition)

    def expects(self, port: QueuePort) -> bool:
        """Return whether a job of this partition died here."""
        return port.partition in self._expected

    async def finish_own(self, port: QueuePort) -> None:
        """Before the consumer leaves: what died here need not wait for the next one."""
        if port.partition in self._expected:
            await self.finish(port)

    async def finish(self, port: QueuePort, *, while_it_helps: bool = False) -> None:
        """Until the dead jobs that a partition has now are buried, or the patience is over; others do the rest."""
        try:
            async with asyncio.timeout(_PATIENCE_S) as patience:
                found = await port.describe()
                end, done = found.died + found.dead, found.died
                while found.dead and found.died < end:
                    if while_it_helps and found.died > done:
                        patience.reschedule(self._consumer.core.loop.time() + _PATIENCE_S)
                    done = found.died
                    await port.take_dead_jobs(_LOOK_AGAIN_MS)
                    under_way = [
                        task for (partition, _), task in self._under_way.items() if partition == port.partition
                    ]
                    await asyncio.gather(*under_way)
                    found = await port.describe()
        except (TimeoutError, StentorError) as error:
            logger.info("dead jobs of queue %s are left to others: %r", self._consumer.name, error)
        except Exception:  # a bug of ours must not keep a consumer from leaving
            logger.exception("dead jobs of queue %s/%d", self._consumer.name, port.partition)

    async def _bury(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> None:
        give_up = self._consumer.core.loop.time() + _TRIED_S
        while True:
            try:
                left = await self._publish(port, burial, messages)
                await port.confirm_burial(burial.number, left)
            except LeaseLost:
                return  # it took long, and another consumer does it
            except StentorError as error:
                logger.warning("dead jobs of queue %s cannot be put aside yet: %s", self._consumer.name, error)
                if self._consumer.core.loop.time() > give_up:
                    return
                await asyncio.sleep(_AGAIN_S)
            else:
                return

    async def _publish(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> list[int]:
        """Return the jobs that need another id, because somebody has sent something else under this one."""
        consumer, client = self._consumer, self._consumer.client
        topic = dead_topic(consumer.name, consumer.settings.dead_letter_topic)
        if topic not in consumer.core.routes:
            await client.create_topic(topic, exist_ok=True)
            await consumer.core.refresh_routes()
        identity = f"dead letters of {consumer.topic_id}/{port.partition}"
        offsets: list[list[int]] = []
        batches = self._batches(port, burial, messages, offsets)
        refused = await publish_once(client, topic, 0, batches, identity, burial.number, burial.token)
        for error in refused.values():
            if not burial.returns:
                raise error
            logger.warning("dead jobs of queue %s are put aside under another id: %s", consumer.name, error)
        return [offset for place in refused for offset in offsets[place]]

    def _batches(
        self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message], offsets: list[list[int]]
    ) -> Iterator[Encoded]:
        """Yield the same batches for the same burial always: several consumers may send them. Note in `offsets` which
        jobs are in each.
        """
        gathered: list[Letter] = []
        size = 0
        offsets.append([])
        for job in burial.jobs:
            letter = letter_of(messages.get(job.offset), dead_headers(self._consumer.name, port.partition, job))
            if size > _BATCH_BYTES:
                yield _encoded(gathered)
                gathered, size = [], 0
                offsets.append([])
            gathered.append(letter)
            offsets[-1].append(job.offset)
            size += len(letter.value or b"") + len(letter.key or b"") + batch.header_bytes(letter.headers)
        if gathered:
            yield _encoded(gathered)

    async def close(self) -> None:
        """Leave it to others."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def publish_once(
    client: AsyncClient,
    topic: str,
    partition: int,
    batches: Iterable[Encoded],
    identity: str,
    generation: int,
    token: bytes = b"",
) -> dict[int, StentorError]:
    """Publish batches that are the same for everybody who may do so: they are written once. A token counts instead of
    the identity.

    Return which of them, counted from 0, are not in the log and never will be: something else was sent under their
    numbers. Any other failure is raised.
    """
    producer = await client._producer_core(topic, identity=identity, secret="", generation=generation)  # noqa: SLF001 - a part of the client
    refused: dict[int, StentorError] = {}
    try:
        if token:
            producer.send_as(ProducerIdentity(lasting_id(token), generation, lasting=True, token=token))
        lane = producer.lanes[partition]
        for place, encoded in enumerate(batches):
            try:
                await _sent(lane, encoded, place)
            except StentorError as error:
                if error.detail.get("reason") not in TAKEN:
                    raise
                refused[place] = error
    finally:
        producer.discard()
    return refused


async def _sent(lane: Lane, encoded: Encoded, sequence: int) -> None:
    """Publish one batch under its number, and wait for its answer: one that is refused must not end those behind it."""
    outcome: asyncio.Future[None] = lane.producer.core.loop.create_future()
    lane.sequence = sequence
    lane.add_encoded(encoded, [(0, _told(outcome), encoded.first_timestamp_us)])
    lane.awake = True
    lane.pump()
    await outcome


def _encoded(gathered: list[Letter]) -> Encoded:
    return batch.encode(
        [letter.timestamp_us for letter in gathered],
        [letter.key for letter in gathered],
        [letter.value for letter in gathered],
        [letter.headers for letter in gathered],
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
