"""What a transaction sends out, brought into its topics: however often and by whomever, written once.

Each batch was numbered when its transaction was made. It is published under that number, by the member that made it or
by whoever comes after it, until a broker has acknowledged it.

All of them are given the token of its producer id, and any of them may send something else under it. A batch that is
refused for that reason is not in the log, and never will be under this id. It goes out under the next id of its author,
whose token the head gives to those who may finish the transaction. Everybody tries the ids in the same order, so each
finds what another one has written.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from stentor.client import routes
from stentor.client.identity import ProducerIdentity
from stentor.client.producer_core import ProducerCore
from stentor.core.dedupe import TAKEN, lasting_id
from stentor.errors import PartitionNotFound, StentorError, TopicNotFound, UnknownOutcome
from stentor.wire.batch import Encoded
from stentor.wire.header import HEADER_BYTES, check_header

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from stentor.client.core import ClientCore
    from stentor.client.message import Receipt
    from stentor.wire.header import BatchHeader

logger = logging.getLogger(__name__)

_AGAIN_S = 1.0  # when a batch is published again that was not acknowledged in time


class TransactionCopies:
    """Publishes the batches of one author's transactions."""

    def __init__(self, core: ClientCore, token: bytes = b"") -> None:
        self._core = core
        self._token = token or None  # of the id of their batches
        self._next_token: Callable[[int], Awaitable[bytes]] | None = None
        self._producers: dict[tuple[int, int], ProducerCore] = {}  # by topic and producer id

    async def publish(
        self, outputs: Sequence[tuple[str, bytes]], next_token: Callable[[int], Awaitable[bytes]] | None = None
    ) -> None:
        """Until all of them are acknowledged, or one cannot be: TopicNotFound if a topic is not there, for example.

        `next_token` returns the token of another id of their author, counted from 1; empty if there is none.
        """
        self._next_token = next_token
        tasks = [asyncio.ensure_future(self._publish(topic, output)) for topic, output in outputs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Nothing more is published."""
        for producer in self._producers.values():
            producer.discard()
        self._producers = {}

    async def _publish(self, topic: str, output: bytes) -> None:
        header = check_header(output)
        sender = ProducerIdentity(header.producer_id, header.generation, lasting=True, token=self._token)
        tried: list[int] = []
        while True:
            try:
                await _acknowledged(await self._producer(topic, header, sender), header, output)
            except StentorError as error:
                if error.detail.get("reason") in TAKEN:  # something else was sent, or the transaction is done
                    tried.append(sender.id)
                    token = b"" if self._next_token is None else await self._next_token(len(tried))
                    if not token or lasting_id(token) in tried:  # an older broker knows one only
                        raise
                    sender = ProducerIdentity(lasting_id(token), header.generation, lasting=True, token=token)
                    logger.warning("what a transaction sends to %s goes under another id: %s", topic, error)
                    continue
                if not (error.retriable or isinstance(error, UnknownOutcome | PartitionNotFound)):
                    raise
                logger.info("what a transaction sends to %s waits: %s", topic, error)
                self._core.check_open()
                await self._core.changes(_AGAIN_S)
            else:
                return

    async def _producer(self, topic: str, header: BatchHeader, sender: ProducerIdentity) -> ProducerCore:
        """The producer for a topic, by its id; TopicNotFound if the topic of this name is not there, or another one."""
        producer = self._producers.get((header.topic_id, sender.id))
        route = self._core.routes.get(topic)
        if route is None or route.id != header.topic_id:
            deadline = self._core.deadline(None)
            await self._core.refresh_routes(deadline)
            (route,) = await routes.existing(self._core, [topic], deadline)
            if route.id != header.topic_id:
                raise TopicNotFound(f"Topic {topic} was deleted and made anew.", object=topic)
        if producer is not None:
            return producer
        producer = ProducerCore(self._core, route, keep_failures=False)
        producer.send_as(sender)
        self._producers[header.topic_id, sender.id] = producer
        return producer


async def _acknowledged(producer: ProducerCore, header: BatchHeader, output: bytes) -> None:
    """Publish one batch, and wait until it is acknowledged."""
    outcome: asyncio.Future[None] = producer.core.loop.create_future()

    def told(_: Receipt | None, error: StentorError | None) -> None:
        if not outcome.done():
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

    encoded = Encoded(
        output[HEADER_BYTES:],
        header.body_checksum,
        header.count,
        header.attributes,
        header.first_timestamp_us,
        header.last_timestamp_us,
    )
    lane = producer.lanes[header.partition]
    lane.generation, lane.sequence = header.generation, header.sequence
    lane.add_encoded(encoded, [(0, told, header.first_timestamp_us)])
    lane.awake = True
    lane.pump()
    await outcome
