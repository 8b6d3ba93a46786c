"""Who waits for something of a link, by correlation id: requests and publishes for their answers, streams for
deliveries.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from stentor import limits
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.errors import StentorError


class StreamSink(Protocol):
    """Who takes a stream's deliveries."""

    def delivered(self, body: memoryview) -> None: ...
    def state(self, committed: int, epoch: int) -> None: ...
    def ended(self, ended: messages.StreamEnded) -> None: ...


class PublishSink(Protocol):
    """Who takes a publish's answer."""

    def published(self, base_offset: int, epoch: int, appended_at_us: int, *, refused: bool = False) -> None: ...
    def failed(self, error: StentorError) -> None: ...


class Waiting:
    """All who wait for something of one link."""

    def __init__(self) -> None:
        self.requests: dict[int, asyncio.Future[Any]] = {}
        self.publishes: dict[int, PublishSink] = {}
        self.streams: dict[int, StreamSink] = {}
        # Of requests, but for polls: those that somebody waits for, and those that the broker has not answered.
        self.turns = asyncio.Semaphore(limits.CLIENT_REQUESTS_UNDER_WAY_MAX)
        self.unanswered = asyncio.Semaphore(limits.REQUESTS_UNDER_WAY_MAX)
        self._correlations = 0

    def __bool__(self) -> bool:
        return bool(self.publishes or self.requests or self.streams)

    def next(self) -> int:
        """A correlation id that is not in use."""
        self._correlations += 1
        return self._correlations

    def leave(self, correlation: int) -> None:
        """A request's caller has its answer, or waits no longer. Until it is answered it counts at the broker."""
        answer = self.requests.get(correlation)
        if answer is None or not answer.cancelled():  # answered, or never sent
            self.requests.pop(correlation, None)
            self.unanswered.release()
            return
        orphan = self.requests[correlation] = answer.get_loop().create_future()

        def answered(found: asyncio.Future[Any]) -> None:
            if not found.cancelled():
                found.exception()  # nobody needs to hear of it
            self.requests.pop(correlation, None)
            self.unanswered.release()

        orphan.add_done_callback(answered)

    def disown(self, sinks: set[Any]) -> None:
        """Whatever is answered to what these have published, they do not hear of it."""
        self.publishes = {key: sink for key, sink in self.publishes.items() if sink not in sinks}

    def take(self, kind: int, correlation: int, body: memoryview) -> bool:
        """A frame for somebody who waits; False if it is of another kind."""
        taker = _TAKERS.get(kind)
        if taker is not None:
            taker(self, correlation, body)
        return taker is not None

    def answered(self, correlation: int, body: memoryview) -> None:
        """A request was answered."""
        waiting = self.requests.get(correlation)
        if waiting is not None and not waiting.done():
            waiting.set_result(messages.decode(body, messages.Response))

    def failed(self, correlation: int, error: StentorError) -> bool:
        """A publish or a request was refused; False if nobody waits for either."""
        publish = self.publishes.pop(correlation, None)
        waiting = self.requests.get(correlation)
        if publish is not None:
            publish.failed(error)
        elif waiting is not None and not waiting.done():
            waiting.set_exception(error)
        else:
            return False
        return True

    def stream_state(self, correlation: int, body: memoryview) -> None:
        """How far a stream's partition is committed."""
        stream = self.streams.get(correlation)
        if stream is not None and len(body) == frames.STREAM_STATE.size:
            stream.state(*frames.STREAM_STATE.unpack(body))

    def stream_ended(self, correlation: int, body: memoryview) -> None:
        """Nothing more comes of a stream."""
        stream = self.streams.pop(correlation, None)
        if stream is not None:
            stream.ended(messages.decode(body, messages.StreamEnded))

    def lose(self, error: StentorError) -> None:
        """The link is lost. Requests are told at once; publishes and streams are for their owners to move."""
        for waiting in self.requests.values():
            fail(waiting, error)
        self.publishes.clear()
        self.streams.clear()


def fail(waiting: asyncio.Future[Any], error: StentorError) -> None:
    """Tell who waits that nothing will come."""
    if not waiting.done():
        waiting.set_exception(error)
        waiting.exception()  # the waiter may be gone; then nobody needs to hear of it


_TAKERS: Final[dict[int, Callable[[Waiting, int, memoryview], None]]] = {
    Kind.RESPONSE: Waiting.answered,
    Kind.STREAM_STATE: Waiting.stream_state,
    Kind.STREAM_ENDED: Waiting.stream_ended,
}
