"""Subscriptions: a client's cursors on topics — live, catching up, or told.

The core (`client.subscription_core`) puts deliveries into an inbox. `Subscription` and `AsyncSubscription` take
them from there, decode them in the application's thread (`client.at_hand`), and grant credit for what was taken.

    inbox ──hold──► delivery at hand ──next_batch──► current batch ──next──► messages, to whoever asks

Taking a message of the current batch is for all at once. Going on to the next batch, or waiting for the next delivery,
is for one at a time: threads take turns by a lock; tasks do it without awaiting in between. So nobody replaces what
another has not finished with.
"""

from __future__ import annotations

import queue
import threading
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from stentor.client.arrow import row_decoder, tables
from stentor.client.at_hand import AtHand
from stentor.client.deadline import Deadline
from stentor.client.help import explained
from stentor.client.reader import joined
from stentor.client.subscription_core import describe_lag
from stentor.errors import Closed, DeadlineExceeded, SlowSubscriber, StentorError
from stentor.wire.header import appended_at_us

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stentor.client.at_hand import Rows
    from stentor.client.inbox import AsyncInbox
    from stentor.client.message import Message
    from stentor.client.options import SubscriptionStatistics
    from stentor.client.reader import Delivery, Event
    from stentor.client.subscription_core import SubscriptionCore


_SLICE_S = 1.0  # a thread that waits longer looks up this often, so that Ctrl-C is heard


class _SubscriptionFace(AtHand):
    """What the sync and async subscriptions share."""

    def __init__(self, core: SubscriptionCore) -> None:
        super().__init__()
        self._core = core
        # A read that has an end must make progress; one without may be quiet for ever.
        self._patience_s = None if core.end is None else core.core.timeout
        self._again: Delivery | None = None  # it should have been skipped, which failed: it is the next one
        self._ended = False
        core.look = self._look
        self._failure: StentorError | None = None  # why it ended, for everyone who takes from it

    @property
    def topics(self) -> list[str]:
        """The topics it reads now."""
        return self._core.topics()

    def statistics(self) -> SubscriptionStatistics:
        """Lag and position of each partition."""
        return self._core.statistics()

    def positions(self) -> list[str]:
        """How far it has come: for each partition the place behind the last message that was handed out.

        Store the list (it is text, which JSON takes as it is) together with the results of these messages, and give it
        as `start=` to go on. `Position.parse` reads one of them. Where threads or tasks share the subscription, a
        message counts as soon as one of them was handed it; nothing is passed over that nobody was handed.
        """
        return self._core.positions(self._handed)

    def events(self) -> list[Event]:
        """What happened since the last call: skipped ranges, ranges that a compaction thinned out before they came,
        topics found or gone.
        """
        events, self._core.events = self._core.events, []
        return joined(events)

    def _check_process(self) -> None:
        """After a fork the loop is not there: nothing would come, and what is at hand is the parent's."""
        if self._core.core.forked:
            self._core.core.check_open()

    def _put_back(self) -> Delivery | None:
        delivery, self._again = self._again, None
        return delivery

    def _end(self, failure: StentorError | None = None) -> None:
        self._ended, self._failure = True, failure

    def _check_failure(self) -> None:
        """All who share it hear why it ended: the loop of one must not look as if it had come to the end."""
        if self._failure is not None:
            raise self._failure

    def _is_due(self, delivery: Delivery) -> bool:
        """Whether it was not skipped over while it was on its way."""
        return delivery.next_offset > delivery.reader.taken

    def _is_slow(self, delivery: Delivery) -> bool:
        core = self._core
        if core.max_lag is None:
            return False
        if delivery.overtakes and core.on_slow == "raise":
            return True
        return core.too_slow(delivery.reader, appended_at_us(delivery.body))

    def _look(self) -> None:
        """Called by the client's loop now and then: a handler that is too slow gets no more of what is at hand."""
        handed, delivery, core = self._handed, self._delivery, self._core
        if self._ended or handed is None or delivery is None or handed.reader is not delivery.reader:
            return
        position = handed.next_offset()
        if position < delivery.next_offset and core.too_slow(delivery.reader, appended_at_us(delivery.body), position):
            core.squawk(delivery.reader)
            self._end(self._slow_error(delivery))
            self._batches, self._rows = iter(()), iter(())
            list(self._current)  # in one step: who takes from it finds it used up

    def _slow_error(self, delivery: Delivery) -> SlowSubscriber:
        reader = delivery.reader
        if delivery.overtakes:
            return SlowSubscriber(
                f"A compaction of {reader.topic}/{reader.partition} removed up to {delivery.removed} messages before"
                " this subscriber came to them.",
                hint="What is left from there on is the newest message of each key: subscribe again at"
                " `positions()`, or choose on_slow='catch_up', which goes on and tells by an event.",
                operation="subscribe",
                object=f"{reader.topic}/{reader.partition}",
            )
        return SlowSubscriber(
            f"This subscriber is {reader.lag} messages behind on {reader.topic}/{reader.partition};"
            f" max_lag is {describe_lag(self._core.max_lag)}.",
            hint="Make the handler faster, spread the topic over more partitions and subscribers,"
            " or choose on_slow='catch_up' or 'skip'.",
            operation="subscribe",
            object=f"{reader.topic}/{reader.partition}",
        )

    def _late(self, deadline: Deadline) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"No message within {deadline.seconds:.3g} s.",
            operation="subscribe",
            object=", ".join(self._core.patterns),
        )

    def _closed_error(self) -> Closed:
        return Closed("This subscription has ended.", hint="Subscribe again.")


@explained("Subscription")
class Subscription(_SubscriptionFace):
    """Messages as they come. Iterate, or `get(timeout=...)`; use as a context manager.

    Threads may share one: each message goes to one of them. Every thread has a loop of its own (`for message in
    subscription`), or calls `get`, or iterates `batches()`; they may do different things. Messages of a partition are
    handed out in order; who is done with one first depends on the threads. `close()` releases all who wait.
    """

    def __init__(self, core: SubscriptionCore, inbox: queue.SimpleQueue[Any]) -> None:
        super().__init__(core)
        self._inbox = inbox
        self._turn = threading.Lock()  # who has it goes on to another batch, or waits for a delivery

    # --- one thread at a time -------------------------------------------------------------------

    def _take_turn(self, deadline: Deadline) -> None:
        """Waits in slices: a signal that comes just before a wait without end would not be seen until it ends."""
        self._check_process()
        if self._turn.acquire(blocking=False):
            return
        while not self._turn.acquire(timeout=deadline.left_of(_SLICE_S)):
            if deadline.has_passed():
                raise self._late(deadline)

    def _take(self, deadline: Deadline) -> Any:
        """The next item of the inbox, also waited for in slices."""
        while True:
            try:
                return self._inbox.get(timeout=deadline.left_of(_SLICE_S))
            except queue.Empty:
                if deadline.has_passed():
                    raise self._late(deadline) from None

    def _next_delivery(self, deadline: Deadline) -> Delivery | None:
        """The next delivery; None when the subscription has ended."""
        while not self._ended:
            item = self._put_back() or self._take(deadline)
            if item is None or isinstance(item, StentorError):
                self._end(item)
                break
            delivery: Delivery = item
            if self._is_due(delivery) and (not self._is_slow(delivery) or self._handle_slow(delivery)):
                self._grant(delivery)
                return delivery
            self._grant(delivery)  # skipped over: what it took of the credit is free again
        self._check_failure()
        return None

    def _go_on(self, spent: Iterator[Message], deadline: Deadline) -> bool:
        """Make another batch the current one, unless another thread has done so; False at the end."""
        self._take_turn(deadline)
        try:
            while self._current is spent and not self._next_batch():
                delivery = self._next_delivery(deadline)
                if delivery is None:
                    return False
                self._hold(delivery)
            return True
        finally:
            self._turn.release()

    def _take_rows(self, deadline: Deadline) -> Rows | None:
        """The next batch as Arrow, for this thread; None at the end."""
        self._take_turn(deadline)
        try:
            while (found := self._next_rows()) is None:
                delivery = self._next_delivery(deadline)
                if delivery is None:
                    return None
                self._hold_rows(delivery)
            return found
        finally:
            self._turn.release()

    def _grant(self, delivery: Delivery) -> None:
        with suppress(RuntimeError):  # the client was closed: nobody needs credit any more
            self._core.core.loop.call_soon_threadsafe(self._core.streams.grant, delivery.reader, len(delivery.body))

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
        if core.on_slow == "raise":
            core.core.loop.call_soon_threadsafe(core.squawk, reader)
            self._end(self._slow_error(delivery))
            return False
        self._end()
        self.close()
        return False

    def _skip(self, delivery: Delivery) -> None:
        try:
            self._core.core.wait_for(self._core.skip_to_now(delivery.reader))
        except BaseException:
            self._again = delivery
            raise

    # --- what applications call -----------------------------------------------------------------

    def _iterators(self) -> Iterator[Iterator[Message]]:
        """What is left of the batch at hand, then batch by batch."""
        self._check_process()
        while True:
            current = self._current
            yield current
            if self._current is current and not self._go_on(current, Deadline(self._patience_s)):
                return

    def __iter__(self) -> Iterator[Message]:
        return chain.from_iterable(self._iterators())

    def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        self._check_process()
        current = self._current
        message = next(current, None)
        if message is not None:
            return message
        deadline = Deadline(timeout)
        while message is None:
            if not self._go_on(current, deadline):
                raise self._closed_error()
            current = self._current
            message = next(current, None)
        return message

    def batches(self) -> Iterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        with_position = tables().with_position
        while (found := self._take_rows(Deadline(self._patience_s))) is not None:
            reader, first, rows = found
            yield with_position(rows, reader.topic, reader.partition, first)

    def offset_batches(self, *, appended_at: bool = False) -> Iterator[tuple[int, Any]]:
        """The offset of the first message, and a pyarrow.RecordBatch of timestamp, key, value, headers and, if asked
        for, appended_at; the offsets of its messages follow one by one. Small batches are joined; others come as they
        were stored. For subscriptions of one partition, where nobody needs to be told which.
        """
        self._row_decoder = row_decoder(appended_at=appended_at)
        runs = tables().runs
        while (found := self._take_rows(Deadline(self._patience_s))) is not None:
            yield from runs(*found[1:])

    def close(self) -> None:
        """End it; whoever waits in it is released. After a fork it is the parent's, and stays open."""
        core = self._core
        if not (core.closed or core.core.closed or core.core.forked):
            with suppress(Closed):  # by the client, at this moment
                core.core.wait_for(core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("Subscription", asynchronous=True)
class AsyncSubscription(_SubscriptionFace):
    """The same for `async` code.

    Tasks of one loop may share one: each message goes to one of them, whether they loop, call `get` or iterate
    `batches()`. Nothing is lost when one of them is cancelled. `close()` releases all who wait.
    """

    def __init__(self, core: SubscriptionCore, inbox: AsyncInbox) -> None:
        super().__init__(core)
        self._inbox = inbox
        self._handling = False  # some task handles a delivery that came too late; the others wait

    # --- one task at a time ---------------------------------------------------------------------

    async def _more(self, hold: Callable[[Delivery], None], deadline: Deadline) -> bool:
        """Nothing is at hand: hold the next delivery, or wait until it is worth looking again. False at the end."""
        self._check_process()
        self._core.core.check_loop()
        if self._ended:
            self._check_failure()
            return False
        if self._handling or not (self._again or self._inbox.items):
            try:
                await self._inbox.changed(deadline)
            except TimeoutError as error:
                raise self._late(deadline) from error
            return True
        item = self._put_back() or self._inbox.items.popleft()
        if item is None or isinstance(item, StentorError):
            self._finish(item)
        elif not self._is_due(item) or (self._is_slow(item) and not await self._handle_slow(item)):
            self._grant(item)
        else:
            self._grant(item)
            hold(item)
        return True

    def _finish(self, failure: StentorError | None = None) -> None:
        self._end(failure)
        self._inbox.wake_all()

    def _grant(self, delivery: Delivery) -> None:
        self._core.streams.grant(delivery.reader, len(delivery.body))

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
        elif core.on_slow == "raise":
            core.squawk(reader)
            self._finish(self._slow_error(delivery))
        else:
            self._finish()
            await core.close()
        return False

    async def _skip(self, delivery: Delivery) -> None:
        self._handling = True
        try:
            await self._core.skip_to_now(delivery.reader)
        except BaseException:
            self._again = delivery
            raise
        finally:
            self._handling = False
            self._inbox.wake_all()

    # --- what applications call -----------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        self._check_process()
        while True:
            current = self._current
            for message in current:
                yield message
            while self._current is current and not self._next_batch():
                if not await self._more(self._hold, Deadline(self._patience_s)):
                    return
            self._inbox.wake()  # there may be more at hand than this task takes

    async def get(self, timeout: float | None = None) -> Message:
        """The next message; DeadlineExceeded when none comes in time."""
        self._check_process()
        message = self._next_message()
        if message is None:
            message = await self._wait_for_message(Deadline(timeout))
        self._inbox.wake()
        return message

    async def _wait_for_message(self, deadline: Deadline) -> Message:
        while await self._more(self._hold, deadline):
            message = self._next_message()
            if message is not None:
                return message
        raise self._closed_error()

    async def _take_rows(self, deadline: Deadline) -> Rows | None:
        while (found := self._next_rows()) is None:
            if not await self._more(self._hold_rows, deadline):
                return None
        self._inbox.wake()
        return found

    async def batches(self) -> AsyncIterator[Any]:
        """The same as pyarrow.RecordBatch: topic, partition, offset, timestamp, key, value, headers."""
        self._check_process()
        with_position = tables().with_position
        while (found := await self._take_rows(Deadline(self._patience_s))) is not None:
            reader, first, rows = found
            yield with_position(rows, reader.topic, reader.partition, first)

    async def offset_batches(self, *, appended_at: bool = False) -> AsyncIterator[tuple[int, Any]]:
        """The offset of the first message, and a pyarrow.RecordBatch of timestamp, key, value, headers and, if asked
        for, appended_at; the offsets of its messages follow one by one. Small batches are joined; others come as they
        were stored. For subscriptions of one partition, where nobody needs to be told which.
        """
        self._row_decoder = row_decoder(appended_at=appended_at)
        self._check_process()
        runs = tables().runs
        while (found := await self._take_rows(Deadline(self._patience_s))) is not None:
            for run in runs(*found[1:]):
                yield run

    async def close(self) -> None:
        """End it; whoever waits in it is released. After a fork it is the parent's, and stays open."""
        if not self._core.core.forked:
            await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
