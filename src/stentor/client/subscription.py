"""Subscriptions: a client's cursors on topics — live, catching up, or told.

The core (`client.streams`) puts deliveries into an inbox. `Subscription` and `AsyncSubscription` take
them from there, decode them in the application's thread, and grant credit for what was taken.

One delivery is *at hand*. What the application has not had of it stays with the subscription, never with an
iterator: a loop may be left and another one begun, and messages and batches may be asked for in turn.
"""

from __future__ import annotations

import asyncio
import queue
import time
from collections import deque
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from stentor.client.decode import decode_messages, offset_batches
from stentor.client.tables import with_position
from stentor.errors import Closed, CorruptData, DeadlineExceeded, SlowSubscriber, StentorError

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
        self._delivery: Delivery | None = None  # at hand, as messages or as rows, whichever was asked for last:
        self._current: Iterator[Message] = iter(())  # messages of its batch at hand
        self._batches: Iterator[Iterator[Message]] = iter(())  # its further batches
        self._rows: Iterator[tuple[int, Any]] = iter(())  # its further batches as Arrow, with their first offsets
        self._again: Delivery | None = None  # it should have been skipped, which failed: it is the next one
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

    def _hold(self, delivery: Delivery) -> None:
        """It is the delivery at hand, as messages."""
        self._delivery = delivery
        self._batches = self._messages(delivery, delivery.reader.start)

    def _hold_rows(self, delivery: Delivery) -> None:
        """It is the delivery at hand, as Arrow."""
        self._delivery = delivery
        self._rows = self._decoded(delivery, offset_batches, delivery.reader.start)

    def _messages(self, delivery: Delivery, floor: int) -> Iterator[Iterator[Message]]:
        """One iterator per batch; each becomes the current one, so that nothing is lost in between."""
        for found in self._decoded(delivery, decode_messages, floor):
            self._current = found
            yield found

    def _decoded(self, delivery: Delivery, decode: Callable[..., Iterator[Any]], floor: int) -> Iterator[Any]:
        reader = delivery.reader
        try:
            yield from decode(delivery.body, reader.topic, reader.partition, floor, reader.end)
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
            if not self._next_batch():
                return None

    def _next_batch(self) -> bool:
        """Make the next batch of the delivery at hand the current one; False when none is left."""
        if next(self._batches, None) is not None:
            return True
        left = next(self._rows, None)
        if left is None:
            return False
        assert self._delivery is not None
        self._rows = iter(())
        self._batches = self._messages(self._delivery, left[0])
        return next(self._batches, None) is not None

    def _next_rows(self) -> tuple[int, Any] | None:
        """The next batch of the delivery at hand as Arrow, with the offset of its first message."""
        found = next(self._rows, None)
        if found is None and (left := self._next_message()) is not None:
            assert self._delivery is not None
            deque(self._current, maxlen=0)  # emptied, not replaced: a loop that was not left yet may hold it
            self._batches = iter(())
            self._rows = self._decoded(self._delivery, offset_batches, left.offset)
            found = next(self._rows, None)
        return found

    def _with_position(self, first_offset: int, rows: Any) -> Any:
        assert self._delivery is not None
        reader = self._delivery.reader
        return with_position(rows, reader.topic, reader.partition, first_offset)

    def _check_process(self) -> None:
        """After a fork the loop is not there: nothing would come, and what is at hand is the parent's."""
        if self._core.core.forked:
            self._core.core.check_open()

    def _put_back(self) -> Delivery | None:
        delivery, self._again = self._again, None
        return delivery

    def _is_due(self, delivery: Delivery) -> bool:
        """Whether it was not skipped over while it was on its way."""
        return delivery.next_offset > delivery.reader.taken

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
        self._check_process()
        while not self._ended:
            try:
                item = self._put_back() or self._take(timeout)
            except queue.Empty:
                raise DeadlineExceeded(
                    f"No message within {timeout:.3g} s.", operation="subscribe", object=", ".join(self._core.patterns)
                ) from None
            if item is None or isinstance(item, StentorError):
                self._ended = True
                if item is not None:
                    raise item
                return None
            delivery: Delivery = item
            if self._is_due(delivery) and (not self._is_slow(delivery) or self._handle_slow(delivery)):
                return delivery
            self._grant(delivery)  # skipped over: what it took of the credit is free again
        return None

    def _grant(self, delivery: Delivery) -> None:
        with suppress(RuntimeError):  # the client was closed: nobody needs credit any more
            self._core.core.loop.call_soon_threadsafe(self._core.grant, delivery.reader, len(delivery.body))

    def _damaged(self, delivery: Delivery, error: StentorError) -> StentorError:
        core = self._core
        confirming = core.confirm_damage(delivery.reader, delivery.next_offset, error)
        told: StentorError = core.core.wait_for(confirming)
        return told

    def _handle_slow(self, delivery: Delivery) -> bool:
        """Apply on_slow; whether the delivery should still be handed out."""
        core, reader = self._core, delivery.reader
        if core.on_slow == "catch_up":
            return True
        if core.on_slow == "skip":
            self._skip(delivery)
            return False
        self._ended = True
        if core.on_slow == "raise":
            core.core.loop.call_soon_threadsafe(core.squawk, reader)
            raise self._slow_error(reader)
        self.close()
        return False

    def _skip(self, delivery: Delivery) -> None:
        try:
            self._core.core.wait_for(self._core.skip_to_now(delivery.reader))
        except BaseException:
            self._again = delivery
            raise

    def _iterators(self) -> Iterator[Iterator[Message]]:
        """What is left of the delivery at hand, then delivery by delivery."""
        self._check_process()
        while True:
            current = self._current
            yield current
            if self._current is not current or self._next_batch():  # a get() in the loop may have gone on already
                continue
            delivery = self._next_delivery(self._patience_s)
            if delivery is None:
                return
            self._grant(delivery)
            self._hold(delivery)

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._iterators())

    def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        self._check_process()
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
            self._hold(delivery)

    def batches(self) -> Iterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        for first_offset, rows in self.offset_batches():
            yield self._with_position(first_offset, rows)

    def offset_batches(self) -> Iterator[tuple[int, Any]]:
        """As they were stored: the offset of the first message, and a pyarrow.RecordBatch of timestamp, key, value,
        headers. For subscriptions of one partition, where nobody needs to be told which.
        """
        self._check_process()
        while True:
            while (found := self._next_rows()) is not None:
                yield found
            delivery = self._next_delivery(self._patience_s)
            if delivery is None:
                return
            self._grant(delivery)
            self._hold_rows(delivery)

    def close(self) -> None:
        """End it; a thread that waits in it is released. After a fork it is the parent's, and stays open."""
        core = self._core
        if not (core.closed or core.core.closed or core.core.forked):
            with suppress(Closed):  # by the client, at this moment
                core.core.wait_for(core.close())

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
        self._check_process()
        while not self._ended:
            try:
                item = self._put_back() or await self._inbox.get(timeout)
            except TimeoutError as error:
                raise DeadlineExceeded(f"No message within {timeout:.3g} s.", operation="subscribe") from error
            if item is None or isinstance(item, StentorError):
                self._ended = True
                if item is not None:
                    raise item
                return None
            delivery: Delivery = item
            if self._is_due(delivery) and (not self._is_slow(delivery) or await self._handle_slow(delivery)):
                return delivery
            self._grant(delivery)
        return None

    def _grant(self, delivery: Delivery) -> None:
        self._core.grant(delivery.reader, len(delivery.body))

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
            await self._skip(delivery)
            return False
        self._ended = True
        if core.on_slow == "raise":
            core.squawk(reader)
            raise self._slow_error(reader)
        await core.close()
        return False

    async def _skip(self, delivery: Delivery) -> None:
        try:
            await self._core.skip_to_now(delivery.reader)
        except BaseException:
            self._again = delivery
            raise

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._check_process()
        while True:
            current = self._current
            for message in current:
                yield message
            if self._current is not current or self._next_batch():
                continue
            delivery = await self._next_delivery(self._patience_s)
            if delivery is None:
                return
            self._grant(delivery)
            self._hold(delivery)

    async def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        self._check_process()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            message = self._next_message()
            if message is not None:
                return message
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            delivery = await self._next_delivery(left)
            if delivery is None:
                raise self._closed_error()
            self._grant(delivery)
            self._hold(delivery)

    async def batches(self) -> AsyncIterator[Any]:
        """The same as pyarrow.RecordBatch."""
        async for first_offset, rows in self.offset_batches():
            yield self._with_position(first_offset, rows)

    async def offset_batches(self) -> AsyncIterator[tuple[int, Any]]:
        """As they were stored; see Subscription.offset_batches."""
        self._check_process()
        while True:
            while (found := self._next_rows()) is not None:
                yield found
            delivery = await self._next_delivery(self._patience_s)
            if delivery is None:
                return
            self._grant(delivery)
            self._hold_rows(delivery)

    async def close(self) -> None:
        """End it. After a fork it is the parent's, and stays open."""
        if not self._core.core.forked:
            await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
