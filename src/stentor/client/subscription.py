"""Subscriptions: a client's cursors on topics — live, catching up, or told.

The core (`client.streams`) puts deliveries into an inbox. `Subscription` and `AsyncSubscription` take
them from there, decode them in the application's thread, and grant credit for what was taken.
"""

from __future__ import annotations

import asyncio
import queue
import time
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from stentor.client.decode import decode_messages, offset_batches, record_batches
from stentor.client.tables import with_position
from stentor.errors import Closed, CorruptData, DeadlineExceeded, SlowSubscriber, StentorError
from stentor.wire.arrow_body import record_batch

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stentor.client.message import Message
    from stentor.client.streams import Delivery, Event, Reader, SubscriptionCore


_SLICE_S = 1.0


class _Face:
    """What the sync and async subscriptions share: from deliveries to messages."""

    def __init__(self, core: SubscriptionCore) -> None:
        self._core = core
        # A read that has an end must make progress; one without may be quiet for ever.
        self._patience_s = None if core.end is None else core.core.timeout
        self._current: Iterator[Message] = iter(())  # messages of the batch at hand
        self._batches: Iterator[Iterator[Message]] = iter(())  # the delivery's further batches
        self._ended = False

    @property
    def topics(self) -> list[str]:
        """The topics it reads now."""
        return sorted({reader.topic for reader in self._core.readers.values()})

    def statistics(self) -> dict[str, Any]:
        """Lag and position of each partition."""
        return self._core.statistics()

    def events(self) -> list[Event]:
        """What happened since the last call: skipped ranges, topics found or gone."""
        events, self._core.events = self._core.events, []
        return events

    def _grant(self, delivery: Delivery) -> None:
        with suppress(RuntimeError):  # the client was closed: nobody needs credit any more
            self._core.core.loop.call_soon_threadsafe(self._core.grant, delivery.reader, len(delivery.body))

    def _messages(self, delivery: Delivery) -> Iterator[Iterator[Message]]:
        """One iterator per batch; each becomes the current one, so that nothing is lost in between."""
        for found in self._decoded(delivery, decode_messages):
            self._current = found
            yield found

    def _record_batches(self, delivery: Delivery) -> Iterator[Any]:
        return self._decoded(delivery, record_batches)

    def _decoded(self, delivery: Delivery, decode: Callable[..., Iterator[Any]]) -> Iterator[Any]:
        reader = delivery.reader
        try:
            yield from decode(delivery.body, reader.topic, reader.partition, reader.start, reader.end)
        except CorruptData as error:
            error.object = f"{reader.topic}/{reader.partition}"
            raise self._damaged(delivery, error) from error
        reader.taken = delivery.next_offset

    def _damaged(self, delivery: Delivery, error: StentorError) -> StentorError:
        """Report damage; the better of two errors."""
        raise NotImplementedError

    def _next_message(self) -> Message | None:
        """The next one of the delivery at hand."""
        while True:
            message = next(self._current, None)
            if message is not None:
                return message
            current = next(self._batches, None)
            if current is None:
                return None
            self._current = current

    def _leftover(self) -> Iterator[Any]:
        """What a get() or an iteration left of the delivery at hand, as one record batch."""
        left = list(chain(self._current, chain.from_iterable(self._batches)))
        if left:
            headers = [message.headers or None for message in left]
            rows = record_batch(
                [message.timestamp_us for message in left],
                [message.key for message in left],
                [message.value for message in left],
                headers if any(headers) else None,
            )
            yield with_position(rows, left[0].topic, left[0].partition, left[0].offset)

    def _is_slow(self, delivery: Delivery) -> bool:
        core = self._core
        if core.max_lag is None:
            return False
        appended_at_us = int.from_bytes(delivery.body[64:72], "little")
        return core.too_slow(delivery.reader, appended_at_us)

    def _slow_error(self, reader: Reader) -> SlowSubscriber:
        return SlowSubscriber(
            f"This subscriber is {reader.lag} messages behind on {reader.topic}/{reader.partition};"
            f" max_lag is {self._core.max_lag}.",
            hint="Make the handler faster, spread the topic over more partitions and subscribers,"
            " or choose on_slow='catch_up' or 'skip'.",
            operation="subscribe",
            object=f"{reader.topic}/{reader.partition}",
        )

    def _closed_error(self) -> Closed:
        return Closed("This subscription has ended.", hint="Subscribe again.")


class Subscription(_Face):
    """Messages as they come. Iterate, or `get(timeout=...)`; use as a context manager."""

    def _take(self, timeout: float | None) -> Any:
        """Wait in slices: a signal that comes just before a wait without end would not be seen until it ends."""
        while timeout is None or timeout > _SLICE_S:
            with suppress(queue.Empty):
                return self._inbox.get(timeout=_SLICE_S)
            timeout = None if timeout is None else timeout - _SLICE_S
        return self._inbox.get(timeout=max(0.0, timeout))

    def __init__(self, core: SubscriptionCore, inbox: queue.SimpleQueue[Any]) -> None:
        super().__init__(core)
        self._inbox = inbox

    def _next_delivery(self, timeout: float | None) -> Delivery | None:
        """The next delivery; None when the subscription has ended."""
        while not self._ended:
            try:
                item = self._take(timeout)
            except queue.Empty:
                raise DeadlineExceeded(
                    f"No message within {timeout:.3g} s.", operation="subscribe", object=", ".join(self._core.patterns)
                ) from None
            if item is None or isinstance(item, StentorError):
                self._ended = True
                if item is not None:
                    raise item
                return None
            if item.next_offset <= item.reader.taken:
                continue  # skipped over while it was on its way
            if self._is_slow(item) and not self._handle_slow(item):
                continue
            delivery: Delivery = item
            return delivery
        return None

    def _damaged(self, delivery: Delivery, error: StentorError) -> StentorError:
        core = self._core
        confirming = core.confirm_damage(delivery.reader, delivery.next_offset, error)
        return asyncio.run_coroutine_threadsafe(confirming, core.core.loop).result()

    def _handle_slow(self, delivery: Delivery) -> bool:
        """Apply on_slow; whether the delivery should still be handed out."""
        core, reader = self._core, delivery.reader
        if core.on_slow == "catch_up":
            return True
        if core.on_slow == "skip":
            asyncio.run_coroutine_threadsafe(core.skip_to_now(reader), core.core.loop).result()
            return False
        self._ended = True
        if core.on_slow == "raise":
            core.core.loop.call_soon_threadsafe(core.squawk, reader)
            raise self._slow_error(reader)
        self.close()
        return False

    def _iterators(self) -> Iterator[Iterator[Message]]:
        """What is left of the last delivery, then delivery by delivery."""
        while True:
            yield self._current
            yield from self._batches
            delivery = self._next_delivery(self._patience_s)
            if delivery is None:
                return
            self._grant(delivery)
            self._batches = self._messages(delivery)

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._iterators())

    def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._next_message()
            if message is not None:
                return message
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            delivery = self._next_delivery(left)
            if delivery is None:
                raise self._closed_error()
            self._grant(delivery)
            self._batches = self._messages(delivery)

    def batches(self) -> Iterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        yield from self._leftover()
        while (delivery := self._next_delivery(self._patience_s)) is not None:
            yield from self._record_batches(delivery)
            self._grant(delivery)

    def offset_batches(self) -> Iterator[tuple[int, Any]]:
        """As they were stored: the offset of the first message, and a pyarrow.RecordBatch of timestamp, key, value,
        headers. For subscriptions of one partition, instead of messages or batches.
        """
        while (delivery := self._next_delivery(self._patience_s)) is not None:
            yield from self._decoded(delivery, offset_batches)
            self._grant(delivery)

    def close(self) -> None:
        """End it; a thread that waits in it is released."""
        if not self._core.closed and not self._core.core.closed:
            asyncio.run_coroutine_threadsafe(self._core.close(), self._core.core.loop).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncInbox:
    """A queue for one loop, put to from that loop."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        self._queue.put_nowait(item)

    async def get(self, timeout: float | None) -> Any:
        """The next item; TimeoutError when none comes in time. One that waits is had at once."""
        if not self._queue.empty() or timeout is None:
            return await self._queue.get()
        return await asyncio.wait_for(self._queue.get(), timeout)


class AsyncSubscription(_Face):
    """The same for `async` code."""

    def __init__(self, core: SubscriptionCore, inbox: AsyncInbox) -> None:
        super().__init__(core)
        self._inbox = inbox

    async def _next_delivery(self, timeout: float | None) -> Delivery | None:
        while not self._ended:
            try:
                item = await self._inbox.get(timeout)
            except TimeoutError as error:
                raise DeadlineExceeded(f"No message within {timeout:.3g} s.", operation="subscribe") from error
            if item is None or isinstance(item, StentorError):
                self._ended = True
                if item is not None:
                    raise item
                return None
            if item.next_offset <= item.reader.taken:
                continue
            if self._is_slow(item) and not await self._handle_slow(item):
                continue
            delivery: Delivery = item
            return delivery
        return None

    def _damaged(self, delivery: Delivery, error: StentorError) -> StentorError:
        core = self._core
        confirming = core.confirm_damage(delivery.reader, delivery.next_offset, error)
        self._confirming = core.core.loop.create_task(confirming)  # nobody can wait for it here
        return error

    async def _handle_slow(self, delivery: Delivery) -> bool:
        core, reader = self._core, delivery.reader
        if core.on_slow == "catch_up":
            return True
        if core.on_slow == "skip":
            await core.skip_to_now(reader)
            return False
        self._ended = True
        if core.on_slow == "raise":
            core.squawk(reader)
            raise self._slow_error(reader)
        await core.close()
        return False

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            for message in self._current:
                yield message
            for found in self._batches:
                for message in found:
                    yield message
            delivery = await self._next_delivery(self._patience_s)
            if delivery is None:
                return
            self._core.grant(delivery.reader, len(delivery.body))
            self._batches = self._messages(delivery)

    async def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._next_message()
            if message is not None:
                return message
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            delivery = await self._next_delivery(left)
            if delivery is None:
                raise self._closed_error()
            self._core.grant(delivery.reader, len(delivery.body))
            self._batches = self._messages(delivery)

    async def batches(self) -> AsyncIterator[Any]:
        """The same as pyarrow.RecordBatch."""
        for left in self._leftover():
            yield left
        while (delivery := await self._next_delivery(self._patience_s)) is not None:
            for found in self._record_batches(delivery):
                yield found
            self._core.grant(delivery.reader, len(delivery.body))

    async def offset_batches(self) -> AsyncIterator[tuple[int, Any]]:
        """As they were stored; see Subscription.offset_batches."""
        while (delivery := await self._next_delivery(self._patience_s)) is not None:
            for found in self._decoded(delivery, offset_batches):
                yield found
            self._core.grant(delivery.reader, len(delivery.body))

    async def close(self) -> None:
        """End it."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
