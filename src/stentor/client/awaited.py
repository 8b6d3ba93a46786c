"""Messages whose sender waits for the answer: one waiter for each, and what its deadline ends.

The batches of such a producer have no deadline of their own: each waiter has one. When it passes,

    the message is in no log, and on no way to one    it is withdrawn: DeadlineExceeded, it is never published
    it was sent, and nobody has answered              UnknownOutcome: it may be in the log, or get there

and whoever shares a batch or a lane with it goes on waiting (`Lane.withdraw`).
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from stentor.client.loop_thread import GRACE_S
from stentor.errors import UnknownOutcome

if TYPE_CHECKING:
    from stentor.client.deadline import Deadline
    from stentor.client.message import Receipt
    from stentor.client.producer_core import ProducerCore
    from stentor.errors import StentorError


def check_time_left(producer: ProducerCore, deadline: Deadline) -> None:
    """Raise DeadlineExceeded before anything is sent, if the time is over by then."""
    if deadline.has_passed():
        late = producer.core.late("publish", deadline.seconds)
        late.message += " It was not published."
        raise late


class TaskWaiter:
    """Waits in a task of the client's loop. Hand it over as `on_delivery`, then await it."""

    __slots__ = ("_deadline", "_done", "_producer")

    def __init__(self, producer: ProducerCore, deadline: Deadline) -> None:
        check_time_left(producer, deadline)
        self._producer = producer
        self._deadline = deadline
        self._done: asyncio.Future[Receipt] = producer.core.loop.create_future()

    def __call__(self, receipt: Receipt | None, error: StentorError | None) -> None:
        if self._done.done():
            return
        if error is not None:
            self._done.set_exception(error)
        elif receipt is not None:
            self._done.set_result(receipt)

    async def acknowledged(self) -> Receipt:
        """Return the receipt. At the deadline, or when the task is cancelled, the message is given up."""
        producer, deadline = self._producer, self._deadline
        timer = producer.core.loop.call_later(deadline.left() or 0.0, producer.withdraw, self, deadline.seconds)
        try:
            return await self._done
        except asyncio.CancelledError:
            producer.withdraw(self, deadline.seconds)
            raise
        finally:
            timer.cancel()


class ThreadWaiter:
    """Waits in a thread of the application. A bare lock: a Future's condition costs more than the rest of the call."""

    __slots__ = ("_deadline", "_lock", "_producer", "error", "receipt")

    def __init__(self, producer: ProducerCore, deadline: Deadline) -> None:
        check_time_left(producer, deadline)
        self._producer = producer
        self._deadline = deadline
        self._lock = threading.Lock()
        self._lock.acquire()
        self.receipt: Receipt | None = None
        self.error: StentorError | None = None

    def __call__(self, receipt: Receipt | None, error: StentorError | None) -> None:
        self.receipt, self.error = receipt, error
        self._lock.release()

    def acknowledged(self) -> Receipt:
        """Return the receipt. At the deadline, or when the wait is interrupted, the message is given up."""
        producer, deadline = self._producer, self._deadline
        answered = False
        try:
            answered = self._lock.acquire(timeout=deadline.left() or 0.0)
        finally:
            if not answered:
                self._withdraw(producer, deadline.seconds)
        if not answered and not self._lock.acquire(timeout=GRACE_S):
            raise UnknownOutcome(
                f"publish did not finish within {deadline.seconds:g} s, and the client's own thread does not run.",
                hint="Read the topic to find out; publishing it again may double it.",
                operation="publish",
                object=producer.topic,
            )
        if self.error is not None:
            raise self.error
        assert self.receipt is not None
        return self.receipt

    def _withdraw(self, producer: ProducerCore, seconds: float) -> None:
        with suppress(RuntimeError):  # the loop has ended: `close` has answered everybody
            producer.core.loop.call_soon_threadsafe(producer.withdraw, self, seconds)
