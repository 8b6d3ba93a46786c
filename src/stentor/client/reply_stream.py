"""Streamed answers: the parts of one answer, as its responder sends them.

A responder may be ahead of the caller by STREAM_CREDIT_BYTES; then it waits until some of it was taken.
"""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING, Any, Final, Self

from stentor.client.deadline import Deadline
from stentor.client.help import explained
from stentor.client.inbox import AsyncInbox
from stentor.client.reply import Reply, shown
from stentor.core import service_limits
from stentor.errors import Closed, DeadlineExceeded, StentorError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from stentor.client.asking import Asking, Question
    from stentor.client.core import ClientCore
    from stentor.client.link import BrokerLink

_END: Final = object()
_CREDIT_STEP: Final = service_limits.STREAM_CREDIT_BYTES // 4  # a frame for every part would be as much as the parts


class StreamCore:
    """One streamed answer, in the client's loop."""

    def __init__(self, core: ClientCore, asking: Asking, question: Question, put: Callable[[Any], None]) -> None:
        self.core = core
        self.correlation = shown(question.correlation)
        self._asking = asking
        self._question = question
        self._put = put
        self._place: tuple[BrokerLink, int] | None = None
        self._owed = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self.core.loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            asked, sending = self._asking.ask(self._question, self._put, self._begun), self._question.sending
            await (asked if sending is None else sending.awaited(asked))
        except StentorError as error:
            self._put(error)
        except asyncio.CancelledError:
            self._put(Closed("The answer was closed."))
            raise
        else:
            self._put(_END)

    def _begun(self, link: BrokerLink, number: int) -> None:
        self._place = link, number

    def taken(self, size: int) -> None:
        """The application has taken a part of so many bytes."""
        self._owed += size
        if self._owed >= _CREDIT_STEP and self._place is not None:
            link, number = self._place
            link.asks.credit(number, self._owed)
            self._owed = 0

    async def close(self) -> None:
        """Tell the responder that nobody wants the rest."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class _Parts:
    """What both forms of a stream have in common: what comes out of the inbox, and when it ends."""

    def __init__(self, core: StreamCore) -> None:
        self._core = core
        self._over = False

    def _late(self, deadline: Deadline) -> DeadlineExceeded:
        return DeadlineExceeded(
            f"No part of the answer came within {deadline.seconds:g} s.",
            hint="The answer goes on: get() again, or close() it.",
            operation="get",
        )

    def _unpack(self, item: Any) -> tuple[Reply, int] | None:
        """A part and its size; None at the end."""
        if item is _END:
            self._over = True
            return None
        if isinstance(item, StentorError):
            self._over = True
            raise item
        value, headers, size = item
        return Reply(value, headers, self._core.correlation), size


def _over() -> Closed:
    return Closed("There are no more parts of this answer.")


@explained("ReplyStream")
class ReplyStream(_Parts):
    """The parts of a streamed answer: iterate over them. Use as a context manager to give up early."""

    def __init__(self, core: StreamCore, inbox: queue.SimpleQueue[Any]) -> None:
        super().__init__(core)
        self._inbox = inbox

    def __iter__(self) -> Iterator[Reply]:
        while (found := self._take(Deadline(None))) is not None:
            yield found

    def get(self, timeout: float | None = None) -> Reply:
        """Return the next part; DeadlineExceeded if none comes in time, Closed behind the last one.

        Without a timeout it waits until the deadline of the whole answer.
        """
        found = self._take(Deadline(timeout))
        if found is None:
            raise _over()
        return found

    def _take(self, deadline: Deadline) -> Reply | None:
        if self._over:
            return None
        try:
            item = self._inbox.get(timeout=deadline.left())
        except queue.Empty:
            raise self._late(deadline) from None
        found = self._unpack(item)
        if found is None:
            return None
        core = self._core.core
        core.loop.call_soon_threadsafe(self._core.taken, found[1])
        return found[0]

    def close(self) -> None:
        """Take no more. The responder is told."""
        if not self._over:
            self._over = True
            self._core.core.wait_for(self._core.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("ReplyStream", asynchronous=True)
class AsyncReplyStream(_Parts):
    """The parts of a streamed answer: iterate over them. Use as a context manager to give up early."""

    def __init__(self, core: StreamCore, inbox: AsyncInbox) -> None:
        super().__init__(core)
        self._inbox = inbox

    async def __aiter__(self) -> AsyncIterator[Reply]:
        while (found := await self._take(Deadline(None))) is not None:
            yield found

    async def get(self, timeout: float | None = None) -> Reply:
        """Return the next part; DeadlineExceeded if none comes in time, Closed behind the last one.

        Without a timeout it waits until the deadline of the whole answer.
        """
        found = await self._take(Deadline(timeout))
        if found is None:
            raise _over()
        return found

    async def _take(self, deadline: Deadline) -> Reply | None:
        """The answer's own deadline comes through the inbox, so that it is said in one way."""
        while not self._over and not self._inbox.items:
            try:
                await self._inbox.changed(deadline)
            except TimeoutError as error:
                raise self._late(deadline) from error
        if self._over:
            self._inbox.wake()  # another task may wait for a part, too
            return None
        found = self._unpack(self._inbox.items.popleft())
        if found is None:
            self._inbox.wake()
            return None
        self._core.taken(found[1])
        return found[0]

    async def close(self) -> None:
        """Take no more. The responder is told."""
        if not self._over:
            self._over = True
            await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
