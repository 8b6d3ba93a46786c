"""Dead letters: jobs that are not tried again go into a topic of their own, each exactly once (`client.redrive`: back).

The head of a queue's partition gives dead jobs to one of its consumers, as numbered burials, one at a time. It
publishes them under a producer identity that belongs to the partition, with the number as its generation. If it dies
before it has said so, another one publishes the very same batches: brokers recognise them, and write them once. The
head gives both of them the token of that identity, which nobody else knows (C36). What an older broker gives has no
token, and goes under an identity that can be guessed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from stentor import limits
from stentor.client.identity import ProducerIdentity
from stentor.core.dedupe import lasting_id
from stentor.errors import StentorError
from stentor.wire import batch
from stentor.wire import queue_messages as m
from stentor.wire.queue_rows import DEAD_PREFIX, own_headers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stentor.client.async_client import AsyncClient
    from stentor.client.message import Message
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.client.queue_port import QueuePort
    from stentor.wire.batch import Encoded
    from stentor.wire.rows import Headers

logger = logging.getLogger(__name__)

_BATCH_BYTES: Final = 4 * limits.MIB  # far below what a batch may have
_AGAIN_S: Final = 1.0  # when dead jobs are put aside again that could not be
_PATIENCE_S: Final = 3.0  # of somebody who leaves, with dead jobs that are not put aside
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
        batches = self._batches(port, burial, messages)
        await publish_once(client, topic, 0, batches, identity, burial.number, burial.token)

    def _batches(self, port: QueuePort, burial: m.BurialTask, messages: dict[int, Message]) -> Iterator[Encoded]:
        """Always the same ones for the same burial: they may be sent by several consumers."""
        gathered: list[Letter] = []
        size = 0
        for job in burial.jobs:
            letter = letter_of(messages.get(job.offset), dead_headers(self._consumer.name, port.partition, job))
            gathered.append(letter)
            size += len(letter.value or b"") + len(letter.key or b"") + batch.header_bytes(letter.headers)
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


async def publish_once(
    client: AsyncClient,
    topic: str,
    partition: int,
    batches: Iterable[Encoded],
    identity: str,
    generation: int,
    token: bytes = b"",
) -> None:
    """Publish batches that are the same for everybody who may do so: they are written once. A token counts instead of
    the identity.
    """
    producer = await client._producer_core(topic, identity=identity, secret="", generation=generation)  # noqa: SLF001 - a part of the client
    try:
        if token:
            producer.send_as(ProducerIdentity(lasting_id(token), generation, lasting=True, token=token))
        lane = producer.lanes[partition]
        outcomes = []
        for encoded in batches:
            outcome: asyncio.Future[None] = producer.core.loop.create_future()
            outcomes.append(outcome)
            lane.add_encoded(encoded, [(0, _told(outcome), encoded.first_timestamp_us)])
        lane.awake = True
        lane.pump()
        await asyncio.gather(*outcomes)
    finally:
        producer.discard()


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
