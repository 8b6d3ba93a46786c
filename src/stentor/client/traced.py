"""Producers and subscriptions that make spans, for clients that are traced (`client.tracing`)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from stentor.client.arrow import tables
from stentor.client.convert import as_headers
from stentor.client.producer import AsyncProducer, Producer, _ProducerFace
from stentor.client.subscription import AsyncSubscription, Subscription
from stentor.errors import StentorError
from stentor.wire import batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stentor.client.at_hand import Rows
    from stentor.client.deadline import Deadline
    from stentor.client.lane import Lane
    from stentor.client.message import Message
    from stentor.client.producer_core import ProducerCore
    from stentor.client.tracing import SendSpan, Tracing


def _of(face: Any) -> Tracing:
    found: Tracing = face._core.core.tracing  # noqa: SLF001 - a part of it
    return found


class _SendSpans(_ProducerFace):
    """Every message that is sent by itself has a span, and so has every list and every table.

    A producer with an identity sends the same bytes again after a crash, so its messages get no headers.
    """

    def __init__(self, core: ProducerCore) -> None:
        super().__init__(core)
        self._single = None  # every message goes the general way, which is `_offer`
        self._hashed = False

    def _sending(self, headers: Any, count: int | None = None) -> SendSpan:
        return _of(self).sending(self.topic, headers, count=count, inject=not self._core.sender.lasting)

    def _offer(
        self, value: Any, key: Any, headers: Any, timestamp: Any, partition: int | None, on_delivery: Any
    ) -> bool:
        sending = self._sending(headers)
        try:
            return super()._offer(value, key, sending.headers, timestamp, partition, sending.told(on_delivery))
        except BaseException as error:
            sending.fail(error)
            raise

    def _offer_many(self, values: Sequence[bytes], keys: Sequence[bytes | None] | None, partition: int | None) -> Any:
        if not hasattr(values, "__len__") or (keys is not None and len(keys) != len(values)):
            yield from super()._offer_many(values, keys, partition)  # says what is wrong
            return
        sending = self._sending(None, len(values))
        told, step = sending.told(None, single=False), self._batch_messages
        lane = self._core.single if partition is None else self._core.lane_for(None, partition)
        named = keys or [None] * len(values)
        try:
            for start in range(0, len(values), step):
                part, part_keys = values[start : start + step], named[start : start + step]
                if lane is not None and self._offer_encoded(lane, part, part_keys, sending, told):
                    yield self._core.room.is_full()
                    continue
                for value, key in zip(part, part_keys, strict=True):
                    sending.expect()
                    yield super()._offer(value, key, sending.headers, None, partition, told)
        except BaseException as error:
            sending.fail(error)
            raise
        sending.complete()

    def _offer_encoded(
        self, lane: Lane, values: Sequence[bytes], keys: Sequence[bytes | None], sending: SendSpan, told: Any
    ) -> bool:
        """Send messages of one partition as one batch; False if message by message finds out what is odd with them."""
        self._core.check_open()
        now_us = time.time_ns() // 1000
        named = as_headers(sending.headers)
        headers = [named] * len(values) if named else None
        try:
            encoded = batch.encode(
                [now_us] * len(values), list(keys), list(values), headers, compression=self._core.compression
            )
        except (StentorError, TypeError):
            return False
        sending.expect()
        lane.add_encoded(encoded, [] if told is None else [(0, told, now_us)])
        self._sealed(lane)
        return True

    def _offer_batch(self, data: Any, partition: int | None, on_delivery: Any = None) -> Any:
        sending = self._sending(None, getattr(data, "num_rows", None))
        if sending.headers and not self._core.schema_id:
            data = tables().with_headers(data, sending.headers)
        told = sending.told(on_delivery, single=False)
        try:
            for must_wait in super()._offer_batch(data, partition, told):
                sending.expect()
                yield must_wait
        except BaseException as error:
            sending.fail(error)
            raise
        sending.complete()


class TracedProducer(_SendSpans, Producer):
    """A producer whose messages have spans."""


class AsyncTracedProducer(_SendSpans, AsyncProducer):
    """The same for `async` code."""


class TracedSubscription(Subscription):
    """A subscription whose `get` and `batches` have spans."""

    def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        began = time.time_ns()
        message = super().get(timeout)
        _of(self).received(message, began, self._group)
        return message

    def _take_rows(self, deadline: Deadline) -> Rows | None:
        began = time.time_ns()
        found = super()._take_rows(deadline)
        if found is not None:
            _of(self).received_rows(found[0].topic, found[0].partition, found[2], began, self._group)
        return found

    @property
    def _group(self) -> str | None:
        return getattr(self._core, "name", None)


class AsyncTracedSubscription(AsyncSubscription):
    """The same for `async` code."""

    async def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        began = time.time_ns()
        message = await super().get(timeout)
        _of(self).received(message, began, self._group)
        return message

    async def _take_rows(self, deadline: Deadline) -> Rows | None:
        began = time.time_ns()
        found = await super()._take_rows(deadline)
        if found is not None:
            _of(self).received_rows(found[0].topic, found[0].partition, found[2], began, self._group)
        return found

    @property
    def _group(self) -> str | None:
        return getattr(self._core, "name", None)
